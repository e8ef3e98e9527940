"""vLLM: ``/rerank`` with the documents echoed, and ``/score`` in the order of the input."""

from __future__ import annotations

import time
from typing import Annotated, Any, ClassVar

from pydantic import AliasChoices, BaseModel, BeforeValidator, Field

from pipeline.service.errors import RequestError
from pipeline.service.formats import base
from pipeline.service.record import Record

_TYPES = {
    "key": "AuthenticationError",
    "model": "NotFoundError",
    "path": "NotFoundError",
    "overload": "RateLimitError",
    "internal": "InternalServerError",
    "unready": "ServiceUnavailableError",
    "deadline": "TimeoutError",
}


class VllmRequest(base.WithDocuments):
    """A request to ``/rerank`` with nothing that only other formats have."""

    top_n: base.Count | None = Field(None, description="0 is all")
    use_activation: base.Flag | None = Field(None, description="false gives logits")


class Vllm(base.Format):
    """``/rerank``."""

    name = "vllm"
    request: ClassVar[Any] = VllmRequest
    takes_any_model = True
    statuses: ClassVar = {"value": 400}

    def write(self, response: base.ScoreResponse, record: Record) -> Any:
        """Index, text and score of each document."""
        return {
            "id": f"score-{record.request_id}",
            "model": response.model,
            "mix": response.mix,
            "usage": base.usage(record),
            "results": response.results(document=lambda text: {"text": text, "multi_modal": None}),
        }

    def explain(self, error: RequestError, request_id: str) -> Any:
        """OpenAI's object."""
        problem = {
            "message": error.message,
            "type": _TYPES.get(error.kind, "BadRequestError"),
            "param": str(error.location[0]) if error.location else None,
            "code": self.status(error),
        }
        return {"error": problem}


def _listed(value: object) -> object:
    return [value] if isinstance(value, str | dict) else value


class VllmScoreRequest(BaseModel):
    """One query and N documents, or N queries and N documents."""

    queries: Annotated[
        Annotated[list[str], Field(json_schema_extra={"minItems": 1})],
        BeforeValidator(_listed, json_schema_input_type=str | list[str]),
        Field(validation_alias=AliasChoices("queries", "text_1", "data_1")),
    ]
    documents: Annotated[
        base.Documents,
        BeforeValidator(_listed, json_schema_input_type=str | base.Document | base.Documents),
        Field(validation_alias=AliasChoices("documents", "text_2", "data_2", "items")),
    ]
    model: str | None = None
    use_activation: base.Flag | None = Field(None, description="false gives logits")


class VllmScores(Vllm):
    """``/score``: always the model's own score, of documents in any order."""

    name = "score"
    request: ClassVar[Any] = VllmScoreRequest

    def read(self, request: Any) -> base.ScoreRequest:
        """A request; raises RequestError unless there are as many queries as documents, or one."""
        documents, queries = request.documents, request.queries
        if documents and len(queries) not in (1, len(documents)):
            problem = f"found {len(queries)}, expected one, or as many as documents"
            raise RequestError("value", f"{problem} ({len(documents)})", ("queries",))
        raw = request.use_activation is False
        texts, urls = base.texts_of(documents)
        return base.ScoreRequest(queries, texts, urls, model=request.model, raw=raw, in_order=False)

    def write(self, response: base.ScoreResponse, record: Record) -> Any:
        """Scores in the order of the input."""
        return {
            "id": f"score-{record.request_id}",
            "object": "list",
            "created": int(time.time()),
            "model": response.model,
            "mix": response.mix,
            "data": [
                {"index": row, "object": "score", "score": score}
                for row, score in enumerate(response.scores)
            ],
            "usage": base.usage(record),
        }
