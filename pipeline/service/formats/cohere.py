"""Cohere's second version, and the format in which its first agrees with Jina's."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import BaseModel

from pipeline.service.errors import RequestError
from pipeline.service.formats import base
from pipeline.service.record import Record


class CohereRequest(base.WithDocuments):
    """A request to ``/v2/rerank``."""

    top_n: base.Positive | None = None


class CohereResult(BaseModel):
    """A document's row and score."""

    index: int
    relevance_score: float


class CohereResponse(BaseModel):
    """The documents, best first."""

    id: str
    model: str
    mix: str
    results: list[CohereResult]
    meta: dict[str, Any]


class CohereError(BaseModel):
    """The reason why there are no scores."""

    message: str
    id: str


class Cohere(base.Format):
    """``/v2/rerank``."""

    name = "cohere"
    request: ClassVar[Any] = CohereRequest
    response: ClassVar[Any] = CohereResponse
    error: ClassVar[Any] = CohereError
    takes_any_model = True
    version = "2"

    def write(self, response: base.ScoreResponse, record: Record) -> Any:
        """Index and score of each document."""
        version = {"version": self.version}
        return {
            "id": record.request_id,
            "model": response.model,
            "mix": response.mix,
            "results": [{"index": row, "relevance_score": s} for row, s in response.best()],
            "meta": {"api_version": version, "billed_units": {"search_units": 1}},
        }

    def explain(self, error: RequestError, request_id: str) -> Any:
        """A text, and the request's id."""
        return {"message": error.message, "id": request_id}


class JinaRequest(CohereRequest):
    """A request to ``/v1/rerank``."""

    return_documents: base.Flag | None = None


class TextOnly(BaseModel):
    """A document's text."""

    text: str


class JinaResult(CohereResult):
    """A document's row and score, and its text if the request wants it."""

    document: TextOnly | None = None


class JinaResponse(CohereResponse):
    """The documents, best first."""

    results: list[JinaResult]  # type: ignore[assignment]
    usage: base.Usage


class JinaError(CohereError):
    """The reason why there are no scores, under Cohere's key and under that of Jina and Voyage."""

    detail: str


class Jina(Cohere):
    """``/v1/rerank``: the keys of Jina, of Cohere's first version and of vLLM together."""

    name = "jina"
    request, response, error = JinaRequest, JinaResponse, JinaError
    version = "1"

    def write(self, response: base.ScoreResponse, record: Record) -> Any:
        """Index, score and perhaps text of each document."""
        content = super().write(response, record)
        if response.request.echo:
            for result in content["results"]:
                result["document"] = {"text": response.request.texts[result["index"]]}
        return content | {"usage": base.usage(record)}

    def explain(self, error: RequestError, request_id: str) -> Any:
        """A text under both keys, and the request's id."""
        return super().explain(error, request_id) | {"detail": error.message}
