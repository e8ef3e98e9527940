"""Infinity: ``raw_scores`` or ``return_documents`` in the request, documents as plain strings."""

from __future__ import annotations

import time
from typing import Any, ClassVar

from pydantic import BaseModel

from pipeline.service.errors import RequestError
from pipeline.service.formats import base
from pipeline.service.formats.vllm import OpenAIError, Vllm
from pipeline.service.record import Record


class InfinityRequest(base.WithDocuments):
    """A request with ``raw_scores`` or ``return_documents``."""

    raw_scores: base.Flag | None = None
    return_documents: base.Flag | None = None
    top_n: base.Positive | None = None


class InfinityResult(BaseModel):
    """A document's row and score, and its text if the request wants it."""

    relevance_score: float
    index: int
    document: str | None


class InfinityResponse(BaseModel):
    """The documents, best first."""

    object: str
    results: list[InfinityResult]
    model: str
    mix: str
    usage: base.Usage
    id: str
    created: int


class InfinityDetail(BaseModel):
    """A wrong value in the body, and its location."""

    type: str
    loc: list[str | int]
    msg: str


class InfinityError(BaseModel):
    """The reason why there are no scores: a wrong body, or no key."""

    detail: str | list[InfinityDetail]


class Infinity(Vllm):
    """``/rerank`` with ``raw_scores`` or ``return_documents``."""

    name = "infinity"
    request, response, error = InfinityRequest, InfinityResponse, OpenAIError | InfinityError
    statuses: ClassVar = {"empty": 422, "many": 422, "model": 400}

    def write(self, response: base.ScoreResponse, record: Record) -> Any:
        """Score, index and text or null of each document."""
        request = response.request
        return {
            "object": "rerank",
            "results": [
                {
                    "relevance_score": score,
                    "index": row,
                    "document": request.texts[row] if request.echo else None,
                }
                for row, score in response.best()
            ],
            "model": response.model,
            "mix": response.mix,
            "usage": base.usage(record),
            "id": f"infinity-{record.request_id}",
            "created": int(time.time()),
        }

    def explain(self, error: RequestError, request_id: str) -> Any:
        """FastAPI's list of a body's errors, and OpenAI's object for all others."""
        if error.kind == "key":
            return {"detail": "Unauthorized"}
        if error.kind in ("value", "empty", "many"):
            location = ["body", *error.location]
            return {"detail": [{"type": error.kind, "loc": location, "msg": error.message}]}
        return super().explain(error, request_id)
