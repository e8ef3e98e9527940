"""The two models of Yu et al. (2014), written out in loops, and the regression over counts."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.model_samples import weights_of
from helpers.overlap_samples import (
    SIZE,
    encoder,
    every_pair,
    every_text_pair,
    is_told,
    naive_overlap,
    vocabulary,
)
from helpers.reranking_samples import network
from sklearn.linear_model import LogisticRegression

from rerankers import checkpoint
from rerankers.networks import batches as scoring
from rerankers.networks.models import bag_of_words, bigram
from rerankers.networks.models._bilinear import Bilinear
from rerankers.networks.tokenized import Tokenized
from rerankers.networks.training.loop import Examples, train
from rerankers.networks.training.settings import Settings
from rerankers.text.words import words

pytestmark = pytest.mark.slow

NAMES = ["bag_of_words", "bigram"]
RELEVANT = np.random.default_rng(4).random(len(every_pair())) < 0.4


def small(name: str, configuration: str = "count", seed: int = 1) -> Bilinear:
    """A model whose weights are large enough to matter."""
    torch.manual_seed(seed)
    module = {"bag_of_words": bag_of_words, "bigram": bigram}[name]
    model = module.Model(module.Model.configurations[configuration], vocabulary()).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn(parameter.shape) * 0.3
    return model


def naive_text(model: Bilinear, name: str, text: str) -> np.ndarray:
    """Section 3.1 or 3.2: one text's vector."""
    reader = encoder().vocabulary
    tokens = [word for word in words(text) if name == "bigram" or not is_told(word)]
    with torch.no_grad():
        lookup = model.get_submodule("vectors")
        vectors = [lookup(torch.tensor(reader.ids([word])))[0].double().numpy() for word in tokens]
    if not vectors:
        return np.zeros(SIZE)
    if name == "bag_of_words":
        return np.mean(vectors, axis=0)
    weights = weights_of(model)
    if len(vectors) == 1:
        vectors.append(np.zeros(SIZE))
    bigrams = [
        np.tanh(weights["left"] @ first + weights["right"] @ second + weights["bigram_bias"])
        for first, second in pairwise(vectors)
    ]
    return np.mean(bigrams, axis=0)


def naive_scores(model: Bilinear, name: str) -> np.ndarray:
    """Equation 1, before the sigmoid, of every pair: qᵀ M a + b."""
    matrix, bias = model.matrix.detach().double().numpy(), model.bias.item()
    texts = [[naive_text(model, name, text) for text in pair] for pair in every_text_pair()]
    return np.array([q @ matrix @ a + bias for q, a in texts])


def naive_features(model: Bilinear, name: str) -> np.ndarray:
    """Section 4.2: number of common words, their IDF, and the probability."""
    counts = np.array([naive_overlap(*pair)[:2] for pair in every_text_pair()])
    return np.column_stack([counts, 1 / (1 + np.exp(-naive_scores(model, name)))])


def scores_of(model: Bilinear) -> np.ndarray:
    return scoring.score(model, every_pair(), encoder())


def assert_fitted(model: Bilinear, name: str) -> None:
    """The score is the regression's over features that are computed here."""
    features, scores = naive_features(model, name), scores_of(model)
    assert np.ptp(scores) > 0.1
    expected = features @ model.coefficients.double().numpy() + float(model.intercept)
    np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-5)
    # Where L-BFGS stops depends on how features are rounded, so this is not as exact.
    expected = LogisticRegression(C=100).fit(features, RELEVANT).decision_function(features)
    np.testing.assert_allclose(scores, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", NAMES)
def test_scores_are_those_of_the_paper(name: str) -> None:
    model = small(name, "plain")
    expected = naive_scores(model, name)
    assert np.ptp(expected) > 0.1
    np.testing.assert_allclose(scores_of(model), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_training_ends_with_the_regression(name: str, tmp_path: Path) -> None:
    """It is fitted to the training pairs, by the weights that are kept; validation sees none."""
    others = np.arange(0, len(RELEVANT), 3)
    model = small(name)
    settings = Settings(
        loss="pointwise",
        sampling="pairs",
        batch_pairs=12,
        optimizer="adagrad",
        epochs=3,
        steps=4,
        learning_rate=0.05,
    )
    examples = Examples(Tokenized.from_pairs(every_pair(), encoder(), model), RELEVANT)
    validation = Examples(examples.pairs.take(others), ~RELEVANT[others])
    figures, seen = [0.1, 0.5, 0.2], []

    def measure(scores: np.ndarray) -> float:
        expected = naive_scores(model, name)[others]
        np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-5)
        seen.append(model.matrix.detach().clone())
        return figures[len(seen) - 1]

    history = train(model, examples, validation, measure, settings)
    assert history.best == 2 and len(seen) == 3
    assert torch.equal(model.matrix, seen[1])
    assert_fitted(model, name)
    checkpoint.save(tmp_path / "saved", network(model, encoder(), name))
    loaded = checkpoint.load(tmp_path / "saved", name, idf=lambda source: encoder().idf)
    np.testing.assert_array_equal(loaded.score(every_pair()), scores_of(model))
