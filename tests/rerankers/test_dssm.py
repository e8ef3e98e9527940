"""DSSM and C-DSSM against the papers' formulas, with vectors of 64,000 trigram counts."""

from collections import Counter
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from helpers.model_samples import (
    CASES,
    CPU,
    Vector,
    Weights,
    assert_naive_scores,
    varied,
    weights_of,
)
from helpers.reranking_samples import AWKWARD, POSTS, QUERIES, all_pairs, encoder, small_model

from rerankers.base import TRIGRAMS, Reranker
from rerankers.models._letter_trigrams import TrigramSums, begins_word
from rerankers.models.c_dssm import Config, ConvolutionalNetwork
from rerankers.scoring import batches as scoring
from rerankers.text.words import words

CHARACTERS = "#abcdefghijklmnopqrstuvwxyz0123456789"
TEXTS = [*QUERIES, *(text for text, _ in POSTS), *AWKWARD.values()]


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
    table, width = weights["trigrams.weight"], config.width  # [64,001, width · F]
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
    q, d = (
        NETWORKS[name](config, weights_of(model, f"networks.{network}."), text)
        for network, text in ((0, query), (0 if config.shared else 1, post))
    )
    return float(config.smoothing * (q @ d) / (np.linalg.norm(q) * np.linalg.norm(d)))


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("dssm", {}),
        ("dssm", {"shared": False}),
        ("dssm", {"trigram_buckets": 500}),
        ("c_dssm", {}),
        ("c_dssm", {"shared": False, "width": 1}),
        ("c_dssm", {"trigram_buckets": 500, "width": 5}),
    ],
)
def test_scores_are_those_of_the_papers(name: str, changes: dict[str, Any]) -> None:
    model = varied(name, "compact", **{"trigram_buckets": 64_000, "smoothing": 4.0} | changes)
    assert_naive_scores(model, partial(naive_score, name, model), CASES[:-1])


def test_a_text_is_most_like_itself_before_any_training() -> None:
    """Unknown words too: weights that query and post share let common trigrams count."""
    model = small_model("dssm", "compact", trigram_size=96, hidden=96, sentence_size=64)
    posts = [("zyxtrop service cuts", ""), *POSTS]
    scores = scoring.score(model, all_pairs(["zyxtrop cuts service"], posts), encoder())
    assert scores[0] == pytest.approx(10.0, abs=1e-4)
    assert (scores[1:] < 9.0).all()


def test_buckets_are_filled_evenly() -> None:
    rows = TrigramSums(1, 16_384).rows_of(torch.arange(64_001))
    assert rows[0] == 0
    filled = torch.bincount(rows[1:], minlength=16_385)
    assert filled[0] == 0 and len(filled) == 16_385
    assert int(filled[1:].min()) >= 2 and int(filled.max()) <= 6


def trigrams_of(texts: list[str]) -> torch.Tensor:
    packed = encoder().posts(texts, [""] * len(texts), (TRIGRAMS,))[TRIGRAMS]
    return packed.batch(np.arange(len(texts)), CPU).ids


@pytest.mark.parametrize("buckets", [64_000, 300])
def test_sums_by_word_are_those_of_each_word_alone(buckets: int) -> None:
    """Words of any script and of one letter begin with their first trigram."""
    sums, ids = TrigramSums(5, buckets), trigrams_of(TEXTS)
    assert begins_word(ids).sum(dim=1).tolist() == [len(words(text)) for text in TEXTS]
    together, mask = sums.by_word(ids)
    for row, text in enumerate(TEXTS):
        tokens = words(text)
        assert mask[row].tolist() == [n < len(tokens) for n in range(mask.shape[1])]
        assert not together[row, len(tokens) :].any()
        if tokens:
            torch.testing.assert_close(together[row, : len(tokens)], sums(trigrams_of(tokens)))


def test_texts_without_words_have_one_place_that_is_empty() -> None:
    sums, mask = TrigramSums(5, 300).by_word(torch.zeros(3, 4, dtype=torch.long))
    assert sums.shape == (3, 1, 5)
    assert not sums.any() and not mask.any()


def test_padding_is_never_the_maximum() -> None:
    """A feature may be negative in every window."""
    network = ConvolutionalNetwork(Config(filters=6, sentence_size=7, trigram_buckets=500))
    with torch.no_grad():
        network.trigrams.weight.copy_(-network.trigrams.weight.abs())
        ids = torch.tensor([[5, 4000, 6, 0, 0], [5, 4000, 6, 7, 4000]])
        together = network(ids)
        torch.testing.assert_close(together[:1], network(ids[:1, :3]))
