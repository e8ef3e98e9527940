"""C-DSSM against the formulas of the paper, written out word by word and window by window."""

from collections import Counter

import numpy as np
import pytest
import torch
from reranking_samples import AWKWARD, POSTS, QUERIES, all_pairs, encoder, small_model

from rerankers.base import TRIGRAMS, Reranker
from rerankers.engine import scoring
from rerankers.errors import RerankerError
from rerankers.models._letter_trigrams import TrigramSums, begins_word
from rerankers.models.c_dssm import Config, ConvolutionalNetwork, Model
from rerankers.text.words import words

CHARACTERS = "#abcdefghijklmnopqrstuvwxyz0123456789"
CASES = [
    (QUERIES[0], POSTS[0][0]),
    (QUERIES[1], POSTS[3][0]),
    (QUERIES[2], POSTS[10][0]),  # one word against one word
    ("a b a", "a 5 cuts"),  # words of one letter
    (QUERIES[0], ""),
    ("", POSTS[2][0]),
    ("", ""),
]
TEXTS = [*QUERIES, *(text for text, _ in POSTS), *AWKWARD.values()]


def counts_of(word: str, rows: int) -> np.ndarray:
    """Letter-trigram counts of one word; every trigram has a row of its own."""
    marked, counts = f"#{word}#", np.zeros(rows)
    for trigram, count in Counter(marked[n : n + 3] for n in range(len(word))).items():
        first, second, third = (CHARACTERS.index(character) for character in trigram)
        counts[1 + 1600 * first + 40 * second + third] += count
    return counts


def naive_vector(weights: dict[str, np.ndarray], text: str, width: int) -> np.ndarray:
    """The vector of one text."""
    table = weights["trigrams.weight"]  # [64,001, width · F]
    filters = table.shape[1] // width
    # The paper's matrix reads a whole window: [F, width · 64,001].
    matrix = np.concatenate(
        [table[:, j * filters : (j + 1) * filters] for j in range(width)]
    ).T  # fmt: skip
    none = [np.zeros(len(table))] * (width // 2)
    vectors = [*none, *(counts_of(word, len(table)) for word in words(text)), *none]
    features = [
        np.tanh(matrix @ np.concatenate(vectors[t : t + width]))
        for t in range(len(vectors) - width + 1)
    ]
    return np.tanh(weights["semantic.weight"] @ np.max(features, axis=0))


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
        vectors.append(naive_vector(weights, text, model.config.width))
    q, d = vectors
    return float(model.config.smoothing * (q @ d) / (np.linalg.norm(q) * np.linalg.norm(d)))


@pytest.mark.parametrize(("shared", "width"), [(True, 3), (False, 3), (True, 1), (True, 5)])
def test_scores_are_those_of_the_paper(shared: bool, width: int) -> None:
    changes = {"shared": shared, "width": width, "trigram_buckets": 64_000, "smoothing": 4.0}
    model = small_model("c_dssm", "compact", 3, **changes)
    queries = [query.replace("é", "e").replace("ü", "u") for query, _ in CASES]
    pairs = all_pairs(queries, [(post, "") for _, post in CASES])
    scores = scoring.score(model, pairs, encoder())
    expected = [naive_score(model, query, post) for query in queries for _, post in CASES]
    assert np.ptp(expected) > 0.1
    np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-5)


def test_words_are_told_by_their_first_trigram() -> None:
    """Of any script, and of one letter."""
    packed = encoder().posts(TEXTS, [""] * len(TEXTS), (TRIGRAMS,))[TRIGRAMS]
    ids = packed.batch(np.arange(len(TEXTS)), torch.device("cpu")).ids
    counts = begins_word(ids).sum(dim=1)
    assert counts.tolist() == [len(words(text)) for text in TEXTS]


@pytest.mark.parametrize("buckets", [64_000, 300])
def test_sums_by_word_are_those_of_each_word_alone(buckets: int) -> None:
    sums = TrigramSums(5, buckets)
    packed = encoder().posts(TEXTS, [""] * len(TEXTS), (TRIGRAMS,))[TRIGRAMS]
    together, mask = sums.by_word(packed.batch(np.arange(len(TEXTS)), torch.device("cpu")).ids)
    for row, text in enumerate(TEXTS):
        tokens = words(text)
        assert mask[row].tolist() == [n < len(tokens) for n in range(mask.shape[1])]
        assert not together[row, len(tokens) :].any()
        if tokens:
            alone = encoder().posts(tokens, [""] * len(tokens), (TRIGRAMS,))[TRIGRAMS]
            ids = alone.batch(np.arange(len(tokens)), torch.device("cpu")).ids
            torch.testing.assert_close(together[row, : len(tokens)], sums(ids))


def test_texts_without_words_have_one_place_that_is_empty() -> None:
    sums, mask = TrigramSums(5, 300).by_word(torch.zeros(3, 4, dtype=torch.long))
    assert sums.shape == (3, 1, 5)
    assert not sums.any() and not mask.any()


def test_order_matters_within_a_window_and_not_beyond() -> None:
    model = small_model("c_dssm", "compact", trigram_buckets=64_000)
    posts = [("egypt has no water", ""), ("has egypt no water", ""), ("water", "")]
    first, second, _ = scoring.score(model, all_pairs(["water shortages"], posts), encoder())
    assert abs(first - second) > 1e-3
    # Alike within three words of every word, whatever the order of the two parts.
    one, other = "a b c d a b e a b c", "a b e a b c d a b c"
    first, second = scoring.score(model, all_pairs(["a"], [(one, ""), (other, "")]), encoder())
    assert first == pytest.approx(second, abs=1e-5)


def test_what_is_beyond_a_text_is_never_pooled() -> None:
    """A feature may be negative in every window."""
    network = ConvolutionalNetwork(Config(filters=6, sentence_size=7, trigram_buckets=500))
    with torch.no_grad():
        network.trigrams.weight.copy_(-network.trigrams.weight.abs())
        ids = torch.tensor([[5, 4000, 6, 0, 0], [5, 4000, 6, 7, 4000]])
        together = network(ids)
        torch.testing.assert_close(together[:1], network(ids[:1, :3]))


def test_the_paper_configuration_has_the_papers_sizes() -> None:
    paper = Model.configurations["paper"]
    assert (paper.filters, paper.width, paper.sentence_size) == (300, 3, 128)
    assert paper.trigram_buckets == 64_000
    assert Model.configurations["compact"] == Config()
    assert next(iter(Model.configurations)) == "compact"
    settings = Model.training_settings
    assert (settings.loss, settings.negatives) == ("listwise", 4)


@pytest.mark.parametrize("width", [0, 2, -1])
def test_a_window_needs_a_middle(width: int) -> None:
    with pytest.raises(RerankerError, match=f"width: found {width}, expected an odd number"):
        Config(width=width)
