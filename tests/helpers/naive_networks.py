"""The formulas in the networks' papers, written out in NumPy for one pair of texts.

A function with the name of a model returns the score of a pair in double precision,
computed from the parameters of the tested model. Variables have the paper's names.
"""

import copy
import math
import unicodedata
from collections.abc import Callable
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812
from nltk.tokenize import TreebankWordTokenizer
from scipy.signal import correlate

from helpers.reranking_samples import VECTOR_SIZE, encoder
from tweetrerank.rerankers.networks.base import TRIGRAMS, WORDS, Reranker
from tweetrerank.rerankers.networks.models.pwim import PER_PLACE
from tweetrerank.rerankers.text.words import (
    STOP_WORDS,
    character_trigrams,
    url_text,
    words,
)

Vector = npt.NDArray[np.float64]
Weights = dict[str, Vector]


class Pair(NamedTuple):
    """A query and a post."""

    query: str
    post: str
    url: str = ""
    prior: float = 0.0


# Common parts


def weights_of(model: Reranker, prefix: str = "") -> Weights:
    """Return the parameters with a ``prefix``, by the rest of their names."""
    weights = {}
    for key, value in model.named_parameters():
        if key.startswith(prefix):
            weights[key.removeprefix(prefix)] = value.detach().double().numpy()
    return weights


def word_ids(text: str) -> list[int]:
    return encoder().vocabulary.ids(words(text))


def word_vectors(model: Reranker, text: str) -> Vector:
    """Return the vectors [L, E] of the words in a text."""
    ids = torch.tensor(word_ids(text), dtype=torch.long)
    return model.vectors(ids).detach().double().numpy().reshape(-1, VECTOR_SIZE)


def naive_spans(vectors: Vector, width: int, margin: int = 0) -> Vector:
    """Return a row for each of the vectors [L, E] with ``width`` vectors from it on.

    Vectors past the end are zeros, and so are ``margin`` vectors before the first.
    """
    if not len(vectors):
        return np.zeros((0, width * vectors.shape[1]))
    padded = np.pad(vectors, ((margin, width - 1), (0, 0)))
    rows = []
    for start in range(len(vectors) + margin):
        rows.append(padded[start : start + width].ravel())
    return np.stack(rows)


def naive_squares(maps: Vector, weights: Weights, name: str) -> Vector:
    """Return the ReLU of convolutions [F, C, w, w] of maps [C, rows, columns].

    The maps are padded with zeros.
    """
    weight = weights[f"{name}.weight"]
    bias = weights[f"{name}.bias"]
    if not maps.size:
        return np.zeros((len(weight), *maps.shape[1:]))
    outputs = []
    for filters, offset in zip(weight, bias, strict=True):
        total = np.zeros(maps.shape[1:])
        for channel, kernel in zip(maps, filters, strict=True):
            total += correlate(channel, kernel, mode="same")
        outputs.append(relu(total + offset))
    return np.stack(outputs)


def unit(vectors: Vector) -> Vector:
    """Return the vectors scaled to length 1. Vectors of zeros stay zeros."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-6)


def linear(weights: Weights, name: str, x: Any) -> Vector:
    return weights[f"{name}.weight"] @ x + weights[f"{name}.bias"]


def relu(x: Vector) -> Vector:
    return np.maximum(x, 0)


def perceptron(
    weights: Weights,
    name: str,
    x: Any,
    activation: Callable[[Vector], Vector] = relu,
) -> Vector:
    """Return the output of linear layers with an activation between them."""
    layers = {key.rpartition(".")[0] for key in weights if key.startswith(f"{name}.")}
    first, *following = sorted(layers)
    x = linear(weights, first, x)
    for layer in following:
        x = linear(weights, layer, activation(x))
    return x


def is_recognised(word: str) -> bool:
    """Whether a word is a stop word that a model recognises by its vector."""
    return word in STOP_WORDS and word in encoder().vocabulary.known


class Overlap(NamedTuple):
    """The words that two texts have in common."""

    count: int
    idf: float
    content_count: int  # Without stop words
    content_idf: float


def naive_overlap(pair: Pair) -> Overlap:
    post_ids = set(word_ids(pair.post))
    by_id = dict(zip(word_ids(pair.query), words(pair.query), strict=True))
    common = [word for row, word in by_id.items() if row in post_ids]
    content = [word for word in common if not is_recognised(word)]
    idf = encoder().idf
    return Overlap(
        len(common),
        float(idf.weights(common).sum()),
        len(content),
        float(idf.weights(content).sum()),
    )


# CNTN


def cntn_sentence(weights: Weights, vectors: Vector) -> Vector:
    """Return the vector [n_s] of one text [s, E], as in section 3."""
    s = len(vectors)
    maps = vectors
    for layer, bias in enumerate(weights["biases"], start=1):
        filters = weights[f"convolutions.{layer - 1}.weight"]
        maps = naive_spans(maps, 3, margin=2) @ filters
        k = max(4, math.ceil((3 - layer) * s / 3))
        # The earlier of equal values
        best = np.argsort(-maps, axis=0, kind="stable")[:k]
        in_order = np.sort(best, axis=0)
        maps = np.tanh(np.take_along_axis(maps, in_order, axis=0) + bias)
    top = np.zeros((4, maps.shape[1]))
    top[: len(maps)] = maps
    return np.tanh(linear(weights, "output", top.ravel()))


def cntn_vector(model: Reranker, side: str, text: str) -> Vector:
    vectors = word_vectors(model, text)
    if model.config.composition == "mean":
        return vectors.sum(axis=0) / max(1, len(vectors))
    return cntn_sentence(weights_of(model, f"{side}_sentence."), vectors)


def cntn(model: Reranker, pair: Pair) -> float:
    """Return uᵀ f(qᵀ M a + V [q; a] + b), which is equation 1 in section 4."""
    config = model.config
    weights = weights_of(model)
    q = cntn_vector(model, "query", pair.query)
    a = cntn_vector(model, "post", pair.post)
    inner = np.zeros(config.slices)
    if config.bilinear == "identity":
        inner += unit(q) @ unit(a)
    elif config.bilinear == "tensor":
        for number, m in enumerate(weights["tensor"]):
            inner[number] += q @ m @ a
    if config.linear:
        inner += linear(weights, "linear", np.append(q, a))
    if config.activation == "tanh":
        inner = np.tanh(inner)
    return float(weights["weights"] @ inner)


# DRMM


def drmm(model: Reranker, pair: Pair) -> float:
    """Return s = Σ g_i z_i, as in section 4."""
    query_ids = word_ids(pair.query)
    if not query_ids:
        return 0.0
    weights = weights_of(model)
    post_ids = word_ids(pair.post)
    query = unit(word_vectors(model, pair.query))
    cosines = query @ unit(word_vectors(model, pair.post)).T
    z = []
    for word, row in zip(query_ids, cosines, strict=True):
        is_exact = np.equal(post_ids, word)
        bins, _ = np.histogram(row[~is_exact].clip(-1, 1), 29, (-1, 1))
        histogram = np.log1p(np.append(bins, is_exact.sum()))
        inner = perceptron(weights, "evidence", histogram, np.tanh)[0]
        z.append(10 * math.tanh(inner / 10))
    is_classical = model.config.idf == "classical"
    idf = encoder().idf.weights(words(pair.query), is_classical)
    g = np.exp(weights["gate"][0] * idf.astype(np.float64))
    return float(np.array(z) @ g / g.sum())


# DSSM and C-DSSM


def row_of(trigram: str, rows: int) -> int:
    """Return the row of a trigram in the first layer: its number or its bucket."""
    letters = "#abcdefghijklmnopqrstuvwxyz0123456789"
    first, second, third = map(letters.index, trigram)
    number = 1 + 1600 * first + 40 * second + third
    if rows == 64_001:
        return number
    return 1 + int((number * 2_654_435_761 % 2**32) / 2**32 * (rows - 1))


def trigram_counts(word: str, rows: int) -> Vector:
    """Count the letter trigrams of a word; #good# has #go, goo, ood and od#."""
    marked = f"#{word}#"
    counts = np.zeros(rows)
    for start in range(len(word)):
        counts[row_of(marked[start : start + 3], rows)] += 1
    return counts


def deep_vector(weights: Weights, text: str) -> Vector:
    """Return the vector of a text by DSSM, as in section 3.1."""
    matrix = weights["trigrams.weight"]
    counts = sum(trigram_counts(word, len(matrix)) for word in words(text))
    layer = np.tanh(counts @ matrix + weights["bias"])
    layer = np.tanh(linear(weights, "second", layer))
    return np.tanh(linear(weights, "last", layer))


def convolutional_vector(weights: Weights, text: str) -> Vector:
    """Return the vector of a text by C-DSSM.

    It is a layer over the maximum over all spans of three words.
    """
    table = weights["trigrams.weight"]  # [64,001, 3 · F]
    # The paper's matrix reads a whole span: [3 · 64,001, F].
    matrix = np.concatenate(np.split(table, 3, axis=1))
    counts = np.array([trigram_counts(word, len(table)) for word in words(text)])
    spans = naive_spans(counts, 3, margin=1)[: len(counts)]
    pooled = np.tanh(spans @ matrix).max(axis=0)
    return np.tanh(weights["semantic.weight"] @ pooled)


def dssm(model: Reranker, pair: Pair) -> float:
    """Return γ times the cosine of the texts' vectors, for DSSM and C-DSSM."""
    if not words(pair.query) or not words(pair.post):
        return 0.0
    weights = weights_of(model, "tower.")
    vector_of = deep_vector if "bias" in weights else convolutional_vector
    q = vector_of(weights, pair.query)
    d = vector_of(weights, pair.post)
    return float(model.config.smoothing * (unit(q) @ unit(d)))


# DUET


def duet_vectors(model: Reranker, text: str, most: int) -> list[Vector]:
    """Return the input of the distributed network for each word."""
    vectors = []
    for token in words(text)[:most]:
        if model.config.terms == "words":
            ids = torch.tensor(encoder().vocabulary.ids([token]))
            rows = model.vectors(ids)
        else:
            rows = model.vectors.weight[character_trigrams([token]).values + 1]
        vectors.append(rows.detach().double().numpy().sum(axis=0))
    return vectors


def duet_regions(
    model: Reranker,
    side: str,
    vectors: list[Vector],
    region: int,
) -> list[Vector]:
    """Apply a convolution, max pooling of regions and a fully connected layer."""
    if not vectors:
        return []
    weights = weights_of(model, f"{side}.")
    inner = naive_spans(np.stack(vectors), 3, margin=2) @ weights["convolution.weight"]
    spans = np.tanh(inner + weights["bias"])
    regions = []
    for start in range(0, len(spans), region):
        pooled = spans[start : start + region].max(axis=0)
        regions.append(np.tanh(linear(weights, "output", pooled)))
    return regions


def duet_hidden(
    model: Reranker,
    name: str,
    places: list[Vector],
    size: int,
) -> Vector:
    """Apply a fully connected layer to places side by side; missing ones are zeros."""
    values = np.zeros(size)
    if places:
        filled = np.concatenate(places)
        values[: len(filled)] = filled
    return np.tanh(linear(weights_of(model), name, values))


def duet(model: Reranker, pair: Pair) -> float:
    """Return f = f_local + f_distributed, as in section 3."""
    config = model.config
    weights = weights_of(model)
    post_ids = word_ids(pair.post)[:62]
    local = []
    for query_id in word_ids(pair.query)[:16]:
        matches = np.zeros(62)
        matches[: len(post_ids)] = np.equal(post_ids, query_id)
        local.append(np.tanh(linear(weights, "places", matches)))
    query_vectors = duet_vectors(model, pair.query, 16)
    post_vectors = duet_vectors(model, pair.post, 62)
    whole_query = duet_regions(
        model,
        "query",
        query_vectors,
        1000,
    )
    products = []
    if whole_query:
        for region in duet_regions(model, "post", post_vectors, 8):
            products.append(whole_query[0] * region)
    f_local = duet_hidden(
        model,
        "local",
        local,
        16 * config.local_filters,
    )
    f_distributed = duet_hidden(
        model,
        "distributed",
        products,
        8 * config.filters,
    )
    return float(linear(weights, "score", np.append(f_local, f_distributed))[0])


# K-NRM and Conv-KNRM


def naive_ngrams(model: Reranker, text: str) -> list[Vector]:
    """Return the vectors of n-grams of each length.

    Each is the ReLU of a matrix applied to words side by side.
    """
    vectors = word_vectors(model, text)
    if not model.config.longest_ngram:
        return [vectors]
    weights = weights_of(model)
    levels = []
    for width in range(1, model.config.longest_ngram + 1):
        name = f"convolutions.{width - 1}"
        inner = naive_spans(vectors, width) @ weights[f"{name}.weight"]
        levels.append(relu(inner + weights[f"{name}.bias"]))
    return levels


MEANS = (1.0, 0.9, 0.7, 0.5, 0.3, 0.1, -0.1, -0.3, -0.5, -0.7, -0.9)


def knrm(model: Reranker, pair: Pair) -> float:
    """Return the score by K-NRM or Conv-KNRM."""
    query_levels = naive_ngrams(model, pair.query)
    post_levels = naive_ngrams(model, pair.post)
    phi = []  # For each pair of lengths and each kernel
    for query, post in product(query_levels, post_levels):
        m = unit(query) @ unit(post).T
        for mu in MEANS:
            sigma = 0.001 if mu == 1.0 else 0.1
            k = np.exp(-((m - mu) ** 2) / (2 * sigma**2)).sum(axis=1)
            phi.append(0.1 * np.log(np.maximum(k, 1e-10)).sum())
    score = linear(weights_of(model), "score", phi)[0]
    return 10.0 * math.tanh(score / 10.0)


# MatchPyramid


def match_pyramid(model: Reranker, pair: Pair) -> float:
    config = model.config
    weights = weights_of(model)
    query = word_vectors(model, pair.query)[: config.query_words]
    post = word_vectors(model, pair.post)[: config.post_words]
    if config.similarity == "cosine":
        matrix = unit(query) @ unit(post).T
    else:
        matrix = query @ post.T / 36
    maps = naive_squares(matrix[None], weights, "first")
    shape = (config.pooled_rows, config.pooled_columns)
    pooled = np.zeros((len(maps), *shape))
    if maps.size:
        pooled = F.adaptive_max_pool2d(torch.from_numpy(maps), shape).numpy()
    maps = naive_squares(pooled, weights, "second")
    features = F.max_pool2d(torch.from_numpy(maps), 2).flatten().numpy()
    return float(perceptron(weights, "score", features)[0])


# SM-CNN


def sm_cnn_text(model: Reranker, side: str, text: str) -> Vector:
    """Return the vector of a text as in section 3.1, with every digit read as 0."""
    masked = "".join("0" if letter.isdigit() else letter for letter in text)
    weights = weights_of(model, f"{side}_sentence.")
    width = model.config.width
    spans = naive_spans(word_vectors(model, masked), width, width - 1)
    inner = spans @ weights["convolution.weight"] + weights["bias"]
    return inner.max(axis=0, initial=0)


def sm_cnn(model: Reranker, pair: Pair) -> float:
    """Return the output of the join layer and the hidden layer (sections 3.2 and 4)."""
    weights = weights_of(model)
    x_q = sm_cnn_text(model, "query", pair.query)
    x_d = sm_cnn_text(model, "post", pair.post)
    similarity = x_q @ weights["similarity"] @ x_d
    join = [x_q, [similarity], x_d]
    if model.config.overlap:
        join.append(naive_overlap(pair))
    if model.config.prior:
        join.append([pair.prior])
    hidden = relu(linear(weights, "hidden", np.concatenate(join)))
    return float(linear(weights, "score", hidden)[0])


# Models of Yu et al. (2014)


def bag_of_words(model: Reranker, text: str) -> Vector:
    """Return the mean vector of a text without stop words, as in section 3.1."""
    content = [word for word in words(text) if not is_recognised(word)]
    vectors = word_vectors(model, " ".join(content))
    return vectors.sum(axis=0) / max(1, len(vectors))


def mean_bigram(model: Reranker, text: str) -> Vector:
    """Return the mean bigram of a text, as in section 3.2."""
    vectors = word_vectors(model, text)
    if not len(vectors):
        return np.zeros(VECTOR_SIZE)
    if len(vectors) == 1:
        vectors = np.append(
            vectors,
            np.zeros((1, VECTOR_SIZE)),
            axis=0,
        )
    weights = weights_of(model)
    left = vectors[:-1] @ weights["left"].T
    right = vectors[1:] @ weights["right"].T
    return np.tanh(left + right + weights["bigram_bias"]).mean(axis=0)


def bilinear(model: Reranker, pair: Pair) -> float:
    """Return qᵀ M a + b, which is equation 1 before the sigmoid."""
    weights = weights_of(model)
    compose = mean_bigram if "left" in weights else bag_of_words
    q = compose(model, pair.query)
    a = compose(model, pair.post)
    return float(q @ weights["matrix"] @ a + weights["bias"])


def word_count(model: Reranker, pair: Pair) -> float:
    """Return the word count of section 4.3, without stop words."""
    overlap = naive_overlap(pair)
    if model.config.weighted:
        return overlap.content_idf
    return overlap.content_count


# PWIM


def naive_states(model: Reranker, text: str) -> list[Vector]:
    """Return the states [L, ·] of words in section 4.

    They are both directions side by side, forward, backward, and the sum of both.
    """
    vectors = word_vectors(model, text)[: model.config.size]
    forward = lstm_states(model, "from_beginning", vectors)
    backward = lstm_states(model, "from_end", vectors[::-1])[::-1]
    return [np.append(forward, backward, axis=1), forward, backward, forward + backward]


def lstm_states(model: Reranker, name: str, vectors: Vector) -> Vector:
    lstm = copy.deepcopy(model.get_submodule(name)).double()
    states, _ = lstm(torch.from_numpy(vectors.copy()))
    return states.detach().numpy()


def compare_unit(x: Vector, y: Vector) -> list[Vector]:
    """Return coU of section 5 for every pair of states."""
    products = x @ y.T
    differences = x[:, None] - y
    distances = np.sqrt((differences**2).sum(axis=2) + 1e-8)
    x_lengths = np.sqrt((x**2).sum(axis=1) + 1e-8)
    y_lengths = np.sqrt((y**2).sum(axis=1) + 1e-8)
    return [products / np.outer(x_lengths, y_lengths), distances, products]


def naive_focus(preference: Vector) -> npt.NDArray[np.bool_]:
    """Do one pass of the similarity focus: best pairs first, and no word twice."""
    selected = np.zeros(preference.shape, dtype=bool)
    for place in np.argsort(-preference, axis=None, kind="stable"):
        row, column = np.unravel_index(place, selected.shape)
        is_taken = selected[row].any() or selected[:, column].any()
        selected[row, column] = not is_taken
    return selected


def naive_cube(model: Reranker, pair: Pair) -> Vector:
    """Return the cube [13, size, size] of sections 4 to 6."""
    size = model.config.size
    cube = np.zeros((13, size, size))
    if not words(pair.query) or not words(pair.post):
        return cube
    query_states = naive_states(model, pair.query)
    post_states = naive_states(model, pair.post)
    layers = []
    for x, y in zip(query_states, post_states, strict=True):
        layers += compare_unit(x, y)
    rows, columns = layers[0].shape
    filled = cube[:, :rows, :columns]  # A view of the cube
    filled[:12] = layers
    filled[12] = 1.0
    penalty = PER_PLACE * np.arange(size**2).reshape(size, size)[:rows, :columns]
    by_cosine = naive_focus(filled[0] - penalty)
    by_distance = naive_focus(-filled[1] - penalty)
    filled[:12, ~(by_cosine | by_distance)] *= model.config.focus_weight
    return cube


def pwim(model: Reranker, pair: Pair) -> float:
    """Return the score by the convolutions over the cube in section 7."""
    weights = weights_of(model)
    image = naive_cube(model, pair)
    for layer in range(5):
        image = naive_squares(image, weights, f"convolutions.{layer}")
        if layer < 4:
            image = F.max_pool2d(torch.from_numpy(image), 2, ceil_mode=True).numpy()
    activation = np.tanh if model.config.activation == "tanh" else relu
    return float(perceptron(weights, "score", image.max(axis=(1, 2)), activation)[0])


# MP-CNN


def pool(maps: Vector, pooling: str) -> Vector:
    """Pool values [L, ...] to [...]. Without any values, the result is zeros."""
    if not len(maps):
        return np.zeros(maps.shape[1:])
    return getattr(np, pooling)(maps, axis=0)


def group_a(
    weights: Weights,
    sentence: Vector,
    width: float,
    pooling: str,
) -> Vector:
    """Return the vector of a text in block A."""
    if math.isinf(width):
        return pool(sentence, pooling)
    name = f"holistic.{int(width) - 1}"
    inner = naive_spans(sentence, int(width)) @ weights[f"{name}.weight"].T
    return pool(np.tanh(inner + weights[f"{name}.bias"]), pooling)


def group_b(
    weights: Weights,
    sentence: Vector,
    width: int,
    pooling: str,
) -> Vector:
    """Return the values [filters, dimensions] of a text in block B."""
    name = f"by_dimension.{width - 1}"
    spans = naive_spans(sentence, width).reshape(
        -1,
        width,
        1,
        VECTOR_SIZE,
    )
    inner = (spans * weights[f"{name}.weight"]).sum(axis=1)  # [L, filters, E]
    return pool(np.tanh(inner + weights[f"{name}.bias"]), pooling)


def unit_1(config: Any, x: Vector, y: Vector) -> list[float]:
    """Return comU1 of two vectors."""
    differences = np.abs(x - y).tolist()
    if config.l1 == "sum":
        differences = [sum(differences)]
    return unit_2(x, y) + differences


def unit_2(x: Vector, y: Vector) -> list[float]:
    """Return comU2 of two vectors."""
    cosine = x @ y / math.sqrt((x @ x + 1e-8) * (y @ y + 1e-8))
    return [cosine, float(np.linalg.norm(x - y))]


def mp_cnn_blocks(model: Reranker, text: str) -> list[Vector]:
    """Return block A of a text, [widths, E], for each pooling."""
    weights = weights_of(model)
    sentence = word_vectors(model, text)
    widths: list[float] = [*range(1, model.config.widths + 1), math.inf]
    blocks = []
    for pooling in ("max", "min", "mean"):
        rows = [group_a(weights, sentence, width, pooling) for width in widths]
        blocks.append(np.array(rows))
    return blocks


def mp_cnn_features(model: Reranker, pair: Pair) -> list[float]:
    config = model.config
    weights = weights_of(model)
    query_blocks = mp_cnn_blocks(model, pair.query)
    post_blocks = mp_cnn_blocks(model, pair.post)
    features = []
    # Algorithm 1
    for m1, m2 in zip(query_blocks, post_blocks, strict=True):
        for i in range(VECTOR_SIZE):
            features += unit_2(m1[:, i], m2[:, i])
    # Algorithm 2
    for m1, m2 in zip(query_blocks, post_blocks, strict=True):
        for x, y in product(m1, m2):
            features += unit_1(config, x, y)
    query = word_vectors(model, pair.query)
    post = word_vectors(model, pair.post)
    for pooling, width in product(("max", "min"), range(1, config.widths + 1)):
        b1 = group_b(
            weights,
            query,
            width,
            pooling,
        )
        b2 = group_b(
            weights,
            post,
            width,
            pooling,
        )
        for x, y in zip(b1, b2, strict=True):
            features += unit_1(config, x, y)
    return features


def mp_cnn(model: Reranker, pair: Pair) -> float:
    weights = weights_of(model)
    hidden = np.tanh(linear(weights, "hidden", mp_cnn_features(model, pair)))
    return float(linear(weights, "score", hidden)[0])


# MP-HCNN


LENGTHS = {"words": (10, 68), "post_trigrams": (51, 140), "url_trigrams": (51, 120)}
"""The lengths to which section 4.3 pads query and post, for each perspective."""


class PerspectiveInput(NamedTuple):
    """The identifiers of query and post in one perspective."""

    query: list[int]
    idf: Vector  # Weights of the query
    post: list[int]


def plain(text: str) -> str:
    decomposed = unicodedata.normalize("NFD", text[:1000])
    letters = [letter for letter in decomposed if ord(letter) < 128]
    return " ".join("".join(letters).lower().split())


def split(config: Any, text: str) -> list[str]:
    if config.tokens == "words":
        return words(text)
    return TreebankWordTokenizer().tokenize(plain(text))


def trigram_ids(texts: list[str]) -> list[int]:
    return (character_trigrams(texts).values + 1).tolist()


def url_of(config: Any, url: str) -> str:
    """Return the part of a URL that is read."""
    if config.urls != "code":
        return url_text(url)
    url = url or "http://www.abc.com"
    url = url.partition("?")[0] if "?" in url else url[:-1]
    return plain(url)[7:][-120:]


def trigrams_of_query(
    config: Any,
    query: str,
) -> tuple[list[int], Vector]:
    """Return the identifiers of a query's trigrams, and their IDF."""
    idf = encoder().idf
    if config.trigrams == "text":
        trigrams = character_trigrams([plain(query)])
        return (trigrams.values + 1).tolist(), idf.trigram_weights(trigrams.values)
    tokens = split(config, query)
    trigrams = character_trigrams(tokens)
    of_words = idf.weights(tokens, config.idf != "relative").astype(np.float64)
    weights = np.repeat(of_words, trigrams.lengths)
    if config.idf == "phrases":
        weights = np.minimum(weights, idf.trigram_weights(trigrams.values))
    return (trigrams.values + 1).tolist(), weights


def mp_hcnn_inputs(config: Any, pair: Pair) -> dict[str, PerspectiveInput]:
    """Return the inputs of section 3.1, for each perspective that is configured."""
    reader = encoder()
    inputs = {}
    query_trigrams, trigram_idf = trigrams_of_query(config, pair.query)
    if config.use_words:
        tokens = split(config, pair.query)
        idf = reader.idf.weights(tokens, config.idf != "relative")
        inputs["words"] = PerspectiveInput(
            reader.vocabulary.ids(tokens),
            idf.astype(np.float64),
            reader.vocabulary.ids(split(config, pair.post)),
        )
    if config.use_post_trigrams:
        texts = split(config, pair.post)
        if config.trigrams == "text":
            texts = [plain(pair.post)]
        inputs["post_trigrams"] = PerspectiveInput(
            query_trigrams,
            trigram_idf,
            trigram_ids(texts),
        )
    if config.use_url_trigrams:
        inputs["url_trigrams"] = PerspectiveInput(
            query_trigrams,
            trigram_idf,
            trigram_ids([url_of(config, pair.url)]),
        )
    return inputs


def mp_hcnn_levels(
    model: Reranker,
    tower: str,
    ids: list[int],
    rows: int,
) -> list[Vector]:
    """Return the depth + 1 matrices [rows, ·] of section 3.2."""
    config = model.config
    weights = weights_of(model, f"towers.{tower}.convolutions.")
    width = config.word_width if tower == WORDS else config.trigram_width
    reads_padding = config.normalization == "query"
    padded = torch.tensor(ids + [0] * (rows + 1 - len(ids)))
    vectors = model.towers[tower].vectors(padded).detach().double().numpy()
    levels = [vectors[:rows]]
    padding = vectors[rows]
    for depth in range(config.depth):
        filters = weights[f"{depth}.weight"]  # [width · E, F]
        bias = weights[f"{depth}.bias"]
        below = np.concatenate([levels[-1], np.tile(padding, (width - 1, 1))])
        above = relu(naive_spans(below, width)[:rows] @ filters + bias)
        padding = relu(np.tile(padding, width) @ filters + bias)
        if not reads_padding:
            above[len(ids) :] = 0.0
            padding = np.zeros_like(padding)
        levels.append(above)
    return levels


def mp_hcnn_similarities(config: Any, query: Vector, post: Vector) -> Vector:
    """Return the similarities of all positions (section 3.3), after any softmax."""
    if config.similarity == "cosine":
        query = unit(query)
        post = unit(post)
    s = query @ post.T
    if config.normalization == "none":
        return s
    s = np.exp(s * config.temperature)
    axis = 0 if config.normalization == "query" else 1
    return s / s.sum(axis=axis, keepdims=True)


def mp_hcnn_pools(
    config: Any,
    s: Vector,
    query_length: int,
    post_length: int,
) -> list[Vector]:
    """Return the maximum and the mean of each query position, as in section 3.3."""
    inside = s
    if config.normalization != "query":  # Padding does not take part.
        s[:, post_length:] = 0.0
        s[query_length:] = 0.0
        inside = s[:, : max(1, post_length)]
    pools = []
    if config.max_pooling:
        pools.append(inside.max(axis=1))
    if config.mean_pooling:
        if config.normalization == "none":
            pools.append(5 * inside.mean(axis=1))
        else:
            pools.append(s.mean(axis=1))
    return pools


def phrase_idf(
    kind: str,
    idf: Vector,
    depth: int,
    width: int,
) -> float:
    """Return the IDF of the phrase that these terms begin with."""
    phrase = idf[: 1 + depth * (width - 1)]
    if kind == "phrases":
        return min(float(phrase[:: width - 1].sum()), math.log(243e6))
    return float(phrase.mean()) if len(phrase) else 0.0


def position_weights(
    config: Any,
    name: str,
    idf: Vector,
    depth: int,
    rows: int,
) -> Vector:
    """Return the weights of all query positions' features at one depth."""
    if config.evidence != "positions" or not config.idf_weights:
        return np.ones(rows)
    width = 2 if name == "words" else 4
    depths = 2 if name == "words" else config.weighted_trigram_depths
    if depth >= depths:
        return np.ones(rows)
    weights = []
    for start in range(rows):
        weights.append(phrase_idf(config.idf, idf[start:], depth, width))
    return np.array(weights)


def mp_hcnn_features(model: Reranker, name: str, inputs: PerspectiveInput) -> Vector:
    """Return the features of query positions: [positions, (depth + 1) · pools]."""
    config = model.config
    rows, columns = LENGTHS[name]
    tower = WORDS if name == "words" else TRIGRAMS
    if config.separate_urls and name == "url_trigrams":
        tower = name
    query_levels = mp_hcnn_levels(
        model,
        tower,
        inputs.query,
        rows,
    )
    post_levels = mp_hcnn_levels(
        model,
        tower,
        inputs.post,
        columns,
    )
    features = []
    levels = zip(query_levels, post_levels, strict=True)
    for depth, (query, post) in enumerate(levels):
        s = mp_hcnn_similarities(config, query, post)
        weights = position_weights(
            config,
            name,
            inputs.idf,
            depth,
            rows,
        )
        for pooled in mp_hcnn_pools(config, s, len(inputs.query), len(inputs.post)):
            features.append(pooled * weights)
    return np.stack(features, axis=1)


def mean_of_terms(
    model: Reranker,
    name: str,
    features: Vector,
    idf: Vector,
) -> Vector:
    """Apply one network to all query positions, and average its outputs by IDF."""
    weights = weights_of(model)
    shares = idf if model.config.idf_weights else np.ones(len(idf))
    total = np.zeros(4)
    for row, share in zip(features, shares, strict=False):
        position = perceptron(weights, f"position.{name}", np.append(row, share))
        total += share * position
    return total / max(shares.sum(), 1e-6)


def mp_hcnn(model: Reranker, pair: Pair) -> float:
    """Return the score of section 3.4.

    The matrices have a fixed size, with zeros past the end of a text.
    """
    config = model.config
    evidence = []
    for name, inputs in mp_hcnn_inputs(config, pair).items():
        rows, columns = LENGTHS[name]
        cut = PerspectiveInput(
            inputs.query[:rows],
            inputs.idf[:rows],
            inputs.post[:columns],
        )
        features = mp_hcnn_features(model, name, cut)
        if config.evidence == "positions":
            evidence.append(features.ravel())
        else:
            evidence.append(mean_of_terms(model, name, features, cut.idf))
    if config.url_presence:
        has_url = url_text(pair.url) != "<url>"
        evidence.append(np.array([float(has_url)]))
    return float(perceptron(weights_of(model), "score", np.concatenate(evidence))[0])
