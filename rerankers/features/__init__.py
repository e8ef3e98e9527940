"""Features of candidates: one file a family, whose name is the family's.

A family's file has

``NAMES``                  of its K features, each of them explained
``SIGNALS``                what it reads of :attr:`rerankers.base.Pairs.signals`
``compute(candidates)``    one topic's :class:`~rerankers.candidates.CandidateList` of N -> [N, K]

A family sees the whole list of a topic, so a feature may depend on the other candidates.
"""

import importlib
import pkgutil
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast

import numpy as np
import numpy.typing as npt

from rerankers.candidates import CandidateList, Memo
from rerankers.errors import RerankerError

if TYPE_CHECKING:
    from rerankers.base import Pairs
    from rerankers.vocabulary import Idf


class Family(Protocol):
    """A file of this folder."""

    NAMES: tuple[str, ...]
    SIGNALS: tuple[str, ...]

    def compute(self, candidates: CandidateList) -> npt.NDArray[np.float32]:
        """The features of N candidates: [N, K]."""


@dataclass(frozen=True)
class FeatureTable:
    """Features of P pairs: ``names`` [K] (``family.feature``) and ``values`` [P, K]."""

    names: tuple[str, ...]
    values: npt.NDArray[np.float32]


def families() -> list[str]:
    """The families that can be asked for: the files of this folder."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def find(name: str) -> Family:
    """The family of this name.

    Raises:
        RerankerError: there is no such file; the message lists those there are.
    """
    if name not in families():
        raise RerankerError(
            f"found the feature family {name!r}, expected one of {', '.join(families())}"
        )
    return cast(Family, importlib.import_module(f"{__name__}.{name}"))


def names_of(chosen: Sequence[str]) -> tuple[str, ...]:
    """The names of all features of some families, ``family.feature``: [K]."""
    return tuple(f"{family}.{name}" for family in chosen for name in find(family).NAMES)


def signals_of(chosen: Sequence[str]) -> set[str]:
    """The signals that some families read."""
    return {signal for family in chosen for signal in find(family).SIGNALS}


def table(pairs: "Pairs", chosen: Sequence[str], idf: "Idf") -> FeatureTable:
    """Features of pairs; the pairs of one query are its list of candidates.

    Args:
        pairs: P pairs, in any order.
        chosen: the families, in the order of the columns.
        idf: how rare a word is.

    Raises:
        RerankerError: there is no such family.
    """
    names, found = names_of(chosen), [find(family) for family in chosen]
    values = np.zeros((len(pairs), len(names)), dtype=np.float32)
    # Sums over a list round by its order, which must not be that of the pairs.
    order = np.lexsort((pairs.post_index, pairs.query_index))
    borders = np.flatnonzero(np.diff(pairs.query_index[order])) + 1
    memo = Memo()
    for rows in np.split(order, borders):
        if len(rows) and found:
            candidates = _list_of(pairs, rows, idf, memo)
            values[rows] = np.concatenate([f.compute(candidates) for f in found], axis=1)
    return FeatureTable(names, values)


def _list_of(pairs: "Pairs", rows: npt.NDArray[np.int64], idf: "Idf", memo: Memo) -> CandidateList:
    """The pairs ``rows`` [N], all of one query, as its list."""
    posts = pairs.post_index[rows].tolist()
    return CandidateList(
        pairs.queries[int(pairs.query_index[rows[0]])],
        [pairs.texts[post] for post in posts],
        [pairs.urls[post] for post in posts],
        [pairs.doc_ids[post] for post in posts] if len(pairs.doc_ids) else [],
        {name: values[rows] for name, values in pairs.signals.items()},
        idf,
        memo,
    )
