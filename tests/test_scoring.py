"""The engine: batches, order, progress, and what it does about scores that are not numbers."""

import numpy as np
import pytest
import torch
from reranking_samples import POSTS, QUERIES, all_pairs, encoder, small_model
from torch import Tensor

from rerankers import models, scoring
from rerankers.base import Pairs, Reranker
from rerankers.encoded import Encoded
from rerankers.errors import RerankerError
from rerankers.interactions import CachedInteractions
from rerankers.scoring import batches


class Recorder:
    """Pairs whose score is their row, which remember the batches that were asked for."""

    def __init__(self, query_index: np.ndarray, lengths: np.ndarray) -> None:
        self.query_index, self._lengths = query_index, lengths
        self.asked: list[list[int]] = []

    def scores_of(self, model: Reranker, rows: np.ndarray, device: torch.device) -> Tensor:
        assert not model.training
        self.asked.append(rows.tolist())
        return torch.from_numpy(rows.astype(np.float32))

    def lengths(self) -> np.ndarray:
        return self._lengths


@pytest.fixture(scope="module")
def model() -> Reranker:
    return small_model("mp_hcnn", "robust")


@pytest.mark.parametrize("size", [1, 3, 7, 256])
def test_every_pair_is_scored_once_in_batches_of_one_query(model: Reranker, size: int) -> None:
    rng = np.random.default_rng(0)
    pairs = Recorder(rng.integers(4, size=50), rng.integers(1, 99, size=50))
    done: list[int] = []
    scores = scoring.score_encoded(model, pairs, size, done.append)
    np.testing.assert_array_equal(scores, np.arange(50))
    assert sorted(row for batch in pairs.asked for row in batch) == list(range(50))
    assert sorted(done) == sorted(len(batch) for batch in pairs.asked)
    assert max(done) <= size
    for batch in pairs.asked:
        assert len(set(pairs.query_index[batch])) == 1
        assert (np.diff(pairs.lengths()[batch]) >= 0).all()


def test_batches_of_a_query_are_of_equal_size() -> None:
    cut = batches(np.arange(10), np.array([0] * 7 + [5] * 3), 3)
    assert [batch.tolist() for batch in cut] == [[0, 1, 2], [3, 4], [5, 6], [7, 8, 9]]
    assert batches(np.zeros(0, np.int64), np.zeros(0, np.int64), 3) == []


def test_pairs_may_be_in_any_order_and_leave_posts_out(model: Reranker) -> None:
    whole = scoring.score(model, all_pairs(), encoder()).reshape(len(QUERIES), len(POSTS))
    query_index, post_index = np.array([3, 0, 3, 1, 0]), np.array([5, 5, 0, 2, 5])
    texts, urls = zip(*POSTS, strict=True)
    some = Pairs(QUERIES, texts, urls, query_index, post_index)
    np.testing.assert_allclose(
        scoring.score(model, some, encoder()), whole[query_index, post_index], atol=1e-6
    )


@pytest.mark.parametrize("training", [True, False])
def test_the_models_mode_is_left_as_it_was_and_dropout_is_off(training: bool) -> None:
    model = small_model("mp_hcnn", "robust", dropout=0.5).train(training)
    first = scoring.score(model, all_pairs(), encoder())
    assert model.training is training
    np.testing.assert_array_equal(scoring.score(model, all_pairs(), encoder()), first)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_score_that_is_not_a_number_is_an_error(bad: float) -> None:
    model = small_model("mp_hcnn", "robust")
    with torch.no_grad():
        next(p for p in model.parameters() if p.requires_grad).fill_(bad)
    with pytest.raises(RerankerError, match=r"found \d+ scores that are not finite numbers among"):
        scoring.score(model, all_pairs(), encoder())


def test_lengths_count_the_terms_of_all_views(model: Reranker) -> None:
    encoded = Encoded.of(all_pairs(), encoder(), model)
    expected = [
        sum(int(packed.lengths[post]) for packed in encoded.posts.values())
        for post in encoded.post_index
    ]
    assert encoded.lengths().tolist() == expected


@pytest.mark.parametrize("cached", [False, True])
def test_a_subset_scores_as_in_the_whole(model: Reranker, cached: bool) -> None:
    encoded = Encoded.of(all_pairs(), encoder(), model)
    pairs = CachedInteractions.of(model, encoded) if cached else encoded
    whole = scoring.score_encoded(model, pairs)
    rows = np.array([40, 3, 3, 17])
    np.testing.assert_allclose(
        scoring.score_encoded(model, pairs.subset(rows)), whole[rows], atol=1e-6
    )


@pytest.mark.parametrize("name", ["mp_hcnn", "knrm"])
def test_the_number_of_threads_does_not_change_scores(name: str) -> None:
    model = small_model(name, next(iter(models.find(name).configurations)))
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(scoring.score(model, all_pairs(), encoder(), 3))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    # Large products are shared among threads, and their sums rounded in another order.
    np.testing.assert_allclose(found[1], found[0], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(found[2], found[0], rtol=1e-6, atol=1e-6)


def test_an_error_in_a_batch_ends_scoring_and_gives_the_threads_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = small_model("knrm", "words")

    def fail(*arguments: object) -> None:
        raise ValueError("no")

    monkeypatch.setattr(type(model), "judge", fail)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.raises(ValueError, match="no"):
            scoring.score(model, all_pairs(), encoder(), 3)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
