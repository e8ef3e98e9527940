"""Faster ways to the same scores, for models that have one: a file of the model's name each.

A fast_path is made for a set of pairs whose texts have been read, and scores them batch by batch.
What it computes is the model's forward pass in another order; tests hold the two together.
"""

import importlib
import pkgutil
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from rerankers.base import Interactions, Reranker
from rerankers.engine.tokenized import Scorable, Tokenized


class FastPath(Protocol):
    """Compares pairs of one query at a time."""

    def compared(self, rows: npt.NDArray[np.int64]) -> Interactions:
        """The pairs ``rows`` [P] of one query, compared but not yet judged."""

    def scores_of(self, rows: npt.NDArray[np.int64]) -> Tensor:
        """Scores [P] of the pairs ``rows`` of one query."""


def find(model: Reranker, encoded: Scorable, precision: str = "fp32") -> FastPath | None:
    """A fast_path for these pairs, None where the model's own forward pass is the only way.

    That is so for pairs that have been compared already, on a GPU, and in bfloat16 but for
    fast_paths whose ``PRECISIONS`` name it.
    """
    way = way_of(model)
    if way is None or precision not in getattr(way, "PRECISIONS", ("fp32",)):
        return None
    if not isinstance(encoded, Tokenized) or model.device_of().type != "cpu":
        return None
    narrow = {} if precision == "fp32" else {"precision": precision}
    fast_path: FastPath = way.FastPath(model, encoded, **narrow)
    return fast_path


def way_of(model: Reranker) -> Any:
    """The module that is a model's faster way, None if it has none.

    Beside its ``FastPath`` it may have ``tower_inputs(model)`` and ``towers(model, *texts)``, vectors of
    windows, or ``PostVectors(model, packed)``, one vector for all of the view ``VECTOR_INPUT``: then
    posts can be encoded beforehand; see :mod:`rerankers.engine.precompute`.
    """
    name = type(model).__module__.rpartition(".")[2]
    return importlib.import_module(f"{__name__}.{name}") if name in _names() else None


def encodable() -> list[str]:
    """The models whose posts can be encoded beforehand."""
    return [
        name for name in _names()
        if can_encode(importlib.import_module(f"{__name__}.{name}"))
    ]  # fmt: skip


def can_encode(way: Any) -> bool:
    """Whether a model's faster way, None if it has none, can encode posts beforehand."""
    return hasattr(way, "tower_inputs") or hasattr(way, "PostVectors")


def _names() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(__path__))
