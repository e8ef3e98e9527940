"""Windows of a batch, with gradients, against the tower's own forward pass and loops over posts."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from rerankers.engine.windows import Texts
from rerankers.layers.convolutions import ConvolutionTower
from rerankers.layers.embeddings import TrainedVectors
from rerankers.shared_windows import SideBySide, _levels, similarities
from rerankers.text.inputs import Packed

CPU = torch.device("cpu")
QUERIES = [[1, 2], [], [3, 1, 2]]
POSTS = [[1, 2, 3, 1, 2, 3], [5], [], [2, 3, 1, 2, 9, 9, 9], [1, 2, 3, 1, 2]]
URLS = [[9, 9], [], [], [1], [2, 3]]
OF_POST = np.array([2, 0, 2, 0, 2])


def tower_of(width: int, depth: int) -> ConvolutionTower:
    torch.manual_seed(1)
    vectors = TrainedVectors(np.random.default_rng(1).normal(size=(9, 5)).astype(np.float32), 1)
    return ConvolutionTower(vectors, 5, 7, width, depth)


def padded(texts: list[list[int]]) -> torch.Tensor:
    return Packed.of(texts).padded(np.arange(len(texts)), CPU).ids


@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize(("width", "depth"), [(2, 0), (1, 1), (3, 2), (4, 3)])
def test_similarities_are_those_of_the_towers_vectors(
    width: int, depth: int, normalized: bool
) -> None:
    tower, inputs = tower_of(width, depth), [padded(POSTS), padded(URLS)]
    found = similarities(tower, padded(QUERIES), inputs, torch.from_numpy(OF_POST), normalized)
    asked = tower(padded(QUERIES))
    assert len(found) == 2
    for view, texts, (layout, levels) in zip(inputs, (POSTS, URLS), found, strict=True):
        assert len(levels) == depth + 1
        for query, post, similar in zip(asked, tower(view), levels, strict=True):
            if normalized:
                query, post = (F.normalize(x, dim=2, eps=1e-6) for x in (query, post))
            flat = similar.flatten(0, 1)
            for number, text in enumerate(texts):
                start = int(layout.starts[number])
                slots = layout.slots[start : start + len(text)]
                wanted = post[number, : len(text)] @ query[OF_POST[number]].T
                torch.testing.assert_close(flat[slots], wanted, rtol=1e-5, atol=1e-5)


def test_windows_that_are_the_same_are_computed_once() -> None:
    tower, counts = tower_of(3, 2), []
    for copies in (1, 40):
        texts = Texts.of_padded(padded(POSTS * copies).numpy())
        counts.append([len(vectors) for vectors, _ in _levels(tower, texts, CPU)])
    assert counts[0] == counts[1]
    assert counts[0][0] == 5


def test_padded_texts_are_read_as_packed_ones() -> None:
    packed = Texts.of(Packed.of(POSTS), np.arange(len(POSTS)), 10)
    read = Texts.of_padded(padded(POSTS).numpy())
    for name in ("ids", "lengths", "remaining"):
        np.testing.assert_array_equal(getattr(read, name), getattr(packed, name))


def test_pooling_is_that_of_each_post_alone() -> None:
    texts = Texts.of_padded(padded(POSTS).numpy())
    layout = SideBySide.of(texts, OF_POST, 3, CPU)
    assert layout.shape == (3, 11)  # 6, 0 and 5 terms for the last query
    values = torch.from_numpy(np.random.default_rng(2).normal(size=(3, 11, 4)))
    shares = layout.softmax(values, 20)
    for number, text in enumerate(POSTS):
        start = int(layout.starts[number])
        slots = layout.slots[start : start + len(text)].numpy()
        assert set(slots // 11) <= {OF_POST[number]}
        own = values.flatten(0, 1)[slots].numpy()
        best = own.max(axis=0) if text else np.zeros(4)
        odds = np.exp(own) / (np.exp(own).sum(axis=0) + 20 - len(text))
        largest = odds.max(axis=0) if text else np.zeros(4)
        for found, expected in (
            (layout.best(values), best),
            (layout.mean(values), own.sum(axis=0) / max(1, len(text))),
            (layout.mean(values, 20), own.sum(axis=0) / 20),
            (shares[0], largest),
            (shares[1], odds.sum(axis=0) / 20),
        ):
            np.testing.assert_allclose(found[number].numpy(), expected, rtol=1e-6, atol=1e-12)
    assert sorted(layout.slots.tolist()) == sorted(set(layout.slots.tolist()))
