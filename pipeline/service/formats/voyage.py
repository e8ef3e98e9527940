"""Voyage: ``top_k`` or ``truncation`` in the request, ``data`` in the response."""

from __future__ import annotations

from typing import Any, ClassVar

from pipeline.service.errors import RequestError
from pipeline.service.formats import base
from pipeline.service.record import Record


class VoyageRequest(base.WithDocuments):
    """A request with ``top_k`` or ``truncation``."""

    top_k: base.Positive | None = None
    return_documents: base.Flag | None = None
    truncation: base.Flag | None = None


class Voyage(base.Format):
    """``/v1/rerank`` with ``top_k`` or ``truncation``."""

    name = "voyage"
    request = VoyageRequest
    takes_any_model = True
    statuses: ClassVar = {"model": 400}

    def write(self, response: base.ScoreResponse, record: Record) -> Any:
        """Index, score and perhaps text of each document."""
        of_text = {"document": str} if response.request.echo else {}
        return {
            "object": "list",
            "data": response.results("relevance_score", **of_text),
            "model": response.model,
            "mix": response.mix,
            "usage": {"total_tokens": record.words},
        }

    def explain(self, error: RequestError, request_id: str) -> Any:
        """A text."""
        return {"detail": error.message}
