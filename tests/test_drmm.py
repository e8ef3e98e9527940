"""DRMM against section 4 of the paper, written out in loops."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from reranking_samples import POSTS, QUERIES, all_pairs, encoder, small_model

from rerankers.base import WORDS, Reranker
from rerankers.engine import scoring
from rerankers.engine.tokenized import Tokenized
from rerankers.errors import RerankerError
from rerankers.models.drmm import Config, Model, gates, histograms
from rerankers.text.words import words

GATES = ("idf", "vector")
HISTOGRAMS = ("count", "normalized", "log_count")
CPU = torch.device("cpu")
CASES = [
    (QUERIES[0], POSTS[0][0]),
    (QUERIES[1], POSTS[3][0]),
    (QUERIES[3], POSTS[8][0]),
    ("xyzzy the plugh", "plugh xyzzy xyzzy nothing"),  # words without vectors
    (QUERIES[2], ""),
    ("", POSTS[2][0]),
    ("", ""),
]


def read(model: Reranker, text: str) -> tuple[list[int], np.ndarray]:
    """Identifiers and vectors [L, E] of a text's words."""
    lookup: Any = model.get_submodule("vectors")
    ids = encoder().vocabulary.ids(words(text))
    vectors = lookup(torch.tensor(ids, dtype=torch.long)).double().numpy().reshape(-1, 10)
    return ids, vectors


def naive_histogram(
    ids: tuple[int, list[int]], vectors: tuple[np.ndarray, np.ndarray], kind: str
) -> list[float]:
    """One query word against a post, by 30 bins."""
    counts = [0.0] * 30
    for other, vector in zip(ids[1], vectors[1], strict=True):
        cosine = vectors[0] @ vector / np.linalg.norm(vectors[0]) / np.linalg.norm(vector)
        # Bin number n of 29 is from -1 + 2n/29 on.
        place = max(n for n in range(29) if n == 0 or cosine >= -1 + 2 * n / 29)
        counts[29 if other == ids[0] else place] += 1
    if kind == "log_count":
        return [math.log(1 + count) for count in counts]
    if kind == "normalized":
        return [count / max(1, len(ids[1])) for count in counts]
    return counts


def naive_score(model: Reranker, query: str, post: str) -> float:
    """Section 4: s = Σ g_i z_i."""
    config = model.config
    weights = {key: value.detach().double().numpy() for key, value in model.named_parameters()}
    ids, vectors = read(model, query)
    post_ids, post_vectors = read(model, post)
    idf = encoder().idf.weights(words(query))
    evidence, shares = [], []
    for place, word in enumerate(ids):
        histogram = naive_histogram(
            (word, post_ids), (vectors[place], post_vectors), config.histogram
        )
        hidden = np.tanh(weights["evidence.0.weight"] @ histogram + weights["evidence.0.bias"])
        inner = weights["evidence.2.weight"][0] @ hidden + weights["evidence.2.bias"][0]
        evidence.append(config.bound * math.tanh(inner / config.bound))
        if config.gate == "idf":
            shares.append(math.exp(weights["gate"][0] * float(idf[place])))
        else:
            shares.append(math.exp(weights["gate"] @ vectors[place]))
    return sum(z * share / sum(shares) for z, share in zip(evidence, shares, strict=True))


def varied(gate: str, **changes: Any) -> Reranker:
    """A small model whose gate is not as it starts."""
    model = small_model("drmm", gate, seed=3, **changes)
    with torch.no_grad():
        gate_weights = model.get_parameter("gate")
        gate_weights += torch.randn(gate_weights.shape, generator=torch.Generator().manual_seed(1))
    return model


def interactions(model: Reranker, query: str, post: str) -> dict[str, torch.Tensor]:
    encoded = Tokenized.from_pairs(all_pairs([query], [(post, "")]), encoder(), model)
    queries, posts, query_of_post = encoded.batch(np.arange(1), CPU)
    encoded_texts = model.encode_queries(queries), model.encode_posts(posts)
    return dict(model.interact(*encoded_texts, query_of_post))


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("histogram", HISTOGRAMS)
@pytest.mark.parametrize("bound", [10.0, 1.0])
def test_scores_are_those_of_the_paper(gate: str, histogram: str, bound: float) -> None:
    model = varied(gate, histogram=histogram, bound=bound)
    queries = [query for query, _ in CASES]
    pairs = all_pairs(queries, [(post, "") for _, post in CASES])
    scores = scoring.score(model, pairs, encoder())
    expected = [naive_score(model, query, post) for query in queries for _, post in CASES]
    np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-5)


def test_bins_are_those_of_the_papers_example() -> None:
    """Section 4.1: five bins from -1 on, and the cosines (1, 0.2, 0.7, 0.3, -0.1, 0.1)."""
    cosine = torch.tensor([[[1.0, 0.2, 0.7, 0.3, -0.1, 0.1]]])
    exact = cosine == 1.0
    counts = histograms(cosine, exact, torch.ones(1, 6), 5)
    assert counts.tolist() == [[[0.0, 1.0, 3.0, 1.0, 1.0]]]


def test_ends_of_the_range_are_in_the_outer_bins() -> None:
    """Rounding takes cosines beyond 1; a synonym whose cosine is 1 is no exact match."""
    cosine = torch.tensor([[[-1.0000002, -1.0, 1.0, 1.0000002, 1.0, -0.5, 0.0]]])
    exact = torch.tensor([[[False, False, False, False, True, False, False]]])
    counts = histograms(cosine, exact, torch.ones(1, 7), 5)
    assert counts.tolist() == [[[2.0, 1.0, 1.0, 2.0, 1.0]]]
    assert not histograms(cosine, exact, torch.zeros(1, 7), 5).any()


@pytest.mark.parametrize("word", ["water", "xyzzy", "a"])
def test_exact_matches_are_in_the_last_bin(word: str) -> None:
    model = small_model("drmm", "idf", histogram="count")
    found = interactions(model, word, f"{word} else {word} other")["histograms"][0, 0]
    assert found[-1].item() == 2.0
    assert found.sum().item() == 4.0


def test_gates_are_a_softmax_of_the_words_that_are_there() -> None:
    logits = torch.tensor([[1.0, 2.0, 9.0], [50.0, 0.0, 0.0], [3.0, 3.0, 3.0], [-2e2, -3e2, 0.0]])
    mask = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0], [0.0, 0.0, 0.0], [1.0, 1.0, 0.0]])
    logits.requires_grad_(True)
    found = gates(logits, mask)
    share = 1 / (1 + math.e)
    expected = [[share, 1 - share, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0], [1.0, 0.0, 0.0]]
    torch.testing.assert_close(found, torch.tensor(expected))
    found.square().sum().backward()
    assert logits.grad is not None and bool(logits.grad.isfinite().all())
    inside = logits.detach()[:1, :2].requires_grad_(True)
    torch.softmax(inside, dim=1).square().sum().backward()
    torch.testing.assert_close(logits.grad[:1, :2], inside.grad)


def test_a_rare_word_counts_more_at_the_start() -> None:
    model = small_model("drmm", "idf")
    encoded = Tokenized.from_pairs(all_pairs(["the xyzzy"], [POSTS[0]]), encoder(), model)
    weights = encoded.queries[WORDS].batch(np.array([0]), CPU).weights
    the, rare = gates(model.get_parameter("gate") * weights, torch.ones(1, 2))[0].tolist()
    assert 20 < rare / the < 150


def test_the_paper_has_161_numbers_and_those_of_the_gate() -> None:
    """Rao et al. (2019), section 5, count them without the gate."""
    for name, gate in (("idf", 1), ("vector", 10)):
        model = small_model("drmm", name, hidden=5)
        assert sum(p.numel() for p in model.parameters() if p.requires_grad) == 161 + gate
    assert Model.configurations["idf"] == Config()
    assert (Config().bins, Config().hidden, Config().histogram) == (30, 5, "log_count")


def test_a_query_without_words_scores_zero() -> None:
    for gate in GATES:
        scores = scoring.score(varied(gate), all_pairs([""], POSTS[:3]), encoder())
        np.testing.assert_array_equal(scores, 0.0)


def test_settings_that_mean_nothing_are_refused() -> None:
    for changes in ({"bins": 1}, {"histogram": "raw"}, {"gate": "tv"}, {"bound": 0.0}):
        with pytest.raises(RerankerError, match=next(iter(changes))):
            Config(**changes)  # type: ignore[arg-type]
