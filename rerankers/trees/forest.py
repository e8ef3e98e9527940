"""Evaluate boosted regression trees for many rows of features at once.

The algorithm is QuickScorer (Lucchese et al.: *QuickScorer: A Fast Algorithm to Rank
Documents with Additive Ensembles of Regression Trees*, SIGIR 2015). The leaves of a
tree are numbered from left to right, and each is a bit of a number. Each split has such
a number, in which the leaves on its left are 0. If a row goes to the right at a split,
only the leaves that are 1 there stay possible. The AND of the numbers of all splits at
which a row goes to the right has its lowest 1 at the row's leaf. Here one step over
arrays does the n-th split of all trees.

Models are read from LightGBM's text format (https://lightgbm.readthedocs.io). The
results equal LightGBM's, bit for bit.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

MOST_LEAVES = 64
"""Largest number of leaves of a tree, because each leaf is a bit of a 64-bit number."""

_ROWS = 128
"""Number of rows computed together. So few keep a step's arrays in the CPU's cache."""

_TYPES: Sequence[type[np.unsignedinteger]] = (np.uint8, np.uint16, np.uint32, np.uint64)

# Bits of LightGBM's ``decision_type``
_TO_LEFT = 0b10
_MISSING = 0b1100

# Kinds of splits, which differ in the values that LightGBM takes for missing. A missing
# value goes to the default side of the split. Splits of a third kind, 2, take only NaN
# for missing.
_NONE = 0  # No value is missing; NaN is read as 0
_ZERO = 1  # 0 and NaN are missing

_ZERO_UP_TO = np.float32(1e-35)
"""Largest absolute value that LightGBM takes for 0."""

Floats = npt.NDArray[np.float32]


class _Test(NamedTuple):
    """What a split tests, except its threshold. Many splits share a test."""

    feature: int  # Column of the feature
    missing: int  # Which values are missing: _NONE, _ZERO, or 2 for NaN alone
    to_left: bool  # Whether missing values go to the left


class Forest:
    """Lists of trees, T trees in all. The values of the trees of a list are summed.

    Args:
        lists: models in LightGBM's text format. They must have one class and numerical
            features only.

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
        """Make the arrays over the C distinct tests."""
        self._features = np.array([test.feature for test in tests], dtype=np.int64)
        replacements = [_replacement(test.missing, test.to_left) for test in tests]
        self._replacement = np.array(replacements, dtype=np.float32)[:, None]  # [C, 1]
        misses_zero = [test.missing == _ZERO for test in tests]
        self._misses_zero = np.array(misses_zero, np.bool_)[:, None]  # [C, 1]

    def _read_splits(
        self, trees: Sequence["_Tree"], tests: Sequence[_Test], most: int
    ) -> None:
        """Make the arrays of splits [most - 1, T] and of leaf values [T, most].

        ``most`` is the largest number of leaves of a tree. A tree with fewer splits is
        filled up with splits that change nothing.
        """
        shape = (most - 1, len(trees))
        self._leaves = np.zeros((len(trees), most))
        self._column = np.zeros(shape, np.int64)
        self._threshold = np.zeros(shape, np.float32)
        # Each leaf that a row can still reach if it goes to the right is a 1. The first
        # leaf is the lowest bit.
        self._possible = np.full(shape, ~self._type(0))
        numbers = {test: number for number, test in enumerate(tests)}
        for row, tree in enumerate(trees):
            self._leaves[row, : len(tree.leaves)] = tree.leaves
            size = len(tree.tests)
            self._column[:size, row] = [numbers[test] for test in tree.tests]
            self._threshold[:size, row] = tree.thresholds
            self._possible[:size, row] = [~self._type(bits) for bits in tree.excluded]

    def sums(self, values: Floats) -> npt.NDArray[np.float64]:
        """Return the sum of the trees' values for each of S lists and each row [S, P].

        ``values`` has P rows of K features.
        """
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
            bits -= one  # 0 to the right; all bits (1 below 0) to the left
            bits |= on_the_right[:, None]
            possible &= bits
        # The number of the leaf is the number of zeros below the lowest 1.
        leaf = np.bitwise_count(~possible & (possible - one))
        first = np.arange(len(self._leaves))[:, None] * self._leaves.shape[1]
        leaf_values = self._leaves.reshape(-1).take(first + leaf)  # [T, P]
        # The values are added tree after tree, as in LightGBM, so that rounding agrees.
        return np.stack(
            [
                np.add.reduce(leaf_values[start:end], axis=0)
                for start, end in pairwise(self._ends)
            ]
        )

    def _columns(self, values: Floats) -> Floats:
        """Return the values that the C tests compare with thresholds [C, P].

        A missing value is replaced by one that goes to the default side.
        """
        columns = values.T[self._features]
        is_zero = np.abs(columns) <= _ZERO_UP_TO
        columns[is_zero] = 0
        is_missing = np.isnan(columns) | (is_zero & self._misses_zero)
        return np.where(is_missing, self._replacement, columns)


class _Tree:
    """A tree, with its leaves numbered from left to right.

    Attributes:
        tests: feature of each split, and how the split treats missing values.
        thresholds: threshold of each split. It is rounded down to single precision, the
            precision of the features. This changes no comparison with a feature.
        excluded: for each split, a number in which the leaves on its left are 1.
        leaves: values of the leaves, from left to right.

    Raises:
        ValueError: the tree has categories or linear leaves.
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
        """Number the leaves below a node; return a number in which these leaves are 1.

        A node is the index of a split. In LightGBM's format, a negative node is a leaf.
        """
        if node < 0:
            self.leaves.append(self._values[~node])
            return 1 << (len(self.leaves) - 1)
        left = self._number_leaves(self._left[node])
        self.excluded[node] = left
        return left | self._number_leaves(self._right[node])


def _tests(fields: Mapping[str, list[str]]) -> list[_Test]:
    """Return the test of each split of a tree."""
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
    """Return the value that replaces a missing one and takes it to its side."""
    if missing == _NONE:
        return 0.0
    if to_left:
        return -np.inf
    return np.inf


def _rounded_down(value: float) -> np.float32:
    """Return the greatest finite single-precision number that is not above ``value``.

    It is finite, so that the infinity that replaces a missing value is above it and
    goes to the right.
    """
    rounded = np.float32(min(value, float(np.finfo(np.float32).max)))
    if float(rounded) <= value:
        return rounded
    return np.nextafter(rounded, np.float32(-np.inf))


def _sections(text: str) -> Iterator[dict[str, list[str]]]:
    """Yield the fields of each tree in LightGBM's text format, by name.

    Raises ValueError if the model has several classes or another format.
    """
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
