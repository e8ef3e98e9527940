"""Boosted regression trees, evaluated for many rows together.

Each split has a bit vector of the leaves that stay possible for a row that goes to the
right. The lowest bit of the AND of a tree's splits is the row's leaf. Lucchese et al.:
*QuickScorer: A Fast Algorithm to Rank Documents with Additive Ensembles of Regression
Trees*, SIGIR 2015. Here the splits at one place of all trees are one step over arrays.

Models are in LightGBM's text format (https://lightgbm.readthedocs.io). The values are
LightGBM's, bit for bit.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

MOST_LEAVES = 64
"""Largest number of leaves of a tree: each is a bit of a number."""

_ROWS = 128
"""Rows that are computed together, so that a step's arrays stay in the cache."""

_TYPES: Sequence[type[np.unsignedinteger]] = (np.uint8, np.uint16, np.uint32, np.uint64)

# Bits of LightGBM's ``decision_type``
_TO_LEFT = 0b10
_MISSING = 0b1100

# Values that LightGBM takes for missing, which go to the default side of a split. A
# third kind takes NaN alone.
_NONE = 0  # No value; NaN is read as 0
_ZERO = 1  # 0 and NaN

_ZERO_UP_TO = np.float32(1e-35)
"""Values that LightGBM takes for 0."""

Floats = npt.NDArray[np.float32]


class _Test(NamedTuple):
    """The part of a split that many splits share."""

    feature: int
    missing: int  # Kind of missing values
    to_left: bool  # Whether missing values go to the left


class Forest:
    """Lists of trees, T trees in all, whose values are added up.

    Args:
        lists: models in LightGBM's text format, of one class, with numerical features.

    Raises:
        ValueError: a model is of another kind, or a tree has more than
            :data:`MOST_LEAVES` leaves.
    """

    def __init__(self, lists: Sequence[str]) -> None:
        trees: list[_Tree] = []
        sizes = []
        for text in lists:
            members = [_Tree(fields) for fields in _sections(text)]
            trees += members
            sizes.append(len(members))
        most = max((len(tree.leaves) for tree in trees), default=1)
        if most > MOST_LEAVES:
            raise ValueError(
                f"a tree has {most} leaves, {MOST_LEAVES} at most are possible"
            )
        self._ends = [0, *accumulate(sizes)]  # [S + 1] borders of the lists
        self._type = next(kind for kind in _TYPES if most <= np.iinfo(kind).bits)
        tests = sorted({test for tree in trees for test in tree.tests})
        self._read_tests(tests)
        self._read_splits(trees, tests, most)

    def _read_tests(self, tests: Sequence[_Test]) -> None:
        """Arrays over the C distinct tests."""
        self._features = np.array([test.feature for test in tests], dtype=np.int64)
        replacements = [_replacement(test.missing, test.to_left) for test in tests]
        self._replacement = np.array(replacements, dtype=np.float32)[:, None]  # [C, 1]
        misses_zero = [test.missing == _ZERO for test in tests]
        self._misses_zero = np.array(misses_zero, np.bool_)[:, None]  # [C, 1]

    def _read_splits(
        self, trees: Sequence["_Tree"], tests: Sequence[_Test], most: int
    ) -> None:
        """Arrays over places of splits and trees, [most - 1, T], and leaves [T, most].

        Trees with fewer splits are filled up with splits that change nothing.
        """
        shape = (most - 1, len(trees))
        self._leaves = np.zeros((len(trees), most))
        self._column = np.zeros(shape, np.int64)
        self._threshold = np.zeros(shape, np.float32)
        # A bit for each leaf that a row can still reach on the right, the first lowest.
        self._possible = np.full(shape, ~self._type(0))
        numbers = {test: number for number, test in enumerate(tests)}
        for row, tree in enumerate(trees):
            self._leaves[row, : len(tree.leaves)] = tree.leaves
            size = len(tree.tests)
            self._column[:size, row] = [numbers[test] for test in tree.tests]
            self._threshold[:size, row] = tree.thresholds
            self._possible[:size, row] = [~self._type(bits) for bits in tree.excluded]

    def sums(self, values: Floats) -> npt.NDArray[np.float64]:
        """Sum of the values of each of S lists, for rows of features [P, K]: [S, P]."""
        blocks = np.split(values, range(_ROWS, len(values), _ROWS))
        return np.concatenate([self._sums(block) for block in blocks], axis=1)

    def _sums(self, values: Floats) -> npt.NDArray[np.float64]:
        columns = self._columns(values)  # [C, P]
        one = self._type(1)
        possible = np.full((len(self._leaves), len(values)), ~self._type(0))  # [T, P]
        steps = zip(self._column, self._threshold, self._possible, strict=True)
        for column, threshold, on_the_right in steps:
            goes_right = columns.take(column, axis=0) > threshold[:, None]
            bits = goes_right.astype(self._type)
            bits -= one  # All bits for a row that goes to the left
            bits |= on_the_right[:, None]
            possible &= bits
        # Number of bits below the lowest one
        leaf = np.bitwise_count(~possible & (possible - one))
        first = np.arange(len(self._leaves))[:, None] * self._leaves.shape[1]
        leaf_values = self._leaves.reshape(-1).take(first + leaf)  # [T, P]
        # Added tree after tree, as LightGBM does.
        return np.stack(
            [
                np.add.reduce(leaf_values[start:end], axis=0)
                for start, end in pairwise(self._ends)
            ]
        )

    def _columns(self, values: Floats) -> Floats:
        """[C, P] values of each test's feature, missing values replaced."""
        columns = values.T[self._features]
        is_zero = np.abs(columns) <= _ZERO_UP_TO
        columns[is_zero] = 0
        is_missing = np.isnan(columns) | (is_zero & self._misses_zero)
        return np.where(is_missing, self._replacement, columns)


class _Tree:
    """A tree whose leaves are numbered from left to right.

    Attributes:
        tests: feature and treatment of missing values of each split.
        thresholds: threshold of each split, rounded down to single precision, the
            precision of features.
        excluded: bits of the leaves to the left of each split.
        leaves: values of the leaves.
    """

    def __init__(self, fields: Mapping[str, list[str]]) -> None:
        if fields["num_cat"] != ["0"] or fields.get("is_linear", ["0"]) != ["0"]:
            raise ValueError("a tree has categories or linear leaves")
        self.tests = _tests(fields)
        thresholds = fields.get("threshold", [])
        self.thresholds = [_rounded_down(float(text)) for text in thresholds]
        self.excluded = [0] * len(self.tests)
        self.leaves: list[float] = []
        self._values = [float(value) for value in fields["leaf_value"]]
        self._left = _integers(fields, "left_child")
        self._right = _integers(fields, "right_child")
        root = 0 if self.tests else -1
        self._number_leaves(root)

    def _number_leaves(self, node: int) -> int:
        """Number the leaves below a node and return their bits.

        A negative node is a leaf.
        """
        if node < 0:
            self.leaves.append(self._values[~node])
            return 1 << (len(self.leaves) - 1)
        left = self._number_leaves(self._left[node])
        self.excluded[node] = left
        return left | self._number_leaves(self._right[node])


def _tests(fields: Mapping[str, list[str]]) -> list[_Test]:
    """The tests of a tree's splits."""
    tests = []
    features = _integers(fields, "split_feature")
    decisions = _integers(fields, "decision_type")
    for feature, decision in zip(features, decisions, strict=True):
        missing = (decision & _MISSING) >> 2
        tests.append(_Test(feature, missing, bool(decision & _TO_LEFT)))
    return tests


def _integers(fields: Mapping[str, list[str]], name: str) -> list[int]:
    return [int(number) for number in fields.get(name, [])]


def _replacement(missing: int, to_left: bool) -> float:
    """Value in place of a missing one, which sends it to its side."""
    if missing == _NONE:
        return 0.0
    if to_left:
        return -np.inf
    return np.inf


def _rounded_down(value: float) -> np.float32:
    """The greatest finite single-precision number up to ``value``.

    Missing values that go to the right are above it.
    """
    rounded = np.float32(min(value, float(np.finfo(np.float32).max)))
    if float(rounded) <= value:
        return rounded
    return np.nextafter(rounded, np.float32(-np.inf))


def _sections(text: str) -> Iterator[dict[str, list[str]]]:
    """The fields of each tree."""
    if not re.search(r"^num_class=1$", text, re.MULTILINE):
        raise ValueError("expected trees of one class in LightGBM's text format")
    trees = text.partition("end of trees")[0]
    _header, *sections = re.split(r"^Tree=\d+\n", trees, flags=re.MULTILINE)
    for section in sections:
        fields = {}
        for line in section.split("\n"):
            if line:
                name, _, value = line.partition("=")
                fields[name] = value.split()
        yield fields
