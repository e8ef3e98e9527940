"""The pairs of training steps, as the sampler draws them."""

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from helpers.reranking_samples import all_pairs, encoder, small_model

from rerankers.errors import RerankerError
from rerankers.networks import network
from rerankers.networks.inputs import Tokenized
from rerankers.networks.training.loop import BatchSampler, Examples
from rerankers.networks.training.settings import Settings

# Topic 0 has both kinds, 1 only negatives, 2 only positives, 3 one of each, 4 many; mixed up.
QUERY_INDEX = np.array([4, 0, 0, 1, 2, 3, 3, 0, 1, *[4] * 30])
RELEVANT = np.array([0, 1, 0, 0, 1, 1, 0, 0, 0, *[1] * 25, *[0] * 5], dtype=bool)
VECTORS = np.random.default_rng(3).normal(size=(len(QUERY_INDEX), 5))


def sampler_of(sampling: str, relevant: np.ndarray = RELEVANT, **changes: Any) -> BatchSampler:
    pairs: Any = SimpleNamespace(query_index=QUERY_INDEX)
    loss = "pointwise" if sampling == "pairs" else "listwise"
    options = {"batch_topics": 30, "positives": 2, "seed": 3} | changes
    return BatchSampler(Examples(pairs, relevant), Settings(loss, sampling=sampling, **options))


def drawn(sampler: BatchSampler, steps: int = 1) -> Iterator[list[int]]:
    """The lists of some steps."""
    random = np.random.default_rng(0)
    for step in range(steps):
        yield from sampler.draw(step, random)[0].tolist()


def test_lists_have_positives_and_negatives_of_one_topic() -> None:
    rows = np.array([*drawn(sampler_of("random", positives=3, negatives=2))])
    assert rows.shape == (30, 9)
    assert RELEVANT[rows[:, :3]].all() and not RELEVANT[rows[:, 3:]].any()
    assert {*map(len, map(set, QUERY_INDEX[rows]))} == {1}
    assert {*QUERY_INDEX[rows[:, 0]]} == {0, 3, 4}


def nearest(positive: int) -> list[int]:
    """Its topic's negatives, most similar first."""
    unit = VECTORS / np.linalg.norm(VECTORS, axis=1, keepdims=True)
    rows = np.flatnonzero((QUERY_INDEX[positive] == QUERY_INDEX) & ~RELEVANT)
    return rows[np.argsort(-unit[rows] @ unit[positive])].tolist()


@pytest.mark.parametrize("sampling", ["max", "mix"])
@pytest.mark.parametrize("count", [1, 5])
def test_mined_lists_hold_the_nearest(
    monkeypatch: pytest.MonkeyPatch, sampling: str, count: int
) -> None:
    model: Any = None
    vectors = torch.from_numpy(VECTORS).float()
    monkeypatch.setattr(network, "represent_tokenized", lambda model, pairs: vectors)
    sampler = sampler_of(sampling, negatives=count)
    sampler.start_epoch(model, 2)
    mined, others = {"max": count, "mix": (count + 1) // 2}[sampling], set[int]()
    for row in drawn(sampler):
        for number, positive in enumerate(row[:2]):
            block = row[2 + number * count : 2 + (number + 1) * count]
            # A topic with few negatives gives them again.
            assert block[:mined] == np.resize(nearest(positive)[:count], mined).tolist()
            assert {*block} <= {*nearest(positive)}
            others.update(block[mined:])
    assert len(others) == (9 if mined < count else 0)
    assert torch.equal(vectors, torch.from_numpy(VECTORS).float())


def test_missing_faiss_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    monkeypatch.setattr(network, "represent_tokenized", lambda model, pairs: torch.ones(39, 5))
    model: Any = None
    with pytest.raises(RerankerError, match=r"pip install 'tweetrerank\[cpu\]'.*`sampling` random"):
        sampler_of("max").start_epoch(model, 2)


def test_corrupted_pairs_have_posts_of_other_topics() -> None:
    model = small_model("sm_cnn", "static")
    pairs = Tokenized.from_pairs(all_pairs(), encoder(), model)
    # Each topic has other posts.
    pairs = pairs.take(np.flatnonzero(pairs.post_index % 4 == pairs.query_index))
    relevant = np.arange(len(pairs.query_index)) % 3 == 0
    settings = Settings(sampling="corrupted", positives=1, negatives=4, batch_topics=4)
    sampler = BatchSampler(Examples(pairs, relevant), settings)
    found, count = sampler.examples, len(pairs.query_index)
    assert len(found.relevant) == count + 4 * relevant.sum()
    assert not found.relevant[count:].any()
    assert not found.pairs.prior[count:].any()  # They are in no run.
    for row in drawn(sampler, 10):
        queries, posts = found.pairs.query_index[row], found.pairs.post_index[row]
        assert len({*queries}) == 1 and found.relevant[row[0]] and min(row[1:]) >= count
        assert (posts[1:] % 4 != posts[0] % 4).all()


@pytest.mark.parametrize("batch", [4, 39, 50])
def test_every_pair_comes_once_in_a_pass(batch: int) -> None:
    """Steps follow each other through the passes, across their borders too."""
    steps = [*drawn(sampler_of("pairs", batch_pairs=batch), 39)]
    assert {len(step) for step in steps} == {batch}
    # 39 pairs: as many passes as pairs in a batch. Those of a step come with positives first.
    assert (np.bincount(np.concatenate(steps)) == batch).all()
    if batch == 39:
        assert sorted(steps[0]) == sorted(steps[1]) != steps[0] != steps[1]


@pytest.mark.parametrize("lists", [1, 3])
def test_every_positive_comes_once_in_a_pass_of_lists(lists: int) -> None:
    """Posts of topics without negatives are left out: 27 positives are in lists."""
    sampler = sampler_of("random", steps=0, batch_topics=lists, positives=1, negatives=2)
    steps = sampler.examples.steps_of_epoch(Settings(steps=0, positives=1, batch_topics=lists))
    rows = np.array([*drawn(sampler, steps)])
    assert (len(rows), len({*rows[:, 0]})) == (27, 27)
    assert RELEVANT[rows[:, 0]].all() and not RELEVANT[rows[:, 1:]].any()
    assert {*map(len, map(set, QUERY_INDEX[rows]))} == {1}
