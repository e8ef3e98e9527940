"""Wire formats: one request in the words of all vendors, and their responses and errors.

``texts`` make a request one of Text Embeddings Inference. All others get one response that the
clients of Cohere, Jina, vLLM, LiteLLM and Voyage read, but for ``/infinity/rerank``.
"""

import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import ne
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import msgspec
from msgspec import Meta, Raw, Struct
from orjson import Fragment

from tweetrerank.pipeline.service.requests import ErrorFormat, Record, RequestError
from tweetrerank.rerankers.pairs import number_of
from tweetrerank.rerankers.text.words import MAX_CHARACTERS

_SURROGATES = re.compile(
    rb"\\u[dD](?:[89abAB][0-9a-fA-F]{2}(\\u[dD][c-fC-F][0-9a-fA-F]{2})?|[c-fC-F][0-9a-fA-F]{2})"
)
"""An escaped surrogate, where no other backslash precedes; group 1 is the second half of a pair."""
_AT = re.compile(r"(.*?)(?: - at `\$\.?(.*)`)?")
_MISSING = re.compile(r"Object missing required field `(\w+)`")

Value = TypeVar("Value")

CHARACTERS_OF_TOKEN = 4  # Mean length of a token of English text in vendors' limits

Mix = Literal["neural", "interpolated"]
"""The model's score, or mixed with the first stage's."""
Order = Literal["first_stage", "unknown"]
"""Order of a request's documents: best first by a first stage, as all clients send them, or any."""

Score = Annotated[float, Meta(ge=-3.4e38, le=3.4e38)]  # Scores are in single precision
Count = Annotated[int, Meta(ge=0)]
Names = Annotated[
    list[str], Meta(max_length=100)
]  # All are looked for in each document


class Document(Struct):
    """A post."""

    text: str
    url: Annotated[str | None, Meta(description="that the post links to")] = None
    first_stage_score: Score | None = None


class Request(Struct, kw_only=True):
    """A request; unknown fields are ignored, null is no value, and texts may hold numbers."""

    query: str
    documents: list[str | Document] | None = None
    texts: list[str | Document] | None = None
    model: str | None = None
    top_n: Count | None = None
    top_k: Count | None = None
    return_documents: bool | None = None
    return_text: bool | None = None
    raw_scores: bool | None = None
    use_activation: bool | None = None
    max_tokens_per_doc: Count | None = None
    truncate: bool | None = None
    truncation: bool | None = None
    rank_fields: Names | None = None
    mix: Mix | None = None
    order: Order | None = None
    links: Literal["around"] | None = None
    needs_text: bool | None = None
    shift: bool | None = None


class RankFieldsRequest(Request, kw_only=True):
    """A request whose documents are any objects, of which ``rank_fields`` and signals are read."""

    documents: list[str | dict[str, Raw]] | None = None  # type: ignore[assignment]
    texts: list[str | dict[str, Raw]] | None = None  # type: ignore[assignment]


@dataclass(frozen=True)
class ScoreRequest:
    """A request with its D documents as they are to be read."""

    options: Request
    texts: Sequence[str]
    urls: Sequence[str]  # No URL is ""
    first_stage: Sequence[float] | None = None
    signals: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Name -> [D] numbers beside the texts, NaN where there are none."""
    weight: float | None = (
        None  # Share of the model beside the first stage, both by min–max
    )
    truncated: int = 0  # Number of documents that were cut as the request says
    is_tei: bool = False  # Whether the request had ``texts``


@dataclass(frozen=True)
class ScoreResponse:
    """The scores of a request: [D] as JSON, and the rows of the documents, best first."""

    request: ScoreRequest
    model: str
    mix: Mix
    scores: Sequence[str]
    order: Sequence[int]

    def best(self) -> Iterator[tuple[int, str]]:
        """(row, score) of the documents that the request wants, best first."""
        options = self.request.options
        rows = self.order[: options.top_n or options.top_k or None]
        return ((row, self.scores[row]) for row in rows)


def read(body: bytes, most: int, signals: Sequence[str] = ()) -> ScoreRequest:
    """The request of a body, of at most so many documents with these numbers, checked: their number
    first. Raises RequestError."""
    request: Any = None
    objects: Sequence[str | dict[str, Raw]] = ()
    if signals or b'"rank_fields"' in body:
        request = decoded(body, RankFieldsRequest)
        objects = request.texts or request.documents or ()
    if not (request and request.rank_fields):
        request = decoded(body, Request)
    is_tei = request.texts is not None and (
        bool(request.texts) or not request.documents
    )
    name = "texts" if is_tei else "documents"
    posts = _posts(request, name, most)
    texts, urls = [post.text for post in posts], [post.url or "" for post in posts]
    for row, post in enumerate(posts if request.links else ()):
        if not post.url:
            texts[row], urls[row] = between_links(post.text)
    truncated, whole = 0, texts
    if request.max_tokens_per_doc:
        texts = [
            text[: CHARACTERS_OF_TOKEN * request.max_tokens_per_doc] for text in texts
        ]
        truncated = sum(map(ne, whole, texts))
    if request.truncate is False or request.truncation is False:
        for row, text in enumerate([request.query, *texts]):
            if len(text) > MAX_CHARACTERS:
                problem = (
                    f"found {len(text)} characters, expected at most {MAX_CHARACTERS}"
                )
                problem = (
                    f"{name}[{row - 1}]: {problem}" if row else f"query: {problem}"
                )
                raise RequestError("value", f"{problem}, as no part may be left out")
    if request.needs_text and len(texts) > 1 and not any(texts):
        expected = "expected some text: leave the fields of the search pipeline in the search's"
        problem = f"{name}: found {len(texts)} empty texts, {expected} _source, and the index's"
        raise RequestError("value", problem)
    first = _first_stage(posts, name, request.mix == "interpolated")
    numbers = {name: [_number(post, name) for post in objects] for name in signals}
    return ScoreRequest(
        request, texts, urls, first, numbers, truncated=truncated, is_tei=is_tei
    )


def decoded(body: bytes, kind: type[Value]) -> Value:
    """The JSON of a body; raises RequestError at the first value of another type.

    Numbers and flags may be texts. Reading takes a time in proportion to the bytes: what is not in
    ``kind`` is never built. Halves of surrogate pairs, which cut posts have, become U+FFFD.
    """
    for is_last in (b"\\u" not in body, True):
        try:
            return msgspec.json.decode(body, type=kind, strict=False)
        except msgspec.ValidationError as error:
            message, path = _AT.fullmatch(str(error)).groups()  # type: ignore[union-attr]
            if missing := _MISSING.fullmatch(message):
                path = f"{path}.{missing[1]}" if path else missing[1]
                message = "found no value, expected one"
            raise RequestError(
                "value", f"{path}: {message}" if path else message
            ) from None
        except (ValueError, RecursionError) as error:
            if is_last or isinstance(error, RecursionError):
                raise RequestError(
                    "json", f"found no JSON in the body: {error}"
                ) from None
        body = body.replace(rb"\\", rb"\u005c")
        body = _SURROGATES.sub(lambda m: m[0] if m[1] else rb"\ufffd", body)
    raise AssertionError


def _posts(request: Request, name: str, most: int) -> Sequence[Document]:
    """The documents of a request's field ``name``; raises RequestError."""
    documents, fields = getattr(request, name) or (), request.rank_fields or ()
    if not documents:
        raise RequestError(
            "empty", f"{name}: found no documents, expected at least one"
        )
    if len(documents) > most:
        problem = f"{name}: found {len(documents)} documents, expected at most {most}"
        raise RequestError("many", problem)
    try:
        posts = [
            _joined(post, fields) if isinstance(post, dict) else post
            for post in documents
        ]
    except (ValueError, RecursionError) as error:
        problem = f"{name}: found a field that cannot be read: {error}"
        raise RequestError("value", problem) from None
    return [Document(post) if isinstance(post, str) else post for post in posts]


def _joined(post: Mapping[str, Raw], names: Sequence[str]) -> Document:
    """A document of the values of some fields, which are JSON if not texts; raises ValueError."""
    values = [bytes(post[name]) for name in names if name in post]
    texts = [
        str(msgspec.json.decode(v)) if v[:1] == b'"' else v.decode() for v in values
    ]
    own = {*Document.__struct_fields__} & post.keys()
    read = {name: msgspec.json.decode(post[name]) for name in own}
    return msgspec.convert({**read, "text": " ".join(texts)}, Document, strict=False)


def _number(post: str | dict[str, Raw], name: str) -> float:
    """A number beside the text of a document, NaN if it lacks it."""
    if isinstance(post, str) or name not in post:
        return math.nan
    return number_of(decoded(bytes(post[name]), Any))


def _first_stage(
    posts: Sequence[Document], name: str, needed: bool
) -> Sequence[float] | None:
    """Scores of all documents, or None; raises RequestError if only some have one."""
    scores = [post.first_stage_score for post in posts]
    if len(known := [score for score in scores if score is not None]) == len(posts):
        return known
    if known or needed:
        some = (
            f"{len(known)} of the {len(posts)} documents have one"
            if known
            else "mix needs them"
        )
        problem = (
            f"{name}[{scores.index(None)}].first_stage_score: found none, but {some}"
        )
        raise RequestError("value", f"{problem}; expected one for each document")
    return None


_LINK = re.compile(
    r"\[?(?:www\.|(?:[a-zA-Z][-+.a-zA-Z0-9]*:)?//|[-\w]+(?:\.[-\w]+)*\.[a-zA-Z]{2,}/)\S"
)
"""The beginning of a link, with or without its scheme, or of a list of links."""
_NO_LINK = re.compile(r"(null|\[(?:null)?\])(.*)\1", re.DOTALL)
"""A text between links that are null or an empty list, as OpenSearch writes these."""
_LONGEST = 8192  # Characters of a link between which a text is looked for


def between_links(document: str) -> tuple[str, str]:
    """Text and link of ``link + text + link``; the link is "" where there is none. Several links
    are a list in brackets; a text that is ``null`` or an empty list is ""."""
    text, link = document, ""
    if empty := _NO_LINK.fullmatch(document):
        text = empty[2]
    elif beginning := _LINK.match(document):
        start = max((len(document) + 1) // 2, len(document) - _LONGEST) - 1
        # The longest: a shorter beginning may also be an end.
        while (start := document.find(beginning[0], start + 1)) >= 0:
            end = document[start:]
            if 2 * len(end) <= len(document) and document.startswith(end):
                text, link = document[len(end) : start], end
                break
    if link.startswith("[") and link.endswith("]"):
        link = link[1:-1].replace(", ", " ")
    return ("" if text in ("null", "[]") else text), link


class Rerank(ErrorFormat):
    """``results`` as Cohere, Jina and vLLM have them, and Voyage's ``data``; a wire format."""

    name = "rerank"
    echoes: ClassVar[bool] = (
        False  # Whether texts come back to a request that does not say
    )

    def write(self, response: ScoreResponse, record: Record) -> Any:
        """The body of a response, as orjson writes it: a document is an object in ``results``, a
        text in ``data``; usage counts words."""
        data = self.results(response, "relevance_score", "document")
        results = [
            d | {"document": {"text": d["document"]}} if "document" in d else d
            for d in data
        ]
        version = {"version": "2" if record.path.startswith("/v2/") else "1"}
        return {
            "id": record.request_id,
            "object": "list",
            "model": response.model,
            "mix": response.mix,
            "results": results,
            "data": data,
            "meta": {"api_version": version, "billed_units": {"search_units": 1}},
            "usage": {"prompt_tokens": record.words, "total_tokens": record.words},
        }

    def results(
        self, response: ScoreResponse, score: str, field: str
    ) -> list[dict[str, Any]]:
        """The documents as objects, with a field for the text if it comes back."""
        texts, options = response.request.texts, response.request.options
        echo = (
            options.return_documents
            if options.return_text is None
            else options.return_text
        )
        has_text = self.echoes if echo is None else echo
        return [
            {"index": row, score: Fragment(value)}
            | ({field: texts[row]} if has_text else {})
            for row, value in response.best()
        ]

    def explain(self, error: RequestError, request_id: str) -> Any:
        """A text under Cohere's key and Voyage's, and the request's id."""
        return {"message": error.message, "detail": error.message, "id": request_id}


class Tei(Rerank):
    """Text Embeddings Inference of Hugging Face: a bare array as the response."""

    name = "tei"
    statuses: ClassVar = {"many": 422, "model": 422, "internal": 424}
    types: ClassVar = {
        "empty": "Empty",
        "overload": "Overloaded",
        "deadline": "Overloaded",
    }
    types |= {"internal": "Backend", "unready": "Unhealthy", "key": "Unauthorized"}
    types |= {"path": "NotFound"}

    def write(self, response: ScoreResponse, record: Record) -> Any:
        """Index, score and perhaps text of each document."""
        return self.results(response, "score", "text")

    def explain(self, error: RequestError, request_id: str) -> Any:
        """A text, and a word for its kind."""
        return {
            "error": error.message,
            "error_type": self.types.get(error.kind, "Validation"),
        }


class Vllm(Rerank):
    """The same at ``/rerank``, where texts come back unless they are refused, as vLLM has it."""

    name = "vllm"
    echoes = True
    statuses: ClassVar = {"value": 400}


class Infinity(Rerank):
    """Infinity: a document is a text, without ``data``."""

    name = "infinity"
    statuses: ClassVar = {"value": 400}  # Its client reads a 422 as FastAPI's.

    def write(self, response: ScoreResponse, record: Record) -> Any:
        """The body of a response."""
        content = super().write(response, record)
        more = {
            "object": "rerank",
            "results": content.pop("data"),
            "created": int(time.time()),
        }
        return content | more


TEI, RERANK, VLLM = Tei(), Rerank(), Vllm()

PATHS: Mapping[str, Rerank] = {
    "/rerank": VLLM,
    "/infinity/rerank": Infinity(),
    **dict.fromkeys(("/v1/rerank", "/v2/rerank", "/invocations"), RERANK),
    "/": TEI,
}
"""Path -> its format for requests with ``documents``; those with ``texts`` are :data:`TEI`."""


def assumed(path: str) -> Rerank:
    """The format for the errors of a request that cannot be read."""
    return TEI if path == "/rerank" else PATHS.get(path, TEI)
