"""A request for scores: its fields, as all vendors name them, and its documents."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import ne
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Raw, Struct

from tweetrerank.pipeline.service.service_errors import RequestError
from tweetrerank.rerankers.pairs import number_of
from tweetrerank.rerankers.text.words import MAX_CHARACTERS

Value = TypeVar("Value")

CHARACTERS_OF_TOKEN = 4
"""Mean length of an English token, by which limits in tokens are converted."""

Mix = Literal["neural", "interpolated"]
"""Whether scores are the model's alone, or mixed with those of the first stage."""
Order = Literal["first_stage", "unknown"]
"""The order of a request's documents.

It is that of a first stage, best first, as clients usually send them, or unknown.
"""

Score = Annotated[float, Meta(ge=-3.4e38, le=3.4e38)]  # Limits of single precision
Count = Annotated[int, Meta(ge=0)]
# The number is limited because each name is looked up in each document.
Names = Annotated[list[str], Meta(max_length=100)]


class Document(Struct):
    """A document to score: a post."""

    text: str
    url: Annotated[str | None, Meta(description="that the post links to")] = None
    first_stage_score: Score | None = None


class Request(Struct, kw_only=True):
    """The fields of a request in all wire formats together.

    Unknown fields are ignored, null counts as a missing value, and numbers may be
    written as strings.
    """

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

    @property
    def is_tei(self) -> bool:
        """Whether the documents are in ``texts``, as in Text Embeddings Inference."""
        if self.texts is None:
            return False
        return bool(self.texts) or not self.documents

    @property
    def returns_texts(self) -> bool | None:
        """Whether the response must contain the texts; None leaves it to the format."""
        if self.return_text is None:
            return self.return_documents
        return self.return_text


class RankFieldsRequest(Request, kw_only=True):
    """A request with documents that are arbitrary objects.

    Only the fields named by ``rank_fields``, and the signals, are read from them.
    """

    documents: list[str | dict[str, Raw]] | None = None  # type: ignore[assignment]
    texts: list[str | dict[str, Raw]] | None = None  # type: ignore[assignment]


@dataclass(frozen=True)
class ScoreRequest:
    """A checked request, with its D documents as a model reads them."""

    options: Request
    texts: Sequence[str]
    urls: Sequence[str]  # "" for a document without a URL
    first_stage: Sequence[float] | None = None
    signals: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """The numbers [D] of each signal by its name; NaN where a document has none."""
    weight: float | None = None
    """Share of the model in a mixture with the first stage, or None for no mixture.

    The scores of both are normalised by min–max before.
    """
    truncated: int = 0  # Documents cut to the limit that the request sets


def read_request(body: bytes, most: int, signals: Sequence[str] = ()) -> ScoreRequest:
    """Read a request from its body, and check it.

    Args:
        body: the JSON of the request.
        most: the largest number of documents, which is checked before their content.
        signals: names of the numbers to read from the documents.

    Raises:
        RequestError: the body is not a valid request.
    """
    request, objects = _decoded_request(body, signals)
    name = "texts" if request.is_tei else "documents"
    posts = _posts(request, name, most)
    texts = [post.text for post in posts]
    urls = [post.url or "" for post in posts]
    if request.links:
        _split_links(posts, texts, urls)
    truncated = 0
    if request.max_tokens_per_doc:
        full_texts = texts
        most_characters = CHARACTERS_OF_TOKEN * request.max_tokens_per_doc
        texts = [text[:most_characters] for text in full_texts]
        truncated = sum(map(ne, full_texts, texts))
    _check_texts(request, name, texts)
    first_stage = _first_stage(posts, name, request.mix == "interpolated")
    numbers = {
        signal: [_number(post, signal) for post in objects] for signal in signals
    }
    return ScoreRequest(
        request,
        texts,
        urls,
        first_stage,
        numbers,
        truncated=truncated,
    )


def _decoded_request(
    body: bytes, signals: Sequence[str]
) -> tuple[Request, Sequence[str | dict[str, Raw]]]:
    """Return a request, and its documents with all of their fields.

    The documents are () if neither signals nor ``rank_fields`` have to be read.
    """
    if not signals and b'"rank_fields"' not in body:
        return decoded(body, Request), ()
    request = decoded(body, RankFieldsRequest)
    objects: Any = request.texts or request.documents or ()
    if request.rank_fields:
        return request, objects
    return decoded(body, Request), objects


# --- JSON -----------------------------------------------------------------------------

_HIGH_HALF = rb"\\u[dD][89abAB][0-9a-fA-F]{2}"
_LOW_HALF = rb"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_SURROGATES = re.compile(rb"%b(%b)?|%b" % (_HIGH_HALF, _LOW_HALF, _LOW_HALF))
"""An escaped surrogate that no other backslash precedes.

Group 1 is the second half of a pair. Without it, the match is only half of a pair.
"""
_MESSAGE = re.compile(r"(.*?)(?: - at `\$\.?(.*)`)?")
"""An error message of msgspec, split into the problem and the path of the value."""
_MISSING = re.compile(r"Object missing required field `(\w+)`")


def decoded(body: bytes, kind: type[Value]) -> Value:
    """Decode the JSON of a body into a value of ``kind``.

    Numbers and flags may be written as strings. Values that ``kind`` does not have are
    skipped and never built, so that the time is proportional to the bytes. Half of a
    surrogate pair, as found in posts that were cut, becomes U+FFFD. Raises
    RequestError for a body that is no JSON, or for its first wrong value.
    """
    try:
        return _decoded(body, kind)
    except RequestError as error:
        if error.kind != "json" or b"\\u" not in body:
            raise
    return _decoded(_without_half_surrogates(body), kind)


def _decoded(body: bytes, kind: type[Value]) -> Value:
    try:
        return msgspec.json.decode(body, type=kind, strict=False)
    except msgspec.ValidationError as error:
        raise _wrong_value(error) from None
    except (ValueError, RecursionError) as error:
        problem = f"found no JSON in the body: {error}"
        raise RequestError("json", problem) from None


def _without_half_surrogates(body: bytes) -> bytes:
    def replacement(match: re.Match[bytes]) -> bytes:
        is_pair = match[1] is not None
        return match[0] if is_pair else rb"\ufffd"

    return _SURROGATES.sub(replacement, body.replace(rb"\\", rb"\u005c"))


def _wrong_value(error: msgspec.ValidationError) -> RequestError:
    message, path = _MESSAGE.fullmatch(str(error)).groups()  # type: ignore[union-attr]
    missing = _MISSING.fullmatch(message)
    if missing:
        message = "found no value, expected one"
        path = f"{path}.{missing[1]}" if path else missing[1]
    return RequestError("value", f"{path}: {message}" if path else message)


# --- Documents ------------------------------------------------------------------------


def _posts(request: Request, name: str, most: int) -> Sequence[Document]:
    """Return the documents of the field ``name``.

    Raises RequestError if there are none, more than ``most``, or unreadable ones.
    """
    documents = getattr(request, name) or ()
    if not documents:
        problem = f"{name}: found no documents, expected at least one"
        raise RequestError("empty", problem)
    if len(documents) > most:
        problem = f"{name}: found {len(documents)} documents, expected at most {most}"
        raise RequestError("many", problem)
    fields = request.rank_fields or ()
    try:
        return [_post(document, fields) for document in documents]
    except (ValueError, RecursionError) as error:
        problem = f"{name}: found a field that cannot be read: {error}"
        raise RequestError("value", problem) from None


def _post(document: Any, fields: Sequence[str]) -> Document:
    if isinstance(document, str):
        return Document(document)
    if isinstance(document, dict):
        return _joined(document, fields)
    return document


def _joined(post: Mapping[str, Raw], names: Sequence[str]) -> Document:
    """Return a document with a text that joins the values of the named fields.

    A value that is not a string is written as JSON. Raises ValueError if a value
    cannot be read.
    """
    texts = [_text_of(bytes(post[name])) for name in names if name in post]
    own_names = post.keys() & Document.__struct_fields__
    values = {name: msgspec.json.decode(post[name]) for name in own_names}
    values["text"] = " ".join(texts)
    return msgspec.convert(values, Document, strict=False)


def _text_of(value: bytes) -> str:
    if value.startswith(b'"'):
        return str(msgspec.json.decode(value))
    return value.decode()


def _check_texts(request: Request, name: str, texts: Sequence[str]) -> None:
    """Raise RequestError if a text is too long or missing by the request's own rules.

    With ``truncate`` false no text may be longer than a model reads, and with
    ``needs_text`` not all texts may be empty.
    """
    if request.truncate is False or request.truncation is False:
        _check_length("query", request.query)
        for row, text in enumerate(texts):
            _check_length(f"{name}[{row}]", text)
    if request.needs_text and len(texts) > 1 and not any(texts):
        remedy = (
            "expected some text: leave the fields of the search pipeline in the "
            "search's _source, and the index's"
        )
        problem = f"{name}: found {len(texts)} empty texts, {remedy}"
        raise RequestError("value", problem)


def _check_length(path: str, text: str) -> None:
    if len(text) > MAX_CHARACTERS:
        limit = f"expected at most {MAX_CHARACTERS}, as no part may be left out"
        problem = f"{path}: found {len(text)} characters, {limit}"
        raise RequestError("value", problem)


def _number(post: str | dict[str, Raw], name: str) -> float:
    """Return the named number of a document, or NaN if the document has none."""
    if isinstance(post, str) or name not in post:
        return math.nan
    return number_of(decoded(bytes(post[name]), Any))


def _first_stage(
    posts: Sequence[Document], name: str, needed: bool
) -> Sequence[float] | None:
    """Return the first-stage scores of all documents, or None if none has a score.

    Raises RequestError if only some documents have one, or if scores are ``needed``
    and there are none.
    """
    all_scores = [post.first_stage_score for post in posts]
    scores = [score for score in all_scores if score is not None]
    if len(scores) == len(posts):
        return scores
    if scores:
        reason = f"{len(scores)} of the {len(posts)} documents have one"
    elif needed:
        reason = "mix needs them"
    else:
        return None
    path = f"{name}[{all_scores.index(None)}].first_stage_score"
    problem = f"{path}: found none, but {reason}; expected one for each document"
    raise RequestError("value", problem)


# --- Links around texts, as OpenSearch's processor sends them -------------------------

_LINK = re.compile(
    r"\[?(?:www\.|(?:[a-zA-Z][-+.a-zA-Z0-9]*:)?//|[-\w]+(?:\.[-\w]+)*\.[a-zA-Z]{2,}/)\S"
)
"""The beginning of a link, which may lack its scheme, or of a list of links."""
_NO_LINK = re.compile(r"(null|\[(?:null)?\])(.*)\1", re.DOTALL)
"""A text between two links that OpenSearch writes as null or an empty list."""
_LONGEST_LINK = 8192  # Most characters of a link around a text


def _split_links(posts: Sequence[Document], texts: list[str], urls: list[str]) -> None:
    """Move the links around texts into ``urls``, for posts that have no URL."""
    for row, post in enumerate(posts):
        if not post.url:
            texts[row], urls[row] = between_links(post.text)


def between_links(document: str) -> tuple[str, str]:
    """Split a document of the form ``link + text + link``, and return (text, link).

    The link is "" if there is none. A list of several links in brackets becomes links
    separated by blanks. A text that is ``null`` or an empty list becomes "".
    """
    empty = _NO_LINK.fullmatch(document)
    if empty:
        text = empty[2]
        link = ""
    else:
        link = _link_around(document)
        text = document[len(link) : len(document) - len(link)]
    if link.startswith("[") and link.endswith("]"):
        link = link[1:-1].replace(", ", " ")
    if text in ("null", "[]"):
        text = ""
    return text, link


def _link_around(document: str) -> str:
    """Return the longest link that both begins and ends a document, or ""."""
    beginning = _LINK.match(document)
    if not beginning:
        return ""
    first = max((len(document) + 1) // 2, len(document) - _LONGEST_LINK)
    start = document.find(beginning[0], first)
    while start >= 0:
        end = document[start:]
        if 2 * len(end) <= len(document) and document.startswith(end):
            return end
        start = document.find(beginning[0], start + 1)
    return ""
