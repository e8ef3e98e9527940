"""The pairs of each training step: positives and sampled negatives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from rerankers.base import Reranker
from rerankers.errors import RerankerError
from rerankers.scoring.batches import represent_tokenized
from rerankers.scoring.tokenized import Tokenized
from rerankers.training.examples import Examples, Rows, TopicRows
from rerankers.training.settings import Settings


class BatchSampler:
    """Draws the pairs of each step, according to the settings' ``sampling``.

    Its ``examples`` include corrupted pairs.
    """

    def __init__(self, training: Examples, settings: Settings) -> None:
        self.examples, self._topics, self._settings = training, training.topics(), settings
        self._nearest: Mapping[int, Rows] | None = None
        if settings.sampling == "corrupted":
            self._add_corrupted_pairs()

    def start_epoch(self, model: Reranker, epoch: int) -> None:
        """Mine negatives for ``max`` and ``mix`` with the last epoch's model.

        Those of the first epoch, counted from 1, are random.
        """
        if self._settings.sampling in ("max", "mix") and epoch > 1:
            vectors = represent_tokenized(model, self.examples.pairs)
            self._nearest = nearest_negatives(vectors, self._topics, self._settings.negatives)

    def draw(self, step: int, rng: np.random.Generator) -> tuple[Rows, int]:
        """Rows [lists, candidates] of a step, positives first, and the positives of each list.

        Steps are counted from 0, over all epochs.
        """
        settings, count = self._settings, self._settings.positives
        if settings.sampling == "pairs":
            relevant = self.examples.relevant
            rows = shuffled_pairs(len(relevant), settings.batch_pairs, step, settings.seed)
            rows = np.concatenate([rows[relevant[rows]], rows[~relevant[rows]]])
            return rows[None], int(relevant[rows].sum())
        if self._nearest is not None:
            return mined_lists(self._topics, settings, self._nearest, rng), count
        size = count * settings.negatives
        return random_lists(self._topics, settings.batch_topics, count, size, rng), count

    def _add_corrupted_pairs(self) -> None:
        training, settings = self.examples, self._settings
        if not isinstance(training.pairs, Tokenized):
            raise TypeError("corrupted pairs are new ones, without cached interactions")
        queries, posts, self._topics = corrupted_pairs(
            training.pairs.query_index,
            training.pairs.post_index,
            self._topics,
            settings.negatives,
            np.random.default_rng([settings.seed, 0]),
        )
        self.examples = Examples(
            training.pairs.with_pairs(queries, posts),
            np.concatenate([training.relevant, np.zeros(len(queries), dtype=np.bool_)]),
        )


def random_lists(
    topics: list[TopicRows], lists: int, positives: int, negatives: int, rng: np.random.Generator
) -> Rows:
    """Lists of random positives and negatives, of different topics where there are enough.

    All topics are equally likely, because average precision counts each topic once, however many
    positives it has.

    Returns:
        [lists, positives + negatives] rows of pairs, positives first.
    """
    chosen = rng.choice(len(topics), size=lists, replace=lists > len(topics))
    rows = []
    for topic in chosen:
        relevant = rng.choice(topics[topic].positives, size=positives)
        rows.append(np.append(relevant, rng.choice(topics[topic].negatives, size=negatives)))
    return np.stack(rows)


def mined_lists(
    topics: list[TopicRows],
    settings: Settings,
    nearest: Mapping[int, Rows],
    rng: np.random.Generator,
) -> Rows:
    """Lists with the negatives most similar to their positives (Rao et al. 2016, section 3.2).

    Args:
        topics: to draw from.
        settings: ``max`` mines all negatives, ``mix`` half of them (rounded up); the others are
            random.
        nearest: row of a positive -> rows of its topic's most similar negatives, nearest first.
        rng: of the random choices.

    Returns:
        [lists, positives + positives · negatives] rows of pairs, positives first.
    """
    positives, count = settings.positives, settings.negatives
    mined = count if settings.sampling == "max" else -(-count // 2)
    lists = random_lists(topics, settings.batch_topics, positives, positives * count, rng)
    for row in lists:
        blocks = row[positives:].reshape(positives, count)  # a view of the row
        for positive, block in zip(row[:positives], blocks, strict=True):
            # Repeated where the topic has fewer negatives.
            block[:mined] = np.resize(nearest[int(positive)], mined)
    return lists


def nearest_negatives(
    representations: Tensor, topics: list[TopicRows], count: int
) -> dict[int, Rows]:
    """For each positive the ``count`` most similar negatives of its topic, by cosine.

    Exact search with FAISS, on a GPU where FAISS finds one.

    Args:
        representations: [P, K] of all pairs, by the model of the last epoch.

    Returns:
        Row of a positive -> rows of negatives, most similar first; fewer if the topic has fewer.

    Raises:
        RerankerError: FAISS is not installed.
    """
    try:
        import faiss
    except ImportError:
        raise RerankerError(
            "sampling max and mix search with FAISS, which is not installed; "
            "pip install 'tweetrerank[cpu]' (or [gpu], never both), or use the `sampling` random"
        ) from None
    # A copy: normalisation is in place.
    vectors = np.ascontiguousarray(representations.numpy().astype(np.float32))
    faiss.normalize_L2(vectors)
    gpu = faiss.StandardGpuResources() if getattr(faiss, "get_num_gpus", lambda: 0)() else None
    nearest = {}
    for topic in topics:
        index: Any = faiss.IndexFlatIP(vectors.shape[1])
        if gpu is not None:
            index = faiss.index_cpu_to_gpu(gpu, 0, index)
        index.add(vectors[topic.negatives])
        _, closest = index.search(vectors[topic.positives], min(count, len(topic.negatives)))
        for positive, places in zip(topic.positives.tolist(), closest, strict=True):
            nearest[positive] = topic.negatives[places]
    return nearest


def corrupted_pairs(
    query_index: Rows,
    post_index: Rows,
    topics: list[TopicRows],
    count: int,
    rng: np.random.Generator,
) -> tuple[Rows, Rows, list[TopicRows]]:
    """For each positive ``count`` posts of other topics (Qiu & Huang 2015, section 5).

    Returns:
        Query and post [positives · count] of new pairs, with rows after the existing P, and the
        topics with these rows as their negatives.

    Raises:
        RerankerError: a topic has no other, or none with a post that is not relevant to it.
    """
    if len(topics) < 2:
        raise RerankerError(
            f"sampling corrupted takes negatives from other topics: found {len(topics)} topic to "
            "train on, expected at least two; use the `sampling` random"
        )
    pools = [post_index[np.concatenate([topic.positives, topic.negatives])] for topic in topics]
    everything = np.concatenate(pools)
    owner = np.repeat(np.arange(len(pools)), [len(pool) for pool in pools])
    queries, posts, corrupted, row = [], [], [], len(query_index)
    for number, topic in enumerate(topics):
        size = len(topic.positives) * count
        # Topics may share posts: a relevant one is no negative.
        others = (owner != number) & ~np.isin(everything, post_index[topic.positives])
        if not others.any():
            raise RerankerError(
                "sampling corrupted takes negatives from other topics: found a topic to which all "
                "of their posts are relevant; use the `sampling` random"
            )
        posts.append(rng.choice(everything[others], size=size))
        queries.append(np.full(size, query_index[topic.positives[0]]))
        corrupted.append(TopicRows(topic.positives, np.arange(row, row + size)))
        row += size
    return np.concatenate(queries), np.concatenate(posts), corrupted


def shuffled_pairs(pairs: int, batch_pairs: int, step: int, seed: int) -> Rows:
    """Rows [batch_pairs] of one step, counted from 0, through shuffled passes over P pairs."""
    places = np.arange(step * batch_pairs, (step + 1) * batch_pairs)
    passes = {
        number: np.random.default_rng([seed, number]).permutation(pairs)
        for number in np.unique(places // pairs).tolist()
    }
    return np.array([passes[place // pairs][place % pairs] for place in places.tolist()])
