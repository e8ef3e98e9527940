"""DSSM and C-DSSM against the papers' formulas, with vectors of 64,000 trigram counts."""

from collections import Counter
from functools import partial
from typing import Any

import numpy as np
import pytest
from helpers.model_samples import CASES, Vector, Weights, assert_naive_scores, varied, weights_of
from helpers.reranking_samples import POSTS, all_pairs, scores_of, small_model

from rerankers.networks.base import Reranker
from rerankers.text.words import words

CHARACTERS = "#abcdefghijklmnopqrstuvwxyz0123456789"


def row_of(trigram: str, rows: int) -> int:
    """Row of the first layer's weights for a trigram: its number from 1 on, or its bucket."""
    first, second, third = (CHARACTERS.index(character) for character in trigram)
    number = 1 + 1600 * first + 40 * second + third
    if rows == 64_001:
        return number
    return 1 + int((number * 2_654_435_761 % 2**32) / 2**32 * (rows - 1))


def counts_of(word: str, rows: int) -> Vector:
    """Letter-trigram counts of one word: #good# is #go, goo, ood, od#."""
    marked, counts = f"#{word}#", np.zeros(rows)
    for trigram, count in Counter(marked[n : n + 3] for n in range(len(word))).items():
        counts[row_of(trigram, rows)] += count
    return counts


def bag_of_trigrams(config: Any, weights: Weights, text: str) -> Vector:
    """DSSM, section 3.1."""
    matrix = weights["trigrams.weight"]
    counts = sum(counts_of(word, len(matrix)) for word in words(text))
    layer = np.tanh(counts @ matrix + weights["bias"])
    layer = np.tanh(weights["second.weight"] @ layer + weights["second.bias"])
    return np.tanh(weights["last.weight"] @ layer + weights["last.bias"])


def windows_of_trigrams(config: Any, weights: Weights, text: str) -> Vector:
    """C-DSSM: windows of words, the maximum over them, and a layer."""
    table, width = weights["trigrams.weight"], 3  # [64,001, width · F]
    # The paper's matrix reads a whole window: [F, width · 64,001].
    matrix = np.concatenate(np.split(table, width, axis=1)).T
    none = [np.zeros(len(table))] * (width // 2)
    vectors = [*none, *(counts_of(word, len(table)) for word in words(text)), *none]
    features = [
        np.tanh(matrix @ np.concatenate(vectors[t : t + width]))
        for t in range(len(vectors) - width + 1)
    ]
    return np.tanh(weights["semantic.weight"] @ np.max(features, axis=0))


NETWORKS = {"dssm": bag_of_trigrams, "c_dssm": windows_of_trigrams}


def naive_score(name: str, model: Reranker, query: str, post: str) -> float:
    """γ times the cosine."""
    if not words(query) or not words(post):
        return 0.0
    config = model.config
    weights = weights_of(model, "tower.")
    q, d = (NETWORKS[name](config, weights, text) for text in (query, post))
    return float(config.smoothing * (q @ d) / (np.linalg.norm(q) * np.linalg.norm(d)))


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("dssm", {}),
        ("dssm", {"trigram_buckets": 500}),
        ("c_dssm", {}),
        ("c_dssm", {"trigram_buckets": 500}),
    ],
)
def test_scores_are_those_of_the_papers(name: str, changes: dict[str, Any]) -> None:
    model = varied(name, "compact", **{"trigram_buckets": 64_000, "smoothing": 4.0} | changes)
    assert_naive_scores(model, partial(naive_score, name, model), CASES[:-1])


def test_a_text_is_most_like_itself_before_any_training() -> None:
    """Unknown words too: weights that query and post share let common trigrams count."""
    model = small_model("dssm", "compact", trigram_size=96, hidden=96, sentence_size=64)
    posts = [("zyxtrop service cuts", ""), *POSTS]
    scores = scores_of(model, all_pairs(["zyxtrop cuts service"], posts))
    assert scores[0] == pytest.approx(10.0, abs=1e-4)
    assert (scores[1:] < 9.0).all()
