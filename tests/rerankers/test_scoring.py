"""The engine: batches, order, progress, and what it does about scores that are not numbers."""

import numpy as np
import pytest
import torch
from helpers.reranking_samples import POSTS, all_pairs, encoder, small_model
from torch import Tensor

from rerankers.base import Reranker
from rerankers.errors import RerankerError
from rerankers.scoring import batches as scoring
from rerankers.scoring.loader import TextBatches


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


MEMORY = {
    "CUDA": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    "Python": MemoryError(),
    "PyTorch on the CPU": RuntimeError(
        "[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate "
        "memory: you tried to allocate 1073741824 bytes. Error code 12"
    ),
}


@pytest.fixture(scope="module")
def model() -> Reranker:
    return small_model("mp_hcnn", "robust")


@pytest.mark.parametrize("size", [1, 3, 7, 256])
def test_every_pair_is_scored_once_in_batches_of_one_query(model: Reranker, size: int) -> None:
    rng = np.random.default_rng(0)
    pairs = Recorder(rng.integers(4, size=50), rng.integers(1, 99, size=50))
    done: list[int] = []
    scores = scoring.score_tokenized(model, pairs, size, done.append)
    np.testing.assert_array_equal(scores, np.arange(50))
    assert sorted(row for batch in pairs.asked for row in batch) == list(range(50))
    assert sorted(done) == sorted(len(batch) for batch in pairs.asked)
    assert max(done) <= size
    for batch in pairs.asked:
        assert len(set(pairs.query_index[batch])) == 1
        assert (np.diff(pairs.lengths()[batch]) >= 0).all()


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


@pytest.mark.parametrize("error", MEMORY.values(), ids=MEMORY)
def test_too_little_memory_is_an_error(
    monkeypatch: pytest.MonkeyPatch, model: Reranker, error: Exception
) -> None:
    def full(self: Reranker, representations: Tensor) -> Tensor:
        raise error

    monkeypatch.setattr(type(model), "head", full)
    with pytest.raises(RerankerError, match=r"too little memory on cpu .* `batch_size` or"):
        scoring.score(model, all_pairs(), encoder())


def test_an_unknown_precision_is_an_error(model: Reranker) -> None:
    with pytest.raises(RerankerError, match=r"precision: found 'fp16', expected one of fp32, bf16"):
        scoring.score(model, all_pairs(), encoder(), precision="fp16")


def test_processes_tokenize_distinct_texts_ahead(model: Reranker) -> None:
    pairs = all_pairs(posts=[*POSTS, POSTS[2], POSTS[0]])
    batches = TextBatches.of(model, pairs, encoder(), None, 8)
    taken = list(batches.ahead(2))
    assert sorted(row for rows, _ in taken for row in rows) == list(range(len(pairs)))
    assert any(len(part.posts["words"]) < len(rows) for rows, part in taken)
    for (rows, part), (same_rows, alone) in zip(taken, batches.ahead(1), strict=True):
        np.testing.assert_array_equal(rows, same_rows)
        np.testing.assert_array_equal(part.query_index, alone.query_index)
        for name, ids in part.posts.items():
            texts = [pairs.texts[post] for post in pairs.post_index[rows]]
            urls = [pairs.urls[post] for post in pairs.post_index[rows]]
            expected = encoder().posts(texts, urls, [name])[name]
            np.testing.assert_array_equal(ids.take(part.post_index).values, expected.values)
