"""(query, post) pairs to score, what is known of them, and their lists by query."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from numbers import Real
from typing import Any, Self

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int64]

# Signals of a candidate: its first-stage score; its place in the given list, from 1, or NaN if that
# says nothing; its mean prior over the runs to rerank (:func:`prior_of_rank`)
FIRST_STAGE, ORDER, PRIOR = "first_stage", "order", "prior"
NUMBER = "number:"
"""Before the name of a number beside the text, ``number:likes``: a signal, and the family of
features that reads it."""

_LARGEST = 1e30  # Features are rounded in single precision
_READERS: Sequence[Callable[[str], object]] = (float, datetime.fromisoformat)

FREQUENCIES = "frequencies"
Resources = Mapping[str, Any]
"""Name -> what is known of a collection, for families of features: the word vectors ``adapted`` to
it (:class:`tweetrerank.rerankers.text.spaces.WordSpace`), and its posts that were ``judged`` for other topics
(:class:`tweetrerank.rerankers.features.judged.JudgedPosts`). Without one its features are unknown. In a
training, which mixes collections, word ``frequencies`` take the place of the model's."""


@dataclass(frozen=True)
class Pairs:
    """(query, post) pairs to score."""

    queries: Sequence[str]  # [Q]
    texts: Sequence[str]  # [D]
    urls: Sequence[str]  # [D] expanded URL of each post, or ""
    query_index: Rows  # [P] row of ``queries``
    post_index: Rows  # [P] row of ``texts`` and ``urls``
    signals: Mapping[str, npt.NDArray[np.floating]] = field(default_factory=dict)
    """Name -> [P] scores of other rankers, such as ``FIRST_STAGE`` and ``PRIOR``. A missing signal
    is 0; for ``given``, ``signal:NAME`` and ``number:NAME`` it is unknown, as NaN is."""
    doc_ids: Sequence[str] = ()  # [D]; empty if unknown
    resources: Sequence[Resources] = ()
    """[Q] what is known of the query's collection; empty if nothing is."""

    def __len__(self) -> int:
        return len(self.query_index)

    def with_resources(self, known: Resources) -> Self:
        """The same pairs with what is known of their collection, unless they have their own."""
        own = self.resources or [{}] * len(self.queries)
        return (
            replace(self, resources=[{**known, **each} for each in own])
            if known
            else self
        )

    def take(self, rows: Rows) -> Self:
        """The pairs ``rows`` [B], with all texts."""
        signals = {name: values[rows] for name, values in self.signals.items()}
        queries, posts = self.query_index[rows], self.post_index[rows]
        return replace(self, query_index=queries, post_index=posts, signals=signals)

    def alone(self, rows: Rows) -> Self:
        """The pairs ``rows`` [B], with their texts alone, which keep their order."""
        posts, found = np.unique(self.post_index[rows], return_inverse=True)
        texts, urls, doc_ids = (
            [column[post] for post in posts.tolist()] if column else ()
            for column in (self.texts, self.urls, self.doc_ids)
        )
        return replace(
            self.take(rows), texts=texts, urls=urls, doc_ids=doc_ids, post_index=found
        )


def prior_of_rank(ranks: Rows) -> npt.NDArray[np.float32]:
    """Prior of the posts at these ranks of a run, counted from 1: 1 / ln(r + 1). Severyn &
    Moschitti (2015), section 5, "submission run as a feature". Posts outside of the run have the
    prior 0; priors of several runs are averaged."""
    return (1.0 / np.log(ranks + 1.0)).astype(np.float32)


def places_of(
    query_index: Rows, scores: npt.NDArray[np.floating]
) -> npt.NDArray[np.float32]:
    """The signal ``ORDER``: [P] place of each pair among those of its query by ``scores`` [P], from
    1 for the highest. Equal scores keep their order."""
    places = np.empty(len(query_index), dtype=np.float32)
    for rows in lists_of(query_index, -scores):
        places[rows] = np.arange(1, len(rows) + 1)
    return places


def lists_of(query_index: Rows, key: npt.NDArray[Any] | None = None) -> list[Rows]:
    """The rows of each query's pairs, by an ascending ``key`` [P]; equal ones keep their order."""
    order = np.lexsort((query_index,) if key is None else (key, query_index))
    borders = np.flatnonzero(np.diff(query_index[order])) + 1
    return np.split(order, borders) if len(order) else []


def numbers_of(signals: Iterable[str]) -> list[str]:
    """Names of the numbers beside the text among signals, in their order."""
    return sorted(
        name.removeprefix(NUMBER) for name in signals if name.startswith(NUMBER)
    )


def number_of(value: object) -> float:
    """A number, also as a text; a flag as 0 or 1, an ISO date in seconds since the epoch. A date
    without a zone is in UTC. NaN is anything else, and a number of more than 1e30."""
    for read in _READERS if isinstance(value, str) else ():
        with suppress(ValueError):
            return number_of(read(str(value).strip()))
    if isinstance(value, datetime):
        value = (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
    is_number = isinstance(value, Real | np.bool_) and abs(value) <= _LARGEST  # type: ignore[operator]
    return float(value) if is_number else np.nan  # type: ignore[arg-type]
