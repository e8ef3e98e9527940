"""Scoring in batches, by the fast path of MP-HCNN too: modes, progress, errors."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from helpers.model_samples import varied
from helpers.reranking_samples import (
    AWKWARD,
    POSTS,
    QUERIES,
    all_pairs,
    encoder,
    every_model,
    network,
    scores_of,
    small_model,
)

from rerankers.errors import RerankerError
from rerankers.networks.base import Reranker
from rerankers.networks.batches import batches_of, score_tokenized
from rerankers.networks.inputs import Tokenized
from rerankers.networks.ngrams import fast_path
from rerankers.pairs import PRIOR

EVERY = [*POSTS, *((text, text) for text in AWKWARD.values())]
ASKED = [*QUERIES, *AWKWARD.values()]

VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("robust", {"depth": 0}),
    ("paper", {"depth": 3}),
    ("robust", {"use_words": False}),
    ("robust", {"mean_pooling": False}),
    ("robust", {"max_pooling": False}),
    ("robust", {"idf_weights": False}),
    ("robust", {"use_post_trigrams": False, "use_url_trigrams": False, "url_presence": False}),
    ("robust", {"normalization": "post", "similarity": "dot"}),
    ("paper", {"similarity": "cosine", "idf_weights": False}),
]

WITHOUT = [("mp_hcnn", "authors"), ("sm_cnn", "static")]  # It reads padding; another model.
WITH = [case for case in every_model() if case[0] == "mp_hcnn" and case not in WITHOUT]
CASES = [
    *((configuration, {}) for _, configuration in WITH),
    *(pytest.param(*variant, marks=pytest.mark.slow) for variant in VARIANTS),
]
"""(configuration, changes)"""


def tokenized_for(model: Reranker) -> Tokenized:
    """Every query with every post; what a run thinks of them is made up."""
    pairs = all_pairs(ASKED, EVERY)
    prior = np.random.default_rng(3).random(len(pairs)).astype(np.float32)
    return Tokenized.from_pairs(replace(pairs, signals={PRIOR: prior}), encoder(), model)


@pytest.mark.parametrize(("name", "configuration"), WITHOUT)
def test_other_models_have_no_fast_path(name: str, configuration: str) -> None:
    model = small_model(name, configuration)
    assert fast_path(model, tokenized_for(model)) is None


@pytest.mark.parametrize(("configuration", "changes"), CASES)
def test_scores_are_those_of_the_forward_pass(configuration: str, changes: dict[str, Any]) -> None:
    model = varied("mp_hcnn", configuration, **changes)
    tokenized = tokenized_for(model)
    expected = np.zeros(len(tokenized.query_index), np.float32)
    with torch.inference_mode():
        assert fast_path(model, tokenized) is not None
        for rows in batches_of(tokenized, 100):
            expected[rows] = tokenized.scores_of(model, rows).numpy()
    for size in (100, 5):
        found = score_tokenized(model, tokenized, size)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


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
def test_too_little_memory_is_an_error(
    monkeypatch: pytest.MonkeyPatch, model: Reranker, error: Exception
) -> None:
    def full(self: Reranker, representations: torch.Tensor) -> torch.Tensor:
        raise error

    monkeypatch.setattr(type(model), "head", full)
    with pytest.raises(RerankerError, match=r"too little memory on cpu .* `batch_size` or"):
        scores_of(model, all_pairs())
