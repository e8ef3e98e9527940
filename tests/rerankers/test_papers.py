"""Models against their papers' formulas, in NumPy for one pair."""

import copy
import math
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from conftest import Patch
from helpers import reranking_samples as samples
from helpers.reranking_samples import (
    POSTS,
    QUERIES,
    VECTOR_SIZE,
    encoder,
    scores_of,
    small_model,
)
from nltk.tokenize import TreebankWordTokenizer
from scipy.signal import correlate
from sklearn.linear_model import LogisticRegression

from tweetrerank.rerankers import checkpoint, devices, registry
from tweetrerank.rerankers.networks.base import TRIGRAMS, WORDS, Reranker
from tweetrerank.rerankers.networks.inputs import Tokenized
from tweetrerank.rerankers.networks.models.drmm import histograms
from tweetrerank.rerankers.networks.models.pwim import PER_PLACE
from tweetrerank.rerankers.networks.training import loop
from tweetrerank.rerankers.networks.training.loop import Examples, make_optimizer, train
from tweetrerank.rerankers.networks.training.training_settings import Settings
from tweetrerank.rerankers.pairs import PRIOR, Pairs, prior_of_rank
from tweetrerank.rerankers.text.words import (
    STOP_WORDS,
    character_trigrams,
    url_text,
    words,
)

Vector = npt.NDArray[np.float64]
Weights = dict[str, Vector]

LONG = " ".join(f"cuts{n % 7} water" for n in range(50))
CASES: list[tuple[str, str]] = [
    (QUERIES[0], POSTS[0][0]),
    (
        QUERIES[1],
        "egypt " * 5 + "has no water and shortages of water in many other places",
    ),
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
    ids = torch.tensor(encoder().vocabulary.ids(words(text)), dtype=torch.long)
    return model.vectors(ids).detach().double().numpy().reshape(-1, VECTOR_SIZE)


def naive_windows(vectors: Vector, width: int, margin: int = 0) -> Vector:
    """Rows of ``width`` vectors [L, E] from each on, zeros beyond; ``margin`` zeros come before."""
    if not len(vectors):
        return np.zeros((0, width * vectors.shape[1]))
    padded = np.pad(vectors, ((margin, width - 1), (0, 0)))
    return np.stack(
        [padded[i : i + width].ravel() for i in range(len(vectors) + margin)]
    )


def naive_squares(maps: Vector, weight: Vector, bias: Vector) -> Vector:
    """ReLU of convolutions [F, C, w, w] of maps [C, rows, columns]; beyond them are zeros."""
    if not maps.size:
        return np.zeros((len(weight), *maps.shape[1:]))
    sums = [sum(map(partial(correlate, mode="same"), maps, each)) for each in weight]
    return np.maximum(np.stack(sums) + bias[:, None, None], 0)


def unit(vectors: Vector) -> Vector:
    """Vectors of length 1; zeros stay zeros."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-6)


def linear(weights: Weights, name: str, x: Any) -> Vector:
    return weights[f"{name}.weight"] @ x + weights[f"{name}.bias"]


def relu(x: Vector) -> Vector:
    return np.maximum(x, 0)


def perceptron(weights: Weights, name: str, x: Any, activation: Any = relu) -> Vector:
    """Linear layers with a ReLU or another activation between them."""
    first, *others = sorted(
        {k.rpartition(".")[0] for k in weights if k.startswith(f"{name}.")}
    )
    x = linear(weights, first, x)
    for layer in others:
        x = linear(weights, layer, activation(x))
    return x


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
    return [
        f
        for each in (common, content)
        for f in (len(each), float(idf.weights(each).sum()))
    ]


def cntn_sentence(weights: Weights, vectors: Vector) -> Vector:
    """CNTN, section 3, for one text [s, E]: its vector [n_s]."""
    maps = vectors
    for layer, bias in enumerate(weights["biases"]):
        maps = (
            naive_windows(maps, 3, margin=2) @ weights[f"convolutions.{layer}.weight"]
        )
        k = max(4, math.ceil((2 - layer) * len(vectors) / 3))
        best = np.argsort(-maps, axis=0, kind="stable")[
            :k
        ]  # Of equal values, the earlier.
        maps = np.tanh(np.take_along_axis(maps, np.sort(best, axis=0), axis=0) + bias)
    top = np.zeros((4, maps.shape[1]))
    top[: len(maps)] = maps
    return np.tanh(linear(weights, "output", top.ravel()))


def cntn(model: Reranker, query: str, post: str) -> float:
    """CNTN, section 4, equation 1, for one pair."""
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
        q, a = unit(q), unit(a)
    inner = np.zeros(config.slices)
    if config.bilinear == "tensor":
        inner += [q @ m @ a for m in everything["tensor"]]
    elif config.bilinear == "identity":
        inner += q @ a
    if config.linear:
        inner += linear(everything, "linear", [*q, *a])
    return float(
        everything["weights"]
        @ (np.tanh(inner) if config.activation == "tanh" else inner)
    )


def drmm(model: Reranker, query: str, post: str) -> float:
    """DRMM, section 4: s = Σ g_i z_i."""
    config, weights = model.config, weights_of(model)
    ids, post_ids = (encoder().vocabulary.ids(words(text)) for text in (query, post))
    cosines, evidence = (
        unit(word_vectors(model, query)) @ unit(word_vectors(model, post)).T,
        [],
    )
    for word, row in zip(ids, cosines, strict=True):
        is_exact = np.equal(post_ids, word)
        bins, _ = np.histogram(row[~is_exact].clip(-1, 1), 29, (-1, 1))
        histogram = np.log1p([*bins, is_exact.sum()])
        (inner,) = perceptron(weights, "evidence", histogram, np.tanh)
        evidence.append(10 * math.tanh(inner / 10))
    idf = encoder().idf.weights(words(query), config.idf == "classical")
    shares = np.exp(weights["gate"][0] * idf.astype(np.float64))
    return float(np.array(evidence) @ shares / shares.sum()) if evidence else 0.0


def row_of(trigram: str, rows: int) -> int:
    """Row of the first layer's weights for a trigram: its number from 1 on, or its bucket."""
    first, second, third = map("#abcdefghijklmnopqrstuvwxyz0123456789".index, trigram)
    number = 1 + 1600 * first + 40 * second + third
    if rows == 64_001:
        return number
    return 1 + int((number * 2_654_435_761 % 2**32) / 2**32 * (rows - 1))


def trigram_counts(word: str, rows: int) -> Vector:
    """Letter-trigram counts of one word, for DSSM and C-DSSM: #good# is #go, goo, ood, od#."""
    marked, counts = f"#{word}#", np.zeros(rows)
    for start in range(len(word)):
        counts[row_of(marked[start : start + 3], rows)] += 1
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
    # The paper's matrix reads a whole window: [width · 64,001, F].
    matrix = np.concatenate(np.split(table, width, axis=1))
    counts = np.array([trigram_counts(word, len(table)) for word in words(text)])
    windows = naive_windows(counts, width, margin=width // 2)[: len(counts)]
    return np.tanh(weights["semantic.weight"] @ np.tanh(windows @ matrix).max(axis=0))


def dssm(model: Reranker, query: str, post: str) -> float:
    """DSSM and C-DSSM: γ times the cosine of the texts' vectors."""
    if not words(query) or not words(post):
        return 0.0
    config, weights = model.config, weights_of(model, "tower.")
    of_text = deep_vector if "bias" in weights else convolutional_vector
    q, d = (of_text(weights, text) for text in (query, post))
    return float(config.smoothing * (unit(q) @ unit(d)))


def duet_words(model: Reranker, text: str, most: int) -> tuple[list[int], list[Vector]]:
    """Identifiers of a text's words, and what the distributed network reads of each."""
    tokens = words(text)[:most]
    ids, rows = encoder().vocabulary.ids(tokens), []
    for token, word in zip(tokens, ids, strict=True):
        if model.config.terms == "words":
            vectors = model.vectors(torch.tensor([word]))
        else:
            vectors = model.vectors.weight[character_trigrams([token]).values + 1]
        rows.append(vectors.detach().double().numpy().sum(axis=0))
    return ids, rows


def duet_regions(
    weights: Weights, name: str, rows: list[Vector], region: int
) -> list[Vector]:
    """Convolution, max pooling of regions and a fully connected layer."""
    if not rows:
        return []
    inner = (
        naive_windows(np.stack(rows), 3, margin=2)
        @ weights[f"{name}.convolution.weight"]
    )
    windows = np.tanh(inner + weights[f"{name}.bias"])
    pooled = [
        windows[n : n + region].max(axis=0) for n in range(0, len(windows), region)
    ]
    return [np.tanh(linear(weights, f"{name}.output", each)) for each in pooled]


def duet_hidden(weights: Weights, name: str, places: list[Vector], size: int) -> Vector:
    """A fully connected layer on places side by side, zeros where there is none."""
    return np.tanh(
        linear(weights, name, np.concatenate([*places, np.zeros(size)])[:size])
    )


def duet(model: Reranker, query: str, post: str) -> float:
    """DUET, section 3: f = f_local + f_distributed."""
    config, weights = model.config, weights_of(model)
    query_ids, query_rows = duet_words(model, query, 16)
    post_ids, post_rows = duet_words(model, post, 62)
    matches = [
        [float(q == d) for d in post_ids] + [0.0] * (62 - len(post_ids))
        for q in query_ids
    ]
    local = [np.tanh(linear(weights, "places", row)) for row in matches]
    whole = duet_regions(weights, "query", query_rows, 1000)
    regions = duet_regions(weights, "post", post_rows, 8)
    products = [whole[0] * row for row in regions] if whole else []
    first = duet_hidden(weights, "local", local, 16 * config.local_filters)
    second = duet_hidden(weights, "distributed", products, 8 * config.filters)
    return float(
        linear(weights, "score", np.append(first, second))[0]
    )  # f_local + f_distributed


def naive_ngrams(model: Reranker, text: str) -> list[Vector]:
    """Vectors of the n-grams of each length: ReLU of a matrix on the words side by side."""
    vectors = word_vectors(model, text)
    if not model.config.longest_ngram:
        return [vectors]
    weights, levels = weights_of(model), []
    for width in range(1, model.config.longest_ngram + 1):
        matrix, bias = (
            weights[f"convolutions.{width - 1}.{key}"] for key in ("weight", "bias")
        )
        levels.append(np.maximum(naive_windows(vectors, width) @ matrix + bias, 0))
    return levels


def knrm(model: Reranker, query: str, post: str) -> float:
    """K-NRM and Conv-KNRM."""
    features = []  # φ: for each pair of lengths and each kernel
    for left, right in product(naive_ngrams(model, query), naive_ngrams(model, post)):
        cosines = unit(left) @ unit(right).T
        for mean in (1.0, 0.9, 0.7, 0.5, 0.3, 0.1, -0.1, -0.3, -0.5, -0.7, -0.9):
            sigma = 0.001 if mean == 1.0 else 0.1
            kernels = np.exp(-((cosines - mean) ** 2) / (2 * sigma**2)).sum(axis=1)
            features.append(0.1 * np.log(np.maximum(kernels, 1e-10)).sum())
    return 10.0 * math.tanh(linear(weights_of(model), "score", features)[0] / 10.0)


def match_pyramid(model: Reranker, query: str, post: str) -> float:
    config, weights = model.config, weights_of(model)
    a, b = word_vectors(model, query), word_vectors(model, post)
    a, b = a[: config.query_words], b[: config.post_words]
    matrix = unit(a) @ unit(b).T if config.similarity == "cosine" else a @ b.T / 36
    maps = naive_squares(matrix[None], weights["first.weight"], weights["first.bias"])
    pooled = np.zeros((len(maps), config.pooled_rows, config.pooled_columns))
    if maps.size:
        pooled = F.adaptive_max_pool2d(torch.from_numpy(maps), pooled.shape[1:]).numpy()
    maps = naive_squares(pooled, weights["second.weight"], weights["second.bias"])
    features = F.max_pool2d(torch.from_numpy(maps), 2).flatten().numpy()
    return float(perceptron(weights, "score", features)[0])


def sm_cnn_text(model: Reranker, side: str, text: str) -> Vector:
    """SM-CNN, section 3.1: a text's vector, every digit read as 0."""
    masked = "".join("0" if c.isdigit() else c for c in text)
    weights, width = weights_of(model, f"{side}_sentence."), model.config.width
    windows = naive_windows(word_vectors(model, masked), width, width - 1)
    return (windows @ weights["convolution.weight"] + weights["bias"]).max(
        axis=0, initial=0
    )


def sm_cnn(model: Reranker, query: str, post: str, prior: float = 0.0) -> float:
    """SM-CNN, sections 3.2 and 4: join layer, hidden layer, output."""
    weights = weights_of(model)
    q, d = sm_cnn_text(model, "query", query), sm_cnn_text(model, "post", post)
    join = [*q, q @ weights["similarity"] @ d, *d]
    if model.config.overlap:
        join += naive_overlap(query, post)
    if model.config.prior:
        join.append(prior)
    hidden = relu(linear(weights, "hidden", join))
    return float(linear(weights, "score", hidden)[0])


def composed(model: Reranker, text: str) -> Vector:
    """Yu et al. (2014), section 3.1 or 3.2: one text's vector."""
    if "left" not in weights_of(model):
        text = " ".join(word for word in words(text) if not is_told(word))
    vectors, weights = word_vectors(model, text), weights_of(model)
    if "left" not in weights or not len(vectors):
        return vectors.sum(axis=0) / max(1, len(vectors))
    if len(vectors) == 1:
        vectors = np.append(vectors, np.zeros((1, VECTOR_SIZE)), axis=0)
    bigrams = vectors[:-1] @ weights["left"].T + vectors[1:] @ weights["right"].T
    return np.tanh(bigrams + weights["bigram_bias"]).mean(axis=0)


def bilinear(model: Reranker, query: str, post: str) -> float:
    """Yu et al. (2014), equation 1, before the sigmoid: qᵀ M a + b."""
    weights = weights_of(model)
    q, a = composed(model, query), composed(model, post)
    return float(q @ weights["matrix"] @ a + weights["bias"])


def word_count(model: Reranker, query: str, post: str) -> float:
    """Yu et al. (2014), section 4.3, without stop words."""
    return naive_overlap(query, post)[2 + model.config.weighted]


def naive_states(model: Reranker, text: str) -> list[Vector]:
    """PWIM, section 4: states [L, ·] of the words, side by side, forward, backward and added."""
    vectors = word_vectors(model, text)[: model.config.size]

    def read(name: str, vectors: Vector) -> Vector:
        lstm = copy.deepcopy(model.get_submodule(name)).double()
        return lstm(torch.from_numpy(vectors.copy()))[0].detach().numpy()

    forward, backward = (
        read("from_beginning", vectors),
        read("from_end", vectors[::-1])[::-1],
    )
    return [np.append(forward, backward, axis=1), forward, backward, forward + backward]


def compare_unit(x: Vector, y: Vector) -> list[Vector]:
    """coU of section 5 for every pair of states."""
    products, differences = x @ y.T, x[:, None] - y
    lengths = [np.sqrt((states**2).sum(axis=1) + 1e-8) for states in (x, y)]
    distances = np.sqrt((differences**2).sum(axis=2) + 1e-8)
    return [products / np.outer(*lengths), distances, products]


def naive_picks(preference: Vector) -> npt.NDArray[np.bool_]:
    """One pass of the similarity focus: most preferred first, no word twice."""
    picked = np.zeros(preference.shape, dtype=bool)
    for place in np.argsort(-preference, axis=None, kind="stable"):
        row, column = np.unravel_index(place, picked.shape)
        picked[row, column] = not (picked[row].any() or picked[:, column].any())
    return picked


def naive_cube(model: Reranker, query: str, post: str) -> Vector:
    """PWIM, sections 4 to 6: [13, size, size]."""
    config = model.config
    cube = np.zeros((13, config.size, config.size))
    if not words(query) or not words(post):
        return cube
    states = zip(naive_states(model, query), naive_states(model, post), strict=True)
    layers = np.concatenate([compare_unit(x, y) for x, y in states])
    filled = cube[:, : layers.shape[1], : layers.shape[2]]
    filled[:12], filled[12] = layers, 1.0
    later = PER_PLACE * np.arange(config.size**2).reshape(cube[0].shape)
    later = later[: filled.shape[1], : filled.shape[2]]
    picked = naive_picks(filled[0] - later) | naive_picks(-filled[1] - later)
    filled[:12, ~picked] *= config.focus_weight
    return cube


def pwim(model: Reranker, query: str, post: str) -> float:
    weights = weights_of(model)
    image = naive_cube(model, query, post)
    for layer in range(5):
        kernel, bias = (
            weights[f"convolutions.{layer}.{name}"] for name in ("weight", "bias")
        )
        image = naive_squares(image, kernel, bias)
        if layer < 4:
            image = F.max_pool2d(torch.from_numpy(image), 2, ceil_mode=True).numpy()
    activation: Any = np.tanh if model.config.activation == "tanh" else relu
    return float(perceptron(weights, "score", image.max(axis=(1, 2)), activation)[0])


def pool(maps: Vector, pooling: str) -> Vector:
    """[L, ...] to [...]; nothing is pooled to zeros."""
    return getattr(np, pooling)(maps, axis=0) if len(maps) else np.zeros(maps.shape[1:])


def group_a(weights: Weights, sentence: Vector, width: float, pooling: str) -> Vector:
    """MP-CNN, block A: one vector."""
    if math.isinf(width):
        return pool(sentence, pooling)
    weight, bias = (
        weights[f"holistic.{int(width) - 1}.{name}"] for name in ("weight", "bias")
    )
    return pool(np.tanh(naive_windows(sentence, int(width)) @ weight.T + bias), pooling)


def group_b(weights: Weights, sentence: Vector, width: int, pooling: str) -> Vector:
    """MP-CNN, block B: [dimensions, filters]."""
    weight, bias = (
        weights[f"by_dimension.{width - 1}.{name}"] for name in ("weight", "bias")
    )
    windows = naive_windows(sentence, width).reshape(-1, width, 1, VECTOR_SIZE)
    maps = np.tanh((windows * weight).sum(axis=1) + bias)  # [L, filters, E]
    return pool(maps, pooling).T


def unit_2(x: Vector, y: Vector) -> list[float]:
    return [
        x @ y / math.sqrt((x @ x + 1e-8) * (y @ y + 1e-8)),
        float(np.linalg.norm(x - y)),
    ]


def mp_cnn(model: Reranker, query: str, post: str) -> float:
    config, weights = model.config, weights_of(model)
    texts = [word_vectors(model, text) for text in (query, post)]
    finite = range(1, config.widths + 1)
    widths: list[float] = [*finite, math.inf]

    def unit_1(x: Vector, y: Vector) -> list[float]:
        differences = np.abs(x - y).tolist()
        return unit_2(x, y) + (
            [sum(differences)] if config.l1 == "sum" else differences
        )

    blocks = [  # Of block A: by pooling, [texts, widths, filters]
        np.array(
            [[group_a(weights, text, w, pooling) for w in widths] for text in texts]
        )
        for pooling in ("max", "min", "mean")
    ]
    features = []
    for m1, m2 in blocks:  # Algorithm 1
        for i in range(VECTOR_SIZE):
            features += unit_2(m1[:, i], m2[:, i])
    for m1, m2 in blocks:  # Algorithm 2
        for x, y in product(m1, m2):
            features += unit_1(x, y)
    for p, w in product(("max", "min"), finite):
        b1, b2 = (group_b(weights, text, w, p) for text in texts)
        for i in range(config.dimension_filters):
            features += unit_1(b1[:, i], b2[:, i])
    hidden = np.tanh(linear(weights, "hidden", features))
    return float(linear(weights, "score", hidden)[0])


# Perspective of MP-HCNN -> lengths to which section 4.3 pads query and post.
LENGTHS = {"words": (10, 68), "post_trigrams": (51, 140), "url_trigrams": (51, 120)}


def plain(text: str) -> str:
    letters = [c for c in unicodedata.normalize("NFD", text[:1000]) if ord(c) < 128]
    return " ".join("".join(letters).lower().split())


def mp_hcnn_levels(
    model: Reranker, tower: str, ids: list[int], rows: int
) -> list[Vector]:
    """MP-HCNN, section 3.2: depth + 1 matrices [rows, ·]."""
    config, weights = model.config, weights_of(model, f"towers.{tower}.convolutions.")
    padded = torch.tensor([*ids, *[0] * (rows + 1 - len(ids))])
    vectors = model.towers[tower].vectors(padded).detach().double().numpy()
    width = config.word_width if tower == WORDS else config.trigram_width
    levels, padding = [vectors[:rows]], vectors[rows]
    is_read = config.normalization == "query"
    for depth in range(config.depth):
        filters, bias = (
            weights[f"{depth}.weight"],
            weights[f"{depth}.bias"],
        )  # [width · E, F]
        below = np.concatenate([levels[-1], np.tile(padding, (width - 1, 1))])
        above = relu(naive_windows(below, width)[:rows] @ filters + bias)
        if not is_read:
            above[len(ids) :] = 0.0
        levels.append(above)
        padding = relu(np.tile(padding, width) @ filters + bias) * is_read
    return levels


def mp_hcnn_features(
    config: Any, name: str, idf: Vector, levels: Any, length: int
) -> Vector:
    """MP-HCNN, section 3.3: [query positions, (depth + 1) · pools], zeros past the query's end."""
    kind, features = config.normalization, list[Vector]()
    width, weighted = (2, 2) if name == "words" else (4, config.weighted_trigram_depths)
    for depth, (q, d) in enumerate(zip(*levels, strict=True)):
        s = q @ d.T if config.similarity == "dot" else unit(q) @ unit(d).T
        if kind != "none":
            s = np.exp(s * config.temperature)
            s = s / s.sum(axis=0 if kind == "query" else 1, keepdims=True)
        own = s
        if kind != "query":  # Else padding takes part.
            s[:, length:] = 0.0
            s[len(idf) :] = 0.0
            own = s[:, : length or None]
        mean = 5 * own.mean(axis=1) if kind == "none" else s.mean(axis=1)
        pools = [own.max(axis=1)] * config.max_pooling + [mean] * config.mean_pooling
        weights = np.ones(len(s))
        if config.evidence == "positions" and config.idf_weights and depth < weighted:
            weights = [
                phrase_idf(config.idf, idf[n:], depth, width) for n in range(len(s))
            ]
        features += [pool * weights for pool in pools]
    return np.stack(features, axis=1)


def phrase_idf(kind: str, idf: Vector, depth: int, width: int) -> float:
    """IDF of the phrase that these terms begin with."""
    phrase = idf[: 1 + depth * (width - 1)]
    if kind == "phrases":
        return min(float(phrase[:: width - 1].sum()), math.log(243e6))
    return float(phrase.mean()) if len(phrase) else 0.0


def mp_hcnn_inputs(
    config: Any, query: str, text: str, url: str
) -> dict[str, tuple[Any, Any, Any]]:
    """Perspective -> query's identifiers, their IDF, post's identifiers."""
    reader, is_code = encoder(), config.urls == "code"
    tokenize = TreebankWordTokenizer().tokenize
    split = words if config.tokens == "words" else lambda text: tokenize(plain(text))
    rare = reader.idf.weights(split(query), config.idf != "relative").astype(np.float64)
    grams = character_trigrams(split(query))
    spread = np.repeat(rare, grams.lengths)
    if config.idf == "phrases":
        spread = np.minimum(spread, reader.idf.trigram_weights(grams.values))
    post_grams = character_trigrams(split(text))
    if config.trigrams == "text":
        grams, post_grams = (character_trigrams([plain(t)]) for t in (query, text))
        spread = reader.idf.trigram_weights(grams.values)
    if is_code:
        url = url or "http://www.abc.com"
        url = plain(url.partition("?")[0] if "?" in url else url[:-1])[7:][-120:]
    url_grams = character_trigrams([url if is_code else url_text(url)])
    of_query = ((grams.values + 1).tolist(), spread)
    everything = {
        "words": (
            reader.vocabulary.ids(split(query)),
            rare,
            reader.vocabulary.ids(split(text)),
        ),
        "post_trigrams": (*of_query, (post_grams.values + 1).tolist()),
        "url_trigrams": (*of_query, (url_grams.values + 1).tolist()),
    }
    return {
        name: of for name, of in everything.items() if getattr(config, f"use_{name}")
    }


def mp_hcnn(model: Reranker, query: str, text: str, url: str = "") -> float:
    """MP-HCNN, section 3.4, on matrices of fixed size whose rows past a text's end are zeros."""
    config, weights, evidence = model.config, weights_of(model), list[Vector]()
    for name, (ids, idf, post) in mp_hcnn_inputs(config, query, text, url).items():
        rows, columns = LENGTHS[name]
        ids, idf, post = ids[:rows], idf[:rows], post[:columns]
        tower = WORDS if name == "words" else TRIGRAMS
        if config.separate_urls and name == "url_trigrams":
            tower = name
        of_query = mp_hcnn_levels(model, tower, ids, rows)
        of_post = mp_hcnn_levels(model, tower, post, columns)
        features = mp_hcnn_features(config, name, idf, (of_query, of_post), len(post))
        if config.evidence == "positions":
            evidence.append(features.ravel())
            continue
        shares, total = idf if config.idf_weights else np.ones(len(idf)), np.zeros(4)
        for row, share in zip(features, shares, strict=False):
            total += share * perceptron(
                weights, f"position.{name}", np.append(row, share)
            )
        evidence.append(total / max(shares.sum(), 1e-6))
    if config.url_presence:
        evidence.append(np.array([float(url_text(url) != "<url>")]))
    return float(perceptron(weights, "score", np.concatenate(evidence))[0])


SMALL_PYRAMID = {"filters": 3, "deep_filters": 4}
SIZES = {
    "width": 3,
    "deep_width": 5,
    "pooled_rows": 3,
    "pooled_columns": 7,
    "query_words": 2,
}
PYRAMIDS = ({"similarity": "cosine"}, {"similarity": "dot"}, SIZES)
TOWERS = [{"trigram_buckets": buckets, "smoothing": 4.0} for buckets in (64_000, 500)]
FEW, ONE = {"dimension_filters": 3}, {"dimension_filters": 1, "widths": 1}
SWITCHES = [  # Of MP-HCNN: Table 4 and Figure 2
    {"max_pooling": False},
    {"mean_pooling": False},
    {"idf_weights": False},
    {"use_words": False, "depth": 1},
    {"use_post_trigrams": False, "use_url_trigrams": False, "depth": 0},
    {"normalization": "post", "temperature": 3.0, "url_presence": True, "urls": "path"},
    {"tokens": "treebank", "urls": "path", "separate_urls": False},
    {"trigrams": "text", "idf": "phrases", "use_words": False, "separate_urls": True},
    {
        "similarity": "cosine",
        "normalization": "none",
        "url_presence": False,
        "depth": 3,
    },
]
WEIGHTED: list[tuple[Callable[..., float], str, str, Sequence[dict[str, Any]]]] = [
    (cntn, "cntn", "", [{}]),
    (drmm, "drmm", "idf rao2019", [{}]),
    (dssm, "dssm", "compact", TOWERS),
    (dssm, "c_dssm", "compact", TOWERS),
    (duet, "duet", "", [{}]),
    (knrm, "knrm", "", [{}]),
    (
        match_pyramid,
        "match_pyramid",
        "cosine",
        [SMALL_PYRAMID | each for each in PYRAMIDS],
    ),
    (sm_cnn, "sm_cnn", "static", [{"hidden": 0}, {"prior": False, "filters": 1}]),
    (sm_cnn, "sm_cnn", "text", [{}]),
    (pwim, "pwim", "compact paper", [{"channel_share": 0.05}]),
    (pwim, "pwim", "compact", [{"focus_weight": 0.5}, {"size": 5}]),
    (mp_cnn, "mp_cnn", "compact paper", [FEW, ONE, FEW | {"widths": 5}]),
    (bilinear, "bag_of_words", "plain", [{}]),
    (bilinear, "bigram", "plain", [{}]),
    (word_count, "word_count", "", [{}]),
    (mp_hcnn, "mp_hcnn", "", [{}]),
    (mp_hcnn, "mp_hcnn", "robust paper authors", SWITCHES),
]
"""(written out, model, its configurations, "" for all, changes of each)"""
LINKED = [
    (QUERIES[0], *POSTS[0]),
    (QUERIES[1], *POSTS[3]),
    (QUERIES[3], *POSTS[7]),
    (LONG, LONG, "http://long.example.org/" + "path/" * 40),
]
"""Pairs with a URL; the last one is beyond the lengths of section 4.3 of MP-HCNN."""
# Equal windows would be told apart by their rounding, so the long text repeats no word.
DISTINCT = " ".join(f"cuts{n}" for n in range(31))
# A kernel far from its mean multiplies the rounding of a cosine by up to 70: no long texts.
OF_MODEL: dict[str, Sequence[tuple[str, ...]]] = {
    "cntn": [*CASES[:-1], (DISTINCT, DISTINCT)],
    **dict.fromkeys(("knrm", "dssm", "c_dssm", "mp_cnn"), CASES[:-1]),
    "mp_hcnn": [*LINKED, *CASES[2:-1]],
}
SLOW = {"mp_hcnn": [pytest.mark.slow]}


@pytest.mark.parametrize(
    ("written_out", "name", "configuration", "changes"),
    [
        pytest.param(
            of, name, key, each, id=f"{name}-{key}-{each}", marks=SLOW.get(name, ())
        )
        for of, name, keys, changes in WEIGHTED
        for key in keys.split() or registry.find(name).configurations
        for each in changes
    ],
)
def test_scores_are_those_of_the_paper(
    written_out: Any,
    name: str,
    configuration: str,
    changes: dict[str, Any],
    monkeypatch: Patch,
) -> None:
    """On the processor, by a fast path if there is one, and as on a GPU by a forward pass."""
    model, cases = varied(name, configuration, **changes), OF_MODEL.get(name, CASES)
    rows = np.arange(len(cases))
    signals = {PRIOR: prior_of_rank(rows + 1)} if name == "sm_cnn" else {}
    values = np.array([*signals.values()]).reshape(-1, len(cases)).T.tolist()
    expected = [
        written_out(model, *case, *of) for case, of in zip(cases, values, strict=True)
    ]
    assert np.ptp(expected) > 1e-4, "all pairs score the same"
    queries, texts, urls = zip(
        *((q, text, "".join(url)) for q, text, *url in cases), strict=True
    )
    pairs = Pairs([*queries], [*texts], [*urls], rows, rows, signals)
    for hosts in (devices.HOSTS, ()):
        monkeypatch.setattr(devices, "HOSTS", hosts)
        np.testing.assert_allclose(
            scores_of(model, pairs), expected, rtol=1e-5, atol=1e-5
        )


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
        id(p): of["weight_decay"] for of in optimizer.param_groups for p in of["params"]
    }
    for name, parameter in model.named_parameters():
        expected = 1e-5 if "_sentence." in name else 1e-4
        assert decays.pop(id(parameter)) == pytest.approx(expected), name
    assert not decays


def test_plain_gradient_descent_is_the_same_with_sparse_gradients(
    monkeypatch: Patch,
) -> None:
    """Large tables of DSSM are trained by them; with momentum they cannot be."""
    moved = []
    for smallest in (1, 10**9):
        monkeypatch.setattr(loop, "LARGE", smallest)
        model = small_model("dssm", "rao2019")
        optimizer = make_optimizer(model, model.settings_of("rao2019"))
        pairs = Tokenized.from_pairs(samples.all_pairs(), encoder(), model)
        pairs.scores_of(model, np.arange(len(pairs.query_index))).sum().backward()
        table = model.tower.trigrams.weight
        assert table.grad.is_sparse == (smallest == 1)
        optimizer.step()
        moved.append(table.detach().clone())
    torch.testing.assert_close(moved[0], moved[1])
    make_optimizer(model, Settings(optimizer="sgd"))
    assert not model.tower.trigrams.sparse


PAIRS = samples.all_pairs()
RELEVANT = np.random.default_rng(4).random(len(PAIRS)) < 0.4
TEXTS = [(query, text) for query in QUERIES for text, _ in POSTS]
PASS = Settings(
    loss="pointwise", sampling="pairs", optimizer="adagrad", learning_rate=0.05
)


@pytest.mark.parametrize("vectors", ["static", "positive"])
def test_training_changes_vectors_only_where_it_may(vectors: str) -> None:
    model = small_model("sm_cnn", "static", vectors=vectors)
    ids = torch.arange(len(samples.vocabulary().known) + 3)
    before = model.vectors(ids).detach().clone()
    examples = Examples(Tokenized.from_pairs(PAIRS, encoder(), model), RELEVANT)
    train(
        model,
        examples,
        None,
        lambda s: 0.0,
        replace(PASS, batch_pairs=20, epochs=1, steps=6),
    )
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
    features, scores = (
        np.column_stack([counts, 1 / (1 + np.exp(-plain))]),
        scores_of(model, PAIRS),
    )
    assert np.ptp(scores) > 0.1
    expected = features @ model.coefficients.double().numpy() + float(model.intercept)
    np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-5)
    # Where L-BFGS stops depends on how features are rounded, so this is not as exact.
    expected = (
        LogisticRegression(C=100).fit(features, RELEVANT).decision_function(features)
    )
    np.testing.assert_allclose(scores, expected, rtol=1e-3, atol=1e-3)
    checkpoint.save(tmp_path / "saved", samples.network(model, encoder(), name))
    loaded = checkpoint.load(tmp_path / "saved", name, idf=lambda source: encoder().idf)
    np.testing.assert_array_equal(loaded.score(PAIRS), scores)
