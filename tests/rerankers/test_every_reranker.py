"""What every model must do, for each file of both folders and each configuration; batches."""

import copy
import dataclasses
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from conftest import Patch
from helpers import reranking_samples as samples
from helpers.index_samples import table
from helpers.reranking_samples import (
    POSTS,
    QUERIES,
    all_pairs,
    encoder,
    scores_of,
    small_model,
)
from torch.utils._python_dispatch import TorchDispatchMode

from tweetrerank.rerankers import checkpoint, devices, registry
from tweetrerank.rerankers.model import Model
from tweetrerank.rerankers.networks.base import Reranker
from tweetrerank.rerankers.networks.inputs import Tokenized
from tweetrerank.rerankers.networks.network import Network, score_tokenized
from tweetrerank.rerankers.networks.ngrams import fast_path
from tweetrerank.rerankers.networks.training.loop import (
    compared_once,
    listwise,
    pointwise,
)
from tweetrerank.rerankers.pairs import Pairs
from tweetrerank.rerankers.registry import TREES
from tweetrerank.rerankers.reranker_error import RerankerError

CPU = torch.device("cpu")

FIRST = {name: (name, key) for name, key in reversed(samples.every_model())}.values()
"""The first configuration of each model."""


def marked(cases: list[tuple[str, str]]) -> list[Any]:
    """Cases as parameters; a quick run has the first configurations."""
    return [
        pytest.param(
            case, id="-".join(case), marks=[] if case in FIRST else [pytest.mark.slow]
        )
        for case in cases
    ]


@pytest.fixture(scope="module", params=marked(samples.every_model()))
def any_model(request: pytest.FixtureRequest) -> Model:
    return samples.small(*request.param)


NETWORKS = [case for case in samples.every_model() if case[0] not in TREES]


@pytest.fixture(scope="module", params=marked(NETWORKS))
def case(request: pytest.FixtureRequest) -> tuple[str, str]:
    return request.param


@pytest.fixture(scope="module")
def model(case: tuple[str, str]) -> Reranker:
    """A network in evaluation mode; tests leave its weights alone."""
    return small_model(*case)


def trainable(case: tuple[str, str], **changes: Any) -> Reranker:
    """A network of the test's own; models without trainable parameters are skipped."""
    if not registry.find(case[0]).training_settings.epochs:
        pytest.skip("this model has no trainable parameter")
    return small_model(*case, **changes)


def test_scores_are_finite_and_tell_posts_apart_if_there_are_any(
    any_model: Model,
) -> None:
    scores = any_model.score(all_pairs())
    assert scores.shape == (len(QUERIES) * len(POSTS),)
    assert np.isfinite(scores).all()
    assert np.ptp(scores[: len(POSTS)]) > 1e-5, "all posts score the same"
    nothing = np.zeros(0, dtype=np.int64)
    assert any_model.score(Pairs([], [], [], nothing, nothing)).shape == (0,)


def test_the_engine_scores_as_one_forward_pass(
    model: Reranker, monkeypatch: Patch
) -> None:
    """All pairs in one batch, padded to the longest, by nothing but the model; one by one, without
    padding; and in the engine's batches, on a processor and on a device like any other."""
    short = [(text, text) for text in samples.AWKWARD.values() if len(text) < 100]
    short.append(("water " * 90, "http://x.org/" + "ab/" * 60))
    queries = [*QUERIES, samples.AWKWARD["emoji"], ""]
    pairs = all_pairs(queries, [*POSTS, *short, POSTS[3], POSTS[0]])
    tokenized = Tokenized.from_pairs(pairs, encoder(), model)
    with torch.no_grad():
        plain = model(*tokenized.batch(np.arange(len(pairs)), CPU)).numpy()
    for hosts, size in product((devices.HOSTS, ()), (1, 256)):
        monkeypatch.setattr(devices, "HOSTS", hosts)
        found = scores_of(model, pairs, size)
        np.testing.assert_allclose(
            found, plain, rtol=1e-5, atol=1e-5, err_msg=f"{hosts}, {size}"
        )


def test_batches_order_and_threads_do_not_change_scores(any_model: Model) -> None:
    pairs = all_pairs()
    expected = any_model.score(pairs)
    order = np.random.default_rng(3).permutation(len(pairs))
    for count, size in ((1, {"batch_size": 7}), (2, {})):
        devices.set_threads(count)
        try:
            assert devices.threads() == torch.get_num_threads() == count
            sizes = size if isinstance(any_model, Network) else {}
            found = dataclasses.replace(any_model, **sizes).score(pairs.take(order))
        finally:
            devices.set_threads(1)
        np.testing.assert_allclose(found, expected[order], rtol=1e-6, atol=1e-6)


class NoMasks(TorchDispatchMode):
    """Raises where a mask chooses places: a GPU would have to count them first."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if "index" in func.name():
            for indices in (
                values for values in args if isinstance(values, list | tuple)
            ):
                assert all(
                    index is None or index.dtype != torch.bool for index in indices
                )
        return func(*args, **(kwargs or {}))


def test_nothing_waits_for_a_gpu(model: Reranker) -> None:
    """On a device without numbers, which raises where one of them is wanted."""
    pairs = all_pairs(posts=[*POSTS, POSTS[3]])
    tokenized, nowhere = (
        Tokenized.from_pairs(pairs, encoder(), model),
        torch.device("meta"),
    )
    with torch.inference_mode(), NoMasks():
        batch = tokenized.batch(np.arange(len(pairs)), nowhere)
        scores = copy.deepcopy(model).to(nowhere)(*batch)
    assert (scores.device, scores.shape) == (nowhere, (len(pairs),))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_a_gpu_gives_the_scores_of_the_cpu(model: Reranker) -> None:
    on_gpu, expected = copy.deepcopy(model).to("cuda"), scores_of(model, all_pairs())
    np.testing.assert_allclose(
        scores_of(on_gpu, all_pairs()), expected, rtol=1e-4, atol=1e-4
    )


def test_awkward_texts_score_alone_as_together(any_model: Model) -> None:
    """As queries, as texts of posts and as URLs; pairs in batches, and one by one."""
    texts = list(samples.AWKWARD.values())
    posts = [
        POSTS[2],
        *((text, text) for text in texts),
        *(("water", text) for text in texts),
    ]
    pairs, count = all_pairs([QUERIES[1], *texts], posts), len(posts)
    # Every post with the first query, every query with the first post.
    whole = pairs.take(
        np.append(np.arange(count), count * np.arange(1, len(texts) + 1))
    )
    if not isinstance(any_model, Network):  # A list is scored as a whole.
        assert np.isfinite(any_model.score(whole)).all()
        return
    together, alone = (
        dataclasses.replace(any_model, batch_size=n).score(whole) for n in (7, 1)
    )
    assert np.isfinite(together).all()
    np.testing.assert_allclose(alone, together, rtol=1e-5, atol=1e-5)


def test_every_trainable_parameter_gets_a_gradient(case: tuple[str, str]) -> None:
    model = trainable(case)
    tokenized = Tokenized.from_pairs(all_pairs(), encoder(), model)
    rows = np.arange(len(tokenized.query_index))
    trained = {
        key: value for key, value in model.named_parameters() if value.requires_grad
    }
    assert trained
    steep: dict[str, bool] = dict.fromkeys(trained, False)
    # The listwise loss does not see a shift of all scores; the pointwise one does.
    for loss in (listwise, pointwise):
        model.zero_grad(set_to_none=True)
        loss(
            tokenized.scores_of(model, rows).view(len(QUERIES), len(POSTS)), 3
        ).backward()
        for key, value in trained.items():
            assert value.grad is not None, f"{key} has no gradient"
            assert bool(value.grad.isfinite().all()), (
                f"{key} has a gradient that is not finite"
            )
            steep[key] |= bool(value.grad.abs().max() > 0)
    assert all(steep.values()), [key for key, moved in steep.items() if not moved]


def test_gradients_are_finite_for_equal_and_empty_texts(case: tuple[str, str]) -> None:
    """Where lengths and distances are 0; word vectors are trained, if the model can."""
    model = trainable(case, vectors="positive")
    pairs = all_pairs([QUERIES[1], ""], [(QUERIES[1], ""), ("", "")])
    tokenized = Tokenized.from_pairs(pairs, encoder(), model)
    tokenized.scores_of(model, np.arange(4)).sum().backward()
    gradients = {key: value.grad for key, value in model.named_parameters()}
    assert any(gradient is not None for gradient in gradients.values())
    for key, gradient in gradients.items():
        assert gradient is None or bool(gradient.isfinite().all()), key


def test_saved_and_loaded_gives_identical_scores(
    any_model: Model, tmp_path: Path
) -> None:
    idf = tmp_path / "idf.tsv"
    idf.write_text(
        "1000\nthe\t900\nin\t800\nworld\t90\nwater\t40\nservice\t30\nbbc\t20\n"
    )
    metrics = {"note": "é"}
    saved = dataclasses.replace(
        any_model, idf=checkpoint.idf_from(str(idf)), metrics=metrics
    )
    checkpoint.save(tmp_path / "saved", saved)
    loaded = checkpoint.load(tmp_path / "saved", saved.name)
    assert (loaded.name, loaded.metrics, loaded.config) == (
        saved.name,
        metrics,
        saved.config,
    )
    np.testing.assert_array_equal(loaded.score(all_pairs()), saved.score(all_pairs()))


def test_ten_pairs_can_be_overfitted(case: tuple[str, str]) -> None:
    """The posts that it ranks last become the first: a model of one weight can do it, too."""
    model = trainable(case, seed=1, hidden=32, dropout=0.0)
    pairs = Tokenized.from_pairs(all_pairs(QUERIES[:1], POSTS[:10]), encoder(), model)
    examples = compared_once(model, pairs) if model.interactions_are_fixed else pairs
    with torch.no_grad():
        order = examples.scores_of(model, np.arange(10)).argsort().numpy()
    optimizer = torch.optim.Adam(
        [p for p in model.parameters() if p.requires_grad], lr=0.02
    )
    losses = []
    for _ in range(300):
        loss = listwise(examples.scores_of(model, order).view(1, 10), 3)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if losses[-1] < 0.1 * losses[0]:
            break
    assert losses[-1] < 0.1 * losses[0], (
        f"the loss fell from {losses[0]} to {losses[-1]} only"
    )


def test_cached_interactions_give_the_same_scores(model: Reranker) -> None:
    if not model.interactions_are_fixed:
        pytest.skip("this configuration trains what comes before the evidence")
    tokenized = Tokenized.from_pairs(all_pairs(), encoder(), model)
    cached = compared_once(model, tokenized)
    rows = np.random.default_rng(1).integers(
        len(tokenized.query_index), size=60
    )  # with repeats
    with torch.no_grad():
        found, expected = (
            pairs.scores_of(model, rows) for pairs in (cached, tokenized)
        )
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    parts, whole = score_tokenized(model, cached, 7), score_tokenized(model, tokenized)
    np.testing.assert_allclose(parts, whole, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("name", "changes"), table("refused_settings.jsonl"))
def test_impossible_settings_are_errors_that_name_them(
    name: str, changes: dict[str, Any]
) -> None:
    message = rf"settings? .*{next(iter(changes))}.*: found|feature family"
    with pytest.raises(RerankerError, match=message):
        samples.small(name, next(iter(registry.find(name).configurations)), **changes)


@pytest.mark.parametrize(
    ("name", "configuration"),
    [
        ("sm_cnn", "static"),
        *(case for case in samples.every_model() if case[0] == "mp_hcnn"),
    ],
)
def test_mp_hcnn_without_softmax_has_a_fast_path(name: str, configuration: str) -> None:
    """Other tests compare its scores with those of a forward pass, and with the paper."""
    model = small_model(name, configuration)
    tokenized = Tokenized.from_pairs(all_pairs(), encoder(), model)
    is_fast = configuration in ("robust", "small")
    assert (fast_path(model, tokenized) is not None) is is_fast


@pytest.mark.parametrize("training", [True, False])
def test_the_models_mode_is_left_as_it_was_and_dropout_is_off(training: bool) -> None:
    model = small_model("mp_hcnn", "robust", dropout=0.5).train(training)
    done: list[int] = []
    first = samples.network(model).score(all_pairs(), done.append)
    assert model.training is training
    assert sum(done) == len(first)
    np.testing.assert_array_equal(scores_of(model, all_pairs()), first)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_score_that_is_not_a_number_is_an_error(bad: float) -> None:
    model = small_model("mp_hcnn", "robust")
    with torch.no_grad():
        next(p for p in model.parameters() if p.requires_grad).fill_(bad)
    with pytest.raises(
        RerankerError, match=r"found \d+ scores that are not finite numbers among"
    ):
        scores_of(model, all_pairs())


OF_THE_CPU = "[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: you"
MEMORY = [
    torch.OutOfMemoryError("CUDA out of memory."),
    MemoryError(),
    RuntimeError(OF_THE_CPU),
]


@pytest.mark.parametrize("error", MEMORY, ids=repr)
def test_too_little_memory_is_an_error(monkeypatch: Patch, error: Exception) -> None:
    model = small_model("mp_hcnn", "robust")
    monkeypatch.setattr(type(model), "head", Mock(side_effect=error))
    with pytest.raises(
        RerankerError, match=r"too little memory on cpu .* `batch_size` or"
    ):
        scores_of(model, all_pairs())
