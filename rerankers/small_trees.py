"""Lists of small trees, evaluated for many pairs at once and without branches.

What all splits of a tree of up to 9 leaves say of a pair is one byte, and the tree is a table over
these bytes. So the splits of many trees are compared with many pairs by arrays; walking down the
trees instead spends most of its time on branches that were foretold wrongly. All splits are looked
at in QuickScorer, too (Lucchese et al., SIGIR 2015), which keeps bits of the leaves in reach.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from rerankers.engine.threads import side_by_side

if TYPE_CHECKING:
    from lightgbm import Booster

_MOST_SPLITS = 8
"""Of a tree: the bits of a byte."""

_TREES, _PAIRS = 64, 1024
"""Of a block, whose arrays stay in a core's cache."""

_LARGEST = float(np.finfo(np.float32).max)
_ZERO = float(np.float32(1e-35))
"""What is no further from 0 is 0 to LightGBM."""

Node = dict[str, Any]
"""Of a tree as LightGBM dumps it: a split, or a leaf."""


@dataclass(frozen=True)
class SmallTrees:
    """T trees of at most S splits over features, of which U are read.

    Attributes:
        columns: [U] the features; one is here twice if NaN goes left at some of its splits and
            right at others.
        unknown: [U] what NaN is replaced by.
        splits: [T, S] each split's feature, as a place among ``columns``.
        thresholds: [T, S] a split's bit is 1 where its feature is above.
        values: [T, 2**S] what a tree says of a pair, by its splits' bits.
    """

    columns: npt.NDArray[np.int64]
    unknown: npt.NDArray[np.float32]
    splits: npt.NDArray[np.int64]
    thresholds: npt.NDArray[np.float32]
    values: npt.NDArray[np.float64]

    @classmethod
    def of(cls, boosters: "Sequence[Booster]") -> "SmallTrees | None":
        """The trees of all boosters, or None if some are too large or split by other rules."""
        # Trees may be of any depth, which recursion may not.
        if not all(map(_has_small_trees, boosters)):
            return None
        trees = [
            tree["tree_structure"]
            for booster in boosters
            for tree in booster.dump_model()["tree_info"]
        ]
        nodes = [list(_splits(tree)) for tree in trees]
        if not all(map(_is_usual, chain(*nodes))):
            return None
        most = max(map(len, nodes), default=0)
        places: dict[tuple[int, float], int] = {}
        shape = (len(trees), most)
        # A bit that stands for no split is 0 for all, whatever is compared.
        splits, thresholds = np.zeros(shape, np.int64), np.full(shape, np.inf, np.float32)
        values = np.zeros((len(trees), 2**most))
        for tree, root in enumerate(trees):
            for node in nodes[tree]:
                bit, column = node["split_index"], (node["split_feature"], _unknown(node))
                splits[tree, bit] = places.setdefault(column, len(places))
                thresholds[tree, bit] = _threshold(node)
            _fill(values[tree], root, np.arange(2**most))
        columns = np.array([feature for feature, _ in places], dtype=np.int64)
        unknown = np.array([value for _, value in places], dtype=np.float32)
        return cls(columns, unknown, splits, thresholds, values)

    def scores(self, features: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        """The sum of the trees' values for each pair: [P, K] -> [P].

        Args:
            features: finite, or NaN where they are not known.
        """
        scores = np.zeros(len(features))
        if not len(self.columns):
            return scores + self.values.sum()
        blocks = -(-len(features) // _PAIRS)
        # As many for each thread.
        threads = torch.get_num_threads()
        blocks = -(-blocks // threads) * threads
        bounds = np.linspace(0, len(features), blocks + 1).astype(np.int64)
        tables = torch.from_numpy(self.values)

        def add(block: int) -> None:
            rows = slice(bounds[block], bounds[block + 1])
            known = features[rows].T[self.columns]
            np.copyto(known, self.unknown[:, None], where=np.isnan(known))
            for first in range(0, len(self.splits), _TREES):
                trees = slice(first, first + _TREES)
                codes = torch.from_numpy(self._codes(trees, known))
                scores[rows] += tables[trees].gather(1, codes).numpy().sum(axis=0)

        side_by_side(add, range(blocks))
        return scores

    def _codes(self, trees: slice, known: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
        """What the splits of some trees say of pairs, a bit for each: [trees, pairs]."""
        splits, thresholds = self.splits[trees].T, self.thresholds[trees].T
        above = known[splits.ravel()] > thresholds.reshape(-1, 1)
        bits = above.view(np.uint8).reshape(*splits.shape, -1)
        codes = bits[-1].copy()
        for others in bits[-2::-1]:
            codes += codes
            codes += others
        return codes.astype(np.int64)


def _has_small_trees(booster: "Booster") -> bool:
    leaves = re.findall(r"^num_leaves=(\d+)$", booster.model_to_string(), flags=re.MULTILINE)
    return all(int(count) <= _MOST_SPLITS + 1 for count in leaves)


def _splits(node: Node) -> Iterator[Node]:
    if "split_index" in node:
        yield node
        yield from _splits(node["left_child"])
        yield from _splits(node["right_child"])


def _is_usual(split: Node) -> bool:
    return split["decision_type"] == "<=" and split["missing_type"] in ("None", "NaN")


def _unknown(split: Node) -> float:
    """What takes NaN's place, so that it goes where LightGBM has it go."""
    if split["missing_type"] == "None":
        return 0.0
    return -np.inf if split["default_left"] else np.inf


def _threshold(split: Node) -> np.float32:
    """The largest number of single precision that goes left, so that none is on another side."""
    exact = min(split["threshold"], _LARGEST)
    if -_ZERO <= exact < 0:
        exact = np.nextafter(-_ZERO, -np.inf)
    rounded = np.float32(exact)
    return rounded if float(rounded) <= exact else np.nextafter(rounded, np.float32(-np.inf))


def _fill(values: npt.NDArray[np.float64], node: Node, codes: npt.NDArray[np.int64]) -> None:
    """Write the leaves below a node to where the bits ``codes`` lead to them."""
    if "split_index" not in node:
        values[codes] = node["leaf_value"]
        return
    is_above = (codes >> node["split_index"] & 1).astype(bool)
    _fill(values, node["left_child"], codes[~is_above])
    _fill(values, node["right_child"], codes[is_above])
