"""CNTN against sections 3 and 4 of the paper, written out in loops."""

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
from rerankers.layers.pooling import k_max_pooling
from rerankers.models.cntn import Config, Model, dynamic_k
from rerankers.text.words import words

CONFIGURATIONS = list(Model.configurations)
LONG = " ".join(f"cuts{n % 7}" for n in range(31))
CASES = [
    (QUERIES[0], POSTS[0][0]),
    (QUERIES[1], POSTS[3][0]),
    (QUERIES[2], POSTS[10][0]),  # one word against one word
    (QUERIES[0], ""),
    ("", POSTS[2][0]),
    ("", ""),
    (LONG, LONG),
]


def naive_k_max(column: list[float], k: int) -> list[float]:
    """The k highest of a list, in its order; of equal ones the earlier."""
    best = sorted(range(len(column)), key=lambda place: (-column[place], place))[:k]
    return [column[place] for place in sorted(best)]


def naive_sentence(weights: dict[str, np.ndarray], vectors: np.ndarray) -> np.ndarray:
    """Section 3 for one text [s, E]: its vector [n_s]."""
    depth, maps, s = 3, vectors, len(vectors)
    for layer in range(1, depth + 1):
        filters = weights[f"convolutions.{layer - 1}.weight"]  # [3 · inputs, F]
        inputs = filters.shape[0] // 3
        if s:
            edge = np.zeros((2, inputs))
            padded = np.concatenate([edge, maps, edge])
            maps = np.array(
                [
                    sum(padded[i + j] @ filters[j * inputs : (j + 1) * inputs] for j in range(3))
                    for i in range(len(padded) - 2)
                ]
            )
        else:
            maps = np.zeros((0, filters.shape[1]))
        k = max(4, math.ceil((depth - layer) * s / depth))
        columns = [naive_k_max(maps[:, f].tolist(), k) for f in range(maps.shape[1])]
        maps = np.array(columns).T.reshape(-1, filters.shape[1])
        maps = np.tanh(maps + weights["biases"][layer - 1])
    top = np.zeros((4, maps.shape[1]))
    top[: len(maps)] = maps
    return np.tanh(weights["output.weight"] @ top.ravel() + weights["output.bias"])


def naive_score(model: Reranker, query: str, post: str) -> float:
    """Equation 1 for one pair."""
    config = model.config
    everything = {key: value.detach().double().numpy() for key, value in model.named_parameters()}
    lookup: Any = model.get_submodule("vectors")
    sides = []
    for name, text in (("query_sentence.", query), ("post_sentence.", post)):
        ids = encoder().vocabulary.ids(words(text))
        vectors = lookup(torch.tensor(ids, dtype=torch.long)).double().numpy().reshape(len(ids), 10)
        own = {key.removeprefix(name): value for key, value in everything.items()
               if key.startswith(name)}  # fmt: skip
        sides.append(naive_sentence(own, vectors))
    q, a = sides
    if config.bilinear == "identity":
        q, a = q / max(np.linalg.norm(q), 1e-6), a / max(np.linalg.norm(a), 1e-6)
    score = 0.0
    for i in range(config.slices):
        inner = 0.0
        if config.bilinear == "tensor":
            m = everything["tensor"][i]
            inner += sum(q[x] * m[x, y] * a[y] for x in range(len(q)) for y in range(len(a)))
        elif config.bilinear == "identity":
            inner += q @ a
        if config.linear:
            row = everything["linear.weight"][i]
            inner += row @ np.concatenate([q, a]) + everything["linear.bias"][i]
        outer = math.tanh(inner) if config.activation == "tanh" else inner
        score += everything["weights"][i] * outer
    return float(score)


def varied(configuration: str, seed: int = 3) -> Reranker:
    """A small model none of whose biases and weights is 0 or 1."""
    model = small_model("cntn", configuration, seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "bias" in name or name == "weights":
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


def test_queries_are_encoded_as_sentence_vectors() -> None:
    """Question retrieval compares them."""
    model = varied("cntn_v")
    encoded = Tokenized.from_pairs(all_pairs(), encoder(), model)
    queries, _, _ = encoded.batch(np.arange(len(QUERIES) * len(POSTS)), torch.device("cpu"))
    with torch.no_grad():
        found = model.encode_queries(queries)
    assert found.shape == (len(QUERIES), 7)
    assert queries[WORDS].ids.shape[0] == len(QUERIES)
    weights = {key.removeprefix("query_sentence."): value.detach().double().numpy()
               for key, value in model.named_parameters() if "query" in key}  # fmt: skip
    lookup: Any = model.get_submodule("vectors")
    for row, text in enumerate(QUERIES):
        vectors = lookup(torch.tensor(encoder().vocabulary.ids(words(text)))).double().numpy()
        expected = naive_sentence(weights, vectors)
        np.testing.assert_allclose(found[row].numpy(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("seed", range(5))
def test_k_max_pooling_is_that_of_loops(seed: int) -> None:
    random = np.random.default_rng(seed)
    values = random.normal(size=(6, 9, 4)).astype(np.float32)
    if seed % 2:
        values = np.round(values)  # many equal values
    lengths = np.array([9, 5, 1, 0, 7, 3])
    k = random.integers(1, 12, size=6)
    for row, length in enumerate(lengths):
        values[row, length:] = 100.0  # must never be kept
    pooled, kept = k_max_pooling(
        torch.from_numpy(values), torch.from_numpy(lengths), torch.from_numpy(k)
    )
    assert pooled.shape == (6, k.max(), 4)
    assert kept.tolist() == np.minimum(k, lengths).tolist()
    for row, length in enumerate(lengths):
        for feature in range(4):
            expected = naive_k_max(values[row, :length, feature].tolist(), int(k[row]))
            expected += [0.0] * (int(k.max()) - len(expected))
            assert pooled[row, :, feature].tolist() == expected


def test_k_max_pooling_passes_gradients_to_what_it_keeps() -> None:
    values = torch.tensor([[[3.0], [1.0], [2.0], [9.0]]], requires_grad=True)
    pooled, _ = k_max_pooling(values, torch.tensor([3]), torch.tensor([2]))
    assert pooled.flatten().tolist() == [3.0, 2.0]
    (pooled * torch.tensor([[[5.0], [7.0]]])).sum().backward()
    assert values.grad is not None
    assert values.grad.flatten().tolist() == [5.0, 0.0, 7.0, 0.0]


def test_k_follows_the_length_of_the_text() -> None:
    lengths = torch.arange(60)
    for depth in (1, 2, 3, 4):
        for layer in range(1, depth + 1):
            expected = [max(4, -((layer - depth) * s // depth)) for s in range(60)]
            assert dynamic_k(lengths, layer, depth, 4).tolist() == expected
    # Kalchbrenner et al. (2014), section 3.4: 18 words, k_top 3, three layers.
    eighteen = torch.tensor([18])
    assert [int(dynamic_k(eighteen, layer, 3, 3)) for layer in (1, 2, 3)] == [12, 6, 3]


def test_a_single_layer_perceptron_orders_answers_alike_for_every_question() -> None:
    scores = scoring.score(varied("cntn_iii"), all_pairs(), encoder())
    orders = scores.reshape(len(QUERIES), len(POSTS)).argsort(axis=1)
    assert (orders == orders[0]).all()
    tensor = scoring.score(varied("cntn_iv"), all_pairs(), encoder())
    orders = tensor.reshape(len(QUERIES), len(POSTS)).argsort(axis=1)
    assert not (orders == orders[0]).all()


def test_the_cosine_starts_as_one() -> None:
    scores = scoring.score(small_model("cntn", "cntn_i"), all_pairs(), encoder())
    assert (np.abs(scores) <= 1 + 1e-6).all()


def test_the_default_is_table_2() -> None:
    config = Model.configurations["cntn_v"]
    assert next(iter(Model.configurations)) == "cntn_v"
    assert config == Config()
    assert (config.slices, config.depth, config.width, config.sentence_size) == (5, 3, 3, 50)
    settings = Model.training_settings
    assert (settings.loss, settings.optimizer, settings.sampling) == (
        "pairwise", "adagrad", "corrupted",
    )  # fmt: skip
    assert (settings.negatives, settings.weight_decay) == (10, 1e-4)


def test_only_what_a_configuration_uses_has_parameters() -> None:
    layer = {
        configuration: {
            key: tuple(value.shape)
            for key, value in small_model("cntn", configuration).named_parameters()
            if "sentence" not in key and not key.startswith("vectors")
        }
        for configuration in CONFIGURATIONS
    }
    linear = {"linear.weight": (1, 14), "linear.bias": (1,)}
    assert layer == {
        "cntn_v": {
            "tensor": (5, 7, 7), "linear.weight": (5, 14), "linear.bias": (5,), "weights": (5,),
        },
        "cntn_iv": {"tensor": (1, 7, 7), **linear, "weights": (1,)},
        "cntn_iii": {**linear, "weights": (1,)},
        "cntn_ii": {"tensor": (1, 7, 7), "weights": (1,)},
        "cntn_i": {"weights": (1,)},
    }  # fmt: skip


def test_a_tensor_layer_of_nothing_is_refused() -> None:
    with pytest.raises(RerankerError, match="found none and false"):
        Config(bilinear="none", linear=False)
