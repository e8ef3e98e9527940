"""Scoring in batches: the fast path of MP-HCNN, modes, progress, errors."""

import numpy as np
import pytest
import torch
from helpers.reranking_samples import (
    all_pairs,
    encoder,
    every_model,
    network,
    scores_of,
    small_model,
)

from rerankers.errors import RerankerError
from rerankers.networks.base import Reranker
from rerankers.networks.inputs import Tokenized
from rerankers.networks.ngrams import fast_path


@pytest.mark.parametrize(
    ("name", "configuration"),
    [("sm_cnn", "static"), *(case for case in every_model() if case[0] == "mp_hcnn")],
)
def test_mp_hcnn_without_softmax_has_a_fast_path(name: str, configuration: str) -> None:
    """Other tests compare its scores with those of a forward pass, and with the paper."""
    model = small_model(name, configuration)
    tokenized = Tokenized.from_pairs(all_pairs(), encoder(), model)
    is_fast = configuration in ("robust", "small")
    assert (fast_path(model, tokenized) is not None) is is_fast


MEMORY = {
    "CUDA": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    "Python": MemoryError(),
    "PyTorch on the CPU": RuntimeError(
        "[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate "
        "memory: you tried to allocate 1073741824 bytes. Error code 12"
    ),
}


@pytest.mark.parametrize("training", [True, False])
def test_the_models_mode_is_left_as_it_was_and_dropout_is_off(training: bool) -> None:
    model = small_model("mp_hcnn", "robust", dropout=0.5).train(training)
    done: list[int] = []
    first = network(model).score(all_pairs(), done.append)
    assert model.training is training
    assert sum(done) == len(first)
    np.testing.assert_array_equal(scores_of(model, all_pairs()), first)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_score_that_is_not_a_number_is_an_error(bad: float) -> None:
    model = small_model("mp_hcnn", "robust")
    with torch.no_grad():
        next(p for p in model.parameters() if p.requires_grad).fill_(bad)
    with pytest.raises(RerankerError, match=r"found \d+ scores that are not finite numbers among"):
        scores_of(model, all_pairs())


@pytest.mark.parametrize("error", MEMORY.values(), ids=MEMORY)
def test_too_little_memory_is_an_error(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    model = small_model("mp_hcnn", "robust")

    def full(self: Reranker, representations: torch.Tensor) -> torch.Tensor:
        raise error

    monkeypatch.setattr(type(model), "head", full)
    with pytest.raises(RerankerError, match=r"too little memory on cpu .* `batch_size` or"):
        scores_of(model, all_pairs())
