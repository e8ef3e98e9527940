"""Comparison of models with their papers' formulas, written out for one pair in the tests."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.signal import correlate

from helpers.reranking_samples import POSTS, QUERIES, VECTOR_SIZE, encoder, scores_of, small_model
from rerankers.networks.base import Reranker
from rerankers.pairs import Pairs
from rerankers.text.words import STOP_WORDS, words

Vector = npt.NDArray[np.float64]
Weights = dict[str, Vector]

LONG = " ".join(f"cuts{n % 7} water" for n in range(50))
CASES: list[tuple[str, str]] = [
    (QUERIES[0], POSTS[0][0]),
    (QUERIES[1], "egypt " * 5 + "has no water and shortages of water in many other places"),
    (QUERIES[2], POSTS[10][0]),  # one word against one word
    (QUERIES[1], QUERIES[1]),
    ("xyzzy the plugh", "plugh xyzzy xyzzy a 5 nothing"),  # words without vectors
    (QUERIES[0], ""),
    ("", POSTS[2][0]),
    ("i was on the bbc again in 1971", "again on the bbc, was 650 on the bbc in 2024?"),
    ("", ""),
    (LONG, LONG),
]
"""Pairs of a query and a post."""


MOVED = {"cntn": "weights", "drmm": "gate", "bag_of_words": "", "bigram": ""}
"""Model -> beginning of the parameters that do not matter, or are alike, at the start."""


def varied(name: str, configuration: str, **changes: Any) -> Reranker:
    """A small model whose parameters all matter, and none of whose biases is 0."""
    model = small_model(name, configuration, seed=3, **changes)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if "bias" in key or key.startswith(MOVED.get(name, "bias")):
                parameter += torch.randn(parameter.shape, generator=generator) * 0.3
    return model


def weights_of(model: Reranker, prefix: str = "") -> Weights:
    """Parameters in double precision, those below ``prefix`` by the rest of their names."""
    return {
        key.removeprefix(prefix): value.detach().double().numpy()
        for key, value in model.named_parameters()
        if key.startswith(prefix)
    }


def word_vectors(model: Reranker, text: str) -> Vector:
    """Vectors [L, E] of the words of a text."""
    lookup: Any = model.get_submodule("vectors")
    ids = encoder().vocabulary.ids(words(text))
    vectors = lookup(torch.tensor(ids, dtype=torch.long)).detach().double().numpy()
    return np.asarray(vectors).reshape(-1, VECTOR_SIZE)


def naive_windows(vectors: Vector, width: int, margin: int = 0) -> Vector:
    """Rows of ``width`` vectors [L, E] from each on, zeros beyond; ``margin`` zeros come before."""
    if not len(vectors):
        return np.zeros((0, width * vectors.shape[1]))
    padded = np.pad(vectors, ((margin, width - 1), (0, 0)))
    return np.stack([padded[i : i + width].ravel() for i in range(len(vectors) + margin)])


def naive_squares(maps: Vector, weight: Vector, bias: Vector) -> Vector:
    """ReLU of convolutions [F, C, w, w] of maps [C, rows, columns]; beyond them are zeros."""
    if not maps.size:
        return np.zeros((len(weight), *maps.shape[1:]))
    sums = [sum(map(partial(correlate, mode="same"), maps, each)) for each in weight]
    return np.maximum(np.stack(sums) + bias[:, None, None], 0)


def naive_cosine(x: Vector, y: Vector) -> float:
    """0 for a vector of zeros."""
    lengths = np.linalg.norm(x) * np.linalg.norm(y)
    return float(x @ y / lengths) if lengths > 1e-9 else 0.0


def linear(weights: Weights, name: str, x: Any) -> Vector:
    """A fully connected layer."""
    return np.asarray(weights[f"{name}.weight"] @ x + weights[f"{name}.bias"])


def relu(x: Vector) -> Vector:
    return np.maximum(x, 0)


def naive_perceptron(
    weights: Weights, name: str, x: Any, activation: Callable[[Vector], Vector] = relu
) -> Vector:
    """Two linear layers with a ReLU or another activation between them."""
    return linear(weights, f"{name}.3", activation(linear(weights, f"{name}.0", x)))


def is_told(word: str) -> bool:
    """Whether a word is a stop word that a model can tell: one that has a vector."""
    return word in STOP_WORDS and word in encoder().vocabulary.known


def naive_overlap(query: str, post: str) -> list[float]:
    """Number of common words, their IDF, and both without stop words."""
    vocabulary, idf = encoder().vocabulary, encoder().idf
    theirs = {*vocabulary.ids(words(post))}
    asked = dict(zip(vocabulary.ids(words(query)), words(query), strict=True))
    common = [word for row, word in asked.items() if row in theirs]
    content = [word for word in common if not is_told(word)]
    return [f for each in (common, content) for f in (len(each), float(idf.weights(each).sum()))]


def assert_naive_scores(
    model: Reranker,
    naive: Callable[..., float],
    cases: Sequence[tuple[str, ...]] = CASES,
    **signals: npt.NDArray[np.float32],
) -> None:
    """Scores of (query, text) or (query, text, URL), in one batch, are those of ``naive``.

    It gets the signals' values, too.
    """
    rows = np.arange(len(cases))
    queries, texts = [case[0] for case in cases], [case[1] for case in cases]
    urls = ["".join(case[2:]) for case in cases]
    found = scores_of(model, Pairs(queries, texts, urls, rows, rows, signals))
    known = np.array([*signals.values()]).reshape(-1, len(cases)).T.tolist()
    expected = np.array([naive(*case, *values) for case, values in zip(cases, known, strict=True)])
    assert len(cases) == 1 or np.ptp(expected) > 1e-4, "all pairs score the same"
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
