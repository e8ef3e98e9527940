"""Judged pairs to train on or to validate with, and a cache of their interactions."""

from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tweetrerank.rerankers.model import Progress, silent
from tweetrerank.rerankers.networks import network
from tweetrerank.rerankers.networks.base import Interactions, Reranker
from tweetrerank.rerankers.networks.inputs import Tokenized
from tweetrerank.rerankers.networks.layers.positions import pad_after
from tweetrerank.rerankers.networks.training.training_settings import Settings
from tweetrerank.rerankers.pairs import lists_of
from tweetrerank.rerankers.text.ragged import Rows


class TopicRows(NamedTuple):
    """The rows of one topic's pairs, relevant and other ones."""

    positives: Rows
    negatives: Rows


@dataclass(frozen=True)
class Examples:
    """Pairs with their labels [P]."""

    pairs: Tokenized
    relevant: npt.NDArray[np.bool_]

    def topics(self) -> list[TopicRows]:
        """Return the topics that have both a relevant post and another one.

        Other topics teach nothing.
        """
        topics = []
        for rows in lists_of(self.pairs.query_index):
            is_relevant = self.relevant[rows]
            topic = TopicRows(rows[is_relevant], rows[~is_relevant])
            if len(topic.positives) and len(topic.negatives):
                topics.append(topic)
        return topics

    def steps_of_epoch(self, settings: Settings) -> int:
        """Return the number of steps in an epoch.

        It is given by the settings, or else it is one pass over the examples.
        """
        if settings.steps:
            return settings.steps
        if settings.sampling == "pairs":
            return -(-len(self.relevant) // settings.batch_pairs)
        count = sum(len(topic.positives) for topic in self.topics())
        return -(-count // settings.batch_topics)

    def take(self, rows: Rows) -> Self:
        """Return only the examples ``rows``."""
        return replace(
            self,
            pairs=self.pairs.take(rows),
            relevant=self.relevant[rows],
        )


def compared_once(
    model: Reranker,
    pairs: Tokenized,
    progress: Progress = silent,
) -> Tokenized:
    """Return the same pairs with a cache of their interactions.

    A model with fixed vectors and filters compares a pair in the same way in every
    epoch. A cache, which takes a few hundred numbers for each pair, shortens training
    from minutes to seconds. ``progress`` is called with the number of pairs of each
    finished batch.
    """
    batches = network.batches_of(pairs, network.BATCH_SIZE)
    blocks: list[Interactions] = []
    with network.evaluating(model), torch.no_grad():
        readable = model.fast_path(pairs) or pairs
        for rows in batches:
            blocks.append(readable.interactions_of(model, rows))
            progress(len(rows))
    cache: dict[str, Tensor] = {}
    for name in blocks[0]:
        cache[name] = _concatenated([block[name] for block in blocks])
    cache_rows = np.argsort(np.concatenate(batches))
    return replace(pairs, cache=cache, cache_rows=cache_rows)


def _concatenated(blocks: list[Tensor]) -> Tensor:
    """Concatenate blocks [B, L, K] as [P, longest, K].

    L may differ between blocks. Shorter blocks are padded with zeros.
    """
    longest = max(block.shape[1] for block in blocks)
    padded = []
    for block in blocks:
        missing = longest - block.shape[1]
        padded.append(pad_after(block, missing))
    return torch.cat(padded)
