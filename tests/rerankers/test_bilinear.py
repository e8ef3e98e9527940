"""The two models of Yu et al. (2014), written out in loops, and word counts."""

from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.model_samples import (
    assert_naive_scores,
    is_told,
    naive_overlap,
    weights_of,
    word_vectors,
)
from helpers.reranking_samples import (
    VECTOR_SIZE,
    all_pairs,
    encoder,
    network,
    scores_of,
    small_model,
)
from sklearn.linear_model import LogisticRegression

from rerankers import checkpoint
from rerankers.networks.base import Reranker
from rerankers.networks.inputs import Tokenized
from rerankers.networks.training.loop import Examples, train
from rerankers.networks.training.settings import Settings
from rerankers.text.words import words

NAMES = ["bag_of_words", "bigram"]
PAIRS = all_pairs()
TEXTS = [
    (PAIRS.queries[query], PAIRS.texts[post])
    for query, post in zip(PAIRS.query_index, PAIRS.post_index, strict=True)
]
RELEVANT = np.random.default_rng(4).random(len(PAIRS)) < 0.4


def small(name: str, configuration: str) -> Reranker:
    """A model whose weights are large enough to matter."""
    model = small_model(name, configuration)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn(parameter.shape) * 0.3
    return model


def naive_text(model: Reranker, name: str, text: str) -> np.ndarray:
    """Section 3.1 or 3.2: one text's vector."""
    if name == "bag_of_words":
        text = " ".join(word for word in words(text) if not is_told(word))
    vectors, weights = word_vectors(model, text), weights_of(model)
    if name == "bag_of_words" or not len(vectors):
        return vectors.sum(axis=0) / max(1, len(vectors))
    if len(vectors) == 1:
        vectors = np.append(vectors, np.zeros((1, VECTOR_SIZE)), axis=0)
    bigrams = [
        np.tanh(weights["left"] @ first + weights["right"] @ second + weights["bigram_bias"])
        for first, second in pairwise(vectors)
    ]
    return np.mean(bigrams, axis=0)


def naive_score(model: Reranker, name: str, query: str, post: str) -> float:
    """Equation 1, before the sigmoid: qᵀ M a + b."""
    weights = weights_of(model)
    q, a = naive_text(model, name, query), naive_text(model, name, post)
    return float(q @ weights["matrix"] @ a + weights["bias"])


@pytest.mark.parametrize("name", NAMES)
def test_scores_are_those_of_the_paper(name: str) -> None:
    model = small(name, "plain")
    assert_naive_scores(model, partial(naive_score, model, name))


@pytest.mark.parametrize("configuration", ["count", "weighted"])
def test_word_counts_leave_out_stop_words(configuration: str) -> None:
    column = 2 if configuration == "count" else 3
    model = small_model("word_count", configuration)
    assert_naive_scores(model, lambda query, post: naive_overlap(query, post)[column])


def assert_fitted(model: Reranker, name: str) -> None:
    """Section 4.2: the score is the regression's over common words, their IDF and probability."""
    plain = np.array([naive_score(model, name, *texts) for texts in TEXTS])
    counts = np.array([naive_overlap(*texts)[:2] for texts in TEXTS])
    features, scores = np.column_stack([counts, 1 / (1 + np.exp(-plain))]), scores_of(model, PAIRS)
    assert np.ptp(scores) > 0.1
    expected = features @ model.coefficients.double().numpy() + float(model.intercept)
    np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-5)
    # Where L-BFGS stops depends on how features are rounded, so this is not as exact.
    expected = LogisticRegression(C=100).fit(features, RELEVANT).decision_function(features)
    np.testing.assert_allclose(scores, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", NAMES)
def test_training_ends_with_the_regression(name: str, tmp_path: Path) -> None:
    """It is fitted to the training pairs, by the weights that are kept; validation sees none."""
    others, model = np.arange(0, len(RELEVANT), 3), small(name, "count")
    steps = {"epochs": 3, "steps": 4, "batch_pairs": 12, "learning_rate": 0.05}
    settings = Settings(loss="pointwise", sampling="pairs", optimizer="adagrad", **steps)
    examples = Examples(Tokenized.from_pairs(PAIRS, encoder(), model), RELEVANT)
    validation = Examples(examples.pairs.take(others), ~RELEVANT[others])
    figures, seen = [0.1, 0.5, 0.2], []

    def measure(scores: np.ndarray) -> float:
        expected = [naive_score(model, name, *TEXTS[row]) for row in others]
        np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-5)
        seen.append(model.matrix.detach().clone())
        return figures[len(seen) - 1]

    history = train(model, examples, validation, measure, settings)
    assert history.best == 2 and len(seen) == 3
    assert torch.equal(model.matrix, seen[1])
    assert_fitted(model, name)
    checkpoint.save(tmp_path / "saved", network(model, encoder(), name))
    loaded = checkpoint.load(tmp_path / "saved", name, idf=lambda source: encoder().idf)
    np.testing.assert_array_equal(loaded.score(PAIRS), scores_of(model, PAIRS))
