"""Judged pairs to train on, with comparisons of query and post computed once where possible.

A model with fixed vectors and filters compares the same pair in the same way in every epoch.
Keeping the result (a few hundred numbers a pair) turns minutes of training into seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from rerankers.networks.base import Interactions, Reranker
from rerankers.networks.batches import BATCH_SIZE, batches_of, evaluating
from rerankers.networks.inputs import Scorable, Tokenized
from rerankers.networks.ngrams import fast_path
from rerankers.networks.training.settings import Settings
from rerankers.pairs import lists_of
from rerankers.reranker import Progress, silent

Rows = npt.NDArray[np.int64]  # Row numbers of pairs


@dataclass(frozen=True)
class TopicRows:
    """Rows of one training topic's positives and of its negatives."""

    positives: Rows
    negatives: Rows


@dataclass(frozen=True)
class Examples:
    """Pairs with labels [P]: tokenized, or their comparisons where training changes none."""

    pairs: Tokenized | CachedInteractions
    relevant: npt.NDArray[np.bool_]

    def topics(self) -> list[TopicRows]:
        """Topics with at least one positive and one negative: no others can be learned from."""
        topics = []
        for rows in lists_of(self.pairs.query_index):
            positives, negatives = rows[self.relevant[rows]], rows[~self.relevant[rows]]
            if len(positives) and len(negatives):
                topics.append(TopicRows(positives, negatives))
        return topics

    def steps_of_epoch(self, settings: Settings) -> int:
        """Steps an epoch of a training on all pairs, or on lists of all positives."""
        count, size = len(self.relevant), settings.batch_pairs
        if settings.sampling != "pairs":
            count = sum(len(topic.positives) for topic in self.topics())
            size = settings.batch_topics
        return settings.steps or -(-count // size)

    def take(self, rows: Rows) -> Examples:
        """The examples ``rows`` alone."""
        return Examples(self.pairs.take(rows), self.relevant[rows])


@dataclass
class CachedInteractions(Scorable):
    """The interactions of P pairs."""

    query_index: Rows  # [P] query of each pair
    places: Rows  # [P, 2] number of the pair's entry in ``parts``, and its row there
    parts: list[Interactions]  # Of batches of pairs with one query

    @classmethod
    def compute(
        cls, model: Reranker, tokenized: Tokenized, progress: Progress = silent
    ) -> CachedInteractions:
        """Compare all pairs; ``progress`` is called with numbers of them."""
        places = np.zeros((len(tokenized.query_index), 2), dtype=np.int64)
        parts: list[Interactions] = []
        with evaluating(model), torch.no_grad():
            pairs = fast_path(model, tokenized) or tokenized
            for rows in batches_of(tokenized, BATCH_SIZE):
                places[rows, 0], places[rows, 1] = len(parts), np.arange(len(rows))
                parts.append(pairs.compared(model, rows))
                progress(len(rows))
        return cls(tokenized.query_index, places, parts)

    def compared(self, model: Reranker, rows: Rows) -> Interactions:
        """Interactions of the pairs ``rows`` [B]."""
        places = self.places[rows]
        order = np.argsort(places[:, 0], kind="stable")
        numbers, first = np.unique(places[order, 0], return_index=True)
        chosen = [
            (self.parts[number], torch.from_numpy(part[:, 1]))
            for number, part in zip(numbers, np.split(places[order], first[1:]), strict=True)
        ]
        back = torch.from_numpy(np.argsort(order, kind="stable")).to(model.device_of())
        return {
            name: _stack([part[name][index] for part, index in chosen])[back]
            for name in self.parts[0]
        }

    def lengths(self) -> Rows:
        """[P] equal work for every pair; pairs of one part stay together."""
        return self.places[:, 0]

    def take(self, rows: Rows) -> CachedInteractions:
        """The pairs ``rows`` alone."""
        return CachedInteractions(self.query_index[rows], self.places[rows], self.parts)


def _stack(parts: list[Tensor]) -> Tensor:
    """One tensor [B, L, K] of tensors with different numbers of positions L, padded with zeros."""
    length = max(part.shape[1] for part in parts)
    return torch.cat([F.pad(part, (0, 0, 0, length - part.shape[1])) for part in parts])
