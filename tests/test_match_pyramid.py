"""MatchPyramid against the formulas of the paper, written out in loops over each pair's matrix."""

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from reranking_samples import POSTS, QUERIES, all_pairs, encoder, small_model

from rerankers.base import Reranker
from rerankers.engine import scoring
from rerankers.engine.tokenized import Tokenized
from rerankers.errors import RerankerError
from rerankers.models.match_pyramid import Config, Model, dynamic_pooling
from rerankers.text.words import words

SIMILARITIES = ["cosine", "dot", "indicator"]
LONG = " ".join(f"cuts{n % 7}" for n in range(100))
CASES = [
    (QUERIES[0], POSTS[0][0]),
    (QUERIES[1], POSTS[3][0]),
    (QUERIES[2], POSTS[10][0]),  # one word against one word
    ("zyxtrop cuts zyxtrop", "no zyxtrop"),  # an unknown word
    (QUERIES[0], ""),
    ("", POSTS[2][0]),
    ("", ""),
    (LONG, LONG),
]


def naive_convolution(maps: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """ReLU of the windows around each place of maps [C, rows, columns]; beyond them are zeros."""
    filters, _, width, _ = weight.shape
    _, rows, columns = maps.shape
    margin = width // 2
    above = np.zeros((filters, rows, columns))
    for k in range(filters):
        for i in range(rows):
            for j in range(columns):
                total = bias[k]
                for s in range(width):
                    for t in range(width):
                        x, y = i + s - margin, j + t - margin
                        if 0 <= x < rows and 0 <= y < columns:
                            total += weight[k, :, s, t] @ maps[:, x, y]
                above[k, i, j] = max(total, 0.0)
    return above


def parts_of(length: int, parts: int) -> list[range]:
    return [
        range(math.floor(i * length / parts), math.ceil((i + 1) * length / parts))
        for i in range(parts)
    ]


def naive_pooling(maps: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """Dynamic pooling of maps [F, Lq, Ld]."""
    pooled = np.zeros((len(maps), rows, columns))
    if maps.size:
        for i, across in enumerate(parts_of(maps.shape[1], rows)):
            for j, down in enumerate(parts_of(maps.shape[2], columns)):
                pooled[:, i, j] = maps[:, across][:, :, down].max(axis=(1, 2))
    return pooled


def naive_matrix(model: Reranker, query: str, post: str) -> np.ndarray:
    """The similarity of each two words of one pair."""
    config: Config = model.config
    ids = [encoder().vocabulary.ids(words(text)) for text in (query, post)]
    ids = [ids[0][: config.query_words], ids[1][: config.post_words]]
    if config.similarity == "indicator":
        return np.array([[float(a == b) for b in ids[1]] for a in ids[0]]).reshape(
            len(ids[0]), len(ids[1])
        )
    lookup: Any = model.get_submodule("vectors")
    a, b = (lookup(torch.tensor(row, dtype=torch.long)).double().numpy() for row in ids)
    matrix = np.zeros((len(a), len(b)))
    for i in range(len(a)):
        for j in range(len(b)):
            scale = 36.0
            if config.similarity == "cosine":
                scale = np.linalg.norm(a[i]) * np.linalg.norm(b[j])
            matrix[i, j] = a[i] @ b[j] / scale
    return matrix


def naive_score(model: Reranker, query: str, post: str) -> float:
    config: Config = model.config
    weights = {key: value.detach().double().numpy() for key, value in model.named_parameters()}
    matrix = naive_matrix(model, query, post)
    maps = naive_convolution(matrix[None], weights["first.weight"], weights["first.bias"])
    pooled = naive_pooling(maps, config.pooled_rows, config.pooled_columns)
    maps = naive_convolution(pooled, weights["second.weight"], weights["second.bias"])
    rows, columns = config.pooled_rows // 2, config.pooled_columns // 2
    features = [
        maps[k, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2].max()
        for k in range(len(maps)) for i in range(rows) for j in range(columns)
    ]  # fmt: skip
    hidden = np.maximum(weights["score.0.weight"] @ features + weights["score.0.bias"], 0)
    return float((weights["score.3.weight"] @ hidden + weights["score.3.bias"])[0])


def varied(similarity: str, **changes: Any) -> Reranker:
    """A small model none of whose biases is 0."""
    model = small_model("match_pyramid", "cosine", 3, similarity=similarity, **changes)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "bias" in name:
                parameter += torch.randn(parameter.shape, generator=generator) * 0.3
    return model


@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_scores_are_those_of_the_paper(similarity: str) -> None:
    model = varied(similarity, filters=3, deep_filters=4)
    queries = [query for query, _ in CASES]
    pairs = all_pairs(queries, [(post, "") for _, post in CASES])
    scores = scoring.score(model, pairs, encoder())
    some = [n for n in range(len(pairs)) if n % 9 == 0 or n % 7 == 1]
    rows = [divmod(n, len(CASES)) for n in some]
    expected = [naive_score(model, queries[query], CASES[post][1]) for query, post in rows]
    assert np.ptp(expected) > 0.05
    np.testing.assert_allclose(scores[some], expected, rtol=1e-5, atol=1e-5)


def test_other_sizes_have_the_papers_scores_too() -> None:
    changes = {"width": 3, "deep_width": 5, "pooled_rows": 3, "pooled_columns": 7, "query_words": 2}
    model = varied("cosine", **changes)
    scores = scoring.score(model, all_pairs(QUERIES[:1], POSTS[:3]), encoder())
    expected = [naive_score(model, QUERIES[0], text) for text, _ in POSTS[:3]]
    np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_an_unknown_word_matches_itself(similarity: str) -> None:
    model: Any = varied(similarity)
    encoded = Tokenized.from_pairs(
        all_pairs(["zyxtrop cuts"], [("no zyxtrop", "")]), encoder(), model
    )
    queries, posts, _ = encoded.batch(np.array([0]), torch.device("cpu"))
    matrix = model.matching_matrix(model.encode_queries(queries), model.encode_posts(posts))[0]
    assert matrix.shape == (2, 2)
    assert matrix.argmax() == 1  # "zyxtrop" with "zyxtrop"
    assert 0.4 < matrix[0, 1] < 1.5


@pytest.mark.parametrize("parts", [1, 2, 5, 8])
def test_dynamic_pooling_is_that_of_texts_without_padding(parts: int) -> None:
    generator = torch.Generator().manual_seed(parts)
    lengths = torch.tensor([13, 1, 5, 0, 8, 2, 7])
    maps = torch.randn(len(lengths), 3, 13, 4, generator=generator) - 2.0
    for row, length in enumerate(lengths.tolist()):
        maps[row, :, length:] = 100.0  # must never be seen
    pooled = dynamic_pooling(maps, lengths, parts)
    assert pooled.shape == (len(lengths), 3, parts, 4)
    for row, length in enumerate(lengths.tolist()):
        if length:
            expected = F.adaptive_max_pool2d(maps[row, :, :length], (parts, 4))
            torch.testing.assert_close(pooled[row], expected)
        else:
            assert not pooled[row].any()


def test_no_pairs_are_pooled_to_none() -> None:
    pooled = dynamic_pooling(torch.zeros(0, 3, 4, 5), torch.zeros(0, dtype=torch.long), 2)
    assert pooled.shape == (0, 3, 2, 5)


def test_words_past_those_that_are_read_change_nothing() -> None:
    model = varied("cosine", query_words=3, post_words=4)
    posts = [("world service cuts jobs", ""), ("world service cuts jobs today", "")]
    first, second = scoring.score(model, all_pairs(["bbc world service"], posts), encoder())
    assert first == pytest.approx(second, abs=1e-6)
    pairs = all_pairs(["bbc world service", "bbc world service cuts"], posts[:1])
    first, second = scoring.score(model, pairs, encoder())
    assert first == pytest.approx(second, abs=1e-6)


def test_the_indicator_sees_the_same_words_and_nothing_else() -> None:
    """No vectors are kept for it, and posts without a word of the query are alike."""
    model = varied("indicator")
    assert not any(name.startswith("vectors") for name in model.state_dict())
    posts = [("lunch was good today", ""), ("protests", ""), ("world lunch", "")]
    first, second, third = scoring.score(model, all_pairs(["bbc world service"], posts), encoder())
    assert first == pytest.approx(second, abs=1e-6)
    assert abs(first - third) > 1e-4


@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_scores_do_not_depend_on_the_batch(similarity: str) -> None:
    """The registry's tests see only named configurations."""
    model, posts = varied(similarity), [*POSTS, (LONG, ""), ("", "")]
    pairs = all_pairs([*QUERIES, LONG, ""], posts)
    alone = scoring.score(model, pairs, encoder(), 1)
    encoded = Tokenized.from_pairs(pairs, encoder(), model)
    with torch.no_grad():  # queries padded too, which the engine's batches never are
        together = encoded.scores_of(model, np.arange(len(pairs)), torch.device("cpu"))
    np.testing.assert_allclose(together.numpy(), alone, rtol=1e-5, atol=1e-5)


def test_the_configurations_differ_in_the_similarity_alone() -> None:
    assert list(Model.configurations) == ["cosine", "dot"]
    for name, config in Model.configurations.items():
        assert config == Config(similarity=name)
    assert (Config().filters, Config().width) == (8, 5)
    assert (Config().deep_filters, Config().deep_width) == (16, 3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"similarity": "gaussian"}, "similarity: found 'gaussian'"),
        ({"width": 4}, "width: found 4, expected an odd number"),
        ({"deep_width": 0}, "deep_width: found 0, expected an odd number"),
        ({"pooled_rows": 1}, "found 1 and 10, expected at least 2"),
    ],
)
def test_settings_that_cannot_be_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(RerankerError, match=message):
        Config(**changes)
