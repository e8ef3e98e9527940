"""vLLM: ``/rerank`` with the documents echoed, and ``/score`` in the order of the input."""

from __future__ import annotations

import time
from typing import Annotated, Any, ClassVar

from pydantic import AliasChoices, BaseModel, Field

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


class OpenAIProblem(BaseModel):
    """The message, with the path of the field."""

    message: str
    type: str
    param: str | None
    code: int


class OpenAIError(BaseModel):
    """The reason why there are no scores."""

    error: OpenAIProblem


class VllmRequest(base.WithDocuments):
    """A request to ``/rerank`` with nothing that only other formats have."""

    top_n: base.Count | None = Field(None, description="0 is all")
    use_activation: base.Flag | None = Field(None, description="false gives logits")


class VllmDocument(BaseModel):
    """A document's text."""

    text: str
    multi_modal: None


class VllmResult(BaseModel):
    """A document and its score."""

    index: int
    document: VllmDocument
    relevance_score: float


class VllmResponse(BaseModel):
    """The documents, best first."""

    id: str
    model: str
    mix: str
    usage: base.Usage
    results: list[VllmResult]


class Vllm(base.Format):
    """``/rerank``."""

    name = "vllm"
    request: ClassVar[Any] = VllmRequest
    response: ClassVar[Any] = VllmResponse
    error: ClassVar[Any] = OpenAIError
    statuses: ClassVar = {"value": 400}

    def write(self, response: base.ScoreResponse, record: Record) -> Any:
        """Index, text and score of each document."""
        texts = response.request.texts
        return {
            "id": f"score-{record.request_id}",
            "model": response.model,
            "mix": response.mix,
            "usage": base.usage(record),
            "results": [
                {
                    "index": row,
                    "document": {"text": texts[row], "multi_modal": None},
                    "relevance_score": score,
                }
                for row, score in response.best()
            ],
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


class VllmScoreRequest(BaseModel):
    """One query and N documents, or N queries and N documents."""

    queries: Annotated[
        str | Annotated[list[str], Field(json_schema_extra={"minItems": 1})],
        Field(validation_alias=AliasChoices("queries", "text_1", "data_1")),
    ]
    documents: Annotated[
        str | base.Document | base.Documents,
        Field(validation_alias=AliasChoices("documents", "text_2", "data_2", "items")),
    ]
    model: str | None = None
    use_activation: base.Flag | None = Field(None, description="false gives logits")


class VllmScore(BaseModel):
    """A document's score."""

    index: int
    object: str
    score: float


class VllmScoreResponse(BaseModel):
    """Scores in the order of the input."""

    id: str
    object: str
    created: int
    model: str
    mix: str
    data: list[VllmScore]
    usage: base.Usage


class VllmScores(Vllm):
    """``/score``: always the neural score."""

    name = "score"
    request, response = VllmScoreRequest, VllmScoreResponse

    def read(self, request: Any) -> base.ScoreRequest:
        """A request; raises RequestError unless there are as many queries as documents, or one."""
        documents, queries = request.documents, request.queries
        documents = documents if isinstance(documents, list) else [documents]
        queries = [queries] if isinstance(queries, str) else queries
        if documents and len(queries) not in (1, len(documents)):
            problem = f"found {len(queries)}, expected one, or as many as documents"
            raise RequestError("value", f"{problem} ({len(documents)})", ("queries",))
        texts = [post if isinstance(post, str) else post.text for post in documents]
        urls = ["" if isinstance(post, str) else post.url or "" for post in documents]
        raw = request.use_activation is False
        return base.ScoreRequest(queries, texts, urls, model=request.model, raw=raw)

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
