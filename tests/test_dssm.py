"""DSSM against section 3 of the paper, written out with vectors of 64,000 trigram counts."""

from collections import Counter

import numpy as np
import pytest
import torch
from reranking_samples import POSTS, QUERIES, all_pairs, encoder, small_model

from rerankers.base import Reranker
from rerankers.engine import scoring
from rerankers.errors import RerankerError
from rerankers.models._letter_trigrams import TrigramSums
from rerankers.models.dssm import Config, Model
from rerankers.text.words import words

CHARACTERS = "#abcdefghijklmnopqrstuvwxyz0123456789"
CASES = [
    (QUERIES[0], POSTS[0][0]),
    (QUERIES[1], POSTS[3][0]),
    (QUERIES[2], POSTS[10][0]),  # one word against one word
    ("cuts cuts cuts", "a 5 cuts"),
    (QUERIES[0], ""),
    ("", POSTS[2][0]),
    ("", ""),
]


def trigrams(text: str) -> list[str]:
    """Section 3.2: #good# is #go, goo, ood, od#."""
    marked = [f"#{word}#" for word in words(text)]
    return [word[n : n + 3] for word in marked for n in range(len(word) - 2)]


def number_of(trigram: str) -> int:
    """From 1 on, in the order of the characters."""
    first, second, third = (CHARACTERS.index(character) for character in trigram)
    return 1 + 1600 * first + 40 * second + third


def row_of(trigram: str, buckets: int) -> int:
    """Which row of the first layer's weights reads a trigram."""
    number = number_of(trigram)
    if buckets == 64_000:
        return number
    return 1 + int((number * 2_654_435_761 % 2**32) / 2**32 * buckets)


def naive_vector(weights: dict[str, np.ndarray], text: str) -> np.ndarray:
    """Section 3.1 for one text."""
    matrix = weights["trigrams.weight"]
    counts = np.zeros(len(matrix))
    for trigram, count in Counter(trigrams(text)).items():
        counts[row_of(trigram, len(matrix) - 1)] += count
    layer = np.tanh(counts @ matrix + weights["bias"])
    layer = np.tanh(weights["second.weight"] @ layer + weights["second.bias"])
    return np.tanh(weights["last.weight"] @ layer + weights["last.bias"])


def naive_score(model: Reranker, query: str, post: str) -> float:
    """γ times the cosine."""
    if not words(query) or not words(post):
        return 0.0
    vectors = []
    for network, text in ((0, query), (0 if model.config.shared else 1, post)):
        weights = {
            key.removeprefix(f"networks.{network}."): value.detach().double().numpy()
            for key, value in model.named_parameters() if key.startswith(f"networks.{network}.")
        }  # fmt: skip
        vectors.append(naive_vector(weights, text))
    q, d = vectors
    return float(model.config.smoothing * (q @ d) / (np.linalg.norm(q) * np.linalg.norm(d)))


def varied(configuration: str = "compact", **changes: object) -> Reranker:
    """A small model none of whose biases is 0."""
    model = small_model("dssm", configuration, 3, **changes)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "bias" in name:
                parameter += torch.randn(parameter.shape, generator=generator) * 0.1
    return model


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("buckets", [64_000, 500])
def test_scores_are_those_of_the_paper(shared: bool, buckets: int) -> None:
    model = varied(shared=shared, trigram_buckets=buckets, smoothing=4.0)
    queries = [query for query, _ in CASES]
    pairs = all_pairs(queries, [(post, "") for _, post in CASES])
    scores = scoring.score(model, pairs, encoder())
    expected = [naive_score(model, query, post) for query in queries for _, post in CASES]
    assert np.ptp(expected) > 0.1
    np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-5)


def test_the_order_of_words_does_not_matter() -> None:
    posts = [("egypt has no water", ""), ("water has no egypt", "")]
    first, second = scoring.score(varied(), all_pairs(["water shortages"], posts), encoder())
    assert first == pytest.approx(second, abs=1e-5)


def test_a_text_is_most_like_itself_before_any_training() -> None:
    """Unknown words too: weights that query and post share let common trigrams count."""
    model = small_model("dssm", "compact", trigram_size=96, hidden=96, sentence_size=64)
    posts = [("zyxtrop service cuts", ""), *POSTS]
    scores = scoring.score(model, all_pairs(["zyxtrop cuts service"], posts), encoder())
    assert scores[0] == pytest.approx(10.0, abs=1e-4)
    assert (scores[1:] < 9.0).all()


def test_networks_that_are_not_shared_are_two() -> None:
    shared, two = (varied(shared=shared) for shared in (True, False))
    sizes = [sum(value.numel() for value in model.parameters()) for model in (shared, two)]
    assert sizes[1] == 2 * sizes[0]


def test_the_paper_configuration_is_section_3_4() -> None:
    paper = Model.configurations["paper"]
    assert (paper.trigram_size, paper.hidden, paper.sentence_size) == (300, 300, 128)
    assert paper.trigram_buckets == 64_000
    assert Model.configurations["compact"] == Config()
    assert next(iter(Model.configurations)) == "compact"
    settings = Model.training_settings
    assert (settings.loss, settings.negatives) == ("listwise", 4)


def test_buckets_are_filled_evenly() -> None:
    rows = TrigramSums(1, 16_384).rows_of(torch.arange(64_001))
    assert rows[0] == 0
    filled = torch.bincount(rows[1:], minlength=16_385)
    assert filled[0] == 0 and len(filled) == 16_385
    assert int(filled[1:].min()) >= 2 and int(filled.max()) <= 6


@pytest.mark.parametrize("buckets", [0, 64_001])
def test_a_wrong_number_of_buckets_is_refused(buckets: int) -> None:
    with pytest.raises(RerankerError, match=f"trigram_buckets: found {buckets}, expected 1 to"):
        varied(trigram_buckets=buckets)
