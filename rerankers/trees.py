"""LightGBM's text format, checked before LightGBM reads it.

LightGBM ends the whole process on a text that is cut short, and follows a branch to wherever its
number points, so nothing is handed to it that does not hold together.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from lightgbm import Booster

_END_OF_TREES = "\nend of trees\n"
_END = "\nend of parameters\n"

# A tree's lines of one number for each split, and of one for each leaf.
_SPLIT_INTEGERS = ("split_feature", "decision_type", "left_child", "right_child", "internal_count")
_SPLIT_FLOATS = ("split_gain", "threshold", "internal_value", "internal_weight")
_LEAF_FLOATS = ("leaf_value", "leaf_weight", "leaf_count")


def read_trees(text: str) -> "Booster":
    """Trees from their text.

    Raises:
        ValueError: the text is not whole or its numbers do not fit each other.
    """
    import lightgbm

    check(text)
    try:
        return lightgbm.Booster(model_str=text)
    except lightgbm.basic.LightGBMError as error:
        raise ValueError(str(error)) from None


def check(text: str) -> None:
    """Raise ValueError if ``text`` is not a whole list of trees over numeric features."""
    body, found, rest = text.partition(_END_OF_TREES)
    if not text.startswith("tree\n") or not found or _END not in rest:
        raise ValueError("it does not run from 'tree' to 'end of parameters'")
    head, *trees = body.split("\nTree=")
    header = _fields(head)
    _require(header.get("num_class") == "1", "num_class is not 1")
    _require(header.get("num_tree_per_iteration") == "1", "num_tree_per_iteration is not 1")
    names, last = header.get("feature_names", "").split(), _integer(header, "max_feature_idx")
    _require(len(names) == last + 1, f"max_feature_idx is {last} for {len(names)} features")
    infos = header.get("feature_infos", "").split()
    _require(len(infos) == len(names), f"{len(infos)} feature_infos for {len(names)} features")
    # A tree's size in bytes counts from "Tree=" to where the next one or the end begins.
    sizes = [len(f"Tree={tree}\n".encode()) for tree in trees]
    declared = [int(size) for size in header.get("tree_sizes", "").split()]
    _require(declared == sizes, "tree_sizes are not those of the trees")
    for number, tree in enumerate(trees):
        _check_tree(_fields(tree), len(names), f"tree {number}: ")


def _check_tree(fields: Mapping[str, str], features: int, where: str) -> None:
    leaves = _integer(fields, "num_leaves", where)
    _require(leaves >= 1, f"{where}num_leaves is {leaves}")
    for name in ("num_cat", "is_linear"):
        _require(fields.get(name) == "0", f"{where}{name} is not 0")
    if leaves > 1:
        numbers = {name: _numbers(fields, name, leaves - 1, where) for name in _SPLIT_INTEGERS}
        for name in _SPLIT_FLOATS:
            _numbers(fields, name, leaves - 1, where)
        split = numbers["split_feature"]
        _require(bool(((split >= 0) & (split < features)).all()), f"{where}a split_feature is none")
        # A leaf n is written as -n - 1, and a branch never leads back.
        for name in ("left_child", "right_child"):
            child, parent = numbers[name], np.arange(leaves - 1)
            inside = (child >= -leaves) & (child < leaves - 1) & ((child < 0) | (child > parent))
            _require(bool(inside.all()), f"{where}a {name} leads nowhere")
    for name in _LEAF_FLOATS if leaves > 1 else ("leaf_value",):
        _numbers(fields, name, leaves, where)


def _fields(section: str) -> dict[str, str]:
    lines = (line.partition("=") for line in section.split("\n"))
    return {name: value for name, found, value in lines if found}


def _integer(fields: Mapping[str, str], name: str, where: str = "") -> int:
    value = fields.get(name, "")
    _require(value.isdecimal() and len(value) < 10, f"{where}{name} is {value[:20]!r}")
    return int(value)


def _numbers(fields: Mapping[str, str], name: str, count: int, where: str) -> np.ndarray:
    """[count] the finite numbers of a line, integers if the name is of integers."""
    kind = np.int64 if name in _SPLIT_INTEGERS else np.float64
    try:
        found = np.array(fields.get(name, "").split(), dtype=str).astype(kind)
    except (ValueError, OverflowError):
        raise ValueError(f"{where}{name} has what is no number") from None
    _require(len(found) == count, f"{where}{name} has {len(found)} numbers for {count}")
    # A split of what is known from what is not has every number on one side.
    fine = ~np.isnan(found) if name == "threshold" else np.isfinite(found)
    _require(bool(fine.all()), f"{where}{name} has a number that is not finite")
    return found


def _require(holds: bool, problem: str) -> None:
    if not holds:
        raise ValueError(problem)
