"""Voyage: ``top_k`` or ``truncation`` in the request, ``data`` in the answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import BaseModel

from pipeline.service.formats.base import (
    Ask,
    Flag,
    Format,
    Positive,
    Ranking,
    WithDocuments,
    ask_of,
)
from pipeline.service.http.errors import Fault


class VoyageRequest(WithDocuments):
    """A request with ``top_k`` or ``truncation``."""

    top_k: Positive | None = None
    return_documents: Flag | None = None
    truncation: Flag | None = None


class VoyageResult(BaseModel):
    """A document's place and score, and its text if the request wants it."""

    index: int
    relevance_score: float
    document: str | None = None


class VoyageUsage(BaseModel):
    """Words of query and documents."""

    total_tokens: int


class VoyageAnswer(BaseModel):
    """The documents, best first."""

    object: str
    data: list[VoyageResult]
    model: str
    mix: str
    usage: VoyageUsage


class VoyageError(BaseModel):
    """Why there are no scores."""

    detail: str


class Voyage(Format):
    """``/v1/rerank`` with ``top_k`` or ``truncation``."""

    name = "voyage"
    request = VoyageRequest
    response = VoyageAnswer
    error = VoyageError
    takes_any_model = True
    statuses: ClassVar[Mapping[str, int]] = {"model": 400}

    def read(self, request: VoyageRequest) -> Ask:
        """What a request wants."""
        return ask_of(request, request.documents, request.top_k, echo=request.return_documents)

    def answer(self, ranking: Ranking) -> Any:
        """Index, score and perhaps text of each document."""
        data: list[dict[str, Any]] = [
            {"index": row, "relevance_score": score} for row, score in ranking.best()
        ]
        if ranking.ask.echo:
            for result in data:
                result["document"] = ranking.ask.texts[result["index"]]
        return {
            "object": "list",
            "data": data,
            "model": ranking.model,
            "mix": ranking.mix,
            "usage": {"total_tokens": ranking.words},
        }

    def explain(self, fault: Fault, request_id: str) -> Any:
        """A text."""
        return {"detail": fault.message}
