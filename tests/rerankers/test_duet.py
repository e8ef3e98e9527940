"""DUET against section 3 of the paper, written out in loops."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from helpers.model_samples import Weights, assert_naive_scores, naive_windows, varied, weights_of
from helpers.reranking_samples import encoder

from rerankers.networks.base import Reranker
from rerankers.networks.models.duet import Model
from rerankers.text.words import character_trigrams, words

CONFIGURATIONS = list(Model.configurations)


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
    filters = weights[f"{name}.convolution.weight"]
    windows = np.tanh(
        naive_windows(np.stack(rows), 3, margin=2) @ filters + weights[f"{name}.bias"]
    )
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
    config, weights = model.config, weights_of(model)
    query_ids, query_rows = naive_words(model, query, 16)
    post_ids, post_rows = naive_words(model, post, 62)
    matches = [[float(q == d) for d in post_ids] + [0.0] * (62 - len(post_ids)) for q in query_ids]
    local = [np.tanh(weights["places.weight"] @ row + weights["places.bias"]) for row in matches]
    whole = naive_regions(weights, "query", query_rows, 1000)
    regions = naive_regions(weights, "post", post_rows, 8)
    products = [whole[0] * row for row in regions] if whole else []
    first = naive_hidden(weights, "local", local, 16 * config.local_filters)
    second = naive_hidden(weights, "distributed", products, 8 * config.filters)
    last, half = weights["score.weight"][0], config.hidden
    f_local, f_distributed = last[:half] @ first, last[half:] @ second
    return float(f_local + f_distributed + weights["score.bias"][0])


@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_scores_are_those_of_the_paper(configuration: str) -> None:
    model = varied("duet", configuration)
    assert_naive_scores(model, partial(naive_score, model))
