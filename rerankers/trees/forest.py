"""Boosted regression trees, evaluated for many rows at once.

Each split has a bit vector of the leaves that it leaves possible for a row that goes to the right;
the lowest bit of the AND of a tree's splits is the row's leaf. Lucchese et al.: *QuickScorer: A
Fast Algorithm to Rank Documents with Additive Ensembles of Regression Trees*, SIGIR 2015. Here the
splits of one place in all trees are one step over arrays, for LightGBM's models in its text format
(https://lightgbm.readthedocs.io), whose values are the same bit by bit.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, chain, pairwise

import numpy as np
import numpy.typing as npt

MOST_LEAVES = 64
"""Leaves that a tree can have: each is a bit of a number."""

_ROWS = 128
"""Rows that are computed together, so that a step's arrays stay in the processor's cache."""

_TYPES: Sequence[type[np.unsignedinteger]] = (np.uint8, np.uint16, np.uint32, np.uint64)

_TO_LEFT, _MISSING = 0b10, 0b1100
"""Bits of LightGBM's ``decision_type``."""

_NONE, _ZERO = 0, 1
"""Values that LightGBM takes for missing, which go to the default side of a split: none (NaN is 0
there), 0 and NaN, or, in the third case, NaN alone."""

_ZERO_UP_TO = np.float32(1e-35)
"""Values that LightGBM takes for 0."""

Floats = npt.NDArray[np.float32]


class Forest:
    """Lists of trees, T in all, whose values are added up.

    Args:
        lists: each a model in LightGBM's text format, of one class, with numerical features only.

    Raises:
        ValueError: it is another kind of model, or a tree has more than :data:`MOST_LEAVES` leaves.
    """

    def __init__(self, lists: Sequence[str]) -> None:
        parts = [[_Tree(fields) for fields in _sections(text)] for text in lists]
        trees = [*chain(*parts)]
        most = max((len(tree.leaves) for tree in trees), default=1)
        if most > MOST_LEAVES:
            raise ValueError(
                f"a tree has {most} leaves, {MOST_LEAVES} at most are possible"
            )
        self._ends = [0, *accumulate(map(len, parts))]
        self._type = next(kind for kind in _TYPES if most <= np.iinfo(kind).bits)
        self._kinds = sorted({kind for tree in trees for kind in tree.kinds})
        self._features = np.array(
            [feature for feature, *_ in self._kinds], dtype=np.int64
        )
        filled = [_filled(missing, to_left) for _, missing, to_left in self._kinds]
        self._filled = np.array(filled, dtype=np.float32)[:, None]
        self._misses_zero = np.array([m == _ZERO for _, m, _ in self._kinds], np.bool_)[
            :, None
        ]
        self._leaves, shape = np.zeros((len(trees), most)), (most - 1, len(trees))
        # By place of a split; trees with fewer splits have ones that change nothing.
        self._column, self._threshold = (
            np.zeros(shape, np.int64),
            np.zeros(shape, np.float32),
        )
        self._possible = np.full(shape, ~self._type(0))
        """A bit for each leaf that a row can still reach on the right; the first has the lowest."""
        numbers = {kind: number for number, kind in enumerate(self._kinds)}
        for row, tree in enumerate(trees):
            self._leaves[row, : len(tree.leaves)] = tree.leaves
            size = len(tree.kinds)
            self._column[:size, row] = [numbers[kind] for kind in tree.kinds]
            self._threshold[:size, row] = tree.thresholds
            self._possible[:size, row] = [~self._type(bits) for bits in tree.excluded]

    def sums(self, values: Floats) -> npt.NDArray[np.float64]:
        """Sum of the values of each of S lists, for rows of features [P, K]: [S, P]."""
        parts = np.split(values, range(_ROWS, len(values), _ROWS))
        return np.concatenate([self._sums(part) for part in parts], axis=1)

    def _sums(self, values: Floats) -> npt.NDArray[np.float64]:
        columns, one = self._columns(values), self._type(1)
        possible = np.full((len(self._leaves), len(values)), ~self._type(0))
        steps = zip(self._column, self._threshold, self._possible, strict=True)
        for column, threshold, on_the_right in steps:
            goes_right = columns.take(column, axis=0) > threshold[:, None]
            bits = goes_right.astype(self._type)
            bits -= one  # All bits for a row that goes to the left
            bits |= on_the_right[:, None]
            possible &= bits
        leaf = np.bitwise_count(
            ~possible & (possible - one)
        )  # Bits below the lowest one
        first = np.arange(len(self._leaves))[:, None] * self._leaves.shape[1]
        found = self._leaves.reshape(-1).take(first + leaf)
        # Added tree after tree, as LightGBM does.
        return np.stack(
            [np.add.reduce(found[a:b], axis=0) for a, b in pairwise(self._ends)]
        )

    def _columns(self, values: Floats) -> Floats:
        """[C, P] values of each feature by what a split does with missing ones."""
        columns = values.T[self._features]
        is_zero = np.abs(columns) <= _ZERO_UP_TO
        columns[is_zero] = 0
        is_missing = np.isnan(columns) | (is_zero & self._misses_zero)
        return np.where(is_missing, self._filled, columns)


class _Tree:
    """A tree, its leaves numbered from left to right.

    Attributes:
        kinds: of each split: feature, what is missing, and whether it goes to the left.
        thresholds: of each split, rounded down to single precision, which is that of features.
        excluded: bits of the leaves to the left of each split.
        leaves: their values.
    """

    def __init__(self, fields: Mapping[str, list[str]]) -> None:
        values, self.leaves = (
            [float(value) for value in fields["leaf_value"]],
            list[float](),
        )
        decisions = [int(number) for number in fields.get("decision_type", [])]
        if fields["num_cat"] != ["0"] or fields.get("is_linear", ["0"]) != ["0"]:
            raise ValueError("a tree has categories or linear leaves")
        features = [int(number) for number in fields.get("split_feature", [])]
        self.kinds = [
            (feature, (decision & _MISSING) >> 2, bool(decision & _TO_LEFT))
            for feature, decision in zip(features, decisions, strict=True)
        ]
        self.thresholds = [
            _rounded_down(float(text)) for text in fields.get("threshold", [])
        ]
        self.excluded = [0] * len(features)
        children = [
            [int(n) for n in fields.get(f"{side}_child", [])]
            for side in ("left", "right")
        ]

        def visit(node: int) -> int:
            """Number the leaves below a node, which is a leaf below 0; return their bits."""
            if node < 0:
                self.leaves.append(values[~node])
                return 1 << (len(self.leaves) - 1)
            left = visit(children[0][node])
            self.excluded[node] = left
            return left | visit(children[1][node])

        visit(0 if features else -1)


def _filled(missing: int, to_left: bool) -> float:
    """Replacement of a missing value, by which it goes to its side."""
    if missing == _NONE:
        return 0.0
    return -np.inf if to_left else np.inf


def _rounded_down(value: float) -> np.float32:
    """The greatest finite number of single precision up to ``value``; missing values are above."""
    rounded = np.float32(min(value, float(np.finfo(np.float32).max)))
    return (
        rounded
        if float(rounded) <= value
        else np.nextafter(rounded, np.float32(-np.inf))
    )


def _sections(text: str) -> Iterator[dict[str, list[str]]]:
    """The fields of each tree."""
    if not re.search(r"^num_class=1$", text, re.MULTILINE):
        raise ValueError("expected trees of one class in LightGBM's text format")
    for section in re.split(
        r"^Tree=\d+\n", text.partition("end of trees")[0], flags=re.M
    )[1:]:
        lines = (line.partition("=") for line in section.split("\n") if line)
        yield {name: value.split() for name, _, value in lines}
