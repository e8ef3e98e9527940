"""What all wire formats share: the request as the service reads it, and its ranking."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from orjson import Fragment
from pydantic import AllowInfNan, BaseModel, BeforeValidator, Field, Strict, StrictBool

from pipeline.service.http.errors import STATUS, Fault

LARGEST_SCORE = 3.4e38
"""Of a first stage: scores are in single precision."""


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
"""What a score is: the model's, or mixed with the first stage's, or with one computed here."""


class Document(BaseModel):
    """A post."""

    text: str
    url: str | None = Field(None, description="that the post links to")
    first_stage_score: Score | None = Field(
        None, description="if every document has one, the tuned mixture of both scores comes back"
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


Documents = Annotated[list[str | Document], Field(json_schema_extra={"minItems": 1})]
"""An empty list is no wrong value: each format has its own answer to it."""


class WithDocuments(Request):
    """Fields of every format that has ``documents``."""

    documents: Documents


class Usage(BaseModel):
    """Words of query and documents."""

    prompt_tokens: int
    total_tokens: int


@dataclass(frozen=True)
class Ask:
    """What a request wants, in any format.

    Attributes:
        queries: one, or one for each document.
        texts: of the D documents.
        urls: of the documents, "" without one.
        first_stage: scores of the documents, None without them.
        model: its name in the request.
        top: number of results; None is all.
        raw: logits, not probabilities.
        echo: give the texts back.
        mix: as in the request.
        shift: logits less the lowest one.
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


def ask_of(
    request: Request,
    documents: Sequence[str | Document],
    top: int | None = None,
    raw: bool | None = None,
    echo: bool | None = None,
    name: str = "documents",
) -> Ask:
    """Read the documents of a request from its field ``name``.

    Raises:
        Fault: some documents have a first-stage score and others have none.
    """
    texts, urls = list[str](), list[str]()
    scores = dict[int, float]()
    for row, document in enumerate(documents):
        if isinstance(document, str):
            text, url = between_links(document) if request.links else (document, "")
            texts.append(text)
            urls.append(url)
        else:
            texts.append(document.text)
            urls.append(document.url or "")
            if document.first_stage_score is not None:
                scores[row] = document.first_stage_score
    if scores and len(scores) < len(texts):
        row = next(row for row in range(len(texts)) if row not in scores)
        found = f"found none, but {len(scores)} of the {len(texts)} documents have one"
        raise Fault("value", f"{found}; expected one for all or for none", _score_at(name, row))
    if request.needs_text and len(texts) > 1 and not any(texts) and not any(urls):
        found = (
            f"found {len(texts)} empty texts, expected some text: leave the fields of the search"
        )
        raise Fault("value", f"{found} pipeline in the search's _source, and the index's", (name,))
    if request.mix == "interpolated" and not scores:
        found = "found none, expected one for each document, as mix is interpolated"
        raise Fault("value", found, _score_at(name, 0))
    return Ask(
        [request.query],
        texts,
        urls,
        list(scores.values()) or None,
        request.model,
        top,
        bool(raw),
        bool(echo),
        request.mix,
        bool(request.shift),
    )


_LINK = re.compile(r"(www\.|(?:[a-zA-Z][-+.a-zA-Z0-9]*:)?//)\S")

_LONGEST = 8192
"""Characters of a link between which a text is looked for."""


def between_links(document: str) -> tuple[str, str]:
    """Text and link of ``link + text + link``; the link is "" where there is none."""
    if (found := _LINK.match(document)) is None:
        return document, ""
    start = max((len(document) + 1) // 2, len(document) - _LONGEST) - 1
    # The longest: a shorter beginning may also be an end.
    while (start := document.find(found[0], start + 1)) >= 0:
        link = document[start:]
        if 2 * len(link) <= len(document) and document.startswith(link):
            return document[len(link) : start], link
    return document, ""


def _score_at(name: str, row: int) -> tuple[str | int, ...]:
    return name, row, "first_stage_score"


@dataclass(frozen=True)
class Ranking:
    """The scores of a request.

    Attributes:
        ask: the request.
        model: name of the model that scored.
        mix: what a score is.
        scores: [D] as JSON, in the order of the documents.
        order: rows of the documents, best first.
        words: of query and documents.
        request_id: of the request.
        created: in seconds since 1970.
    """

    ask: Ask
    model: str
    mix: Mix
    scores: Sequence[Fragment]
    order: Sequence[int]
    words: int
    request_id: str
    created: int

    def best(self) -> Iterator[tuple[int, Fragment]]:
        """(row, score) of the documents that the request wants, best first."""
        return ((row, self.scores[row]) for row in self.order[: self.ask.top])

    @property
    def usage(self) -> dict[str, int]:
        """Number of words, under the names of :class:`Usage`."""
        return {"prompt_tokens": self.words, "total_tokens": self.words}


class Format(ABC):
    """A wire format: how a request is read, and how answers and faults are written."""

    name: ClassVar[str]
    request: ClassVar[type[BaseModel]]
    response: ClassVar[Any]
    """Type of the answer, for the description of the interface."""
    error: ClassVar[Any]
    """Type of a fault's body, for the same."""
    takes_any_model: ClassVar[bool] = False
    """Whether clients of this format send names of their vendor's models."""
    needs_media_type: ClassVar[bool] = False
    """Whether a body that does not call itself JSON is refused."""
    later_first: ClassVar[bool] = False
    """Which of two documents of equal scores comes first."""
    statuses: ClassVar[Mapping[str, int]] = {}
    """Kind of a fault -> HTTP status, where it is not that of :data:`STATUS`."""

    @abstractmethod
    def read(self, request: Any) -> Ask:
        """What a request wants.

        Raises:
            Fault: it contradicts itself.
        """

    @abstractmethod
    def answer(self, ranking: Ranking) -> Any:
        """The answer, as orjson writes it."""

    @abstractmethod
    def explain(self, fault: Fault, request_id: str) -> Any:
        """The body of a fault."""

    def status(self, fault: Fault) -> int:
        """HTTP status of a fault."""
        return self.statuses.get(fault.kind, STATUS[fault.kind])
