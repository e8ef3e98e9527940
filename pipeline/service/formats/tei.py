"""Text Embeddings Inference of Hugging Face: ``texts``, and a bare array as the response."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, Discriminator, Field, Tag

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
        return response.results("score", **({"text": str} if response.request.echo else {}))

    def explain(self, error: RequestError, request_id: str) -> Any:
        """A text, and a word for its kind."""
        return {"error": error.message, "error_type": _TYPES.get(error.kind, "Validation")}


_Pair = tuple[str, str]


def _kind(value: object) -> str | None:
    if not isinstance(value, list | tuple):
        return None
    return "pair" if value and isinstance(value[0], str) else "batch"


class PredictRequest(BaseModel):
    """A request to ``/predict``: pairs of a query and a text, in any order."""

    inputs: Annotated[
        Annotated[_Pair, Tag("pair")]
        | Annotated[list[_Pair], Tag("batch"), Field(json_schema_extra={"minItems": 1})],
        Discriminator(_kind, "inputs", "expected [query, text], or a list of such pairs"),
    ]
    model: str | None = None
    raw_scores: base.Flag | None = None
    truncate: base.Flag | None = Field(None, description="false refuses long texts")


@dataclass(frozen=True)
class _Predictions(base.ScoreRequest):
    """A request for scores; ``is_single`` for a pair outside a list."""

    is_single: bool = False


class TeiPredict(Tei):
    """``/predict``: always the model's own score."""

    name = "predict"
    request: ClassVar[Any] = PredictRequest
    documents = "inputs"

    def read(self, request: Any) -> base.ScoreRequest:
        """A request; raises RequestError for a long text that must not be split."""
        is_single = isinstance(request.inputs, tuple)
        pairs = [request.inputs] if is_single else request.inputs
        queries, texts = [query for query, _ in pairs], [text for _, text in pairs]
        if request.truncate is False:
            self._require_short(texts)
        return _Predictions(
            *(queries, texts, [""] * len(texts)),
            model=request.model,
            raw=request.raw_scores is True,
            in_order=False,
            is_single=is_single,
        )

    def write(self, response: base.ScoreResponse, record: Record) -> Any:
        """A label and its score for each pair."""
        labels = [[{"score": score, "label": "LABEL_0"}] for score in response.scores]
        is_single = isinstance(response.request, _Predictions) and response.request.is_single
        return labels[0] if is_single else labels
