"""Judged pairs to train on, and the pairs of each step: positives and sampled negatives.

A model with fixed vectors and filters compares a pair in the same way in every epoch: keeping the
result (a few hundred numbers) turns minutes of training into seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
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
    rows: Rows  # [P] row of each pair in ``values``
    values: Interactions  # Those of short queries end with zero positions

    @classmethod
    def compute(
        cls, model: Reranker, tokenized: Tokenized, progress: Progress = silent
    ) -> CachedInteractions:
        """Compare all pairs; ``progress`` is called with numbers of them."""
        batches, parts = batches_of(tokenized, BATCH_SIZE), list[Interactions]()
        with evaluating(model), torch.no_grad():
            pairs = fast_path(model, tokenized) or tokenized
            for rows in batches:
                parts.append(pairs.compared(model, rows))
                progress(len(rows))
        values = dict[str, Tensor]()
        for name in parts[0]:
            most = max(part[name].shape[1] for part in parts)
            padded = [F.pad(each[name], (0, 0, 0, most - each[name].shape[1])) for each in parts]
            values[name] = torch.cat(padded)
        return cls(tokenized.query_index, np.argsort(np.concatenate(batches)), values)

    def compared(self, model: Reranker, rows: Rows) -> Interactions:
        """Interactions of the pairs ``rows`` [B]."""
        index = torch.from_numpy(self.rows[rows]).to(model.device_of())
        return {name: values[index] for name, values in self.values.items()}

    def lengths(self) -> Rows:
        """[P] equal work for every pair."""
        return np.ones_like(self.rows)

    def take(self, rows: Rows) -> CachedInteractions:
        """The pairs ``rows`` alone."""
        return CachedInteractions(self.query_index[rows], self.rows[rows], self.values)


class BatchSampler:
    """Draws the pairs of each step, according to the settings' ``sampling``. Its ``examples``
    include corrupted pairs; RerankerError if there are no posts for these."""

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
        are mined for ``max``, half of them (rounded up) for ``mix`` (Rao et al. 2016, 3.2)."""
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
        chosen, size = (of_topics[place] for place in places), self._settings.negatives
        return np.stack([np.append(row, rng.choice(others, size=size)) for row, others in chosen])

    def _shuffled(self, step: int, count: int, size: int) -> Rows:
        """Numbers [size] of one step through shuffled passes over ``count`` of them."""
        first, start = divmod(step * size, count)
        seeds = ([self._settings.seed, first + n] for n in range(-(-(start + size) // count)))
        passes = [np.random.default_rng(seed).permutation(count) for seed in seeds]
        return np.concatenate(passes)[start : start + size]

    def _corrupt(self) -> None:
        """Add posts of other topics for each positive as its negatives (Qiu & Huang 2015, 5)."""
        pairs, seed = self.examples.pairs, self._settings.seed
        assert isinstance(pairs, Tokenized), "corrupted pairs are new ones, without a comparison"
        rng, count = np.random.default_rng([seed, 0]), len(pairs.query_index)
        rows = np.concatenate([np.append(*topic) for topic in self._topics])
        queries, posts, topics = [pairs.query_index], [pairs.post_index], list[TopicRows]()
        for positives, _ in self._topics:
            query, right = pairs.query_index[positives[0]], pairs.post_index[positives]
            others = pairs.post_index[rows[pairs.query_index[rows] != query]]
            others = others[~np.isin(others, right)]  # Topics may share posts.
            if not len(others):
                raise RerankerError(
                    "sampling corrupted takes negatives from other topics: found a topic without "
                    "others, or to which all of their posts are relevant; use the `sampling` random"
                )
            size = len(positives) * self._settings.negatives
            posts.append(rng.choice(others, size=size))
            queries.append(np.full(size, query))
            topics.append(TopicRows(positives, np.arange(count, count + size)))
            count += size
        old, prior = len(pairs.query_index), pairs.prior
        if prior is not None:  # The new ones are in no run.
            prior = np.append(prior, np.zeros(count - old, np.float32))
        indices = np.concatenate(queries), np.concatenate(posts)
        new = Tokenized(pairs.queries, pairs.posts, *indices, prior)
        relevant = np.append(self.examples.relevant, np.zeros(count - old, dtype=bool))
        self.examples, self._topics = Examples(new, relevant), topics


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
    An exact search by FAISS among the vectors [P, K] of all pairs, on a GPU if it finds one."""
    try:
        import faiss
    except ImportError:
        raise RerankerError(
            "sampling max and mix search with FAISS, which is not installed; "
            "pip install 'tweetrerank[cpu]' (or [gpu], never both), or use the `sampling` random"
        ) from None
    unit, nearest = F.normalize(vectors.float(), dim=1).numpy(), dict[int, Rows]()
    search: Any = faiss.knn
    if getattr(faiss, "get_num_gpus", int)():
        search = partial(faiss.knn_gpu, faiss.StandardGpuResources())
    for positives, negatives in topics:
        texts = unit[positives], unit[negatives], min(count, len(negatives))
        _, closest = search(*texts, metric=faiss.METRIC_INNER_PRODUCT)
        nearest |= zip(positives.tolist(), negatives[closest], strict=True)
    return nearest
