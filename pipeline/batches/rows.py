"""Rows of a batch job: a query with its posts, or one pair of both; their checks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from indexes.lines import short
from indexes.posts import Post
from pipeline.collections.topics import Topic
from pipeline.collections.trec import Run
from pipeline.ranking.retrievers import Candidates

Row = dict[str, Any]
POSTS, FIRST_STAGE, SCORE = "posts", "first_stage_score", "score"
OF_QUERY = ("query_id", "query")
OF_POST = ("doc_id", "text", "url", FIRST_STAGE)
LARGEST_SCORE = 3.4e38  # Of a first stage: scores are mixed in single precision


class Form(NamedTuple):
    """What all rows of a job have in common.

    Attributes:
        is_nested: a row is a query with its posts, else one pair.
        has_first_stage: every post has a score of the first stage that is used.
        is_ordered: without scores the posts of a query stand in the order of a first stage.
    """

    is_nested: bool
    has_first_stage: bool
    is_ordered: bool

    @classmethod
    def of(cls, row: Row) -> Form:
        """The form of a readable row."""
        is_nested = row.get(POSTS) is not None
        posts = row[POSTS] if is_nested else [row]
        has_scores = bool(posts) and all(one.get(FIRST_STAGE) is not None for one in posts)
        return cls(is_nested, has_scores, is_nested)

    def posts(self, row: Row) -> Sequence[Mapping[str, Any]]:
        """The posts of a row."""
        return row[POSTS] if self.is_nested else [row]


class Rejected(NamedTuple):
    """A row that cannot be read: its number in the file from 1, the reason, and the row itself."""

    number: int
    reason: str
    row: str = ""


def check(row: object, form: Form) -> None:
    """Raise ValueError, with the reason, unless this is a row of this form."""
    if not isinstance(row, dict):
        raise ValueError(f"found {_named(row)}, expected an object")
    if form.is_nested:
        _check_query(row)
        if not isinstance(row.get(POSTS), list):
            raise ValueError(
                f"{POSTS}: found {_named(row.get(POSTS))}, expected a list, as in the first row"
            )
        for place, post in enumerate(row[POSTS]):
            where = f"{POSTS}[{place}]"
            if not isinstance(post, dict):
                raise ValueError(f"{where}: found {_named(post)}, expected an object")
            _check_post(post, form, f"{where}.")
    elif row.get(POSTS) is not None:
        raise ValueError(f"found {POSTS}, expected one post, as in the first row")
    else:
        _check_query(row)
        _check_post(row, form, "")


def _check_query(row: Row) -> None:
    _check_id(row.get("query_id"), "query_id")
    _check_text(row.get("query"), "query")


def _check_post(post: Row, form: Form, where: str) -> None:
    _check_id(post.get("doc_id"), f"{where}doc_id")
    _check_text(post.get("text"), f"{where}text")
    if post.get("url") is not None:
        _check_text(post["url"], f"{where}url")
    if form.has_first_stage:
        score: Any = post.get(FIRST_STAGE)
        is_number = isinstance(score, int | float) and not isinstance(score, bool)
        # Whole numbers may be too large for a float.
        if not is_number or not -LARGEST_SCORE <= score <= LARGEST_SCORE:
            raise ValueError(
                f"{where}{FIRST_STAGE}: found {_named(score)}, expected a number, as the first row "
                "has one"
            )


def _check_id(value: object, name: str) -> None:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError(f"{name}: found {_named(value)}, expected a text or a whole number")


def _check_text(value: object, name: str) -> None:
    if not isinstance(value, str):
        raise ValueError(f"{name}: found {_named(value)}, expected a text")


def _named(value: object) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return short(str(value))


class Unit(NamedTuple):
    """A query and its posts, from one row or from adjacent ones."""

    query_id: str | int
    query: str
    posts: Sequence[Mapping[str, Any]]


def units_of(rows: Iterable[Row], form: Form) -> Iterator[Unit]:
    """The rows by query: each nested row by itself, adjacent pairs of a query together."""
    last: Unit | None = None
    for row in rows:
        if form.is_nested:
            yield Unit(row["query_id"], row["query"], row[POSTS])
        elif last and (last.query_id, last.query) == (row["query_id"], row["query"]):
            last.posts.append(row)  # type: ignore[attr-defined]
        else:
            if last:
                yield last
            last = Unit(row["query_id"], row["query"], [row])
    if last:
        yield last


def candidates_of(units: Sequence[Unit], form: Form) -> tuple[Candidates, list[tuple[str, str]]]:
    """The posts to rank, and (query_id, doc_id) in them for each post of the units, in order.

    Texts decide which posts are the same: an id may stand for several.
    """
    from rerankers.text.passages import best_passages

    topics: list[Topic] = []
    run: Run = {}
    posts: dict[str, Post] = {}
    keys: list[tuple[str, str]] = []
    for number, unit in enumerate(units):
        topic = Topic(str(number), unit.query)
        scores = run[topic.query_id] = {}
        topics.append(topic)
        texts = [one["text"] for one in unit.posts]
        read = best_passages([unit.query] * len(texts), texts)
        for place, (one, text) in enumerate(zip(unit.posts, read, strict=True)):
            key = str(one["doc_id"])
            post = Post(key, text, one.get("url") or "")
            first = float(one[FIRST_STAGE]) if form.has_first_stage else -float(place)
            same = posts.setdefault(key, post) == post
            if not same or (form.has_first_stage and scores.get(key, first) != first):
                key = f"{key}\0{len(keys)}"
                posts[key] = post
            scores.setdefault(key, first)
            keys.append((topic.query_id, key))
    if form.has_first_stage:
        return Candidates(topics, run, posts), keys
    forms = dict.fromkeys(run, "order" if form.is_ordered else "nothing")
    # Without scores there are no ranks to make priors of.
    return Candidates(topics, run, posts, {}, forms=forms), keys
