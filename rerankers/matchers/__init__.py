"""Faster ways to the same scores, for models that have one: a file of the model's name each.

A matcher is made for a set of pairs whose texts have been read, and scores them batch by batch.
What it computes is the model's forward pass in another order; tests hold the two together.
"""

import importlib
import pkgutil
from typing import Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from rerankers.base import Interactions, Reranker
from rerankers.encoded import Encoded, Scorable


class Matcher(Protocol):
    """Compares pairs of one query at a time."""

    def compared(self, rows: npt.NDArray[np.int64]) -> Interactions:
        """The pairs ``rows`` [P] of one query, compared but not yet judged."""

    def scores_of(self, rows: npt.NDArray[np.int64]) -> Tensor:
        """Scores [P] of the pairs ``rows`` of one query."""


def find(model: Reranker, encoded: Scorable) -> Matcher | None:
    """A matcher for these pairs, None where the model's own forward pass is the only way.

    That is so for pairs that have been compared already, and on a GPU.
    """
    name = type(model).__module__.rpartition(".")[2]
    if name not in {module.name for module in pkgutil.iter_modules(__path__)}:
        return None
    if not isinstance(encoded, Encoded) or model.device_of().type != "cpu":
        return None
    matcher: Matcher = importlib.import_module(f"{__name__}.{name}").Matcher(model, encoded)
    return matcher
