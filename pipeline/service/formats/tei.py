"""Text Embeddings Inference of Hugging Face: ``texts``, and a bare array as the answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import BaseModel

from pipeline.service.formats.base import (
    Ask,
    Count,
    Documents,
    Flag,
    Format,
    Ranking,
    Request,
    ask_of,
)
from pipeline.service.http.errors import Fault

_KINDS = {
    "empty": "Empty",
    "overload": "Overloaded",
    "deadline": "Overloaded",
    "internal": "Backend",
    "unready": "Unhealthy",
    "key": "Unauthorized",
    "path": "NotFound",
}


class TeiRequest(Request):
    """A request with ``texts``; ``top_n`` is Elasticsearch's."""

    texts: Documents
    raw_scores: Flag | None = None
    return_text: Flag | None = None
    top_n: Count | None = None


class TeiRank(BaseModel):
    """A text and its score."""

    index: int
    score: float
    text: str | None = None


class TeiError(BaseModel):
    """Why there are no scores."""

    error: str
    error_type: str


class Tei(Format):
    """``/rerank`` with ``texts``."""

    name = "tei"
    request = TeiRequest
    response = list[TeiRank]
    error = TeiError
    takes_any_model = True
    needs_media_type = True
    later_first = True
    statuses: ClassVar[Mapping[str, int]] = {"many": 422, "model": 422, "internal": 424}

    def read(self, request: TeiRequest) -> Ask:
        """What a request wants."""
        wants = (request.top_n or None, request.raw_scores, request.return_text)
        return ask_of(request, request.texts, *wants, name="texts")

    def answer(self, ranking: Ranking) -> Any:
        """A bare array."""
        ask = ranking.ask
        if ask.echo:
            return [
                {"index": row, "score": score, "text": ask.texts[row]}
                for row, score in ranking.best()
            ]
        return [{"index": row, "score": score} for row, score in ranking.best()]

    def explain(self, fault: Fault, request_id: str) -> Any:
        """A text, and a word for its kind."""
        return {"error": fault.message, "error_type": _KINDS.get(fault.kind, "Validation")}
