"""Pairs with scores of made-up rankers, shared by the tests of fusions."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from helpers.reranking_samples import all_pairs, fitted
from rerankers.pairs import FIRST_STAGE, Pairs
from rerankers.trees.boosting import Trees
from rerankers.trees.fusion import Config

TOPICS, POSTS = 12, 30


def pairs_that_rm3_orders(topics: int = TOPICS) -> tuple[Pairs, np.ndarray]:
    """Pairs, and whether each is relevant [P]: the best ten of each topic by the signal ``rm3``.

    The signals ``first_stage`` and ``ql`` are noise. A third of the other posts have no ``rm3``.
    """
    random = np.random.default_rng(4)
    pairs = all_pairs(
        [f"storm {topic}" for topic in range(topics)],
        [(f"post {n} storm", f"http://x.org/{n}" if n % 3 else "") for n in range(POSTS)],
    )
    ranks = np.concatenate([random.permutation(POSTS) for _ in range(topics)])
    rm3 = (3.0 * pairs.query_index - 0.5 * ranks).astype(np.float32)
    rm3[ranks % 3 == 2] = np.nan
    relevant = (ranks < 15) & (ranks % 3 < 2)
    noise = random.random((2, len(pairs))).astype(np.float32)
    signals = {"rm3": rm3, "ql": noise[0], FIRST_STAGE: noise[1]}
    return dataclasses.replace(pairs, signals=signals), relevant


def require_new_topics_ordered(name: str, config: Any) -> Trees:
    """Grow trees on all topics but the last three; there the relevant posts must come first."""
    pairs, relevant = pairs_that_rm3_orders()
    new = pairs.query_index >= TOPICS - 3
    trees = fitted(name, config, pairs.take(np.flatnonzero(~new)), relevant[~new])
    found = pairs.take(np.flatnonzero(new))
    scores = trees.score(found)
    for topic in np.unique(found.query_index):
        of_topic = found.query_index == topic
        positive = relevant[new][of_topic]
        assert scores[of_topic][positive].min() > scores[of_topic][~positive].max()
    return trees


def trained_fusion(families: str) -> Trees:
    """A fusion trained on pairs in the order of rm3, as if loaded from ``/x/made/up``."""
    config = Config(families=families, trees=40, minimum_leaf=5)
    trees = fitted("fusion", config, *pairs_that_rm3_orders())
    return dataclasses.replace(trees, directory=Path("/x/made/up"))
