"""Infinity: ``raw_scores`` or ``return_documents`` in the request, documents as plain strings."""

from __future__ import annotations

import time
from typing import Any, ClassVar

from pipeline.service.errors import RequestError
from pipeline.service.formats import base
from pipeline.service.formats.vllm import Vllm
from pipeline.service.record import Record


class InfinityRequest(base.WithDocuments):
    """A request with ``raw_scores`` or ``return_documents``."""

    raw_scores: base.Flag | None = None
    return_documents: base.Flag | None = None
    top_n: base.Positive | None = None


class Infinity(Vllm):
    """``/rerank`` with ``raw_scores`` or ``return_documents``."""

    name = "infinity"
    request: ClassVar[Any] = InfinityRequest
    statuses: ClassVar = {"empty": 422, "many": 422, "model": 400}

    def write(self, response: base.ScoreResponse, record: Record) -> Any:
        """Score, index and text or null of each document."""
        has_texts = response.request.echo
        return {
            "object": "rerank",
            "results": response.results(document=lambda text: text if has_texts else None),
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
