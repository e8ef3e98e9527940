"""Comparisons of query and post computed once, for models that train only what comes after.

A model with fixed vectors and filters compares the same pair in the same way in every epoch.
Keeping the result (a few hundred numbers a pair) turns minutes of training into seconds.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from rerankers.base import Interactions, Reranker
from rerankers.engine import fast_paths
from rerankers.engine.scoring import BATCH_SIZE, batches_of
from rerankers.engine.tokenized import Tokenized


@dataclass
class CachedInteractions:
    """The interactions of P pairs.

    Attributes:
        query_index: [P] query of each pair.
        places: [P, 2] which tensor of ``parts`` holds a pair, and in which row.
        parts: the interactions of the pairs of one query each.
    """

    query_index: npt.NDArray[np.int64]
    places: npt.NDArray[np.int64]
    parts: list[dict[str, Tensor]]

    @classmethod
    def of(cls, model: Reranker, encoded: Tokenized) -> "CachedInteractions":
        """Compare all pairs."""
        device, training = model.device_of(), model.training
        model.eval()
        places = np.zeros((len(encoded.query_index), 2), dtype=np.int64)
        parts: list[dict[str, Tensor]] = []
        with torch.no_grad():
            fast_path = fast_paths.find(model, encoded)
            for rows in batches_of(encoded, BATCH_SIZE):
                interactions = (
                    fast_path.compared(rows) if fast_path else encoded.compared(model, rows, device)
                )
                places[rows, 0], places[rows, 1] = len(parts), np.arange(len(rows))
                parts.append(dict(interactions))
        model.train(training)
        return cls(encoded.query_index, places, parts)

    def scores_of(
        self, model: Reranker, rows: npt.NDArray[np.int64], device: torch.device
    ) -> Tensor:
        """Scores [B] of the pairs ``rows`` [B]."""
        return model.integrate(self.compared(model, rows, device))

    def compared(
        self, model: Reranker, rows: npt.NDArray[np.int64], device: torch.device
    ) -> Interactions:
        """What was kept of the pairs ``rows`` [B]."""
        places = self.places[rows]
        order = np.argsort(places[:, 0], kind="stable")
        numbers, first = np.unique(places[order, 0], return_index=True)
        chosen = [
            (self.parts[number], torch.from_numpy(part[:, 1]))
            for number, part in zip(numbers, np.split(places[order], first[1:]), strict=True)
        ]
        back = torch.from_numpy(np.argsort(order, kind="stable")).to(device)
        return {
            name: _stack([part[name][index] for part, index in chosen])[back]
            for name in self.parts[0]
        }

    def lengths(self) -> npt.NDArray[np.int64]:
        """[P] equal work for every pair; pairs of one part stay together."""
        lengths: npt.NDArray[np.int64] = self.places[:, 0]
        return lengths

    def subset(self, rows: npt.NDArray[np.int64]) -> "CachedInteractions":
        """The pairs ``rows`` alone."""
        return CachedInteractions(self.query_index[rows], self.places[rows], self.parts)


def _stack(parts: list[Tensor]) -> Tensor:
    """One tensor [B, L, K] of tensors whose numbers of places differ."""
    length = max(part.shape[1] for part in parts)
    return torch.cat([F.pad(part, (0, 0, 0, length - part.shape[1])) for part in parts])
