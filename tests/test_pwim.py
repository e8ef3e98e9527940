"""PWIM against sections 4 to 7 of the paper, written out in loops."""

from typing import Any

import numpy as np
import pytest
import torch
from reranking_samples import POSTS, QUERIES, all_pairs, encoder, small_model

from rerankers.base import WORDS, Reranker
from rerankers.engine import scoring
from rerankers.engine.tokenized import Tokenized
from rerankers.errors import RerankerError
from rerankers.models.pwim import CHANNELS, PER_PLACE, Config, Model, focus
from rerankers.text.words import words

CONFIGURATIONS = list(Model.configurations)
LONG = " ".join(f"cuts{n % 7} water" for n in range(25))  # 50 words that repeat themselves
CASES = [
    (QUERIES[0], POSTS[0][0]),
    (QUERIES[1], POSTS[3][0]),
    (QUERIES[2], POSTS[10][0]),  # one word against one word
    (QUERIES[1], QUERIES[1]),  # all distances of the diagonal are 0
    (QUERIES[0], ""),
    ("", POSTS[2][0]),
    ("", ""),
    (LONG, POSTS[0][0]),
    (POSTS[0][0], LONG),
]
Weights = dict[str, np.ndarray]


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def naive_lstm(weights: Weights, name: str, vectors: list[np.ndarray]) -> list[np.ndarray]:
    """Equations of section 4: a state for each word in the order in which they are read."""
    units = weights[f"{name}.weight_hh_l0"].shape[1]
    hidden, cell, states = np.zeros(units), np.zeros(units), []
    for vector in vectors:
        gates = weights[f"{name}.weight_ih_l0"] @ vector + weights[f"{name}.bias_ih_l0"]
        gates += weights[f"{name}.weight_hh_l0"] @ hidden + weights[f"{name}.bias_hh_l0"]
        enter, forget, new, leave = np.split(gates, 4)
        cell = sigmoid(forget) * cell + sigmoid(enter) * np.tanh(new)
        hidden = sigmoid(leave) * np.tanh(cell)
        states.append(hidden)
    return states


def naive_contexts(model: Reranker, weights: Weights, text: str) -> list[list[np.ndarray]]:
    """Four states of each word: side by side, forward, backward, added."""
    ids = torch.tensor(encoder().vocabulary.ids(words(text)), dtype=torch.int64)
    assert isinstance(model, Model)
    vectors = list(model.vectors(ids).double().detach().numpy())[: model.config.size]
    forward = naive_lstm(weights, "from_beginning", vectors)
    backward = naive_lstm(weights, "from_end", vectors[::-1])[::-1]
    return [[np.concatenate([f, b]), f, b, f + b] for f, b in zip(forward, backward, strict=True)]


def compare_unit(x: np.ndarray, y: np.ndarray) -> list[float]:
    """coU of section 5."""
    lengths = np.sqrt(x @ x + 1e-8) * np.sqrt(y @ y + 1e-8)
    return [x @ y / lengths, np.sqrt(((x - y) ** 2).sum() + 1e-8), x @ y]


def naive_picks(preference: dict[tuple[int, int], float]) -> set[tuple[int, int]]:
    """One pass of the similarity focus: most preferred first, no word twice."""
    picked: set[tuple[int, int]] = set()
    for t, s in sorted(preference, key=lambda pair: -preference[pair]):
        if all(t != row and s != column for row, column in picked):
            picked.add((t, s))
    return picked


def naive_cube(model: Reranker, query: str, post: str) -> np.ndarray:
    """Sections 4 to 6: [13, size, size]."""
    config = model.config
    weights = weights_of(model)
    queries, posts = (naive_contexts(model, weights, text) for text in (query, post))
    cube = np.zeros((13, config.size, config.size))
    for t, left in enumerate(queries):
        for s, right in enumerate(posts):
            layers = [compare_unit(x, y) for x, y in zip(left, right, strict=True)]
            cube[:, t, s] = np.append(np.concatenate(layers), 1.0)
    if config.focus:
        pairs = [(t, s) for t in range(len(queries)) for s in range(len(posts))]
        later = {(t, s): PER_PLACE * (t * config.size + s) for t, s in pairs}
        picked = naive_picks({pair: cube[0][pair] - later[pair] for pair in pairs})
        picked |= naive_picks({pair: -cube[1][pair] - later[pair] for pair in pairs})
        for t, s in pairs:
            if (t, s) not in picked:
                cube[:12, t, s] *= config.focus_weight
    return cube


def naive_convolution(image: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """3 × 3 places around each, zeros beyond the edge; ReLU."""
    _, height, width = image.shape
    padded = np.pad(image, ((0, 0), (1, 1), (1, 1)))
    output = np.zeros((len(weight), height, width))
    for t in range(height):
        for s in range(width):
            window = padded[:, t : t + 3, s : s + 3]
            output[:, t, s] = (weight * window).sum(axis=(1, 2, 3)) + bias
    return np.maximum(output, 0)


def naive_pooling(image: np.ndarray) -> np.ndarray:
    """Maximum of each 2 × 2 places; an odd one at the edge stands alone."""
    height, width = (-(-extent // 2) for extent in image.shape[1:])
    return np.array(
        [
            [
                [layer[2 * t : 2 * t + 2, 2 * s : 2 * s + 2].max() for s in range(width)]
                for t in range(height)
            ]
            for layer in image
        ]
    )


def naive_score(model: Reranker, query: str, post: str) -> float:
    weights = weights_of(model)
    image = naive_cube(model, query, post)
    for layer in range(5):
        kernel, bias = (weights[f"convolutions.{layer}.{name}"] for name in ("weight", "bias"))
        image = naive_convolution(image, kernel, bias)
        if layer < 4:
            image = naive_pooling(image)
    vector = image.max(axis=(1, 2))
    hidden = np.maximum(weights["score.0.weight"] @ vector + weights["score.0.bias"], 0)
    return float((weights["score.3.weight"] @ hidden + weights["score.3.bias"])[0])


def weights_of(model: Reranker) -> Weights:
    return {name: value.double().detach().numpy() for name, value in model.named_parameters()}


def varied(configuration: str, **changes: Any) -> Reranker:
    """A small model whose biases are not zero."""
    model = small_model("pwim", configuration, seed=3, **changes)
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0.0, 0.3, generator=generator)
    return model


def cubes(model: Reranker, queries: list[str], posts: list[str]) -> np.ndarray:
    """[P, Lq, size, 13] of all pairs, query by query."""
    encoded = Tokenized.from_pairs(
        all_pairs(queries, [(post, "") for post in posts]), encoder(), model
    )
    rows = np.arange(len(encoded.query_index))
    batch, of_posts, query_of_post = encoded.batch(rows, torch.device("cpu"))
    with torch.no_grad():
        found = model.interact(
            model.encode_queries(batch), model.encode_posts(of_posts), query_of_post
        )["cube"]
    return found.unflatten(2, (-1, 13)).numpy()


def assert_scores_as_written_out(model: Reranker, cases: list[tuple[str, str]]) -> None:
    for query, post in cases:
        found = scoring.score(model, all_pairs([query], [(post, "")]), encoder())[0]
        assert found == pytest.approx(naive_score(model, query, post), rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_scores_are_those_of_the_network_written_out(configuration: str) -> None:
    assert_scores_as_written_out(varied(configuration, channel_share=0.05), CASES)


@pytest.mark.parametrize(
    "changes", [{"focus": False}, {"focus_weight": 0.5}, {"size": 5}, {"size": 19}], ids=str
)
def test_every_switch_does_what_it_says(changes: dict[str, Any]) -> None:
    model = varied("compact", **changes)
    assert_scores_as_written_out(model, [CASES[0], CASES[7]])
    default = naive_score(varied("compact"), *CASES[0])
    if "size" not in changes:
        assert naive_score(model, *CASES[0]) != pytest.approx(default, abs=1e-5)


def test_cubes_of_a_batch_are_those_of_each_pair() -> None:
    model = varied("compact")
    queries, posts = [QUERIES[0], "", LONG], [POSTS[0][0], "", LONG, QUERIES[0]]
    found = cubes(model, queries, posts)
    for number, cube in enumerate(found):
        expected = naive_cube(model, queries[number // 4], posts[number % 4])
        np.testing.assert_allclose(
            cube, expected.transpose(1, 2, 0)[: len(cube)], rtol=1e-4, atol=2e-5
        )


def test_the_focus_picks_greedily_and_no_word_twice() -> None:
    """The best pair of all comes first, even where the sum would be higher without it."""
    cosine = torch.tensor([[[0.9, 0.8, 0.1], [0.8, -0.5, 0.0]]])
    far = torch.ones(1, 2, 3)
    words_there = torch.ones(1, 2, 3, dtype=torch.bool)
    picked = focus(cosine, far, words_there, 32)[0]
    # By cosine (0, 0) and then (1, 2); all distances are the same, so the earliest: (0, 0), (1, 1).
    assert picked.tolist() == [[True, False, False], [False, True, True]]
    near = far.clone()
    near[0, 1, 0] = 0.5
    picked = focus(cosine, near, words_there, 32)[0]
    # The smallest distance is (1, 0), which leaves (0, 1) of the rest.
    assert picked.tolist() == [[True, True, False], [True, False, True]]


def test_the_focus_picks_no_padding() -> None:
    cosine = torch.tensor([[[-0.9, 0.0], [0.0, 0.0]], [[0.0, 0.0], [0.0, 0.0]]])
    there = torch.zeros(2, 2, 2, dtype=torch.bool)
    there[0, 0, 0] = True
    picked = focus(cosine, 2.0 * there, there, 32)
    assert picked.equal(there)


def test_of_equal_matches_the_earlier_is_picked_whatever_the_rounding() -> None:
    noise = 1e-7 * torch.randn(20, 6, 9, generator=torch.Generator().manual_seed(1))
    there = torch.ones(20, 6, 9, dtype=torch.bool)
    picked = focus(0.5 + noise, 1.0 - noise, there, 32)
    assert picked.equal(torch.eye(6, 9, dtype=torch.bool).expand(20, 6, 9))


def test_identical_texts_have_distance_zero_and_finite_gradients() -> None:
    model = varied("compact")
    diagonal = cubes(model, [QUERIES[1]], [QUERIES[1]])[0][range(4), range(4)]
    np.testing.assert_allclose(diagonal[:, [1, 4, 7, 10]], 1e-4, rtol=1e-3)
    np.testing.assert_allclose(diagonal[:, [0, 3, 6, 9]], 1.0, atol=1e-4)
    pairs = all_pairs([QUERIES[1], ""], [(QUERIES[1], ""), ("", "")])
    encoded = Tokenized.from_pairs(pairs, encoder(), model)
    encoded.scores_of(model, np.arange(4), torch.device("cpu")).sum().backward()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None and bool(parameter.grad.isfinite().all()), name


def test_words_past_the_size_are_not_read() -> None:
    model = varied("compact", size=4)
    pairs = all_pairs([QUERIES[1]], [("water in egypt again", ""), ("water in egypt again no", "")])
    first, second = scoring.score(model, pairs, encoder())
    assert first == pytest.approx(second, abs=1e-6)


def test_the_paper_configuration_has_the_papers_sizes() -> None:
    paper = Model.configurations["paper"]
    assert paper.channels() == list(CHANNELS) == [128, 164, 192, 192, 128]
    assert (paper.lstm_units, paper.hidden, paper.size) == (250, 128, 32)
    assert paper.focus and paper.focus_weight == 0.1 and paper.dropout == 0.0
    assert next(iter(Model.configurations)) == "compact"
    assert Model.configurations["compact"] == Config()
    assert Config().channels() == [24, 32, 32, 32, 24]
    assert (Model.query_inputs, Model.post_inputs) == ((WORDS,), (WORDS,))


@pytest.mark.parametrize("changes", [{"size": 0}, {"channel_share": 0.0}, {"vectors": "none"}])
def test_settings_that_cannot_be_are_errors(changes: dict[str, Any]) -> None:
    with pytest.raises(RerankerError, match=next(iter(changes))):
        Config(**changes)
