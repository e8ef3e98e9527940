"""Wire formats: requests, responses and errors of TEI, of Cohere's kin and of Voyage.

A request's path and keys choose its format.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import ne
from typing import Annotated, Any, ClassVar, Literal

from orjson import Fragment
from pydantic import (
    AllowInfNan,
    BaseModel,
    BeforeValidator,
    Discriminator,
    Field,
    Strict,
    StrictBool,
    Tag,
    model_validator,
)

from pipeline.service.errors import ErrorFormat, RequestError
from pipeline.service.record import Record
from rerankers.text.words import MAX_CHARACTERS

CHARACTERS_OF_TOKEN = 4  # Mean length of a token of English text in vendors' limits
LARGEST_SCORE = 3.4e38  # Of a first stage: scores are in single precision


def _whole(value: object) -> object:
    """2.0 is a whole number in JSON; ``true`` and ``"2"`` are none."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError("expected a whole number")
    return value


_AtLeast0 = Annotated[int, Field(ge=0)]
_AtLeast1 = Annotated[int, Field(ge=1)]
Count = Annotated[_AtLeast0, BeforeValidator(_whole, json_schema_input_type=_AtLeast0)]
Positive = Annotated[_AtLeast1, BeforeValidator(_whole, json_schema_input_type=_AtLeast1)]
Score = Annotated[float, Strict(), AllowInfNan(False), Field(ge=-LARGEST_SCORE, le=LARGEST_SCORE)]
Flag = StrictBool
Mix = Literal["neural", "interpolated"]
"""The model's score, or mixed with the first stage's."""
Order = Literal["first_stage", "unknown"]
"""Of the documents of a request: best first by a first stage, as all clients send them, or any."""


class Document(BaseModel):
    """A post."""

    text: str
    url: str | None = Field(None, description="that the post links to")
    first_stage_score: Score | None = Field(
        None,
        description="if every document has one, it is a part of the new score: mixed with the "
        "model's by the tuned weight, or read by the model window",
    )


class Request(BaseModel):
    """Fields of every format; unknown ones are ignored, and null is as good as no value."""

    query: str
    model: str | None = Field(None, description="one of /v1/models; needed if there are several")
    mix: Mix | None = Field(
        None,
        description="interpolated with the first stage's scores (default: if there are any), or "
        "the neural score alone",
    )
    order: Order | None = Field(
        None,
        description="unknown, where the documents do not stand in the order of a first stage "
        "(default: first_stage); the model window reads it",
    )
    truncate: Flag | None = Field(
        None,
        description=f"false refuses documents of more than {MAX_CHARACTERS} characters, of which "
        "the best passage is read (default: the header x-split-documents counts them)",
    )
    links: Literal["around"] | None = Field(
        None,
        description="around: a document's text has its link before and after it, without blanks, "
        "as search engines join the fields link, text, link",
    )
    needs_text: Flag | None = Field(
        None,
        description="refuse two or more documents that are all empty: a search engine sends such "
        "ones where a search leaves their fields out",
    )
    shift: Flag | None = Field(
        None,
        description="logits less the lowest one of the request, so from 0 on: for Elasticsearch, "
        "which bends negative scores",
    )


BRANCHES = ("string", "object")  # Parts of an error's location that name the form of a value


def _branch(value: object) -> str | None:
    return "string" if isinstance(value, str) else "object" if isinstance(value, dict) else None


_Document = Annotated[
    Annotated[str, Tag("string")] | Annotated[Document, Tag("object")],
    Discriminator(_branch, "document", "expected a string or an object with text"),
]
Documents = Annotated[list[_Document], Field(json_schema_extra={"minItems": 1})]
"""An empty list is no wrong value: each format has its own response to it."""


@dataclass(frozen=True)
class ScoreRequest:
    """A request for scores, in no format's words.

    Attributes:
        texts, urls, first_stage: of the D documents; no URL is "", no scores are None.
        top: number of results; None is all.
        raw: logits, not probabilities.
        echo: give the texts back.
        shift: logits less the lowest one.
        in_order: whether the documents stand in the order of a first stage, best first.
        truncated: number of documents that were cut as the request says.
    """

    query: str
    texts: Sequence[str]
    urls: Sequence[str]
    first_stage: Sequence[float] | None = None
    model: str | None = None
    top: int | None = None
    raw: bool = False
    echo: bool = False
    mix: Mix | None = None
    shift: bool = False
    in_order: bool = True
    truncated: int = 0


@dataclass(frozen=True)
class ScoreResponse:
    """The scores of a request: [D] as JSON, and the rows of the documents, best first."""

    request: ScoreRequest
    model: str
    mix: Mix
    scores: Sequence[Fragment]
    order: Sequence[int]

    def best(self) -> Iterator[tuple[int, Fragment]]:
        """(row, score) of the documents that the request wants, best first."""
        return ((row, self.scores[row]) for row in self.order[: self.request.top])

    def results(self, score: str, field: str, shape: Callable[[str], Any] = str) -> list[Any]:
        """Those documents as objects, with a field for the text if the request wants it."""
        found: list[dict[str, Any]] = [{"index": row, score: value} for row, value in self.best()]
        for result in found if self.request.echo else ():
            result[field] = shape(self.request.texts[result["index"]])
        return found


class Format(ErrorFormat):
    """A wire format: how a request is read, and how responses and errors are written."""

    name: ClassVar[str]
    request: ClassVar[Any]  # Its pydantic model
    marks: ClassVar[frozenset[str]] = frozenset()  # Fields that only its requests have
    documents: ClassVar[str] = "documents"  # Field of the documents
    needs_media_type: ClassVar[bool] = False  # Whether a body has to call itself JSON
    later_first: ClassVar[bool] = False  # Which of two documents of equal scores comes first
    echoes: ClassVar[bool] = False  # Whether texts come back to a request that does not say

    def read(self, request: Any) -> ScoreRequest:
        """A request of this format; raises RequestError if it contradicts itself."""

        def given(*names: str) -> Any:
            """The value of the first of these fields that the format has."""
            return next((getattr(request, name) for name in names if hasattr(request, name)), None)

        documents: list[str | Document] = given(self.documents)
        texts = [post if isinstance(post, str) else post.text for post in documents]
        urls = ["" if isinstance(post, str) else post.url or "" for post in documents]
        for row, post in enumerate(documents if request.links else ()):
            if isinstance(post, str):
                texts[row], urls[row] = between_links(post)
        truncated = 0
        if tokens := given("max_tokens_per_doc"):
            whole, texts = texts, [text[: CHARACTERS_OF_TOKEN * tokens] for text in texts]
            truncated = sum(map(ne, whole, texts))
        for row, text in enumerate(texts if given("truncation", "truncate") is False else ()):
            if len(text) > MAX_CHARACTERS:
                problem = f"found {len(text)} characters, expected at most {MAX_CHARACTERS}, as "
                problem += "no part may be left out"
                raise RequestError("value", problem, (self.documents, row))
        if request.needs_text and len(texts) > 1 and not any(texts) and not any(urls):
            problem = (
                f"found {len(texts)} empty texts, expected some text: leave the fields of the "
                "search pipeline in the search's _source, and the index's"
            )
            raise RequestError("value", problem, (self.documents,))
        echo = given("return_documents", "return_text")
        return ScoreRequest(
            request.query,
            texts,
            urls,
            self._first_stage(documents, request.mix == "interpolated"),
            request.model,
            given("top_n", "top_k") or None,
            given("raw_scores") is True or given("use_activation") is False,
            self.echoes if echo is None else echo,
            request.mix,
            request.shift is True,
            request.order != "unknown",
            truncated,
        )

    def _first_stage(
        self, documents: Sequence[str | Document], needed: bool
    ) -> Sequence[float] | None:
        """Scores of all documents, or None; raises RequestError if only some have one."""
        scores = [None if isinstance(post, str) else post.first_stage_score for post in documents]
        known = [score for score in scores if score is not None]
        if len(known) == len(scores) > 0:
            return known
        if not known and not needed:
            return None
        problem = "found none, expected one for each document, as mix is interpolated"
        if known:
            problem = f"found none, but {len(known)} of the {len(scores)} documents have one; "
            problem += "expected one for all or for none"
        row = scores.index(None) if scores else 0
        raise RequestError("value", problem, (self.documents, row, "first_stage_score"))

    @abstractmethod
    def write(self, response: ScoreResponse, record: Record) -> Any:
        """The body of a response, as orjson writes it."""


_LINK = re.compile(r"(www\.|(?:[a-zA-Z][-+.a-zA-Z0-9]*:)?//)\S")
_LONGEST = 8192  # Characters of a link between which a text is looked for


def between_links(document: str) -> tuple[str, str]:
    """Text and link of ``link + text + link``; the link is "" where there is none."""
    if (beginning := _LINK.match(document)) is None:
        return document, ""
    start = max((len(document) + 1) // 2, len(document) - _LONGEST) - 1
    # The longest: a shorter beginning may also be an end.
    while (start := document.find(beginning[0], start + 1)) >= 0:
        link = document[start:]
        if 2 * len(link) <= len(document) and document.startswith(link):
            return document[len(link) : start], link
    return document, ""


class TeiRequest(Request):
    """A request with ``texts``; ``top_n`` is Elasticsearch's."""

    texts: Documents
    raw_scores: Flag | None = None
    return_text: Flag | None = None
    top_n: Count | None = None


_TEI_TYPES = {
    "empty": "Empty",
    "overload": "Overloaded",
    "deadline": "Overloaded",
    "internal": "Backend",
    "unready": "Unhealthy",
    "key": "Unauthorized",
    "path": "NotFound",
}


class Tei(Format):
    """Text Embeddings Inference of Hugging Face: a bare array as the response."""

    name = "tei"
    request = TeiRequest
    marks = frozenset(("texts",))
    documents = "texts"
    needs_media_type = True
    later_first = True
    statuses: ClassVar = {"many": 422, "model": 422, "internal": 424}

    def write(self, response: ScoreResponse, record: Record) -> Any:
        """Index, score and perhaps text of each document."""
        return response.results("score", "text")

    def explain(self, error: RequestError, request_id: str) -> Any:
        """A text, and a word for its kind."""
        return {"error": error.message, "error_type": _TEI_TYPES.get(error.kind, "Validation")}


class CohereRequest(Request):
    """A request to ``/v2/rerank``."""

    documents: Documents
    top_n: Positive | None = None
    max_tokens_per_doc: Positive | None = Field(
        None,
        description=f"cuts documents to as many tokens of {CHARACTERS_OF_TOKEN} characters "
        "(default: they are read whole); the header x-truncated-documents counts them",
    )


class Cohere(Format):
    """Cohere's second version, ``/v2/rerank``."""

    name = "cohere"
    request: ClassVar[Any] = CohereRequest
    version = "2"

    def write(self, response: ScoreResponse, record: Record) -> Any:
        """Index, score and perhaps text of each document."""
        return {
            "id": record.request_id,
            "model": response.model,
            "mix": response.mix,
            "results": response.results("relevance_score", "document", lambda text: {"text": text}),
            "meta": {"api_version": {"version": self.version}, "billed_units": {"search_units": 1}},
        }

    def explain(self, error: RequestError, request_id: str) -> Any:
        """A text, and the request's id."""
        return {"message": error.message, "id": request_id}


class JinaRequest(CohereRequest):
    """A request to ``/v1/rerank``."""

    return_documents: Flag | None = None
    rank_fields: list[str] | None = Field(
        None, description="keys of documents that are objects, whose values are joined as the text"
    )

    @model_validator(mode="before")
    @classmethod
    def _joined(cls, content: dict[str, Any]) -> dict[str, Any]:
        """The documents with the text of ``rank_fields``."""
        names, documents = content.get("rank_fields"), content.get("documents")
        if not (names and isinstance(names, list) and isinstance(documents, list)):
            return content
        if not all(isinstance(name, str) for name in names):
            return content  # To be refused.
        joined = [
            {**post, "text": " ".join(str(post[name]) for name in names if name in post)}
            if isinstance(post, dict)
            else post
            for post in documents
        ]
        return {**content, "documents": joined}


class Jina(Cohere):
    """Jina and Cohere's first version, ``/v1/rerank``: also the number of words."""

    name = "jina"
    request: ClassVar[Any] = JinaRequest
    version = "1"

    def write(self, response: ScoreResponse, record: Record) -> Any:
        """As Cohere's second version; words are those of query and documents."""
        words = {"prompt_tokens": record.words, "total_tokens": record.words}
        return super().write(response, record) | {"usage": words}

    def explain(self, error: RequestError, request_id: str) -> Any:
        """A text under both keys, and the request's id."""
        return super().explain(error, request_id) | {"detail": error.message}


class VllmRequest(JinaRequest):
    """A request to ``/rerank`` with ``documents``."""

    top_n: Count | None = Field(None, description="0 is all")
    raw_scores: Flag | None = Field(None, description="true gives logits")
    use_activation: Flag | None = Field(None, description="false gives logits")


class Vllm(Jina):
    """vLLM and Infinity, ``/rerank``: Jina's response, with the texts unless they are refused."""

    name = "vllm"
    request = VllmRequest
    echoes = True
    statuses: ClassVar = {"value": 400}  # Infinity's client reads a 422 as FastAPI's


class VoyageRequest(Request):
    """A request with ``top_k`` or ``truncation``."""

    documents: Documents
    top_k: Positive | None = None
    return_documents: Flag | None = None
    truncation: Flag | None = None


class Voyage(Format):
    """Voyage: ``data`` in the response."""

    name = "voyage"
    request = VoyageRequest
    marks = frozenset(("top_k", "truncation"))
    statuses: ClassVar = {"model": 400}

    def write(self, response: ScoreResponse, record: Record) -> Any:
        """Index, score and perhaps text of each document."""
        return {
            "object": "list",
            "data": response.results("relevance_score", "document"),
            "model": response.model,
            "mix": response.mix,
            "usage": {"total_tokens": record.words},
        }

    def explain(self, error: RequestError, request_id: str) -> Any:
        """A text."""
        return {"detail": error.message}


TEI, COHERE, JINA, VLLM, VOYAGE = Tei(), Cohere(), Jina(), Vllm(), Voyage()

PATHS: Mapping[str, Sequence[Format]] = {
    "/rerank": (TEI, VOYAGE, VLLM),
    "/v1/rerank": (TEI, VOYAGE, JINA),
    "/v2/rerank": (TEI, COHERE),
    "/": (TEI,),
}
"""Path -> its formats: the first of whose marks a request has one, else the last."""


def format_of(path: str, keys: Iterable[str]) -> Format:
    """The format of a request to one of :data:`PATHS` with these keys."""
    *others, last = PATHS[path]
    return next((wire for wire in others if not wire.marks.isdisjoint(keys)), last)


def assumed(path: str) -> Format:
    """The format for the errors of a request whose keys are not known."""
    return COHERE if path.startswith("/v2/") else JINA if path == "/v1/rerank" else TEI
