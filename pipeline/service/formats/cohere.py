"""Cohere's second version, and the format in which its first agrees with Jina's."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field, model_validator

from pipeline.service.errors import RequestError
from pipeline.service.formats import base
from pipeline.service.record import Record


class CohereRequest(base.WithDocuments):
    """A request to ``/v2/rerank``."""

    top_n: base.Positive | None = None
    max_tokens_per_doc: base.Positive | None = Field(
        None,
        description=f"cuts documents to as many tokens of {base.CHARACTERS_OF_TOKEN} characters "
        "(default: they are read whole); the header x-truncated-documents counts them",
    )


class Cohere(base.Format):
    """``/v2/rerank``."""

    name = "cohere"
    request: ClassVar[Any] = CohereRequest
    takes_any_model = True
    version = "2"

    def write(self, response: base.ScoreResponse, record: Record) -> Any:
        """Index and score of each document."""
        return {
            "id": record.request_id,
            "model": response.model,
            "mix": response.mix,
            "results": response.results(),
            "meta": {"api_version": {"version": self.version}, "billed_units": {"search_units": 1}},
        }

    def explain(self, error: RequestError, request_id: str) -> Any:
        """A text, and the request's id."""
        return {"message": error.message, "id": request_id}


class JinaRequest(CohereRequest):
    """A request to ``/v1/rerank``."""

    return_documents: base.Flag | None = None
    rank_fields: list[str] | None = Field(
        None, description="keys of documents that are objects, whose values are joined as the text"
    )

    @model_validator(mode="before")
    @classmethod
    def _joined(cls, content: Any) -> Any:
        """The documents with the text of ``rank_fields``."""
        names = content.get("rank_fields") if isinstance(content, dict) else None
        documents = content.get("documents") if names else None
        if not isinstance(names, list) or not isinstance(documents, list):
            return content
        if not all(isinstance(name, str) for name in names):
            return content  # To be refused.
        joined = [
            {**post, "text": " ".join(str(post[name]) for name in names if name in post)}
            if isinstance(post, dict)
            else post
            for post in documents
        ]
        return {**content, "documents": joined}


class Jina(Cohere):
    """``/v1/rerank``: the keys of Jina, of Cohere's first version and of vLLM together."""

    name = "jina"
    request = JinaRequest
    version = "1"

    def write(self, response: base.ScoreResponse, record: Record) -> Any:
        """Index, score and perhaps text of each document."""
        content = super().write(response, record)
        if response.request.echo:
            content["results"] = response.results(document=lambda text: {"text": text})
        return content | {"usage": base.usage(record)}

    def explain(self, error: RequestError, request_id: str) -> Any:
        """A text under both keys, and the request's id."""
        return super().explain(error, request_id) | {"detail": error.message}
