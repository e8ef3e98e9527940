"""What fast_paths share: the pairs of one query at a time, and the query read once for them."""

from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rerankers.base import Interactions, Reranker
from rerankers.engine.tokenized import Tokenized

QueryVectors = TypeVar("QueryVectors")
"""A query as posts are compared with it."""


class PerQueryFastPath(ABC, Generic[QueryVectors]):
    """Compares pairs of one query at a time, as a model's ``interact`` does.

    Args:
        model: in evaluation mode, on the CPU.
        encoded: the pairs.
    """

    def __init__(self, model: Reranker, encoded: Tokenized) -> None:
        self.model: Any = model
        self.encoded = encoded
        self._last: tuple[int, QueryVectors] | None = None

    @abstractmethod
    def compared(self, rows: npt.NDArray[np.int64]) -> Interactions:
        """The pairs ``rows`` [P] of one query, compared but not yet judged."""

    def scores_of(self, rows: npt.NDArray[np.int64]) -> Tensor:
        """Scores [P] of the pairs ``rows`` of one query."""
        scores: Tensor = self.model.integrate(self.compared(rows))
        return scores

    def question(self, rows: npt.NDArray[np.int64]) -> QueryVectors:
        """The query of the pairs ``rows``; kept until another query comes."""
        query, last = int(self.encoded.query_index[rows[0]]), self._last
        # Threads may ask for different queries at the same time.
        if last is None or last[0] != query:
            self._last = last = query, self.ask(query)
        return last[1]

    def ask(self, query: int) -> QueryVectors:
        """Read a query, by its row."""
        row, cpu = np.array([query]), torch.device("cpu")
        inputs = {view: part.padded(row, cpu) for view, part in self.encoded.queries.items()}
        question: QueryVectors = self.model.encode_queries(inputs)
        return question
