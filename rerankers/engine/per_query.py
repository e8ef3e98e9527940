"""Base of the fast paths: pairs of one query at a time, with the query encoded once."""

from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rerankers.base import Inputs, Interactions, Reranker
from rerankers.engine.tokenized import Tokenized

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
    def compared(self, rows: npt.NDArray[np.int64]) -> Interactions:
        """Interactions of the pairs ``rows`` [P] of one query."""

    def scores_of(self, rows: npt.NDArray[np.int64]) -> Tensor:
        """Scores [P] of the pairs ``rows`` of one query."""
        scores: Tensor = self.model.integrate(self.compared(rows))
        return scores

    def query(self, rows: npt.NDArray[np.int64]) -> Query:
        """The query of the pairs ``rows``; encoded again only when it changes."""
        row, last = int(self.pairs.query_index[rows[0]]), self._last
        # Threads may need different queries at the same time.
        if last is None or last[0] != row:
            self._last = last = row, self.encode_query(row)
        return last[1]

    def encode_query(self, query: int) -> Query:
        """Encode a query, by its row."""
        encoded: Query = self.model.encode_queries(self.query_terms(query))
        return encoded

    def query_terms(self, query: int) -> Inputs:
        """Inputs [1, Lq] of a query, by its row."""
        row, cpu = np.array([query]), torch.device("cpu")
        return {name: packed.batch(row, cpu) for name, packed in self.pairs.queries.items()}
