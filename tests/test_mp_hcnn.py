"""MP-HCNN against section 3 of the paper, written out in loops over fixed-size matrices."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from reranking_samples import POSTS, QUERIES, all_pairs, encoder, small_model

from rerankers.base import TRIGRAMS, WORDS, Reranker
from rerankers.engine import scoring
from rerankers.engine.tokenized import Tokenized
from rerankers.models.mp_hcnn import Config, Model
from rerankers.text.words import character_trigrams, url_text, words
from rerankers.training.losses import listwise

CPU = torch.device("cpu")
# Perspective -> lengths to which section 4.3 pads query and post.
LENGTHS = {"words": (10, 68), "post_trigrams": (51, 140), "url_trigrams": (51, 120)}
LONG = " ".join(f"cuts{n}" for n in range(40))
CASES = [
    (QUERIES[0], *POSTS[0]),
    (QUERIES[1], *POSTS[3]),
    (QUERIES[3], *POSTS[7]),
    (QUERIES[0], "", ""),
    ("", *POSTS[2]),
    (LONG, LONG, "http://long.example.org/" + "path/" * 40),
]
CONFIGURATIONS = ["robust", "paper"]


class Naive:
    """The same network on matrices of fixed size whose rows past a text's end are zeros."""

    def __init__(self, model: Reranker) -> None:
        self.model, self.config = model, model.config
        self.weights = {key: value.detach().double().numpy()
                        for key, value in model.named_parameters()}  # fmt: skip

    def levels(self, tower: str, ids: list[int], rows: int) -> list[np.ndarray]:
        """Section 3.2: depth + 1 matrices [rows, ·]."""
        ids = ids[:rows]
        lookup: Any = self.model.get_submodule(f"towers.{tower}.vectors")
        matrix = np.zeros((rows, 8 if tower == TRIGRAMS else 10))
        if ids:
            with torch.no_grad():
                matrix[: len(ids)] = lookup(torch.tensor(ids)).double().numpy()
        width = 2 if tower == WORDS else 4
        levels = [matrix]
        for depth in range(self.config.depth):
            prefix = f"towers.{tower}.convolutions.{depth}."
            filters = self.weights[prefix + "weight"]  # [width · E, F], the first term's E first
            bias = self.weights[prefix + "bias"]
            below = np.concatenate([levels[-1], np.zeros((width - 1, levels[-1].shape[1]))])
            above = np.zeros((rows, filters.shape[1]))
            for place in range(len(ids)):  # past the end stays zero
                above[place] = np.maximum(below[place : place + width].ravel() @ filters + bias, 0)
            levels.append(above)
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
        tower, width, weighted = (WORDS, 2, 2) if perspective == "words" else (TRIGRAMS, 4, 3)
        query, idf, post = query[:rows], idf[:rows], post[:columns]
        features: list[list[float]] = [[] for _ in range(rows)]
        for depth, (q, d) in enumerate(
            zip(self.levels(tower, query, rows), self.levels(tower, post, columns), strict=True)
        ):
            s = np.array([[self.similarity(a, b) for b in d] for a in q])
            if config.normalization != "none":
                s = np.exp(s * config.temperature)
                s = s / s.sum(axis=1, keepdims=True)
            s[:, len(post) :] = 0.0
            s[len(query) :] = 0.0
            for place in range(rows):
                own = s[place, : len(post)]
                pools = []
                if config.max_pooling:
                    pools.append(own.max() if len(post) else 0.0)
                if config.mean_pooling and config.normalization == "none":
                    pools.append(5 * own.mean() if len(post) else 0.0)
                elif config.mean_pooling:
                    pools.append(s[place].mean())
                if config.evidence == "positions" and config.idf_weights and depth < weighted:
                    phrase = idf[place : place + 1 + depth * (width - 1)]
                    pools = [pool * phrase.mean() if len(phrase) else 0.0 for pool in pools]
                features[place] += pools
        return np.array(features, dtype=np.float64)

    def perceptron(self, prefix: str, x: np.ndarray) -> np.ndarray:
        hidden = np.maximum(self.weights[f"{prefix}.0.weight"] @ x
                            + self.weights[f"{prefix}.0.bias"], 0)  # fmt: skip
        return self.weights[f"{prefix}.3.weight"] @ hidden + self.weights[f"{prefix}.3.bias"]

    def inputs(self, query: str, text: str, url: str) -> dict[str, tuple[Any, Any, Any]]:
        """Perspective -> query's identifiers, their IDF, post's identifiers."""
        reader = encoder()
        rare = reader.idf.weights(words(query)).astype(np.float64)
        grams = [(character_trigrams([word]).values + 1).tolist() for word in words(query)]
        spread = np.repeat(rare, [len(row) for row in grams]) if grams else rare
        query_grams = [gram for row in grams for gram in row]
        ids = reader.vocabulary.ids
        post_grams = character_trigrams(words(text)).values
        url_grams = character_trigrams([url_text(url)]).values
        everything = {
            "words": (ids(words(query)), rare, ids(words(text))),
            "post_trigrams": (query_grams, spread, (post_grams + 1).tolist()),
            "url_trigrams": (query_grams, spread, (url_grams + 1).tolist()),
        }
        used = {"words": self.config.use_words, "post_trigrams": self.config.use_post_trigrams,
                "url_trigrams": self.config.use_url_trigrams}  # fmt: skip
        return {name: inputs for name, inputs in everything.items() if used[name]}

    def score(self, query: str, text: str, url: str) -> float:
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


def varied(configuration: str, **changes: Any) -> Reranker:
    """A small model whose biases are not all zero."""
    model = small_model("mp_hcnn", configuration, seed=3, **changes)
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0.0, 0.3, generator=generator)
    return model


def assert_scores_as_written_out(model: Reranker, cases: list[Any]) -> None:
    naive = Naive(model)
    for query, text, url in cases:
        found = scoring.score(model, all_pairs([query], [(text, url)]), encoder())[0]
        assert found == pytest.approx(naive.score(query, text, url), rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_scores_are_those_of_the_network_written_out(configuration: str) -> None:
    assert_scores_as_written_out(varied(configuration), CASES)


SWITCHES = [
    {"max_pooling": False}, {"mean_pooling": False}, {"idf_weights": False}, {"use_words": False},
    {"use_post_trigrams": False}, {"use_url_trigrams": False},
    {"use_post_trigrams": False, "use_url_trigrams": False}, *({"depth": n} for n in range(5)),
    {"normalization": "post", "temperature": 3.0},
    {"similarity": "dot", "normalization": "post"}, {"url_presence": True},
    {"url_presence": False},
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("changes", SWITCHES, ids=str)
@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_every_switch_does_what_it_says_and_trains(
    configuration: str, changes: dict[str, Any]
) -> None:
    """Table 4 and Figure 2: each builds, scores as written out and learns in one step."""
    model = varied(configuration, **changes)
    assert_scores_as_written_out(model, CASES[1:2])
    encoded = Tokenized.from_pairs(all_pairs(QUERIES[:2]), encoder(), model)
    rows = np.arange(len(encoded.query_index))

    def loss() -> torch.Tensor:
        return listwise(encoded.scores_of(model, rows, CPU).view(2, -1), 4)

    before = loss()
    before.backward()
    trained = [parameter for parameter in model.parameters() if parameter.grad is not None]
    steepness = torch.nn.utils.clip_grad_norm_(trained, float("inf"))
    torch.optim.SGD(trained, lr=0.005 / steepness.item()).step()
    assert loss() < before


@pytest.mark.slow
@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_features_are_those_of_fixed_size_matrices(configuration: str) -> None:
    """Texts are padded only to the longest of a batch; nothing must tell that from 68 words."""
    model = varied(configuration)
    naive = Naive(model)
    encoded = Tokenized.from_pairs(all_pairs(), encoder(), model)
    for query in range(len(QUERIES)):
        rows = np.flatnonzero(encoded.query_index == query)
        queries, posts, query_of_post = encoded.batch(rows, CPU)
        with torch.no_grad():
            found = model.interact(
                model.encode_queries(queries), model.encode_posts(posts), query_of_post
            )
        for number in (0, 1, 5, 11):
            inputs = naive.inputs(QUERIES[query], *POSTS[number])
            for name, (ids, idf, post) in inputs.items():
                expected = naive.features(name, ids, idf, post)
                features = found[name][number].numpy()
                columns = features.shape[0]
                np.testing.assert_allclose(
                    features[:, :-1], expected[:columns], rtol=1e-4, atol=1e-5
                )
                np.testing.assert_allclose(features[: len(idf), -1], idf, rtol=1e-6)
                assert not expected[columns:].any()
                assert not features[len(idf) :].any()


def test_softmax_leaves_mass_to_matching_nothing() -> None:
    """The paper's means would be constant if a post's own positions took all of it."""
    model = varied("paper")
    encoded = Tokenized.from_pairs(all_pairs(QUERIES[:1]), encoder(), model)
    queries, posts, query_of_post = encoded.batch(np.arange(12), CPU)
    with torch.no_grad():
        found = model.interact(
            model.encode_queries(queries), model.encode_posts(posts), query_of_post
        )
    means = found["words"][:, 0, 1:10:2]
    assert (means > 0).all() and (means < 1 / 68).all()
    assert means[:, 0].std() > 1e-5


def test_text_past_the_papers_lengths_is_not_read() -> None:
    tail = " something else entirely"
    many = " ".join(f"w{n % 10}" for n in range(70))
    for configuration in CONFIGURATIONS:
        model = varied(configuration)
        pairs = all_pairs([QUERIES[0]], [(many, ""), (many + tail, "")])
        first, second = scoring.score(model, pairs, encoder())
        assert first == pytest.approx(second, abs=1e-6)


def test_the_paper_configuration_is_section_4_3() -> None:
    paper = Model.configurations["paper"]
    assert (paper.depth, paper.word_width, paper.trigram_width) == (4, 2, 4)
    assert (paper.trigram_size, paper.hidden, paper.word_filters) == (300, 150, 256)
    assert (paper.similarity, paper.normalization, paper.evidence) == ("dot", "post", "positions")
    assert paper.train_vectors and paper.train_filters and not paper.url_presence
    for configuration in Model.configurations.values():
        lengths = (configuration.query_words, configuration.post_words)
        assert lengths == LENGTHS["words"]
        assert (configuration.query_trigrams, configuration.post_trigrams) == (51, 140)
        assert configuration.url_trigrams == 120
    assert next(iter(Model.configurations)) == "robust"
    assert Model.configurations["robust"] == Config()


@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_convolutions_have_the_papers_number_of_parameters(configuration: str) -> None:
    """Section 3.2: F · (kL + 1) each, shared by query and post, and by post and URL."""
    model = small_model("mp_hcnn", configuration)
    counts: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        if "convolutions" in name:
            key = ".".join(name.split(".")[1:4])
            counts[key] = counts.get(key, 0) + parameter.numel()
    depth = model.config.depth
    expected = {f"words.convolutions.{n}": 6 * (2 * (6 if n else 10) + 1) for n in range(depth)}
    expected |= {f"trigrams.convolutions.{n}": 6 * (4 * (6 if n else 8) + 1) for n in range(depth)}
    assert counts == expected


def ablated(change: Callable[[Config], Config]) -> int:
    return sum(p.numel() for p in small_model("mp_hcnn", "paper", **dataclasses.asdict(
        change(small_model("mp_hcnn", "paper").config))).parameters())  # fmt: skip


def test_an_ablation_takes_its_parameters_away() -> None:
    whole = ablated(lambda config: config)
    # 51 positions and 10, at 5 depths, times 8 hidden units, and the towers of Table 4.
    assert whole - ablated(lambda c: dataclasses.replace(c, max_pooling=False)) == 112 * 5 * 8
    assert whole - ablated(lambda c: dataclasses.replace(c, use_url_trigrams=False)) == 51 * 80
    assert ablated(lambda c: dataclasses.replace(c, idf_weights=False)) == whole
