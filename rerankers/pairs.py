"""(query, post) pairs to score, their signals, and their lists by query."""

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
ORDER = "order"  # Place in the first stage's list, from 1; NaN if it has no meaning
PRIOR = "prior"  # Mean prior over the runs to rerank; see prior_of_rank()

NUMBER = "number:"
"""Prefix of a numeric field of posts, ``number:likes``: the signal, and the feature
family that reads it."""

_LARGEST = 1e30  # Features are rounded in single precision
_READERS: Sequence[Callable[[str], object]] = (float, datetime.fromisoformat)

FREQUENCIES = "frequencies"
Resources = Mapping[str, Any]
"""Knowledge of a collection, by name, for feature families.

``adapted``: word vectors (:class:`tweetrerank.rerankers.text.spaces.WordSpace`).
``judged``: posts that were judged for other topics
(:class:`tweetrerank.rerankers.features.judged.JudgedPosts`). Features of a missing
resource are unknown. In a training, which mixes collections, ``frequencies`` of words
replace the model's.
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
    """Name -> [P] scores of other rankers, such as ``FIRST_STAGE`` and ``PRIOR``.

    A missing signal is 0. For the families ``given``, ``signal:NAME`` and
    ``number:NAME`` it is unknown, as NaN is.
    """
    doc_ids: Sequence[str] = ()  # [D]; empty if unknown
    resources: Sequence[Resources] = ()
    """[Q] knowledge of each query's collection; empty if there is none."""

    def __len__(self) -> int:
        return len(self.query_index)

    def with_resources(self, defaults: Resources) -> Self:
        """Return the pairs with default resources, which those of a query override."""
        if not defaults:
            return self
        resources = self.resources or [{}] * len(self.queries)
        merged = [{**defaults, **of_query} for of_query in resources]
        return replace(self, resources=merged)

    def take(self, rows: Rows) -> Self:
        """Return the pairs ``rows`` [B], with all texts."""
        return replace(
            self,
            query_index=self.query_index[rows],
            post_index=self.post_index[rows],
            signals={name: values[rows] for name, values in self.signals.items()},
        )

    def alone(self, rows: Rows) -> Self:
        """Return the pairs ``rows`` [B] with the texts they use, in their order."""
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
    """Prior of the posts at these ranks of a run, counted from 1: 1 / ln(r + 1).

    Severyn & Moschitti (2015), section 5, "submission run as a feature". Posts outside
    of the run have the prior 0; priors of several runs are averaged.
    """
    return (1.0 / np.log(ranks + 1.0)).astype(np.float32)


def places_of(
    query_index: Rows, scores: npt.NDArray[np.floating]
) -> npt.NDArray[np.float32]:
    """The signal ``ORDER``: [P] place of each pair in its query's list, from 1.

    The highest of the ``scores`` [P] is first. Equal scores keep their order.
    """
    places = np.empty(len(query_index), dtype=np.float32)
    for rows in lists_of(query_index, -scores):
        places[rows] = np.arange(1, len(rows) + 1)
    return places


def lists_of(query_index: Rows, key: npt.NDArray[Any] | None = None) -> list[Rows]:
    """Rows of each query's pairs, by an ascending ``key`` [P].

    Equal keys keep their order.
    """
    if not len(query_index):
        return []
    keys = (query_index,) if key is None else (key, query_index)
    order = np.lexsort(keys)
    borders = np.flatnonzero(np.diff(query_index[order])) + 1
    return np.split(order, borders)


def numbers_of(signals: Iterable[str]) -> list[str]:
    """Names of the numeric fields among signals, sorted."""
    numbers = [name for name in signals if name.startswith(NUMBER)]
    return sorted(name.removeprefix(NUMBER) for name in numbers)


def number_of(value: object) -> float:
    """Read a numeric field; NaN for anything else, and above 1e30.

    A text is read as a number or as an ISO date. A flag is 0 or 1, a date is in seconds
    since the epoch; without a time zone it is in UTC.
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
