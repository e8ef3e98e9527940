"""MP-CNN against Algorithms 1 and 2 of He et al. (2015), written out in loops over one pair."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from reranking_samples import POSTS, QUERIES, VECTOR_SIZE, all_pairs, encoder, small_model

from rerankers.base import WORDS, Reranker, Terms
from rerankers.engine import scoring
from rerankers.errors import RerankerError
from rerankers.models.mp_cnn import Config, Model
from rerankers.text.words import words

CASES = [
    (QUERIES[0], POSTS[0][0]),
    (QUERIES[1], POSTS[3][0]),
    (QUERIES[2], POSTS[10][0]),  # one word each, shorter than most windows
    (QUERIES[0], ""),
    ("", POSTS[1][0]),
    (QUERIES[1], QUERIES[1]),
]
CHANGES: list[dict[str, Any]] = [
    {}, {"filters": 0}, {"filters": VECTOR_SIZE, "l1": "elements"}, {"l1": "elements"},
    {"l1": "sum"}, {"widths": 1}, {"widths": 5}, {"filters": 0, "dimension_filters": 1},
]  # fmt: skip


class Naive:
    """The same network for one pair, in double precision."""

    def __init__(self, model: Reranker) -> None:
        self.model, self.config = model, model.config
        self.weights = {key: value.detach().double().numpy()
                        for key, value in model.named_parameters()}  # fmt: skip

    def words(self, text: str) -> np.ndarray:
        """Word vectors [L, E]."""
        ids = encoder().vocabulary.ids(words(text))
        lookup: Any = self.model.vectors
        with torch.no_grad():
            vectors = lookup(torch.tensor(ids, dtype=torch.long)).double().numpy()
        return np.asarray(vectors).reshape(len(ids), VECTOR_SIZE)

    def group_a(self, sentence: np.ndarray, width: float, pooling: str) -> np.ndarray:
        """Block A: one vector, of as many numbers as filters, or as dimensions for infinity."""
        if math.isinf(width):
            return pool(sentence, pooling)
        weight = self.weights[f"holistic.{int(width) - 1}.weight"]  # [F, width · E]
        bias = self.weights[f"holistic.{int(width) - 1}.bias"]
        padded = np.vstack([sentence, np.zeros((int(width) - 1, VECTOR_SIZE))])
        maps = np.zeros((len(sentence), len(bias)))
        for place in range(len(sentence)):
            window = np.concatenate([padded[place + j] for j in range(int(width))])
            maps[place] = np.tanh(weight @ window + bias)
        return pool(maps, pooling)

    def group_b(self, sentence: np.ndarray, width: int, pooling: str) -> np.ndarray:
        """Block B: [dimensions, filters]."""
        weight = self.weights[f"by_dimension.{width - 1}.weight"]  # [width, filters, E]
        bias = self.weights[f"by_dimension.{width - 1}.bias"]
        padded = np.vstack([sentence, np.zeros((width - 1, VECTOR_SIZE))])
        result = np.zeros((VECTOR_SIZE, bias.shape[0]))
        for dimension in range(VECTOR_SIZE):
            for number in range(bias.shape[0]):
                values = []
                for place in range(len(sentence)):
                    total = bias[number, dimension]
                    for j in range(width):
                        total += weight[j, number, dimension] * padded[place + j, dimension]
                    values.append(math.tanh(total))
                result[dimension, number] = pool(np.array(values)[:, None], pooling)[0]
        return result

    def unit_2(self, x: np.ndarray, y: np.ndarray) -> list[float]:
        cosine = sum(a * b for a, b in zip(x, y, strict=True)) / math.sqrt(
            (sum(x * x) + 1e-8) * (sum(y * y) + 1e-8)
        )
        distance = math.sqrt(sum((a - b) ** 2 for a, b in zip(x, y, strict=True)))
        return [cosine, distance]

    def unit_1(self, x: np.ndarray, y: np.ndarray) -> list[float]:
        differences = [abs(a - b) for a, b in zip(x, y, strict=True)]
        if self.config.l1 == "sum":
            differences = [sum(differences)]
        return self.unit_2(x, y) + differences

    def features(self, query: str, post: str) -> list[float]:
        s1, s2 = self.words(query), self.words(post)
        widths: list[float] = [*range(1, self.config.widths + 1), math.inf]
        poolings = ("max", "min", "mean")
        filters = len(self.weights["holistic.0.bias"])
        comparable = widths if filters == VECTOR_SIZE else widths[:-1]
        features = []
        for p in poolings:  # Algorithm 1
            m1 = np.array([self.group_a(s1, w, p) for w in comparable])  # [widths, filters]
            m2 = np.array([self.group_a(s2, w, p) for w in comparable])
            for i in range(filters):
                features += self.unit_2(m1[:, i], m2[:, i])
        for p in poolings:  # Algorithm 2
            for w1 in comparable:
                for w2 in comparable:
                    features += self.unit_1(self.group_a(s1, w1, p), self.group_a(s2, w2, p))
        if filters != VECTOR_SIZE:
            for p in poolings:
                features += self.unit_1(pool(s1, p), pool(s2, p))
        for p in ("max", "min"):
            for w in range(1, self.config.widths + 1):
                b1, b2 = self.group_b(s1, w, p), self.group_b(s2, w, p)
                for i in range(self.config.dimension_filters):
                    features += self.unit_1(b1[:, i], b2[:, i])
        return features

    def score(self, query: str, post: str) -> float:
        x = np.array(self.features(query, post))
        hidden = np.tanh(self.weights["hidden.weight"] @ x + self.weights["hidden.bias"])
        return float(self.weights["score.weight"][0] @ hidden + self.weights["score.bias"][0])


def pool(maps: np.ndarray, pooling: str) -> np.ndarray:
    """[L, K] to [K]; nothing is pooled to zeros."""
    if not len(maps):
        return np.zeros(maps.shape[1])
    return np.asarray({"max": np.max, "min": np.min, "mean": np.mean}[pooling](maps, axis=0))


def features_of(model: Reranker, query: str, post: str) -> torch.Tensor:
    """What the hidden layer gets for one pair: [K]."""
    encoded = scoring.Tokenized.from_pairs(all_pairs([query], [(post, "")]), encoder(), model)
    queries, posts, query_of_post = encoded.batch(np.arange(1), torch.device("cpu"))
    compared = model.interact(
        model.encode_queries(queries), model.encode_posts(posts), query_of_post
    )
    return model.represent(compared)[0]


@pytest.mark.parametrize("changes", CHANGES, ids=str)
@pytest.mark.parametrize("configuration", Model.configurations)
def test_scores_are_those_of_the_algorithms_written_out(
    configuration: str, changes: dict[str, Any]
) -> None:
    model = small_model("mp_cnn", configuration, seed=3, **{"dimension_filters": 3} | changes)
    naive = Naive(model)
    for query, post in CASES:
        with torch.no_grad():
            found = features_of(model, query, post).numpy()
        np.testing.assert_allclose(found, naive.features(query, post), rtol=1e-5, atol=1e-5)
        score = scoring.score(model, all_pairs([query], [(post, "")]), encoder())[0]
        assert score == pytest.approx(naive.score(query, post), rel=1e-5, abs=1e-5)


def test_word_vectors_join_the_horizontal_comparison_where_sizes_agree() -> None:
    """10 filters and 10 dimensions: the width of infinity is compared with every other."""

    def size(filters: int) -> int:
        model = small_model("mp_cnn", "compact", filters=filters, dimension_filters=2)
        return len(features_of(model, "water", "water"))

    block_b = 2 * 3 * 2 * 3
    assert size(9) == 3 * 9 * 2 + 3 * (9 + 1) * 3 + block_b
    assert size(10) == size(0) == 3 * 10 * 2 + 3 * 16 * 3 + block_b
    model = small_model("mp_cnn", "compact", filters=0)
    with torch.no_grad():
        for parameter in model.get_submodule("holistic").parameters():
            parameter.zero_()
        horizontal = features_of(model, "the water", "the world")[:60]
    assert (horizontal[1::2] > 0).any()  # distances of the word vectors alone


def test_the_same_text_has_cosine_one_and_distance_zero() -> None:
    model = small_model("mp_cnn", "compact", filters=9)
    with torch.no_grad():
        features = features_of(model, QUERIES[1], QUERIES[1])
    horizontal = features[: 3 * 9 * 2].view(-1, 2)
    torch.testing.assert_close(horizontal[:, 0], torch.ones(27), atol=1e-3, rtol=0)
    assert (horizontal[:, 1] < 1e-5).all()
    block_b = features[-2 * 3 * model.config.dimension_filters * 3 :].view(-1, 3)
    torch.testing.assert_close(block_b[:, 0], torch.ones(len(block_b)))
    assert (block_b[:, 1:] < 1e-5).all()


def test_padding_takes_no_part_in_any_pooling() -> None:
    """With biases of 3 every window is above 0 and with -3 below, which zeros would not be."""
    for sign in (1.0, -1.0):
        model = small_model("mp_cnn", "compact")
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.startswith(("holistic", "by_dimension")):
                    parameter.fill_(3.0 * sign if name.endswith("bias") else 0.0)
            ids = torch.tensor([[1, 2, 0, 0, 0]])
            encoding = model.encode_posts({WORDS: Terms(ids, torch.zeros(0))})
        expected = math.tanh(3.0 * sign)
        for block in (encoding.holistic[0], encoding.dimensions):
            torch.testing.assert_close(block, torch.full_like(block, expected))


@pytest.mark.parametrize("pair", [("", ""), ("", "water"), ("water", ""), ("water", "water")])
@pytest.mark.parametrize("configuration", Model.configurations)
def test_gradients_are_finite_where_roots_and_lengths_are_zero(
    configuration: str, pair: tuple[str, str]
) -> None:
    model = small_model("mp_cnn", configuration, vectors="nonstatic")
    features_of(model, *pair).sum().backward()
    gradients = [value.grad for value in model.parameters() if value.grad is not None]
    assert gradients
    assert all(bool(gradient.isfinite().all()) for gradient in gradients)


def test_the_paper_configuration_is_that_of_the_papers() -> None:
    paper = Model.configurations["paper"]
    assert (paper.filters, paper.dimension_filters, paper.widths) == (0, 20, 3)
    assert (paper.hidden, paper.dropout, paper.vectors) == (150, 0.5, "static")
    assert paper.l1 == "elements"
    assert next(iter(Model.configurations)) == "compact"
    assert Model.configurations["compact"] == Config()
    settings = Model.training_settings
    assert (settings.loss, settings.margin, settings.select) == ("pairwise", 1.0, "mrr")


@pytest.mark.parametrize("setting", ["vectors", "l1"])
def test_a_setting_that_means_nothing_is_refused(setting: str) -> None:
    changes: dict[str, Any] = {setting: "other"}
    with pytest.raises(RerankerError, match=f"{setting}: found 'other'"):
        Config(**changes)
