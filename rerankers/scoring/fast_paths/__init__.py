"""Faster computations of a model's scores; each file has the name of its model.

A fast path is made for a set of tokenized pairs and scores them batch by batch. It computes the
model's forward pass in another order; tests compare the two.
"""

from __future__ import annotations

import importlib
import pkgutil
from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from rerankers.base import Inputs, Interactions, Reranker
from rerankers.devices import is_host
from rerankers.scoring.tokenized import Scorable, Tokenized
from rerankers.text.ragged import Rows

Query = TypeVar("Query")
"""An encoded query."""


class PerQueryFastPath(ABC, Generic[Query]):
    """Compares pairs of one query at a time, with the results of the model's ``interact``.

    Args:
        model: in evaluation mode, on the CPU.
        pairs: tokenized.
    """

    def __init__(self, model: Reranker, pairs: Tokenized) -> None:
        self.model: Any = model
        self.pairs = pairs
        self._last: tuple[int, Query] | None = None

    @abstractmethod
    def compared(self, rows: Rows) -> Interactions:
        """Interactions of the pairs ``rows`` [P] of one query."""

    def scores_of(self, rows: Rows) -> Tensor:
        """Scores [P] of the pairs ``rows`` of one query."""
        scores: Tensor = self.model.integrate(self.compared(rows))
        return scores

    def query(self, rows: Rows) -> Query:
        """The query of the pairs ``rows``; encoded again only when it changes."""
        row, last = int(self.pairs.query_index[rows[0]]), self._last
        # Threads may need different queries at the same time.
        if last is None or last[0] != row:
            index, cpu = np.array([row]), torch.device("cpu")
            inputs = {name: ids.batch(index, cpu) for name, ids in self.pairs.queries.items()}
            self._last = last = row, self.encode_query(inputs)
        return last[1]

    def encode_query(self, inputs: Inputs) -> Query:
        """Encode a query, given as inputs [1, Lq]."""
        encoded: Query = self.model.encode_queries(inputs)
        return encoded


def find(model: Reranker, pairs: Scorable, precision: str = "fp32") -> PerQueryFastPath[Any] | None:
    """A fast path for these pairs; None if only the model's own forward pass can score them.

    There is none on a GPU, none for cached interactions, and in bfloat16 only where the module's
    ``PRECISIONS`` contain it.
    """
    way = way_of(model)
    if way is None or precision not in getattr(way, "PRECISIONS", ("fp32",)):
        return None
    if not isinstance(pairs, Tokenized) or not is_host(model.device_of()):
        return None
    narrow = {} if precision == "fp32" else {"precision": precision}
    fast_path: PerQueryFastPath[Any] = way.FastPath(model, pairs, **narrow)
    return fast_path


def way_of(model: Reranker) -> Any:
    """The module of a model's fast path, None if it has none for this configuration."""
    name = type(model).__module__.rpartition(".")[2]
    way = importlib.import_module(f"{__name__}.{name}") if name in _names() else None
    return way if getattr(way, "covers", lambda model: True)(model) else None


def _names() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(__path__))
