"""Which posts a training step sees: lists of one topic's positives and sampled negatives."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from rerankers.errors import RerankerError
from rerankers.training.settings import Settings

Rows = npt.NDArray[np.int64]
"""Rows of pairs."""


@dataclass(frozen=True)
class TopicRows:
    """The pairs of one training topic: rows of its positives and of its negatives."""

    positives: npt.NDArray[np.int64]
    negatives: npt.NDArray[np.int64]


def topics_of(
    query_index: npt.NDArray[np.int64], relevant: npt.NDArray[np.bool_]
) -> list[TopicRows]:
    """The topics that can be learned from: those with a positive and a negative.

    Args:
        query_index: [P] query of each pair.
        relevant: [P] whether its post is relevant.
    """
    topics = []
    for query in np.unique(query_index):
        rows = np.flatnonzero(query_index == query)
        positives, negatives = rows[relevant[rows]], rows[~relevant[rows]]
        if len(positives) and len(negatives):
            topics.append(TopicRows(positives, negatives))
    return topics


def random_lists(
    topics: list[TopicRows],
    lists: int,
    positives: int,
    negatives: int,
    rng: np.random.Generator,
) -> npt.NDArray[np.int64]:
    """Draw lists of random positives and negatives, each of another topic where there are enough.

    Topics are drawn evenly: average precision counts each topic once, however many positives it
    has.

    Returns:
        [lists, positives + negatives] rows of pairs, positives first.
    """
    chosen = rng.choice(len(topics), size=lists, replace=lists > len(topics))
    return np.stack(
        [
            np.concatenate(
                [
                    rng.choice(topics[topic].positives, size=positives),
                    rng.choice(topics[topic].negatives, size=negatives),
                ]
            )
            for topic in chosen
        ]
    )


def mined_lists(
    topics: list[TopicRows], settings: Settings, nearest: Mapping[int, Rows],
    rng: np.random.Generator,
) -> Rows:  # fmt: skip
    """Draw lists whose negatives are those most like their positives (Rao et al. 2016, 3.2).

    Args:
        topics: to draw from.
        settings: ``max`` takes all negatives so, ``mix`` half of them (rounded up) and the others
            at random.
        nearest: row of a positive -> rows of its topic's most similar negatives, nearest first.
        rng: draws topics, positives and random negatives.

    Returns:
        [lists, positives + positives · negatives] rows of pairs, positives first.
    """
    count = settings.negatives
    mined = count if settings.sampling == "max" else -(-count // 2)
    lists = random_lists(
        topics, settings.batch_topics, settings.positives, settings.positives * count, rng
    )
    for row in lists:
        blocks = row[settings.positives :].reshape(settings.positives, count)  # a view of the row
        for positive, block in zip(row[: settings.positives], blocks, strict=True):
            # A topic with few negatives gives each of them more often.
            block[:mined] = np.resize(nearest[int(positive)], mined)
    return lists


def nearest_negatives(
    representations: Tensor, topics: list[TopicRows], count: int
) -> dict[int, Rows]:
    """The negatives of its topic that each positive is most similar to, by cosine.

    Exact search with FAISS, on a GPU where FAISS finds one.

    Args:
        representations: [P, K] of all pairs, by the model of the last epoch.
        topics: rows of positives and negatives.
        count: negatives for each positive, fewer if the topic has fewer.

    Returns:
        Row of a positive -> rows of negatives, most similar first.

    Raises:
        RerankerError: FAISS is not installed.
    """
    try:
        import faiss
    except ImportError:
        raise RerankerError(
            "sampling max and mix search with FAISS, which is not installed; "
            "pip install 'tweetrerank[cpu]' (or [gpu], never both), or use --sampling random"
        ) from None
    vectors = representations.numpy().astype(np.float32)
    vectors = np.ascontiguousarray(vectors)
    faiss.normalize_L2(vectors)
    gpu = faiss.StandardGpuResources() if getattr(faiss, "get_num_gpus", lambda: 0)() else None
    nearest = {}
    for topic in topics:
        index: Any = faiss.IndexFlatIP(vectors.shape[1])
        if gpu is not None:
            index = faiss.index_cpu_to_gpu(gpu, 0, index)
        index.add(vectors[topic.negatives])
        _, found = index.search(vectors[topic.positives], min(count, len(topic.negatives)))
        for positive, places in zip(topic.positives.tolist(), found, strict=True):
            nearest[positive] = topic.negatives[places]
    return nearest


def corrupted_pairs(
    query_index: npt.NDArray[np.int64],
    post_index: npt.NDArray[np.int64],
    topics: list[TopicRows],
    count: int,
    rng: np.random.Generator,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], list[TopicRows]]:
    """Replace the post of each positive by ``count`` of other topics (Qiu & Huang, section 5).

    Returns:
        Query and post [positives · count] of new pairs, whose rows come after the P that there
        are, and the topics with these rows as their negatives.

    Raises:
        RerankerError: a topic has no other, or none with a post that is not relevant to it.
    """
    if len(topics) < 2:
        raise RerankerError(
            f"sampling corrupted takes negatives from other topics: found {len(topics)} topic to "
            "train on, expected at least two; use --sampling random"
        )
    pools = [post_index[np.concatenate([topic.positives, topic.negatives])] for topic in topics]
    everything, owner = (
        np.concatenate(pools),
        np.repeat(np.arange(len(pools)), list(map(len, pools))),
    )
    queries, posts, corrupted, row = [], [], [], len(query_index)
    for number, topic in enumerate(topics):
        size = len(topic.positives) * count
        # Topics may share posts; one that is relevant here is no negative.
        others = (owner != number) & ~np.isin(everything, post_index[topic.positives])
        if not others.any():
            raise RerankerError(
                "sampling corrupted takes negatives from other topics: found a topic to which all "
                "of their posts are relevant; use --sampling random"
            )
        posts.append(rng.choice(everything[others], size=size))
        queries.append(np.full(size, query_index[topic.positives[0]]))
        corrupted.append(TopicRows(topic.positives, np.arange(row, row + size)))
        row += size
    return np.concatenate(queries), np.concatenate(posts), corrupted


def shuffled_pairs(pairs: int, batch_pairs: int, step: int, seed: int) -> Rows:
    """The rows of one step when every pair comes once in each shuffled pass: [batch_pairs].

    Args:
        pairs: P.
        batch_pairs: pairs in a step.
        step: number of the step over all epochs, from 0; with ``seed`` it decides everything.
        seed: of the order of each pass.
    """
    places = np.arange(step * batch_pairs, (step + 1) * batch_pairs)
    passes = {
        number: np.random.default_rng([seed, number]).permutation(pairs)
        for number in np.unique(places // pairs).tolist()
    }
    return np.array([passes[place // pairs][place % pairs] for place in places.tolist()])
