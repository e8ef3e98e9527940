"""Pairs with scores of made-up rankers, shared by the tests of fusions."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import torch

from helpers.reranking_samples import all_pairs, encoder, vocabulary
from pipeline.ranking.ranker import ModelScorer
from rerankers import models
from rerankers.base import FIRST_STAGE, Pairs, Reranker
from rerankers.reranker import TrainedReranker
from rerankers.scoring import batches as scoring
from rerankers.scoring.batches import represent_tokenized
from rerankers.scoring.tokenized import Tokenized
from rerankers.training.loop import Examples, train
from rerankers.training.settings import Settings

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


def of_topics(pairs: Pairs, chosen: np.ndarray) -> Pairs:
    """The ``chosen`` [P] pairs only."""
    return dataclasses.replace(
        pairs,
        query_index=pairs.query_index[chosen],
        post_index=pairs.post_index[chosen],
        signals={name: values[chosen] for name, values in pairs.signals.items()},
    )


def fit(model: Reranker, pairs: Pairs, relevant: np.ndarray) -> Reranker:
    """The model, fitted by the training loop without steps."""
    examples = Examples(Tokenized.from_pairs(pairs, encoder(), model), relevant)
    history = train(model, examples, None, lambda _: 0.0, Settings())
    assert history.epochs == []
    return model.eval()


def represented(model: Reranker, pairs: Pairs) -> torch.Tensor:
    """Features of pairs [P, K], by the engine."""
    return represent_tokenized(model, Tokenized.from_pairs(pairs, encoder(), model))


def require_new_topics_ordered(model: Reranker) -> None:
    """Fit to all topics but the last three; there the relevant posts must come first."""
    pairs, relevant = pairs_that_rm3_orders()
    new = pairs.query_index >= TOPICS - 3
    fit(model, of_topics(pairs, ~new), relevant[~new])
    found = of_topics(pairs, new)
    scores = scoring.score(model, found, encoder())
    for topic in np.unique(found.query_index):
        of_topic = found.query_index == topic
        positive = relevant[new][of_topic]
        assert scores[of_topic][positive].min() > scores[of_topic][~positive].max()


def trained_fusion(kind: str, families: str) -> ModelScorer:
    """A fusion trained on pairs in the order of rm3, as if loaded from ``/x/made/up``."""
    changes = {"trees": 40, "minimum_leaf": 5} if kind == "fusion" else {}
    model_type: Any = models.find(kind)
    model = model_type(model_type.config_type(families=families, **changes), vocabulary())
    fit(model, *pairs_that_rm3_orders())
    return ModelScorer(TrainedReranker(kind, model, encoder(), {}, Path("/x/made/up")))
