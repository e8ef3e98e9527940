"""K-NRM and Conv-KNRM against the papers' formulas, written out in loops."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from reranking_samples import POSTS, QUERIES, all_pairs, encoder, small_model

from rerankers.base import Reranker
from rerankers.engine import scoring
from rerankers.engine.tokenized import Tokenized
from rerankers.errors import RerankerError
from rerankers.layers.heads import bounded
from rerankers.layers.similarity import GaussianKernels
from rerankers.models.knrm import Config, Model
from rerankers.text.words import words

CONFIGURATIONS = list(Model.configurations)
CPU = torch.device("cpu")
MEANS = [1.0, 0.9, 0.7, 0.5, 0.3, 0.1, -0.1, -0.3, -0.5, -0.7, -0.9]
CASES = [
    (QUERIES[0], POSTS[0][0]),
    (QUERIES[1], POSTS[3][0]),
    (QUERIES[3], POSTS[8][0]),
    ("xyzzy plugh", "plugh xyzzy xyzzy nothing"),  # words without vectors
    (QUERIES[2], ""),
    ("", POSTS[2][0]),
    ("", ""),
]


def word_vectors_of(model: Reranker, text: str) -> np.ndarray:
    lookup: Any = model.get_submodule("vectors")
    ids = encoder().vocabulary.ids(words(text))
    return lookup(torch.tensor(ids, dtype=torch.long)).detach().double().numpy().reshape(-1, 10)


def naive_ngrams(model: Reranker, text: str) -> list[np.ndarray]:
    """Vectors of the n-grams of each length: ReLU of a matrix on the words side by side."""
    vectors = word_vectors_of(model, text)
    if not model.config.longest_ngram:
        return [vectors]
    weights = {key: value.detach().double().numpy() for key, value in model.named_parameters()}
    levels = []
    for width in range(1, model.config.longest_ngram + 1):
        matrix = weights[f"convolutions.{width - 1}.weight"]
        rows = []
        for start in range(len(vectors)):
            window = np.zeros((width, 10))
            inside = vectors[start : start + width]
            window[: len(inside)] = inside
            bias = weights[f"convolutions.{width - 1}.bias"]
            rows.append(np.maximum(window.ravel() @ matrix + bias, 0.0))
        levels.append(np.array(rows).reshape(len(vectors), model.config.filters))
    return levels


def cosine(first: np.ndarray, second: np.ndarray) -> float:
    lengths = np.linalg.norm(first) * np.linalg.norm(second)
    return float(first @ second / lengths) if lengths > 1e-9 else 0.0


def naive_features(model: Reranker, query: str, post: str) -> list[float]:
    """φ: for each pair of lengths and each kernel, the sum over query words of log Σ K(cosine)."""
    features = []
    for left in naive_ngrams(model, query):
        for right in naive_ngrams(model, post):
            for mean in MEANS:
                sigma = 0.001 if mean == 1.0 else 0.1
                total = 0.0
                for q in left:
                    count = sum(
                        math.exp(-((cosine(q, d) - mean) ** 2) / (2 * sigma**2)) for d in right
                    )
                    total += math.log(max(count, 1e-10))
                features.append(0.1 * total)
    return features


def naive_score(model: Reranker, query: str, post: str) -> float:
    weights = {key: value.detach().double().numpy() for key, value in model.named_parameters()}
    inner = float(weights["score.weight"][0] @ naive_features(model, query, post))
    return 10.0 * math.tanh((inner + float(weights["score.bias"][0])) / 10.0)


def varied(configuration: str, seed: int = 3) -> Reranker:
    """A small model whose biases are not 0."""
    model = small_model("knrm", configuration, seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "bias" in name:
                parameter += torch.randn(parameter.shape, generator=generator) * 0.2
    return model


def matches(model: Reranker, query: str, post: str) -> np.ndarray:
    """What ``interact`` gives for one pair: [Lq, K]."""
    encoded = Tokenized.from_pairs(all_pairs([query], [(post, "")]), encoder(), model)
    queries, posts, query_of_post = encoded.batch(np.arange(1), CPU)
    with torch.no_grad():
        found = model.interact(
            model.encode_queries(queries), model.encode_posts(posts), query_of_post
        )
    return found["matches"][0].numpy()


@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_scores_are_those_of_the_papers(configuration: str) -> None:
    model = varied(configuration)
    queries = [query for query, _ in CASES]
    pairs = all_pairs(queries, [(post, "") for _, post in CASES])
    scores = scoring.score(model, pairs, encoder())
    expected = [naive_score(model, query, post) for query in queries for _, post in CASES]
    np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_features_are_those_of_the_papers(configuration: str) -> None:
    model = varied(configuration)
    for query, post in CASES:
        found = matches(model, query, post).sum(axis=0)
        expected = naive_features(model, query, post)
        # A kernel far from its mean multiplies the rounding of a cosine by up to 70.
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)


def test_kernels_have_the_papers_means_and_widths() -> None:
    kernels = GaussianKernels().kernels
    np.testing.assert_allclose([mean for mean, _ in kernels], MEANS, atol=1e-12)
    assert [width for _, width in kernels] == [0.001] + [0.1] * 10


def test_kernels_count_only_the_terms_of_a_post() -> None:
    similarity = torch.tensor([[[1.0, 0.9, 1.0, 0.3]]])
    counts = GaussianKernels()(similarity, torch.tensor([[1.0, 1.0, 1.0, 0.0]]))[0, 0]
    assert counts[0].item() == pytest.approx(2.0)
    assert counts[1].item() == pytest.approx(1.0 + 2 * math.exp(-0.5), abs=1e-6)
    expected = math.exp(-18.0) + 2 * math.exp(-24.5)  # 0.9 and 1 seen from 0.3
    assert counts[4].item() == pytest.approx(expected, rel=1e-4)
    assert not GaussianKernels()(similarity, torch.zeros(1, 4)).any()


@pytest.mark.parametrize(("query", "word"), [("xyzzy", "xyzzy"), ("cairo", "cairo")])
def test_exact_matches_of_known_and_unknown_words_are_counted(query: str, word: str) -> None:
    """Cosines of vectors in eight bits with themselves are 1 up to rounding far below 0.001."""
    model = varied("words")
    for times in (1, 2, 5):
        found = matches(model, query, f"{f'{word} ' * times} otherwise nothing")[0, 0]
        assert found == pytest.approx(0.1 * math.log(times), abs=1e-5)
    assert matches(model, query, "otherwise nothing")[0, 0] == pytest.approx(-2.302585, abs=1e-5)


def test_ngrams_of_different_lengths_are_matched() -> None:
    model = varied("conv")
    assert matches(model, QUERIES[0], POSTS[1][0]).shape == (4, 9 * 11)
    exact = matches(model, "world service", "the world service")[:, ::11]
    # Unigrams with unigrams and bigrams with bigrams: the first of 9 and the fifth.
    np.testing.assert_allclose(exact[0, [0, 4]], 0.0, atol=1e-5)
    assert exact[0, 1] < -0.1


@pytest.mark.parametrize(
    ("changes", "fixed"),
    [({}, True), ({"vectors": "nonstatic"}, False), ({"longest_ngram": 1}, False)],
)
def test_only_what_is_not_trained_is_fixed(changes: dict[str, Any], fixed: bool) -> None:
    model = small_model("knrm", "words", **changes)
    assert model.interactions_are_fixed() is fixed
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert (trained == 12) is fixed


@pytest.mark.parametrize("vectors", ["nonstatic", "random"])
def test_trained_vectors_have_finite_gradients(vectors: str) -> None:
    """Of identical words, of words of one letter and of texts without words."""
    model = small_model("knrm", "words", vectors=vectors)
    encoded = Tokenized.from_pairs(
        all_pairs(["water", ""], [("water", ""), ("", "")]), encoder(), model
    )
    encoded.scores_of(model, np.arange(4), CPU).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and bool(parameter.grad.isfinite().all()), name


def test_bounded_is_a_steep_tanh() -> None:
    values = torch.tensor([-1000.0, -0.01, 0.0, 0.01, 1000.0])
    expected = [-10.0, -0.01, 0.0, 0.01, 10.0]
    np.testing.assert_allclose(bounded(values, 10.0).numpy(), expected, atol=1e-6)
    torch.testing.assert_close(bounded(values, 1.0), torch.tanh(values))


def test_settings_that_mean_nothing_are_refused() -> None:
    for changes in ({"soft_kernels": 0}, {"sigma": 0.0}, {"vectors": "dynamic"}, {"bound": 0.0}):
        with pytest.raises(RerankerError, match=next(iter(changes))):
            Config(**changes)  # type: ignore[arg-type]
