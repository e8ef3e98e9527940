"""Faster computations of a model's scores; each file has the name of its model.

A fast path is made for a set of tokenized pairs and scores them batch by batch. It computes the
model's forward pass in another order; tests compare the two.
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
        """Interactions of the pairs ``rows`` [P] of one query."""

    def scores_of(self, rows: npt.NDArray[np.int64]) -> Tensor:
        """Scores [P] of the pairs ``rows`` of one query."""


def find(model: Reranker, pairs: Scorable, precision: str = "fp32") -> FastPath | None:
    """A fast path for these pairs; None if only the model's own forward pass can score them.

    There is none on a GPU, none for cached interactions, and in bfloat16 only where the module's
    ``PRECISIONS`` contain it.
    """
    way = way_of(model)
    if way is None or precision not in getattr(way, "PRECISIONS", ("fp32",)):
        return None
    if not isinstance(pairs, Tokenized) or model.device_of().type != "cpu":
        return None
    narrow = {} if precision == "fp32" else {"precision": precision}
    fast_path: FastPath = way.FastPath(model, pairs, **narrow)
    return fast_path


def way_of(model: Reranker) -> Any:
    """The module of a model's fast path, None if it has none.

    Besides ``FastPath``, a module whose posts can be precomputed (see
    :mod:`rerankers.engine.precomputed`) has ``tower_inputs(model)`` and ``towers(model, *texts)``
    for vectors of windows, or ``PostVectors(model, packed)`` for one vector of each post's input
    ``VECTOR_INPUT``.
    """
    name = type(model).__module__.rpartition(".")[2]
    return importlib.import_module(f"{__name__}.{name}") if name in _names() else None


def precomputable() -> list[str]:
    """Names of the models whose posts can be precomputed."""
    return [
        name for name in _names() if can_precompute(importlib.import_module(f"{__name__}.{name}"))
    ]


def can_precompute(way: Any) -> bool:
    """Whether the module of a fast path, None if there is none, can precompute posts."""
    return hasattr(way, "tower_inputs") or hasattr(way, "PostVectors")


def _names() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(__path__))
