"""Infinity: ``raw_scores`` or ``return_documents`` in the request, documents as plain strings."""

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
    Usage,
    WithDocuments,
    ask_of,
)
from pipeline.service.formats.vllm import OpenAIError, openai_error
from pipeline.service.http.errors import Fault


class InfinityRequest(WithDocuments):
    """A request with ``raw_scores`` or ``return_documents``."""

    raw_scores: Flag | None = None
    return_documents: Flag | None = None
    top_n: Positive | None = None


class InfinityResult(BaseModel):
    """A document's place and score, and its text if the request wants it."""

    relevance_score: float
    index: int
    document: str | None


class InfinityAnswer(BaseModel):
    """The documents, best first."""

    object: str
    results: list[InfinityResult]
    model: str
    mix: str
    usage: Usage
    id: str
    created: int


class InfinityProblem(BaseModel):
    """What was wrong in the body, and where."""

    type: str
    loc: list[str | int]
    msg: str


class InfinityError(BaseModel):
    """Why there are no scores: a wrong body, or no key."""

    detail: str | list[InfinityProblem]


class Infinity(Format):
    """``/rerank`` with ``raw_scores`` or ``return_documents``."""

    name = "infinity"
    request = InfinityRequest
    response = InfinityAnswer
    error = OpenAIError | InfinityError
    statuses: ClassVar[Mapping[str, int]] = {"empty": 422, "many": 422, "model": 400}

    def read(self, request: InfinityRequest) -> Ask:
        """What a request wants."""
        wants = (request.top_n, request.raw_scores, request.return_documents)
        return ask_of(request, request.documents, *wants)

    def answer(self, ranking: Ranking) -> Any:
        """Score, index and text or null of each document."""
        texts = ranking.ask.texts if ranking.ask.echo else [None] * len(ranking.ask.texts)
        return {
            "object": "rerank",
            "results": [
                {"relevance_score": score, "index": row, "document": texts[row]}
                for row, score in ranking.best()
            ],
            "model": ranking.model,
            "mix": ranking.mix,
            "usage": ranking.usage,
            "id": f"infinity-{ranking.request_id}",
            "created": ranking.created,
        }

    def explain(self, fault: Fault, request_id: str) -> Any:
        """FastAPI's list of a body's faults, and OpenAI's object for all others."""
        if fault.kind == "key":
            return {"detail": "Unauthorized"}
        if fault.kind in ("value", "empty", "many"):
            place = ["body", *fault.place]
            return {"detail": [{"type": fault.kind, "loc": place, "msg": fault.message}]}
        return openai_error(fault, self.status(fault))
