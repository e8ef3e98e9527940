"""Draw the pairs of each training step: positives, and their negatives.

Negatives are sampled, mined or corrupted. Every random choice depends only on the seed
and on the epoch or step.
"""

from functools import partial
from typing import Any

import numpy as np
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from tweetrerank.rerankers.networks import network
from tweetrerank.rerankers.networks.base import Reranker
from tweetrerank.rerankers.networks.inputs import Tokenized
from tweetrerank.rerankers.networks.training.examples import Examples, TopicRows
from tweetrerank.rerankers.networks.training.training_settings import Settings
from tweetrerank.rerankers.reranker_error import RerankerError
from tweetrerank.rerankers.text.ragged import Rows


class BatchSampler:
    """Draws the pairs of each step in the way that the setting ``sampling`` names.

    Its ``examples`` include the corrupted pairs. Raises RerankerError if corrupted
    pairs are needed but other topics have no posts for them.
    """

    def __init__(self, training: Examples, settings: Settings) -> None:
        self.examples = training
        self._topics = training.topics()
        self._settings = settings
        self._mined: dict[int, Rows] = {}
        """Row of a positive -> rows of the negatives that are most similar to it."""
        if settings.sampling == "corrupted":
            self._corrupt()

    def start_epoch(self, model: Reranker, epoch: int) -> None:
        """Mine negatives for ``max`` and ``mix`` with the model of the last epoch.

        Epochs are counted from 1, and the first one has no mined negatives. Raises
        RerankerError if FAISS is not installed.
        """
        if self._settings.sampling in ("max", "mix") and epoch > 1:
            vectors = network.represent_tokenized(model, self.examples.pairs)
            self._mined = _nearest(vectors, self._topics, self._settings.negatives)

    def draw(
        self,
        step: int,
        rng: np.random.Generator,
    ) -> tuple[Rows, int]:
        """Return (rows, number of positives in each list) of a step.

        The rows are [lists, candidates], with the positives of each list first. Steps
        are counted from 0 over all epochs.
        """
        settings = self._settings
        if settings.sampling == "pairs":
            return self._draw_pairs(step)
        if settings.steps:
            lists = random_lists(
                self._topics,
                settings.batch_topics,
                settings.positives,
                settings.positives * settings.negatives,
                rng,
            )
        else:
            lists = self._next_lists(step, rng)
        if self._mined:
            for row in lists:
                self._insert_mined(row)
        return lists, settings.positives

    def _draw_pairs(self, step: int) -> tuple[Rows, int]:
        """Return (rows of one list, number of its positives).

        The list has the next pairs of a shuffled pass.
        """
        relevant = self.examples.relevant
        rows = self._shuffled(step, len(relevant), self._settings.batch_pairs)
        is_relevant = relevant[rows]
        ordered = np.concatenate([rows[is_relevant], rows[~is_relevant]])
        return ordered[None], int(is_relevant.sum())

    def _next_lists(self, step: int, rng: np.random.Generator) -> Rows:
        """Return the lists of one step of shuffled passes over all positives.

        The code of Rao et al. (2016) does the same.
        """
        positives = np.concatenate([topic.positives for topic in self._topics])
        counts = [len(topic.positives) for topic in self._topics]
        topic_of_positive = np.repeat(np.arange(len(counts)), counts)
        lists = []
        size = self._settings.batch_topics
        for place in self._shuffled(step, len(positives), size):
            negatives = self._topics[topic_of_positive[place]].negatives
            drawn = rng.choice(negatives, size=self._settings.negatives)
            lists.append(np.append(positives[place], drawn))
        return np.stack(lists)

    def _insert_mined(self, row: Rows) -> None:
        """Replace negatives of a list by mined ones, in place.

        For ``max`` all negatives are replaced, for ``mix`` half of them, rounded up
        (Rao et al. 2016, section 3.2).
        """
        positives = self._settings.positives
        negatives = self._settings.negatives
        mined = -(-negatives // 2)
        if self._settings.sampling == "max":
            mined = negatives
        blocks = row[positives:].reshape(positives, negatives)  # A view of the row
        relevant = row[:positives].tolist()
        for positive, block in zip(relevant, blocks, strict=True):
            # Mined negatives are repeated if the topic has too few
            block[:mined] = np.resize(self._mined[positive], mined)

    def _shuffled(
        self,
        step: int,
        count: int,
        size: int,
    ) -> Rows:
        """Return the numbers [size] of one step of shuffled passes.

        Each pass is over ``count`` numbers.
        """
        first_pass, start = divmod(step * size, count)
        end = start + size
        passes = []
        for number in range(-(-end // count)):
            rng = np.random.default_rng([self._settings.seed, first_pass + number])
            passes.append(rng.permutation(count))
        return np.concatenate(passes)[start:end]

    def _corrupt(self) -> None:
        """Add posts of other topics as the negatives of each positive.

        Source: Qiu & Huang (2015), section 5.
        """
        pairs = self.examples.pairs
        rng = np.random.default_rng([self._settings.seed, 0])
        candidates = np.concatenate([np.append(*topic) for topic in self._topics])
        queries = [pairs.query_index]
        posts = [pairs.post_index]
        topics: list[TopicRows] = []
        count = len(pairs.query_index)
        for positives, _ in self._topics:
            size = len(positives) * self._settings.negatives
            other_posts = _posts_of_other_topics(pairs, positives, candidates)
            posts.append(rng.choice(other_posts, size=size))
            queries.append(np.full(size, pairs.query_index[positives[0]]))
            topics.append(TopicRows(positives, np.arange(count, count + size)))
            count += size
        added = count - len(pairs.query_index)
        prior = pairs.prior
        if prior is not None:  # Corrupted pairs are in no run, so their prior is 0.
            prior = np.append(prior, np.zeros(added, np.float32))
        corrupted = Tokenized(
            pairs.queries,
            pairs.posts,
            np.concatenate(queries),
            np.concatenate(posts),
            prior,
        )
        relevant = np.append(self.examples.relevant, np.zeros(added, dtype=bool))
        self.examples = Examples(corrupted, relevant)
        self._topics = topics


def _posts_of_other_topics(pairs: Tokenized, positives: Rows, candidates: Rows) -> Rows:
    """Return those posts of other topics that are not relevant to this topic.

    ``positives`` are the relevant pairs of this topic, and ``candidates`` the pairs to
    choose from. Raises RerankerError if there is no such post.
    """
    query = pairs.query_index[positives[0]]
    relevant_posts = pairs.post_index[positives]
    is_other = pairs.query_index[candidates] != query
    posts = pairs.post_index[candidates[is_other]]
    posts = posts[~np.isin(posts, relevant_posts)]  # Topics may share posts
    if not len(posts):
        raise RerankerError(
            "sampling corrupted takes negatives from other topics: found a topic "
            "without others, or to which all of their posts are relevant; use the "
            "`sampling` random"
        )
    return posts


def random_lists(
    topics: list[TopicRows],
    lists: int,
    positives: int,
    negatives: int,
    rng: np.random.Generator,
) -> Rows:
    """Return lists of random positives and negatives, as rows.

    The rows are [lists, positives + negatives]. The lists are of different topics if
    there are enough topics. All topics are equally likely, because average precision
    counts each topic once, however many positives it has.
    """
    is_repeated = lists > len(topics)
    drawn = rng.choice(len(topics), size=lists, replace=is_repeated)
    rows = []
    for number in drawn:
        topic = topics[number]
        relevant = rng.choice(topic.positives, size=positives)
        irrelevant = rng.choice(topic.negatives, size=negatives)
        rows.append(np.append(relevant, irrelevant))
    return np.stack(rows)


def _nearest(
    vectors: Tensor,
    topics: list[TopicRows],
    count: int,
) -> dict[int, Rows]:
    """Return the row of each positive -> the rows of its most similar negatives.

    At most ``count`` negatives are returned for a positive. Similarity is the cosine of
    ``vectors`` [P, K]. FAISS searches exactly among the negatives of the topic, and on
    a GPU if it finds one. Raises RerankerError if FAISS is not installed.
    """
    try:
        import faiss
    except ImportError:
        raise RerankerError(
            "sampling max and mix search with FAISS, which is not installed; "
            "pip install 'tweetrerank[cpu]' (or [gpu], never both), or use the "
            "`sampling` random"
        ) from None
    search: Any = faiss.knn
    if getattr(faiss, "get_num_gpus", int)():
        search = partial(faiss.knn_gpu, faiss.StandardGpuResources())
    unit = F.normalize(vectors.float(), dim=1).numpy()
    nearest: dict[int, Rows] = {}
    for positives, negatives in topics:
        _, closest = search(
            unit[positives],
            unit[negatives],
            min(count, len(negatives)),
            metric=faiss.METRIC_INNER_PRODUCT,
        )
        nearest |= zip(positives.tolist(), negatives[closest], strict=True)
    return nearest
