"""DUET against section 3 of the paper, written out in loops."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from reranking_samples import AWKWARD, POSTS, QUERIES, all_pairs, encoder, small_model

from rerankers.base import TRIGRAMS, WORDS, Reranker
from rerankers.engine import scoring
from rerankers.engine.tokenized import Tokenized
from rerankers.errors import RerankerError
from rerankers.models.duet import Config, Model, sum_by_word
from rerankers.text.words import character_trigrams, words

CONFIGURATIONS = list(Model.configurations)
CPU = torch.device("cpu")
LONG = " ".join(f"w{n % 10}" for n in range(70))
CASES = [
    (QUERIES[0], POSTS[0][0]),
    (QUERIES[1], "egypt " * 5 + "has no water and shortages of water in many other places"),
    (QUERIES[3], POSTS[8][0]),
    ("xyzzy plugh", "plugh xyzzy xyzzy nothing"),
    (QUERIES[2], ""),
    ("", POSTS[2][0]),
    ("", ""),
    (LONG, LONG),
]
Weights = dict[str, np.ndarray]


def naive_words(model: Reranker, text: str, most: int) -> tuple[list[int], list[np.ndarray]]:
    """Identifiers of a text's words, and what the distributed network reads of each."""
    lookup: Any = model.get_submodule("vectors")
    tokens = words(text)[:most]
    ids = encoder().vocabulary.ids(tokens)
    rows = []
    for token, word in zip(tokens, ids, strict=True):
        if model.config.terms == "words":
            terms = [word]
        else:
            terms = [int(trigram) + 1 for trigram in character_trigrams([token]).values]
        rows.append(lookup(torch.tensor(terms)).detach().double().numpy().sum(axis=0))
    return ids, rows


def naive_regions(
    weights: Weights, name: str, rows: list[np.ndarray], region: int
) -> list[np.ndarray]:
    """Convolution, max pooling of regions and a fully connected layer."""
    if not rows:
        return []
    filters, size = weights[f"{name}.convolution.weight"], len(rows[0])
    padded = [np.zeros(size)] * 2 + rows + [np.zeros(size)] * 2
    windows = [
        np.tanh(np.concatenate(padded[i : i + 3]) @ filters + weights[f"{name}.bias"])
        for i in range(len(padded) - 2)
    ]
    found = []
    for start in range(0, len(windows), region):
        pooled = np.max(windows[start : start + region], axis=0)
        output = weights[f"{name}.output.weight"] @ pooled + weights[f"{name}.output.bias"]
        found.append(np.tanh(output))
    return found


def naive_hidden(weights: Weights, name: str, places: list[np.ndarray], size: int) -> np.ndarray:
    """A fully connected layer on places side by side, zeros where there is none."""
    inputs = np.zeros(size)
    if places:
        flat = np.concatenate(places)
        inputs[: len(flat)] = flat
    return np.tanh(weights[f"{name}.weight"] @ inputs + weights[f"{name}.bias"])


def naive_score(model: Reranker, query: str, post: str) -> float:
    """Section 3: f = f_local + f_distributed."""
    config = model.config
    weights = {key: value.detach().double().numpy() for key, value in model.named_parameters()}
    query_ids, query_rows = naive_words(model, query, 16)
    post_ids, post_rows = naive_words(model, post, 62)
    local = []
    for q in query_ids:
        row = np.zeros(62)
        for place, d in enumerate(post_ids):
            row[place] = 1.0 if q == d else 0.0
        local.append(np.tanh(weights["places.weight"] @ row + weights["places.bias"]))
    whole = naive_regions(weights, "query", query_rows, 1000)
    regions = naive_regions(weights, "post", post_rows, 8)
    products = [whole[0] * row for row in regions] if whole else []
    first = naive_hidden(weights, "local", local, 16 * config.local_filters)
    second = naive_hidden(weights, "distributed", products, 8 * config.filters)
    last, half = weights["score.weight"][0], config.hidden
    f_local, f_distributed = last[:half] @ first, last[half:] @ second
    return float(f_local + f_distributed + weights["score.bias"][0])


def varied(configuration: str, seed: int = 3, **changes: Any) -> Reranker:
    """A small model none of whose biases is 0."""
    model = small_model("duet", configuration, seed, **changes)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "bias" in name:
                parameter += torch.randn(parameter.shape, generator=generator) * 0.3
    return model


@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_scores_are_those_of_the_paper(configuration: str) -> None:
    model = varied(configuration)
    queries = [query for query, _ in CASES]
    pairs = all_pairs(queries, [(post, "") for _, post in CASES])
    scores = scoring.score(model, pairs, encoder())
    expected = [naive_score(model, query, post) for query in queries for _, post in CASES]
    np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_text_beyond_the_sizes_is_not_read(configuration: str) -> None:
    model = varied(configuration)
    tail = " something else entirely water"
    pairs = all_pairs([LONG, LONG + tail], [(LONG, ""), (LONG + tail, "")])
    scores = scoring.score(model, pairs, encoder())
    np.testing.assert_allclose(scores, scores[0], rtol=1e-6, atol=1e-6)
    pairs = all_pairs([LONG], [(LONG, ""), ("water " + LONG, "")])
    first, second = scoring.score(model, pairs, encoder())
    assert abs(first - second) > 1e-4


def test_the_local_network_sees_where_matches_are() -> None:
    """And nothing else of the words: without meaning, only places and counts matter."""
    model = varied("words")
    with torch.no_grad():
        model.get_parameter("distributed.weight").zero_()
    texts = ["water good lunch", "good water lunch", "lunch water good", "water water good"]
    scores = scoring.score(model, all_pairs(["water"], [(t, "") for t in texts]), encoder())
    assert scores[1] == pytest.approx(scores[2], abs=1e-6)
    assert len({round(float(score), 5) for score in scores}) == 3


@pytest.mark.parametrize("text", [*AWKWARD.values(), QUERIES[0], LONG])
def test_trigrams_are_summed_by_word(text: str) -> None:
    """One row for each word of the view of words, in its order."""
    tokens = words(text)
    inputs = encoder().posts([text], [""], (WORDS, TRIGRAMS))
    trigrams = inputs[TRIGRAMS].batch(np.array([0]), CPU).ids
    table = torch.randn(64_001, 3, generator=torch.Generator().manual_seed(0))
    table[0] = 0.0
    for most in (1, 3, len(tokens), len(tokens) + 2):
        found = sum_by_word(table[trigrams], trigrams, most)[0]
        assert found.shape == (most, 3)
        expected = torch.zeros(most, 3)
        for place, token in enumerate(tokens[:most]):
            of_word = character_trigrams([token]).values
            expected[place] = table[torch.from_numpy(of_word + 1).long()].sum(dim=0)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_words_alike_in_letters_are_alike_in_trigrams() -> None:
    model = varied("trigrams")
    encoded = Tokenized.from_pairs(all_pairs(["protest", "protests", "egypt"]), encoder(), model)
    inputs, _, _ = encoded.batch(np.arange(36), CPU)
    with torch.no_grad():
        trigrams = inputs[TRIGRAMS].ids
        lookup: Any = model.get_submodule("vectors")
        first, second, other = sum_by_word(lookup(trigrams), trigrams, 1)[:, 0]
    assert torch.cosine_similarity(first, second, dim=0) > 0.6
    assert torch.cosine_similarity(first, other, dim=0) < 0.6


@pytest.mark.parametrize(
    ("changes", "regions"),
    [({}, 8), ({"post_words": 63}, 9), ({"region": 100}, 1), ({"width": 1}, 8)],
)
def test_regions_cover_the_longest_post(changes: dict[str, int], regions: int) -> None:
    model = varied("words", **changes)
    assert model.config.regions() == regions
    encoded = Tokenized.from_pairs(all_pairs([QUERIES[0]], [(LONG, "")]), encoder(), model)
    queries, posts, query_of_post = encoded.batch(np.arange(1), CPU)
    both = model.encode_queries(queries), model.encode_posts(posts)
    assert model.interact(*both, query_of_post)["distributed"].shape == (1, regions, 6)
    assert math.isfinite(model(queries, posts, query_of_post).item())


def test_settings_that_mean_nothing_are_refused() -> None:
    for changes in ({"region": 0}, {"width": 0}, {"terms": "letters"}, {"post_words": 0}):
        with pytest.raises(RerankerError, match=next(iter(changes))):
            Config(**changes)  # type: ignore[arg-type]
