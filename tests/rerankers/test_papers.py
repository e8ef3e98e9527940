"""Models against their papers' formulas, written out in loops over one pair."""

import copy
import math
from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from helpers.model_samples import (
    CASES,
    Vector,
    Weights,
    assert_naive_scores,
    is_told,
    linear,
    naive_cosine,
    naive_overlap,
    naive_perceptron,
    naive_squares,
    naive_windows,
    relu,
    varied,
    weights_of,
    word_vectors,
)
from helpers.reranking_samples import (
    POSTS,
    QUERIES,
    VECTOR_SIZE,
    all_pairs,
    encoder,
    network,
    scores_of,
    small_model,
    vocabulary,
)
from sklearn.linear_model import LogisticRegression

from rerankers import checkpoint, models
from rerankers.networks.base import Reranker
from rerankers.networks.inputs import Tokenized
from rerankers.networks.models.drmm import histograms
from rerankers.networks.models.mp_cnn import _DimensionConvolution
from rerankers.networks.models.pwim import PER_PLACE
from rerankers.networks.training import loop
from rerankers.networks.training.loop import Examples, make_optimizer, train
from rerankers.networks.training.settings import Settings
from rerankers.pairs import PRIOR, prior_of_rank
from rerankers.text.words import character_trigrams, words

# CNTN, sections 3 and 4


def naive_k_max(column: list[float], k: int) -> list[float]:
    """The k highest of a list, in its order; of equal ones the earlier."""
    best = sorted(range(len(column)), key=lambda place: (-column[place], place))[:k]
    return [column[place] for place in sorted(best)]


def cntn_sentence(weights: dict[str, Vector], vectors: Vector) -> Vector:
    """Section 3 for one text [s, E]: its vector [n_s]."""
    maps = vectors
    for layer in (1, 2, 3):
        filters = weights[f"convolutions.{layer - 1}.weight"]  # [3 · inputs, F]
        maps = naive_windows(maps, 3, margin=2) @ filters
        k = max(4, math.ceil((3 - layer) * len(vectors) / 3))
        columns = [naive_k_max(maps[:, f].tolist(), k) for f in range(maps.shape[1])]
        maps = np.array(columns).T.reshape(-1, filters.shape[1])
        maps = np.tanh(maps + weights["biases"][layer - 1])
    top = np.zeros((4, maps.shape[1]))
    top[: len(maps)] = maps
    return np.tanh(linear(weights, "output", top.ravel()))


def cntn(model: Reranker, query: str, post: str) -> float:
    """Equation 1 for one pair."""
    config = model.config
    everything, sides = weights_of(model), []
    for name, text in (("query_sentence.", query), ("post_sentence.", post)):
        vectors = word_vectors(model, text)
        if config.composition == "mean":
            sides.append(vectors.sum(axis=0) / max(1, len(vectors)))
        else:
            sides.append(cntn_sentence(weights_of(model, name), vectors))
    q, a = sides
    if config.bilinear == "identity":
        q, a = q / max(np.linalg.norm(q), 1e-6), a / max(np.linalg.norm(a), 1e-6)
    inner = np.zeros(config.slices)
    if config.bilinear == "tensor":
        inner += [q @ m @ a for m in everything["tensor"]]
    elif config.bilinear == "identity":
        inner += q @ a
    if config.linear:
        inner += linear(everything, "linear", [*q, *a])
    return float(everything["weights"] @ (np.tanh(inner) if config.activation == "tanh" else inner))


# DRMM, section 4


def naive_histogram(word: int, vector: Vector, ids: list[int], vectors: Vector) -> list[float]:
    """One query word against a post, by 30 bins."""
    counts = [0.0] * 30
    for other, theirs in zip(ids, vectors, strict=True):
        cosine = vector @ theirs / np.linalg.norm(vector) / np.linalg.norm(theirs)
        # Bin number n of 29 is from -1 + 2n/29 on.
        place = max(n for n in range(29) if n == 0 or cosine >= -1 + 2 * n / 29)
        counts[29 if other == word else place] += 1
    return [math.log(1 + count) for count in counts]


def drmm(model: Reranker, query: str, post: str) -> float:
    """Section 4: s = Σ g_i z_i."""
    config, weights = model.config, weights_of(model)
    ids, post_ids = (encoder().vocabulary.ids(words(text)) for text in (query, post))
    vectors, post_vectors = word_vectors(model, query), word_vectors(model, post)
    evidence = []
    for word, vector in zip(ids, vectors, strict=True):
        histogram = naive_histogram(word, vector, post_ids, post_vectors)
        (inner,) = linear(weights, "evidence.2", np.tanh(linear(weights, "evidence.0", histogram)))
        evidence.append(10 * math.tanh(inner / 10))
    idf = encoder().idf.weights(words(query), config.idf == "classical")
    shares = np.exp(weights["gate"][0] * idf.astype(np.float64))
    return float(np.array(evidence) @ shares / shares.sum()) if evidence else 0.0


# DSSM and C-DSSM, with vectors of 64,000 trigram counts

CHARACTERS = "#abcdefghijklmnopqrstuvwxyz0123456789"


def row_of(trigram: str, rows: int) -> int:
    """Row of the first layer's weights for a trigram: its number from 1 on, or its bucket."""
    first, second, third = (CHARACTERS.index(character) for character in trigram)
    number = 1 + 1600 * first + 40 * second + third
    if rows == 64_001:
        return number
    return 1 + int((number * 2_654_435_761 % 2**32) / 2**32 * (rows - 1))


def trigram_counts(word: str, rows: int) -> Vector:
    """Letter-trigram counts of one word: #good# is #go, goo, ood, od#."""
    marked, counts = f"#{word}#", np.zeros(rows)
    for trigram, count in Counter(marked[n : n + 3] for n in range(len(word))).items():
        counts[row_of(trigram, rows)] += count
    return counts


def deep_vector(weights: Weights, text: str) -> Vector:
    """DSSM, section 3.1."""
    matrix = weights["trigrams.weight"]
    counts = sum(trigram_counts(word, len(matrix)) for word in words(text))
    layer = np.tanh(counts @ matrix + weights["bias"])
    layer = np.tanh(linear(weights, "second", layer))
    return np.tanh(linear(weights, "last", layer))


def convolutional_vector(weights: Weights, text: str) -> Vector:
    """C-DSSM: windows of words, the maximum over them, and a layer."""
    table, width = weights["trigrams.weight"], 3  # [64,001, width · F]
    # The paper's matrix reads a whole window: [F, width · 64,001].
    matrix = np.concatenate(np.split(table, width, axis=1)).T
    none = [np.zeros(len(table))] * (width // 2)
    vectors = [*none, *(trigram_counts(word, len(table)) for word in words(text)), *none]
    features = [
        np.tanh(matrix @ np.concatenate(vectors[t : t + width]))
        for t in range(len(vectors) - width + 1)
    ]
    return np.tanh(weights["semantic.weight"] @ np.max(features, axis=0))


def dssm(model: Reranker, query: str, post: str) -> float:
    """Both papers: γ times the cosine of the texts' vectors."""
    if not words(query) or not words(post):
        return 0.0
    config, weights = model.config, weights_of(model, "tower.")
    of_text = deep_vector if "bias" in weights else convolutional_vector
    q, d = (of_text(weights, text) for text in (query, post))
    return float(config.smoothing * (q @ d) / (np.linalg.norm(q) * np.linalg.norm(d)))


# DUET, section 3


def duet_words(model: Reranker, text: str, most: int) -> tuple[list[int], list[Vector]]:
    """Identifiers of a text's words, and what the distributed network reads of each."""
    lookup: Any = model.get_submodule("vectors")
    tokens = words(text)[:most]
    ids, rows = encoder().vocabulary.ids(tokens), []
    for token, word in zip(tokens, ids, strict=True):
        trigrams = character_trigrams([token]).values + 1
        terms = [word] if model.config.terms == "words" else trigrams.tolist()
        rows.append(lookup(torch.tensor(terms)).detach().double().numpy().sum(axis=0))
    return ids, rows


def duet_regions(weights: Weights, name: str, rows: list[Vector], region: int) -> list[Vector]:
    """Convolution, max pooling of regions and a fully connected layer."""
    if not rows:
        return []
    inner = naive_windows(np.stack(rows), 3, margin=2) @ weights[f"{name}.convolution.weight"]
    windows = np.tanh(inner + weights[f"{name}.bias"])
    pooled = [windows[n : n + region].max(axis=0) for n in range(0, len(windows), region)]
    return [np.tanh(linear(weights, f"{name}.output", each)) for each in pooled]


def duet_hidden(weights: Weights, name: str, places: list[Vector], size: int) -> Vector:
    """A fully connected layer on places side by side, zeros where there is none."""
    inputs = np.concatenate([*places, np.zeros(size)])[:size]
    return np.tanh(linear(weights, name, inputs))


def duet(model: Reranker, query: str, post: str) -> float:
    """Section 3: f = f_local + f_distributed."""
    config, weights = model.config, weights_of(model)
    query_ids, query_rows = duet_words(model, query, 16)
    post_ids, post_rows = duet_words(model, post, 62)
    matches = [[float(q == d) for d in post_ids] + [0.0] * (62 - len(post_ids)) for q in query_ids]
    local = [np.tanh(linear(weights, "places", row)) for row in matches]
    whole = duet_regions(weights, "query", query_rows, 1000)
    regions = duet_regions(weights, "post", post_rows, 8)
    products = [whole[0] * row for row in regions] if whole else []
    first = duet_hidden(weights, "local", local, 16 * config.local_filters)
    second = duet_hidden(weights, "distributed", products, 8 * config.filters)
    return float(linear(weights, "score", np.append(first, second))[0])  # f_local + f_distributed


# K-NRM and Conv-KNRM

MEANS = [1.0, 0.9, 0.7, 0.5, 0.3, 0.1, -0.1, -0.3, -0.5, -0.7, -0.9]


def naive_ngrams(model: Reranker, text: str) -> list[Vector]:
    """Vectors of the n-grams of each length: ReLU of a matrix on the words side by side."""
    vectors = word_vectors(model, text)
    if not model.config.longest_ngram:
        return [vectors]
    weights, levels = weights_of(model), []
    for width in range(1, model.config.longest_ngram + 1):
        matrix, bias = (weights[f"convolutions.{width - 1}.{key}"] for key in ("weight", "bias"))
        levels.append(np.maximum(naive_windows(vectors, width) @ matrix + bias, 0))
    return levels


def kernel(mean: float, q: Vector, post: Vector) -> float:
    """log Σ K(cosine) of one n-gram of the query."""
    sigma = 0.001 if mean == 1.0 else 0.1
    distances = [naive_cosine(q, d) - mean for d in post]
    return math.log(max(sum(math.exp(-(d**2) / (2 * sigma**2)) for d in distances), 1e-10))


def knrm(model: Reranker, query: str, post: str) -> float:
    weights, levels = weights_of(model), (naive_ngrams(model, query), naive_ngrams(model, post))
    features = [  # φ: for each pair of lengths and each kernel
        0.1 * sum(kernel(mean, q, right) for q in left)
        for left, right in product(*levels)
        for mean in MEANS
    ]
    return 10.0 * math.tanh(linear(weights, "score", features)[0] / 10.0)


# MatchPyramid


def match_pyramid(model: Reranker, query: str, post: str) -> float:
    config, weights = model.config, weights_of(model)
    a, b = word_vectors(model, query), word_vectors(model, post)
    a, b = a[: config.query_words], b[: config.post_words]
    if config.similarity == "cosine":
        matrix = np.array([[naive_cosine(x, y) for y in b] for x in a]).reshape(len(a), len(b))
    else:
        matrix = a @ b.T / 36
    maps = naive_squares(matrix[None], weights["first.weight"], weights["first.bias"])
    pooled = np.zeros((len(maps), config.pooled_rows, config.pooled_columns))
    if maps.size:
        pooled = F.adaptive_max_pool2d(torch.from_numpy(maps), pooled.shape[1:]).numpy()
    maps = naive_squares(pooled, weights["second.weight"], weights["second.bias"])
    features = F.max_pool2d(torch.from_numpy(maps), 2).flatten().numpy()
    return float(naive_perceptron(weights, "score", features)[0])


# SM-CNN, sections 3 and 4


def sm_cnn_text(model: Reranker, side: str, text: str) -> Vector:
    """Section 3.1: a text's vector, every digit read as 0."""
    masked = "".join("0" if c.isdigit() else c for c in text)
    weights, width = weights_of(model, f"{side}_sentence."), model.config.width
    windows = naive_windows(word_vectors(model, masked), width, width - 1)
    return (windows @ weights["convolution.weight"] + weights["bias"]).max(axis=0, initial=0)


def sm_cnn(model: Reranker, query: str, post: str, prior: float = 0.0) -> float:
    """Section 3.2: join layer, hidden layer, output."""
    weights = weights_of(model)
    q, d = sm_cnn_text(model, "query", query), sm_cnn_text(model, "post", post)
    join = [*q, q @ weights["similarity"] @ d, *d]
    if model.config.overlap:
        join += naive_overlap(query, post)
    if model.config.prior:
        join.append(prior)
    hidden = relu(linear(weights, "hidden", join))
    return float(linear(weights, "score", hidden)[0])


# The models of Yu et al. (2014)


def composed(model: Reranker, text: str) -> Vector:
    """Section 3.1 or 3.2: one text's vector."""
    if "left" not in weights_of(model):
        text = " ".join(word for word in words(text) if not is_told(word))
    vectors, weights = word_vectors(model, text), weights_of(model)
    if "left" not in weights or not len(vectors):
        return vectors.sum(axis=0) / max(1, len(vectors))
    if len(vectors) == 1:
        vectors = np.append(vectors, np.zeros((1, VECTOR_SIZE)), axis=0)
    bigrams = [
        np.tanh(weights["left"] @ first + weights["right"] @ second + weights["bigram_bias"])
        for first, second in pairwise(vectors)
    ]
    return np.mean(bigrams, axis=0)


def bilinear(model: Reranker, query: str, post: str) -> float:
    """Equation 1, before the sigmoid: qᵀ M a + b."""
    weights = weights_of(model)
    q, a = composed(model, query), composed(model, post)
    return float(q @ weights["matrix"] @ a + weights["bias"])


def word_count(model: Reranker, query: str, post: str) -> float:
    """Section 4.3, without stop words."""
    return naive_overlap(query, post)[2 + model.config.weighted]


# PWIM, sections 4 to 7


def naive_states(model: Reranker, text: str) -> list[list[Vector]]:
    """Section 4: states of each word, side by side, forward, backward and added."""
    vectors = word_vectors(model, text)[: model.config.size]
    if not len(vectors):
        return []

    def read(name: str, vectors: Vector) -> Vector:
        lstm = copy.deepcopy(model.get_submodule(name)).double()
        return np.asarray(lstm(torch.from_numpy(vectors.copy()))[0].detach())

    forward, backward = read("from_beginning", vectors), read("from_end", vectors[::-1])[::-1]
    return [[np.append(f, b), f, b, f + b] for f, b in zip(forward, backward, strict=True)]


def compare_unit(x: Vector, y: Vector) -> list[float]:
    """coU of section 5."""
    lengths = np.sqrt(x @ x + 1e-8) * np.sqrt(y @ y + 1e-8)
    return [x @ y / lengths, np.sqrt(((x - y) ** 2).sum() + 1e-8), x @ y]


def naive_picks(preference: dict[tuple[int, int], float]) -> set[tuple[int, int]]:
    """One pass of the similarity focus: most preferred first, no word twice."""
    picked = set[tuple[int, int]]()
    for t, s in sorted(preference, key=lambda pair: -preference[pair]):
        if all(t != row and s != column for row, column in picked):
            picked.add((t, s))
    return picked


def naive_cube(model: Reranker, query: str, post: str) -> Vector:
    """Sections 4 to 6: [13, size, size]."""
    config, (queries, posts) = model.config, (naive_states(model, text) for text in (query, post))
    cube = np.zeros((13, config.size, config.size))
    for t, left in enumerate(queries):
        for s, right in enumerate(posts):
            layers = [compare_unit(x, y) for x, y in zip(left, right, strict=True)]
            cube[:, t, s] = np.append(np.concatenate(layers), 1.0)
    pairs = [(t, s) for t in range(len(queries)) for s in range(len(posts))]
    later = {(t, s): PER_PLACE * (t * config.size + s) for t, s in pairs}
    picked = naive_picks({pair: cube[0][pair] - later[pair] for pair in pairs})
    picked |= naive_picks({pair: -cube[1][pair] - later[pair] for pair in pairs})
    for t, s in pairs:
        if (t, s) not in picked:
            cube[:12, t, s] *= config.focus_weight
    return cube


def pwim(model: Reranker, query: str, post: str) -> float:
    weights = weights_of(model)
    image = naive_cube(model, query, post)
    for layer in range(5):
        kernel, bias = (weights[f"convolutions.{layer}.{name}"] for name in ("weight", "bias"))
        image = naive_squares(image, kernel, bias)
        if layer < 4:
            image = F.max_pool2d(torch.from_numpy(image), 2, ceil_mode=True).numpy()
    activation: Any = np.tanh if model.config.activation == "tanh" else relu
    return float(naive_perceptron(weights, "score", image.max(axis=(1, 2)), activation)[0])


# MP-CNN, algorithms 1 and 2


POOLINGS = {"max": np.max, "min": np.min, "mean": np.mean}


def pool(maps: Vector, pooling: str) -> Vector:
    """[L, K] to [K]; nothing is pooled to zeros."""
    return np.asarray(POOLINGS[pooling](maps, axis=0) if len(maps) else np.zeros(maps.shape[1]))


def group_a(weights: Weights, sentence: Vector, width: float, pooling: str) -> Vector:
    """Block A: one vector."""
    if math.isinf(width):
        return pool(sentence, pooling)
    weight, bias = (weights[f"holistic.{int(width) - 1}.{name}"] for name in ("weight", "bias"))
    windows = naive_windows(sentence, int(width))  # [L, width · E]
    return pool(np.tanh(windows @ weight.T + bias), pooling)


def group_b(weights: Weights, sentence: Vector, width: int, pooling: str) -> Vector:
    """Block B: [dimensions, filters]."""
    weight = weights[f"by_dimension.{width - 1}.weight"]  # [width, filters, E]
    bias = weights[f"by_dimension.{width - 1}.bias"]
    windows = naive_windows(sentence, width).reshape(-1, width, 1, VECTOR_SIZE)
    maps = np.tanh((windows * weight).sum(axis=1) + bias)  # [L, filters, E]
    return pool(maps.reshape(len(maps), bias.size), pooling).reshape(bias.shape).T


def unit_2(x: Vector, y: Vector) -> list[float]:
    return [x @ y / math.sqrt((x @ x + 1e-8) * (y @ y + 1e-8)), float(np.linalg.norm(x - y))]


def mp_cnn(model: Reranker, query: str, post: str) -> float:
    config, weights = model.config, weights_of(model)
    texts = [word_vectors(model, text) for text in (query, post)]
    finite = range(1, config.widths + 1)
    widths: list[float] = [*finite, math.inf]

    def unit_1(x: Vector, y: Vector) -> list[float]:
        differences = np.abs(x - y).tolist()
        return unit_2(x, y) + ([sum(differences)] if config.l1 == "sum" else differences)

    blocks = {  # Of block A, by pooling: of each text, [widths, filters]
        p: [np.array([group_a(weights, text, w, p) for w in widths]) for text in texts]
        for p in POOLINGS
    }
    features = []
    for m1, m2 in blocks.values():  # Algorithm 1
        for i in range(VECTOR_SIZE):
            features += unit_2(m1[:, i], m2[:, i])
    for m1, m2 in blocks.values():  # Algorithm 2
        for x, y in product(m1, m2):
            features += unit_1(x, y)
    for p, w in product(("max", "min"), finite):
        b1, b2 = (group_b(weights, text, w, p) for text in texts)
        for i in range(config.dimension_filters):
            features += unit_1(b1[:, i], b2[:, i])
    hidden = np.tanh(linear(weights, "hidden", features))
    return float(linear(weights, "score", hidden)[0])


# Tests

Case = tuple[Any, str, str, dict[str, Any]]


def cases(written_out: Any, name: str, keys: str, *changes: dict[str, Any]) -> list[Case]:
    """A model's configurations, "" for all, each with all of the changes."""
    every = keys.split() or models.find(name).configurations
    return [(written_out, name, key, each) for key in every for each in changes or [{}]]


SMALL_PYRAMID = {"filters": 3, "deep_filters": 4}
SIZES = {"width": 3, "deep_width": 5, "pooled_rows": 3, "pooled_columns": 7, "query_words": 2}
PYRAMIDS = ({"similarity": "cosine"}, {"similarity": "dot"}, SIZES)
TOWERS = [{"trigram_buckets": buckets, "smoothing": 4.0} for buckets in (64_000, 500)]
FEW, ONE = {"dimension_filters": 3}, {"dimension_filters": 1, "widths": 1}
WEIGHTED = [
    *cases(cntn, "cntn", ""),
    *cases(drmm, "drmm", "idf rao2019"),
    *cases(dssm, "dssm", "compact", *TOWERS),
    *cases(dssm, "c_dssm", "compact", *TOWERS),
    *cases(duet, "duet", ""),
    *cases(knrm, "knrm", ""),
    *cases(match_pyramid, "match_pyramid", "cosine", *(SMALL_PYRAMID | each for each in PYRAMIDS)),
    *cases(sm_cnn, "sm_cnn", "static", {"hidden": 0}, {"prior": False, "filters": 1}),
    *cases(sm_cnn, "sm_cnn", "text"),
    *cases(pwim, "pwim", "compact paper", {"channel_share": 0.05}),
    *cases(pwim, "pwim", "compact", {"focus_weight": 0.5}, {"size": 5}),
    *cases(mp_cnn, "mp_cnn", "compact paper", FEW, ONE, FEW | {"widths": 5}),
    *cases(bilinear, "bag_of_words", "plain"),
    *cases(bilinear, "bigram", "plain"),
    *cases(word_count, "word_count", ""),
]
"""(written out, model, configuration, changes)"""

# Equal windows would be told apart by their rounding, so the long text repeats no word.
DISTINCT = " ".join(f"cuts{n}" for n in range(31))
# A kernel far from its mean multiplies the rounding of a cosine by up to 70: no long texts.
OF_MODEL = {
    "cntn": [*CASES[:-1], (DISTINCT, DISTINCT)],
    **dict.fromkeys(("knrm", "dssm", "c_dssm", "mp_cnn"), CASES[:-1]),
}


@pytest.mark.parametrize(("written_out", "name", "configuration", "changes"), WEIGHTED)
def test_scores_are_those_of_the_paper(
    written_out: Any, name: str, configuration: str, changes: dict[str, Any]
) -> None:
    model, texts = varied(name, configuration, **changes), OF_MODEL.get(name, CASES)
    priors = {PRIOR: prior_of_rank(np.arange(1, len(texts) + 1))} if name == "sm_cnn" else {}
    assert_naive_scores(model, partial(written_out, model), texts, **priors)


def test_ends_of_the_range_are_in_the_outer_bins_of_drmm() -> None:
    """Rounding takes cosines beyond 1; a synonym whose cosine is 1 is no exact match."""
    cosine = torch.tensor([[[-1.0000002, -1.0, 1.0, 1.0000002, 1.0, -0.5, 0.0]]])
    exact = torch.tensor([[[False, False, False, False, True, False, False]]])
    counts = histograms(cosine, exact, torch.ones(1, 7), 5)
    assert counts.tolist() == [[[2.0, 1.0, 1.0, 2.0, 1.0]]]
    assert not histograms(cosine, exact, torch.zeros(1, 7), 5).any()


def test_convolutions_of_sm_cnn_get_a_tenth_of_the_weight_decay() -> None:
    model = small_model("sm_cnn", "static", vectors="positive")
    optimizer = make_optimizer(model, Settings(optimizer="adadelta", weight_decay=1e-4))
    decays = {
        id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]
    }
    for name, parameter in model.named_parameters():
        expected = 1e-5 if "_sentence." in name else 1e-4
        assert decays.pop(id(parameter)) == pytest.approx(expected), name
    assert not decays


def test_plain_gradient_descent_of_dssm_is_the_same_with_sparse_gradients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Large tables are trained by them; with momentum they cannot be."""
    moved = []
    for smallest in (1, 10**9):
        monkeypatch.setattr(loop, "LARGE", smallest)
        model = small_model("dssm", "rao2019")
        optimizer = make_optimizer(model, model.settings_of("rao2019"))
        pairs = Tokenized.from_pairs(all_pairs(), encoder(), model)
        pairs.scores_of(model, np.arange(len(pairs.query_index))).sum().backward()
        table = model.tower.trigrams.weight
        assert table.grad.is_sparse == (smallest == 1)
        optimizer.step()
        moved.append(table.detach().clone())
    torch.testing.assert_close(moved[0], moved[1])
    make_optimizer(model, Settings(optimizer="sgd"))
    assert not model.tower.trigrams.sparse


PAIRS = all_pairs()
RELEVANT = np.random.default_rng(4).random(len(PAIRS)) < 0.4
TEXTS = [(query, text) for query in QUERIES for text, _ in POSTS]
PASS = Settings(loss="pointwise", sampling="pairs", optimizer="adagrad", learning_rate=0.05)


@pytest.mark.parametrize("vectors", ["static", "positive"])
def test_training_changes_vectors_only_where_it_may(vectors: str) -> None:
    model = small_model("sm_cnn", "static", vectors=vectors)
    ids = torch.arange(len(vocabulary().known) + 3)
    before = model.vectors(ids).detach().clone()
    examples = Examples(Tokenized.from_pairs(PAIRS, encoder(), model), RELEVANT)
    train(model, examples, None, lambda s: 0.0, replace(PASS, batch_pairs=20, epochs=1, steps=6))
    changed = (model.vectors(ids).detach() != before).any(dim=1)
    assert not changed[0], "padding has a vector"
    assert bool(changed.any()) is (vectors == "positive")


@pytest.mark.parametrize("name", ["bag_of_words", "bigram"])
def test_training_of_counts_ends_with_the_regression(name: str, tmp_path: Path) -> None:
    """It is fitted to the training pairs, by the weights that are kept; validation sees none."""
    others, model = np.arange(0, len(RELEVANT), 3), varied(name, "count")
    examples = Examples(Tokenized.from_pairs(PAIRS, encoder(), model), RELEVANT)
    validation = Examples(examples.pairs.take(others), ~RELEVANT[others])
    figures, seen = [0.1, 0.5, 0.2], []

    def measure(scores: Vector) -> float:
        expected = [bilinear(model, *TEXTS[row]) for row in others]
        np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-5)
        seen.append(model.matrix.detach().clone())
        return figures[len(seen) - 1]

    settings = replace(PASS, epochs=3, steps=4, batch_pairs=12)
    history = train(model, examples, validation, measure, settings)
    assert history.best == 2 and len(seen) == 3
    assert torch.equal(model.matrix, seen[1])
    # Section 4.2: the score is the regression's over common words, their IDF and probability.
    plain = np.array([bilinear(model, *texts) for texts in TEXTS])
    counts = np.array([naive_overlap(*texts)[:2] for texts in TEXTS])
    features, scores = np.column_stack([counts, 1 / (1 + np.exp(-plain))]), scores_of(model, PAIRS)
    assert np.ptp(scores) > 0.1
    expected = features @ model.coefficients.double().numpy() + float(model.intercept)
    np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-5)
    # Where L-BFGS stops depends on how features are rounded, so this is not as exact.
    expected = LogisticRegression(C=100).fit(features, RELEVANT).decision_function(features)
    np.testing.assert_allclose(scores, expected, rtol=1e-3, atol=1e-3)
    checkpoint.save(tmp_path / "saved", network(model, encoder(), name))
    loaded = checkpoint.load(tmp_path / "saved", name, idf=lambda source: encoder().idf)
    np.testing.assert_array_equal(loaded.score(PAIRS), scores)


@pytest.mark.parametrize("width", [1, 3])
def test_gradients_of_pooled_windows_are_differences(width: int) -> None:
    torch.manual_seed(1)
    convolution = _DimensionConvolution(4, 5, width).double()
    ids = torch.tensor([[1, 2, 3, 4, 2, 5], [3, 1, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0]])  # 2 twice
    vectors = torch.randn(6, 4, dtype=torch.float64).requires_grad_()
    there = torch.arange(6).gt(0).unsqueeze(1)

    def pooled(vectors: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
        return convolution((vectors * there)[ids], ids.ne(0).unsqueeze(2))

    parameters = vectors, convolution.weight, convolution.bias
    assert torch.autograd.gradcheck(pooled, parameters)
    trained = pooled(vectors)
    with torch.no_grad():
        torch.testing.assert_close(pooled(vectors), trained, rtol=0, atol=0)
