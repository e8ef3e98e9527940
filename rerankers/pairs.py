"""(query, post) pairs that a model scores, with their signals and lists by query."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from numbers import Real
from typing import Any, Self, cast

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int64]

# Signals of a candidate
FIRST_STAGE = "first_stage"  # Score of the first stage
ORDER = "order"  # Place in the first stage's list, from 1; NaN if there is no order
PRIOR = "prior"  # Mean of prior_of_rank() over the runs to rerank

NUMBER = "number:"
"""Prefix of the name of a numeric field of posts, as in ``number:likes``. The signal
and the feature family that reads it have the same name."""

# Largest size of a number. Features are in single precision, and rounding multiplies
# them.
_LARGEST = 1e30
_READERS: Sequence[Callable[[str], object]] = (float, datetime.fromisoformat)

FREQUENCIES = "frequencies"
Resources = Mapping[str, Any]
"""What feature families may know about a collection, by name.

``adapted``: word vectors (:class:`tweetrerank.rerankers.text.spaces.WordSpace`).
``judged``: posts that were judged for other topics
(:class:`tweetrerank.rerankers.features.judged.JudgedPosts`). ``frequencies``: word
frequencies that replace the model's. Only a training uses these, because it mixes
collections. The features of a missing resource are unknown (NaN).
"""


@dataclass(frozen=True)
class Pairs:
    """(query, post) pairs to score."""

    queries: Sequence[str]  # [Q]
    texts: Sequence[str]  # [D]
    urls: Sequence[str]  # [D] expanded URL of each post, or ""
    query_index: Rows  # [P] row of ``queries``
    post_index: Rows  # [P] row of ``texts`` and ``urls``
    signals: Mapping[str, npt.NDArray[np.floating]] = field(default_factory=dict)
    """Name -> scores [P] of other rankers, or numbers of the posts.

    Most families take a missing signal for 0. The families ``given``, ``signal:NAME``
    and ``number:NAME`` treat a missing signal as unknown, just like NaN.
    """
    doc_ids: Sequence[str] = ()  # [D]; empty if unknown
    resources: Sequence[Resources] = ()
    """Resources of each query's collection [Q]; empty if there are none."""

    def __len__(self) -> int:
        return len(self.query_index)

    def with_resources(self, defaults: Resources) -> Self:
        """Return the pairs with ``defaults`` for the resources that a query lacks."""
        if not defaults:
            return self
        resources = self.resources or [{}] * len(self.queries)
        merged = [{**defaults, **of_query} for of_query in resources]
        return replace(self, resources=merged)

    def take(self, rows: Rows) -> Self:
        """Return the pairs ``rows`` [B]. All queries and texts are kept."""
        return replace(
            self,
            query_index=self.query_index[rows],
            post_index=self.post_index[rows],
            signals={name: values[rows] for name, values in self.signals.items()},
        )

    def alone(self, rows: Rows) -> Self:
        """Return the pairs ``rows`` [B], and keep only the texts that they use.

        The texts keep their order. All queries are kept.
        """
        posts, post_index = np.unique(self.post_index[rows], return_inverse=True)

        def used(column: Sequence[str]) -> Sequence[str]:
            if not column:
                return ()
            return [column[post] for post in posts.tolist()]

        return replace(
            self.take(rows),
            texts=used(self.texts),
            urls=used(self.urls),
            doc_ids=used(self.doc_ids),
            post_index=post_index,
        )


def prior_of_rank(ranks: Rows) -> npt.NDArray[np.float32]:
    """Return the prior 1 / ln(r + 1) of the post at each rank r of a run.

    Ranks count from 1. This is the "submission run as a feature" of Severyn & Moschitti
    (2015), section 5. A caller gives posts outside the run the prior 0, and averages
    the priors of several runs.
    """
    return (1.0 / np.log(ranks + 1.0)).astype(np.float32)


def places_of(
    query_index: Rows, scores: npt.NDArray[np.floating]
) -> npt.NDArray[np.float32]:
    """Return the place of each pair in its query's list [P], for the signal ``ORDER``.

    The pair with the highest of the ``scores`` [P] has place 1. Ties keep the order of
    the pairs.
    """
    places = np.empty(len(query_index), dtype=np.float32)
    for rows in lists_of(query_index, -scores):
        places[rows] = np.arange(1, len(rows) + 1)
    return places


def lists_of(query_index: Rows, key: npt.NDArray[Any] | None = None) -> list[Rows]:
    """Return the rows of each query's pairs, one array for each query.

    The rows of a query are in ascending order of ``key`` [P], if given. Ties keep the
    order of the pairs.
    """
    if not len(query_index):
        return []
    keys = (query_index,) if key is None else (key, query_index)
    order = np.lexsort(keys)
    borders = np.flatnonzero(np.diff(query_index[order])) + 1
    return np.split(order, borders)


def numbers_of(signals: Iterable[str]) -> list[str]:
    """Return the sorted names of the numeric fields that are among the signals."""
    numbers = [name for name in signals if name.startswith(NUMBER)]
    return sorted(name.removeprefix(NUMBER) for name in numbers)


def number_of(value: object) -> float:
    """Return the value of a numeric field as a float.

    A text is read as a number or as an ISO date. A flag becomes 0 or 1. A date becomes
    the seconds since 1970; it is taken to be in UTC if it has no time zone. The result
    is NaN for anything else, and for numbers beyond ±1e30.
    """
    if isinstance(value, str):
        return _number_of_text(value.strip())
    if isinstance(value, datetime):
        if not value.tzinfo:
            value = value.replace(tzinfo=UTC)
        value = value.timestamp()
    # A whole number may be too large for a float.
    if isinstance(value, Real | np.bool_) and abs(cast(float, value)) <= _LARGEST:
        return float(value)
    return np.nan


def _number_of_text(text: str) -> float:
    for read in _READERS:
        with suppress(ValueError):
            return number_of(read(text))
    return np.nan
