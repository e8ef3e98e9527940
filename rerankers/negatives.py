"""Which posts a training step sees: lists of one topic's positives and sampled negatives."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


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
