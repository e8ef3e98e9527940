"""Wire formats: the parts that all share, and a request and its scores in no format's words."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
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
Mix = Literal["neural", "interpolated", "lexical"]
"""The model's score, or mixed with the first stage's, or with a score computed by the service."""
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
        description="interpolated with the first stage's scores (default: if there are any), the "
        "neural score alone, or lexical: interpolated with scores that the service computes itself "
        "(serve --statistics)",
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


BRANCHES = ("string", "object", "pair", "batch")
"""Parts of an error's location that name the form of a value."""


def _branch(value: object) -> str | None:
    return "string" if isinstance(value, str) else "object" if isinstance(value, dict) else None


_Document = Annotated[
    Annotated[str, Tag("string")] | Annotated[Document, Tag("object")],
    Discriminator(_branch, "document", "expected a string or an object with text"),
]
Documents = Annotated[list[_Document], Field(json_schema_extra={"minItems": 1})]
"""An empty list is no wrong value: each format has its own response to it."""


class WithDocuments(Request):
    """Fields of every format that has ``documents``."""

    documents: Documents


def texts_of(
    documents: Sequence[str | Document], links: bool = False
) -> tuple[Sequence[str], Sequence[str]]:
    """Texts and URLs of documents, "" without a URL; with ``links`` those around plain texts."""
    texts = [post if isinstance(post, str) else post.text for post in documents]
    urls = ["" if isinstance(post, str) else post.url or "" for post in documents]
    for row, post in enumerate(documents if links else ()):
        if isinstance(post, str):
            texts[row], urls[row] = between_links(post)
    return texts, urls


@dataclass(frozen=True)
class ScoreRequest:
    """A request for scores, in no format's words.

    Attributes:
        queries: one, or one for each document.
        texts, urls, first_stage: of the D documents; no URL is "", no scores are None.
        top: number of results; None is all.
        raw: logits, not probabilities.
        echo: give the texts back.
        shift: logits less the lowest one.
        in_order: whether the documents stand in the order of a first stage, best first.
        truncated: number of documents that were cut as the request says.
    """

    queries: Sequence[str]
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

    def results(
        self, score: str = "relevance_score", **of_text: Callable[[str], Any]
    ) -> list[dict[str, Any]]:
        """Those documents as objects, with further fields made of their texts."""
        return [
            {"index": row, score: value}
            | {name: made_of(self.request.texts[row]) for name, made_of in of_text.items()}
            for row, value in self.best()
        ]


class Format(ErrorFormat):
    """A wire format: how a request is read, and how responses and errors are written."""

    name: ClassVar[str]
    request: ClassVar[Any]
    """Its pydantic model."""
    documents: ClassVar[str] = "documents"  # Field of the documents in a request
    takes_any_model: ClassVar[bool] = False
    """Whether clients of this format send names of their vendor's models."""
    needs_media_type: ClassVar[bool] = False
    """Whether a body that does not call itself JSON is refused."""
    later_first: ClassVar[bool] = False  # Which of two documents of equal scores comes first

    def read(self, request: Any) -> ScoreRequest:
        """A request of this format; raises RequestError if it contradicts itself."""

        def given(*names: str) -> Any:
            """The value of the first of these fields that the format has."""
            return next((getattr(request, name) for name in names if hasattr(request, name)), None)

        documents: list[str | Document] = given(self.documents)
        texts, urls = texts_of(documents, bool(request.links))
        truncated = 0
        if tokens := given("max_tokens_per_doc"):
            whole, texts = texts, [text[: CHARACTERS_OF_TOKEN * tokens] for text in texts]
            truncated = sum(map(ne, whole, texts))
        if given("truncation", "truncate") is False:
            self._require_short(texts)
        if request.needs_text and len(texts) > 1 and not any(texts) and not any(urls):
            problem = (
                f"found {len(texts)} empty texts, expected some text: leave the fields of the "
                "search pipeline in the search's _source, and the index's"
            )
            raise RequestError("value", problem, (self.documents,))
        return ScoreRequest(
            [request.query],
            texts,
            urls,
            self._first_stage(documents, request.mix == "interpolated"),
            request.model,
            given("top_n", "top_k") or None,
            given("raw_scores") is True or given("use_activation") is False,
            given("return_documents", "return_text") is True,
            request.mix,
            request.shift is True,
            request.order != "unknown",
            truncated,
        )

    def _require_short(self, texts: Sequence[str]) -> None:
        """Raise RequestError for a text that is longer than what is read of it."""
        for row, text in enumerate(texts):
            if len(text) > MAX_CHARACTERS:
                problem = f"found {len(text)} characters, expected at most {MAX_CHARACTERS}, as "
                problem += "no part may be left out"
                raise RequestError("value", problem, (self.documents, row))

    def _first_stage(
        self, documents: Sequence[str | Document], needed: bool
    ) -> Sequence[float] | None:
        """Scores of all documents, or None; raises RequestError if only some have one."""
        scores = [None if isinstance(post, str) else post.first_stage_score for post in documents]
        known = [score for score in scores if score is not None]
        if known and len(known) == len(scores):
            return known
        if known:
            problem = f"found none, but {len(known)} of the {len(scores)} documents have one; "
            problem += "expected one for all or for none"
        elif needed:
            problem = "found none, expected one for each document, as mix is interpolated"
        else:
            return None
        row = scores.index(None) if scores else 0
        raise RequestError("value", problem, (self.documents, row, "first_stage_score"))

    @abstractmethod
    def write(self, response: ScoreResponse, record: Record) -> Any:
        """The body of a response, as orjson writes it."""


def usage(record: Record) -> dict[str, int]:
    """Words of query and documents, as OpenAI names them."""
    return {"prompt_tokens": record.words, "total_tokens": record.words}


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
