"""Cohere's second version, and the envelope in which its first agrees with Jina's."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from pipeline.service.formats.base import (
    Ask,
    Flag,
    Format,
    Positive,
    Ranking,
    Usage,
    WithDocuments,
    ask_of,
)
from pipeline.service.http.errors import Fault


class CohereRequest(WithDocuments):
    """A request to ``/v2/rerank``."""

    top_n: Positive | None = None


class CohereResult(BaseModel):
    """A document's place and score."""

    index: int
    relevance_score: float


class CohereAnswer(BaseModel):
    """The documents, best first."""

    id: str
    model: str
    mix: str
    results: list[CohereResult]
    meta: dict[str, Any]


class CohereError(BaseModel):
    """Why there are no scores."""

    message: str
    id: str


class Cohere(Format):
    """``/v2/rerank``."""

    name = "cohere"
    request = CohereRequest
    response = CohereAnswer
    error = CohereError
    takes_any_model = True

    def read(self, request: CohereRequest) -> Ask:
        """What a request wants."""
        return ask_of(request, request.documents, request.top_n)

    def answer(self, ranking: Ranking) -> Any:
        """Index and score of each document."""
        return {
            "id": ranking.request_id,
            "model": ranking.model,
            "mix": ranking.mix,
            "results": [{"index": row, "relevance_score": s} for row, s in ranking.best()],
            "meta": _meta("2"),
        }

    def explain(self, fault: Fault, request_id: str) -> Any:
        """A text, and the request's id."""
        return {"message": fault.message, "id": request_id}


def _meta(version: str) -> dict[str, Any]:
    return {"api_version": {"version": version}, "billed_units": {"search_units": 1}}


class JinaRequest(CohereRequest):
    """A request to ``/v1/rerank``."""

    return_documents: Flag | None = None


class TextOnly(BaseModel):
    """A document's text."""

    text: str


class JinaResult(CohereResult):
    """A document's place and score, and its text if the request wants it."""

    document: TextOnly | None = None


class JinaAnswer(BaseModel):
    """The documents, best first."""

    id: str
    model: str
    mix: str
    results: list[JinaResult]
    meta: dict[str, Any]
    usage: Usage


class JinaError(CohereError):
    """Why there are no scores, under Cohere's key and under that of Jina and Voyage."""

    detail: str


class Jina(Format):
    """``/v1/rerank``: the keys of Jina, of Cohere's first version and of vLLM together."""

    name = "jina"
    request = JinaRequest
    response = JinaAnswer
    error = JinaError
    takes_any_model = True

    def read(self, request: JinaRequest) -> Ask:
        """What a request wants."""
        return ask_of(request, request.documents, request.top_n, echo=request.return_documents)

    def answer(self, ranking: Ranking) -> Any:
        """Index, score and perhaps text of each document."""
        results: list[dict[str, Any]] = [
            {"index": row, "relevance_score": score} for row, score in ranking.best()
        ]
        if ranking.ask.echo:
            for result in results:
                result["document"] = {"text": ranking.ask.texts[result["index"]]}
        return {
            "id": ranking.request_id,
            "model": ranking.model,
            "mix": ranking.mix,
            "results": results,
            "meta": _meta("1"),
            "usage": ranking.usage,
        }

    def explain(self, fault: Fault, request_id: str) -> Any:
        """A text under both keys, and the request's id."""
        return {"message": fault.message, "detail": fault.message, "id": request_id}
