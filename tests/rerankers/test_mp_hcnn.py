"""MP-HCNN against section 3 of the paper, written out in loops over fixed-size matrices."""

import math
import unicodedata
from typing import Any

import numpy as np
import pytest
import torch
from helpers.model_samples import (
    CASES,
    LONG,
    assert_naive_scores,
    linear,
    naive_perceptron,
    naive_windows,
    varied,
    weights_of,
)
from helpers.reranking_samples import POSTS, QUERIES, encoder
from nltk.tokenize import TreebankWordTokenizer

from rerankers import devices
from rerankers.networks.base import TRIGRAMS, WORDS, Reranker
from rerankers.networks.models.mp_hcnn import Model
from rerankers.text.words import character_trigrams, url_text, words

# Perspective -> lengths to which section 4.3 pads query and post.
LENGTHS = {"words": (10, 68), "post_trigrams": (51, 140), "url_trigrams": (51, 120)}


def plain(text: str) -> str:
    letters = [c for c in unicodedata.normalize("NFD", text[:1000]) if ord(c) < 128]
    return " ".join("".join(letters).lower().split())


def treebank(text: str) -> list[str]:
    return TreebankWordTokenizer().tokenize(plain(text))


class Naive:
    """The same network on matrices of fixed size whose rows past a text's end are zeros."""

    def __init__(self, model: Reranker) -> None:
        self.model, self.config, self.weights = model, model.config, weights_of(model)

    def levels(self, tower: str, ids: list[int], rows: int) -> list[np.ndarray]:
        """Section 3.2: depth + 1 matrices [rows, ·]."""
        ids = ids[:rows]
        lookup: Any = self.model.get_submodule(f"towers.{tower}.vectors")
        with torch.no_grad():
            padded = torch.tensor([*ids, *[0] * (rows + 1 - len(ids))])
            vectors = lookup(padded).double().numpy()
        width = self.config.word_width if tower == WORDS else self.config.trigram_width
        levels, padding = [vectors[:rows]], vectors[rows]
        is_read = self.config.normalization == "query"
        for depth in range(self.config.depth):
            prefix = f"towers.{tower}.convolutions.{depth}."
            filters = self.weights[prefix + "weight"]  # [width · E, F], the first term's E first
            bias = self.weights[prefix + "bias"]
            below = np.concatenate([levels[-1], np.tile(padding, (width - 1, 1))])
            above = np.maximum(naive_windows(below, width)[:rows] @ filters + bias, 0)
            if not is_read:
                above[len(ids) :] = 0.0
            levels.append(above)
            padding = np.maximum(np.tile(padding, width) @ filters + bias, 0) * is_read
        return levels

    def similarity(self, a: np.ndarray, b: np.ndarray) -> float:
        if self.config.similarity == "dot":
            return float(a @ b)
        return float(a @ b / (max(np.linalg.norm(a), 1e-6) * max(np.linalg.norm(b), 1e-6)))

    def features(
        self, perspective: str, query: list[int], idf: np.ndarray, post: list[int]
    ) -> np.ndarray:
        """Section 3.3: [query positions, (depth + 1) · pools], zeros past the query's end."""
        config, (rows, columns) = self.config, LENGTHS[perspective]
        kind, tower, width, weighted = config.normalization, WORDS, 2, 2
        if perspective != "words":
            tower, width, weighted = TRIGRAMS, 4, config.weighted_trigram_depths
        if config.separate_urls and perspective == "url_trigrams":
            tower = perspective
        query, idf, post = query[:rows], idf[:rows], post[:columns]
        levels = self.levels(tower, query, rows), self.levels(tower, post, columns)
        features: list[list[float]] = [[] for _ in range(rows)]
        for depth, (q, d) in enumerate(zip(*levels, strict=True)):
            s = np.array([[self.similarity(a, b) for b in d] for a in q])
            if kind != "none":
                s = np.exp(s * config.temperature)
                s = s / s.sum(axis=0 if kind == "query" else 1, keepdims=True)
            if kind != "query":  # Else padding takes part.
                s[:, len(post) :] = 0.0
                s[len(query) :] = 0.0
            for place in range(rows):
                own = s[place] if kind == "query" else s[place, : len(post)]
                pools = [own.max() if own.size else 0.0] * config.max_pooling
                mean = 5 * own.mean() if kind == "none" and own.size else s[place].mean()
                pools += [mean] * config.mean_pooling
                if config.evidence == "positions" and config.idf_weights and depth < weighted:
                    weight = self.phrase_idf(idf, place, depth, width)
                    pools = [pool * weight for pool in pools]
                features[place] += pools
        return np.array(features, dtype=np.float64)

    def phrase_idf(self, idf: np.ndarray, place: int, depth: int, width: int) -> float:
        phrase = idf[place : place + 1 + depth * (width - 1)]
        if self.config.idf == "phrases":
            return min(float(phrase[:: width - 1].sum()), math.log(243e6))
        return float(phrase.mean()) if len(phrase) else 0.0

    def perceptron(self, prefix: str, x: np.ndarray) -> np.ndarray:
        hidden = naive_perceptron(self.weights, prefix, x)
        if f"{prefix}.5.weight" in self.weights:
            hidden = linear(self.weights, f"{prefix}.5", np.maximum(hidden, 0))
        return hidden

    def inputs(self, query: str, text: str, url: str) -> dict[str, tuple[Any, Any, Any]]:
        """Perspective -> query's identifiers, their IDF, post's identifiers."""
        reader, is_code = encoder(), self.config.urls == "code"
        split = words if self.config.tokens == "words" else treebank
        rare = reader.idf.weights(split(query), self.config.idf != "relative").astype(np.float64)
        grams = [(character_trigrams([word]).values + 1).tolist() for word in split(query)]
        spread = np.repeat(rare, [len(row) for row in grams]) if grams else rare
        query_grams = [gram for row in grams for gram in row]
        if self.config.idf == "phrases":
            own = reader.idf.trigram_weights(np.array(query_grams, dtype=np.int64) - 1)
            spread = np.minimum(spread, own)
        ids = reader.vocabulary.ids
        post_grams = character_trigrams(split(text)).values
        if self.config.trigrams == "text":
            of_query, post_grams = (character_trigrams([plain(t)]).values for t in (query, text))
            query_grams = (of_query + 1).tolist()
            spread = reader.idf.trigram_weights(of_query)
        if is_code:
            url = url or "http://www.abc.com"
            url = plain(url.partition("?")[0] if "?" in url else url[:-1])[7:][-120:]
        url_grams = character_trigrams([url if is_code else url_text(url)]).values
        everything = {
            "words": (ids(split(query)), rare, ids(split(text))),
            "post_trigrams": (query_grams, spread, (post_grams + 1).tolist()),
            "url_trigrams": (query_grams, spread, (url_grams + 1).tolist()),
        }
        return {name: of for name, of in everything.items() if getattr(self.config, f"use_{name}")}

    def score(self, query: str, text: str, url: str = "") -> float:
        """Section 3.4."""
        evidence: list[np.ndarray] = []
        for name, (ids, idf, post) in self.inputs(query, text, url).items():
            features = self.features(name, ids, idf, post)
            if self.config.evidence == "positions":
                evidence.append(features.ravel())
                continue
            weights = idf if self.config.idf_weights else np.ones(len(idf))
            weights = weights[: LENGTHS[name][0]]
            total = np.zeros(4)
            for row, weight in zip(features, weights, strict=False):
                total += weight * self.perceptron(f"position.{name}", np.append(row, weight))
            evidence.append(total / max(weights.sum(), 1e-6))
        if self.config.url_presence:
            evidence.append(np.array([float(url_text(url) != "<url>")]))
        return float(self.perceptron("score", np.concatenate(evidence))[0])


LINKED = [
    (QUERIES[0], *POSTS[0]),
    (QUERIES[1], *POSTS[3]),
    (QUERIES[3], *POSTS[7]),
    (LONG, LONG, "http://long.example.org/" + "path/" * 40),
]


@pytest.mark.slow
@pytest.mark.parametrize("configuration", Model.configurations)
def test_scores_are_those_of_the_network_written_out(configuration: str) -> None:
    """Texts beyond the lengths of section 4.3 are cut."""
    model = varied("mp_hcnn", configuration)
    assert_naive_scores(model, Naive(model).score, [*LINKED, *CASES[2:-1]])


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"max_pooling": False},
        {"mean_pooling": False},
        {"idf_weights": False},
        {"use_words": False, "depth": 1},
        {"use_post_trigrams": False, "use_url_trigrams": False, "depth": 0},
        {"normalization": "post", "temperature": 3.0, "url_presence": True, "urls": "path"},
        {"tokens": "treebank", "urls": "path", "separate_urls": False},
        {"trigrams": "text", "idf": "phrases", "use_words": False, "separate_urls": True},
        {"similarity": "cosine", "normalization": "none", "url_presence": False, "depth": 3},
    ],
    ids=str,
)
@pytest.mark.parametrize("configuration", ["robust", "paper", "authors"])
def test_every_switch_does_what_it_says(
    monkeypatch: pytest.MonkeyPatch, configuration: str, changes: dict[str, Any]
) -> None:
    """Table 4 and Figure 2; by the fast path, and as on a GPU by a forward pass."""
    model = varied("mp_hcnn", configuration, **changes)
    for hosts in (devices.HOSTS, ()):
        monkeypatch.setattr(devices, "HOSTS", hosts)
        assert_naive_scores(model, Naive(model).score, LINKED[:2])
