"""vLLM: ``/rerank`` with the documents echoed, and ``/score`` in the order of the input."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import AliasChoices, BaseModel, Field

from pipeline.service.formats.base import (
    Ask,
    Count,
    Document,
    Documents,
    Flag,
    Format,
    Ranking,
    Usage,
    WithDocuments,
    ask_of,
)
from pipeline.service.http.errors import Fault

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
    """What was wrong, with the path of the field."""

    message: str
    type: str
    param: str | None
    code: int


class OpenAIError(BaseModel):
    """Why there are no scores."""

    error: OpenAIProblem


def openai_error(fault: Fault, status: int) -> dict[str, Any]:
    """The body of a fault, as in OpenAI's interface."""
    kind = _TYPES.get(fault.kind, "BadRequestError")
    param = str(fault.place[0]) if fault.place else None
    return {"error": {"message": fault.message, "type": kind, "param": param, "code": status}}


class VllmRequest(WithDocuments):
    """A request to ``/rerank`` with nothing that only other formats have."""

    top_n: Count | None = Field(None, description="0 is all")
    use_activation: Flag | None = Field(None, description="false gives logits")


class VllmDocument(BaseModel):
    """A document's text."""

    text: str
    multi_modal: None


class VllmResult(BaseModel):
    """A document and its score."""

    index: int
    document: VllmDocument
    relevance_score: float


class VllmAnswer(BaseModel):
    """The documents, best first."""

    id: str
    model: str
    mix: str
    usage: Usage
    results: list[VllmResult]


class Vllm(Format):
    """``/rerank``."""

    name = "vllm"
    request = VllmRequest
    response = VllmAnswer
    error = OpenAIError
    statuses: ClassVar[Mapping[str, int]] = {"value": 400}

    def read(self, request: VllmRequest) -> Ask:
        """What a request wants."""
        raw = request.use_activation is False
        return ask_of(request, request.documents, request.top_n or None, raw, echo=True)

    def answer(self, ranking: Ranking) -> Any:
        """Index, text and score of each document."""
        texts = ranking.ask.texts
        return {
            "id": f"score-{ranking.request_id}",
            "model": ranking.model,
            "mix": ranking.mix,
            "usage": ranking.usage,
            "results": [
                {
                    "index": row,
                    "document": {"text": texts[row], "multi_modal": None},
                    "relevance_score": score,
                }
                for row, score in ranking.best()
            ],
        }

    def explain(self, fault: Fault, request_id: str) -> Any:
        """OpenAI's object."""
        return openai_error(fault, self.status(fault))


OneOrMore = str | Document | Documents


class ScoreRequest(BaseModel):
    """One query and N documents, or N queries and N documents."""

    queries: Annotated[
        str | Annotated[list[str], Field(json_schema_extra={"minItems": 1})],
        Field(validation_alias=AliasChoices("queries", "text_1", "data_1")),
    ]
    documents: Annotated[
        OneOrMore,
        Field(validation_alias=AliasChoices("documents", "text_2", "data_2", "items")),
    ]
    model: str | None = None
    use_activation: Flag | None = Field(None, description="false gives logits")


class ScoreItem(BaseModel):
    """A document's score."""

    index: int
    object: str
    score: float


class ScoreAnswer(BaseModel):
    """Scores in the order of the input."""

    id: str
    object: str
    created: int
    model: str
    mix: str
    data: list[ScoreItem]
    usage: Usage


class VllmScore(Format):
    """``/score``: always the neural score."""

    name = "score"
    request = ScoreRequest
    response = ScoreAnswer
    error = OpenAIError
    statuses: ClassVar[Mapping[str, int]] = Vllm.statuses

    def read(self, request: ScoreRequest) -> Ask:
        """What a request wants.

        Raises:
            Fault: there are several queries, but as many documents there are not.
        """
        found = request.documents
        documents = found if isinstance(found, list) else [found]
        queries = [request.queries] if isinstance(request.queries, str) else request.queries
        if documents and len(queries) not in (1, len(documents)):
            problem = f"found {len(queries)}, expected one, or as many as documents"
            raise Fault("value", f"{problem} ({len(documents)})", ("queries",))
        texts = [one if isinstance(one, str) else one.text for one in documents]
        urls = ["" if isinstance(one, str) else one.url or "" for one in documents]
        raw = request.use_activation is False
        return Ask(queries, texts, urls, model=request.model, raw=raw)

    def answer(self, ranking: Ranking) -> Any:
        """Scores in the order of the input."""
        return {
            "id": f"score-{ranking.request_id}",
            "object": "list",
            "created": ranking.created,
            "model": ranking.model,
            "mix": ranking.mix,
            "data": [
                {"index": row, "object": "score", "score": score}
                for row, score in enumerate(ranking.scores)
            ],
            "usage": ranking.usage,
        }

    def explain(self, fault: Fault, request_id: str) -> Any:
        """OpenAI's object."""
        return openai_error(fault, self.status(fault))
