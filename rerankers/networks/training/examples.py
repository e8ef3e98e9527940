"""Judged pairs to train on, and the pairs of each step: positives and sampled negatives.

A model with fixed vectors and filters compares the same pair in the same way in every epoch.
Keeping the result (a few hundred numbers a pair) turns minutes of training into seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from rerankers.errors import RerankerError
from rerankers.networks.base import Interactions, Reranker
from rerankers.networks.batches import BATCH_SIZE, batches_of, evaluating, represent_tokenized
from rerankers.networks.inputs import Scorable, Tokenized
from rerankers.networks.ngrams import fast_path
from rerankers.networks.training.settings import Settings
from rerankers.pairs import lists_of
from rerankers.reranker import Progress, silent
from rerankers.text.ragged import Rows


class TopicRows(NamedTuple):
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


class BatchSampler:
    """Draws the pairs of each step, according to the settings' ``sampling``.

    Its ``examples`` include corrupted pairs; RerankerError if there are no posts for these.
    """

    def __init__(self, training: Examples, settings: Settings) -> None:
        self.examples, self._topics, self._settings = training, training.topics(), settings
        self._nearest: dict[int, Rows] = {}
        if settings.sampling == "corrupted":
            self._corrupt()

    def start_epoch(self, model: Reranker, epoch: int) -> None:
        """Mine negatives for ``max`` and ``mix`` with the last epoch's model; none in the first,
        counted from 1. RerankerError if FAISS is not installed."""
        if self._settings.sampling in ("max", "mix") and epoch > 1:
            vectors = represent_tokenized(model, self.examples.pairs)
            self._nearest = _nearest(vectors, self._topics, self._settings.negatives)

    def draw(self, step: int, rng: np.random.Generator) -> tuple[Rows, int]:
        """Rows [lists, candidates] of a step, positives first, and the positives of each list.

        Steps are counted from 0, over all epochs. Where there are mined negatives, all of a list
        are mined for ``max``, half of them (rounded up) for ``mix`` (Rao et al. 2016, 3.2).
        """
        settings, count = self._settings, self._settings.positives
        if settings.sampling == "pairs":
            relevant = self.examples.relevant
            rows = self._shuffled(step, len(relevant), settings.batch_pairs)
            rows = np.concatenate([rows[relevant[rows]], rows[~relevant[rows]]])
            return rows[None], int(relevant[rows].sum())
        each = settings.negatives
        if settings.steps:
            lists = random_lists(self._topics, settings.batch_topics, count, count * each, rng)
        else:
            lists = self._next_lists(step, rng)
        mined = each if settings.sampling == "max" else -(-each // 2)
        for row in lists if self._nearest else ():
            blocks = row[count:].reshape(count, each)  # a view of the row
            for positive, block in zip(row[:count].tolist(), blocks, strict=True):
                # Repeated where the topic has fewer negatives.
                block[:mined] = np.resize(self._nearest[positive], mined)
        return lists, count

    def _next_lists(self, step: int, rng: np.random.Generator) -> Rows:
        """Lists of one step through shuffled passes over all positives (Rao et al. 2016, code)."""
        of_topics = [(row, topic.negatives) for topic in self._topics for row in topic.positives]
        places = self._shuffled(step, len(of_topics), self._settings.batch_topics)
        chosen = (of_topics[place] for place in places)
        size = self._settings.negatives
        return np.stack([np.append(row, rng.choice(others, size=size)) for row, others in chosen])

    def _shuffled(self, step: int, count: int, size: int) -> Rows:
        """Numbers [size] of one step through shuffled passes over ``count`` of them."""
        passes, places = np.divmod(np.arange(step * size, (step + 1) * size), count)
        of_passes = zip(passes.tolist(), places.tolist(), strict=True)
        return np.array([_order(self._settings.seed, n, count)[place] for n, place in of_passes])

    def _corrupt(self) -> None:
        """Add posts of other topics for each positive as its negatives (Qiu & Huang 2015, 5)."""
        pairs, topics, settings = self.examples.pairs, self._topics, self._settings
        if not isinstance(pairs, Tokenized):
            raise TypeError("corrupted pairs are new ones, without cached interactions")
        if len(topics) < 2:
            raise RerankerError(
                f"sampling corrupted takes negatives from other topics: found {len(topics)} topic "
                "to train on, expected at least two; use the `sampling` random"
            )
        rng, self._topics = np.random.default_rng([settings.seed, 0]), []
        everything = np.concatenate([pairs.post_index[np.append(*each)] for each in topics])
        owner = np.repeat(np.arange(len(topics)), [sum(map(len, each)) for each in topics])
        queries, posts, row = [], [], len(pairs.query_index)
        for number, topic in enumerate(topics):
            size = len(topic.positives) * settings.negatives
            # Topics may share posts: a relevant one is no negative.
            relevant = np.isin(everything, pairs.post_index[topic.positives])
            others = everything[(owner != number) & ~relevant]
            if not len(others):
                raise RerankerError(
                    "sampling corrupted takes negatives from other topics: found a topic to which "
                    "all of their posts are relevant; use the `sampling` random"
                )
            posts.append(rng.choice(others, size=size))
            queries.append(np.full(size, pairs.query_index[topic.positives[0]]))
            self._topics.append(TopicRows(topic.positives, np.arange(row, row + size)))
            row += size
        new = pairs.with_pairs(np.concatenate(queries), np.concatenate(posts))
        self.examples = Examples(new, np.resize(self.examples.relevant, row))
        self.examples.relevant[len(pairs.query_index) :] = False


@lru_cache(maxsize=2)
def _order(seed: int, number: int, count: int) -> Rows:
    return np.random.default_rng([seed, number]).permutation(count)


def random_lists(
    topics: list[TopicRows], lists: int, positives: int, negatives: int, rng: np.random.Generator
) -> Rows:
    """Lists of random positives and negatives, of different topics where there are enough.

    All topics are equally likely, because average precision counts each topic once, however many
    positives it has. The result is [lists, positives + negatives] rows of pairs, positives first.
    """
    chosen = rng.choice(len(topics), size=lists, replace=lists > len(topics))
    rows = []
    for topic in chosen:
        relevant = rng.choice(topics[topic].positives, size=positives)
        rows.append(np.append(relevant, rng.choice(topics[topic].negatives, size=negatives)))
    return np.stack(rows)


def _nearest(vectors: Tensor, topics: list[TopicRows], count: int) -> dict[int, Rows]:
    """Row of each positive -> rows of the ``count`` most similar negatives of its topic, by cosine.

    Exact search with FAISS among the vectors [P, K] of all pairs, on a GPU where FAISS finds one.
    """
    try:
        import faiss
    except ImportError:
        raise RerankerError(
            "sampling max and mix search with FAISS, which is not installed; "
            "pip install 'tweetrerank[cpu]' (or [gpu], never both), or use the `sampling` random"
        ) from None
    unit = np.array(vectors.numpy(), dtype=np.float32, order="C")  # Normalised in place.
    faiss.normalize_L2(unit)
    gpu = faiss.StandardGpuResources() if getattr(faiss, "get_num_gpus", lambda: 0)() else None
    nearest = dict[int, Rows]()
    for topic in topics:
        index: Any = faiss.IndexFlatIP(unit.shape[1])
        if gpu is not None:
            index = faiss.index_cpu_to_gpu(gpu, 0, index)
        index.add(unit[topic.negatives])
        _, closest = index.search(unit[topic.positives], min(count, len(topic.negatives)))
        nearest |= zip(topic.positives.tolist(), topic.negatives[closest], strict=True)
    return nearest
