"""Text Embeddings Inference of Hugging Face: ``texts``, and a bare array as the response."""

from __future__ import annotations

from typing import Any, ClassVar

from pipeline.service.errors import RequestError
from pipeline.service.formats import base
from pipeline.service.record import Record

_TYPES = {
    "empty": "Empty",
    "overload": "Overloaded",
    "deadline": "Overloaded",
    "internal": "Backend",
    "unready": "Unhealthy",
    "key": "Unauthorized",
    "path": "NotFound",
}


class TeiRequest(base.Request):
    """A request with ``texts``; ``top_n`` is Elasticsearch's."""

    texts: base.Documents
    raw_scores: base.Flag | None = None
    return_text: base.Flag | None = None
    top_n: base.Count | None = None


class Tei(base.Format):
    """``/rerank`` with ``texts``."""

    name = "tei"
    request = TeiRequest
    documents = "texts"
    takes_any_model = True
    needs_media_type = True
    later_first = True
    statuses: ClassVar = {"many": 422, "model": 422, "internal": 424}

    def write(self, response: base.ScoreResponse, record: Record) -> Any:
        """A bare array."""
        ranks: list[dict[str, Any]] = [{"index": r, "score": s} for r, s in response.best()]
        if response.request.echo:
            for rank in ranks:
                rank["text"] = response.request.texts[rank["index"]]
        return ranks

    def explain(self, error: RequestError, request_id: str) -> Any:
        """A text, and a word for its kind."""
        return {"error": error.message, "error_type": _TYPES.get(error.kind, "Validation")}
