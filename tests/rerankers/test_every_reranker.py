"""Requirements of every model: each file of both folders, and each configuration."""

import copy
import dataclasses
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from conftest import Patch
from helpers import reranking_samples as samples
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
from tweetrerank.rerankers.networks.training.examples import compared_once
from tweetrerank.rerankers.networks.training.losses import listwise, pointwise
from tweetrerank.rerankers.pairs import Pairs
from tweetrerank.rerankers.registry import TREES
from tweetrerank.rerankers.reranker_error import RerankerError

Case = tuple[str, str]  # Name of a model and of its configuration

CPU = torch.device("cpu")

MODELS = samples.every_model()
NETWORKS = [case for case in MODELS if case[0] not in TREES]


def marked(cases: list[Case]) -> list[Any]:
    """Cases as parameters; a quick run has the first configuration of each model."""
    parameters = []
    names: set[str] = set()
    for case in cases:
        name = case[0]
        marks = [pytest.mark.slow] if name in names else []
        parameters.append(pytest.param(case, id="-".join(case), marks=marks))
        names.add(name)
    return parameters


@pytest.fixture(scope="module", params=marked(MODELS))
def any_model(request: pytest.FixtureRequest) -> Model:
    name, configuration = request.param
    return samples.small(name, configuration)


@pytest.fixture(scope="module", params=marked(NETWORKS))
def case(request: pytest.FixtureRequest) -> Case:
    return request.param


@pytest.fixture(scope="module")
def model(case: Case) -> Reranker:
    """A network in evaluation mode; tests leave its weights alone."""
    name, configuration = case
    return small_model(name, configuration)


def trainable(case: Case, **changes: Any) -> Reranker:
    """A network for one test; models without trainable parameters are skipped."""
    name, configuration = case
    if not registry.find(name).training_settings.epochs:
        pytest.skip("this model has no trainable parameter")
    return small_model(name, configuration, **changes)


def test_scores_are_finite_and_distinguish_posts(any_model: Model) -> None:
    scores = any_model.score(all_pairs())
    assert scores.shape == (len(QUERIES) * len(POSTS),)
    assert np.isfinite(scores).all()
    assert np.ptp(scores[: len(POSTS)]) > 1e-5, "all posts score the same"


def test_no_pairs_have_no_scores(any_model: Model) -> None:
    nothing = np.zeros(0, dtype=np.int64)
    assert any_model.score(Pairs([], [], [], nothing, nothing)).shape == (0,)


def test_the_engine_scores_as_one_forward_pass(
    model: Reranker,
    monkeypatch: Patch,
) -> None:
    """One forward pass has all pairs in one batch, padded to the longest.

    The engine scores them one by one, without padding, and in its batches, both on a
    processor and on a device like any other.
    """
    posts = list(POSTS)
    for text in samples.AWKWARD.values():
        if len(text) < 100:
            posts.append((text, text))
    posts.append(("water " * 90, "http://x.org/" + "ab/" * 60))
    posts += [POSTS[3], POSTS[0]]
    queries = [*QUERIES, samples.AWKWARD["emoji"], ""]
    pairs = all_pairs(queries, posts)
    tokenized = Tokenized.from_pairs(pairs, encoder(), model)
    with torch.no_grad():
        plain = model(*tokenized.batch(np.arange(len(pairs)), CPU)).numpy()
    for hosts in (devices.HOSTS, ()):
        monkeypatch.setattr(devices, "HOSTS", hosts)
        for batch_size in (1, 256):
            np.testing.assert_allclose(
                scores_of(model, pairs, batch_size),
                plain,
                rtol=1e-5,
                atol=1e-5,
                err_msg=f"{hosts}, {batch_size}",
            )


@pytest.mark.parametrize(
    ("threads", "batch_size"),
    [
        pytest.param(1, 7, id="small batches"),
        pytest.param(2, 256, id="two threads"),
    ],
)
def test_batches_order_and_threads_do_not_change_scores(
    any_model: Model,
    threads: int,
    batch_size: int,
) -> None:
    pairs = all_pairs()
    expected = any_model.score(pairs)
    order = np.random.default_rng(3).permutation(len(pairs))
    scorer = any_model
    if isinstance(any_model, Network):
        scorer = dataclasses.replace(any_model, batch_size=batch_size)
    devices.set_threads(threads)
    try:
        assert devices.threads() == torch.get_num_threads() == threads
        scores = scorer.score(pairs.take(order))
    finally:
        devices.set_threads(1)
    np.testing.assert_allclose(scores, expected[order], rtol=1e-6, atol=1e-6)


class NoMasks(TorchDispatchMode):
    """Raises where a mask chooses places: a GPU would have to count them first."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Any = (),
        kwargs: Any = None,
    ) -> Any:
        if "index" in func.name():
            for argument in args:
                if isinstance(argument, list | tuple):
                    self.check(argument)
        return func(*args, **(kwargs or {}))

    def check(self, indices: Any) -> None:
        for index in indices:
            assert index is None or index.dtype != torch.bool


def test_nothing_waits_for_a_gpu(model: Reranker) -> None:
    """On a device without numbers, which raises where one is read."""
    pairs = all_pairs(posts=[*POSTS, POSTS[3]])
    tokenized = Tokenized.from_pairs(pairs, encoder(), model)
    nowhere = torch.device("meta")
    with torch.inference_mode(), NoMasks():
        batch = tokenized.batch(np.arange(len(pairs)), nowhere)
        scores = copy.deepcopy(model).to(nowhere)(*batch)
    assert scores.device == nowhere
    assert scores.shape == (len(pairs),)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_a_gpu_gives_the_scores_of_the_cpu(model: Reranker) -> None:
    expected = scores_of(model, all_pairs())
    on_gpu = copy.deepcopy(model).to("cuda")
    scores = scores_of(on_gpu, all_pairs())
    np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-4)


def awkward_pairs() -> Pairs:
    """Awkward texts as queries, as texts of posts and as URLs.

    Every post with the first query, every query with the first post.
    """
    texts = list(samples.AWKWARD.values())
    posts = [POSTS[2]]
    posts += [(text, text) for text in texts]
    posts += [("water", text) for text in texts]
    pairs = all_pairs([QUERIES[1], *texts], posts)
    first_query = np.arange(len(posts))
    first_post = len(posts) * np.arange(1, len(texts) + 1)
    return pairs.take(np.append(first_query, first_post))


def test_awkward_texts_score_alone_as_together(any_model: Model) -> None:
    """Pairs in batches, and one by one."""
    pairs = awkward_pairs()
    if not isinstance(any_model, Network):  # A list is scored as a whole.
        assert np.isfinite(any_model.score(pairs)).all()
        return
    together = dataclasses.replace(any_model, batch_size=7).score(pairs)
    alone = dataclasses.replace(any_model, batch_size=1).score(pairs)
    assert np.isfinite(together).all()
    np.testing.assert_allclose(alone, together, rtol=1e-5, atol=1e-5)


def test_every_trainable_parameter_gets_a_gradient(case: Case) -> None:
    model = trainable(case)
    tokenized = Tokenized.from_pairs(all_pairs(), encoder(), model)
    rows = np.arange(len(tokenized.query_index))
    trained = {}
    for key, value in model.named_parameters():
        if value.requires_grad:
            trained[key] = value
    assert trained
    moved: set[str] = set()
    # The listwise loss does not see a shift of all scores; the pointwise one does.
    for loss in (listwise, pointwise):
        model.zero_grad(set_to_none=True)
        scores = tokenized.scores_of(model, rows).view(len(QUERIES), len(POSTS))
        loss(scores, 3).backward()
        for key, value in trained.items():
            gradient = value.grad
            assert gradient is not None, f"{key} has no gradient"
            assert bool(gradient.isfinite().all()), f"{key} has an infinite gradient"
            if gradient.abs().max() > 0:
                moved.add(key)
    assert moved == set(trained)


def test_gradients_are_finite_for_equal_and_empty_texts(case: Case) -> None:
    """Lengths and distances are 0; word vectors are trained, if the model can."""
    model = trainable(case, vectors="positive")
    pairs = all_pairs([QUERIES[1], ""], [(QUERIES[1], ""), ("", "")])
    tokenized = Tokenized.from_pairs(pairs, encoder(), model)
    tokenized.scores_of(model, np.arange(4)).sum().backward()
    gradients = {}
    for key, value in model.named_parameters():
        if value.grad is not None:
            gradients[key] = value.grad
    assert gradients
    for key, gradient in gradients.items():
        assert bool(gradient.isfinite().all()), key


FREQUENCIES = """\
1000
the\t900
in\t800
world\t90
water\t40
service\t30
bbc\t20
"""


def test_saved_and_loaded_gives_identical_scores(
    any_model: Model,
    tmp_path: Path,
) -> None:
    file = tmp_path / "idf.tsv"
    file.write_text(FREQUENCIES)
    saved = dataclasses.replace(
        any_model,
        idf=checkpoint.idf_from(str(file)),
        metrics={"note": "é"},
    )
    checkpoint.save(tmp_path / "saved", saved)
    loaded = checkpoint.load(tmp_path / "saved", saved.name)
    assert loaded.name == saved.name
    assert loaded.metrics == {"note": "é"}
    assert loaded.config == saved.config
    np.testing.assert_array_equal(loaded.score(all_pairs()), saved.score(all_pairs()))


def test_ten_pairs_can_be_overfitted(case: Case) -> None:
    """The posts that it ranks last become the first: one weight suffices for it."""
    model = trainable(case, seed=1, hidden=32, dropout=0.0)
    pairs = all_pairs(QUERIES[:1], POSTS[:10])
    examples = Tokenized.from_pairs(pairs, encoder(), model)
    if model.interactions_are_fixed:
        examples = compared_once(model, examples)
    with torch.no_grad():
        order = examples.scores_of(model, np.arange(10)).argsort().numpy()
    trained = [value for value in model.parameters() if value.requires_grad]
    optimizer = torch.optim.Adam(trained, lr=0.02)
    losses: list[float] = []
    for _ in range(300):
        loss = listwise(examples.scores_of(model, order).view(1, 10), 3)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if losses[-1] < 0.1 * losses[0]:
            return
    pytest.fail(f"the loss fell from {losses[0]} to {losses[-1]} only")


def test_cached_interactions_give_the_same_scores(model: Reranker) -> None:
    if not model.interactions_are_fixed:
        pytest.skip("this configuration trains layers before the evidence")
    tokenized = Tokenized.from_pairs(all_pairs(), encoder(), model)
    cached = compared_once(model, tokenized)
    rng = np.random.default_rng(1)
    rows = rng.integers(len(tokenized.query_index), size=60)  # With repeats
    with torch.no_grad():
        scores = cached.scores_of(model, rows)
        expected = tokenized.scores_of(model, rows)
    torch.testing.assert_close(scores, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(
        score_tokenized(model, cached, 7),
        score_tokenized(model, tokenized),
        rtol=1e-5,
        atol=1e-5,
    )


IMPOSSIBLE: list[tuple[str, dict[str, Any]]] = [
    # Nothing is left to score by.
    ("cntn", {"bilinear": "none", "linear": False}),
    # The last bin has the exact matches.
    ("drmm", {"bins": 1}),
    ("dssm", {"trigram_buckets": 0}),
    # There are 64,000 trigrams.
    ("dssm", {"trigram_buckets": 64001}),
    ("duet", {"region": 0}),
    ("knrm", {"vectors": "dynamic"}),
    ("lambdamart", {"leaves": 1}),
    ("lambdamart", {"parts": 1}),
    # A maximum of 2 × 2 follows.
    ("match_pyramid", {"pooled_rows": 1}),
    ("pwim", {"channel_share": 0.0}),
    ("pwim", {"size": 0}),
    ("window", {"feature_fraction": 0.0}),
    ("window", {"learning_rate": 0.0}),
    # A share of the rows is at most 1.
    ("fusion", {"bagging": 1.5}),
    # A signal needs a name.
    ("fusion", {"families": "signal:,links"}),
    # Unknown names
    ("duet", {"terms": "letters"}),
    ("fusion", {"objectives": "binary,map"}),
    ("lambdamart", {"families": "overlap,urls"}),
    ("match_pyramid", {"similarity": "gaussian"}),
    ("mp_cnn", {"l1": "other"}),
    ("sm_cnn", {"vectors": "statik"}),
]


@pytest.mark.parametrize(("name", "changes"), IMPOSSIBLE)
def test_impossible_settings_are_errors_that_name_them(
    name: str,
    changes: dict[str, Any],
) -> None:
    setting = next(iter(changes))
    configuration = next(iter(registry.find(name).configurations))
    message = rf"settings? .*{setting}.*: found|feature family"
    with pytest.raises(RerankerError, match=message):
        samples.small(name, configuration, **changes)


def has_fast_path(name: str, configuration: str) -> bool:
    model = small_model(name, configuration)
    tokenized = Tokenized.from_pairs(all_pairs(), encoder(), model)
    return model.fast_path(tokenized) is not None


@pytest.mark.parametrize("configuration", registry.find("mp_hcnn").configurations)
def test_mp_hcnn_without_softmax_has_a_fast_path(configuration: str) -> None:
    """Other tests compare its scores with a forward pass, and with the paper."""
    has_softmax = configuration in ("paper", "authors")
    assert has_fast_path("mp_hcnn", configuration) != has_softmax


def test_a_model_has_no_fast_path_by_default() -> None:
    assert not has_fast_path("sm_cnn", "static")


@pytest.mark.parametrize("training", [True, False])
def test_the_models_mode_is_left_as_it_was_and_dropout_is_off(training: bool) -> None:
    model = small_model("mp_hcnn", "robust", dropout=0.5).train(training)
    counts: list[int] = []
    scores = samples.network(model).score(all_pairs(), counts.append)
    assert model.training is training
    assert sum(counts) == len(scores)
    np.testing.assert_array_equal(scores_of(model, all_pairs()), scores)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_score_that_is_not_a_number_is_an_error(bad: float) -> None:
    model = small_model("mp_hcnn", "robust")
    trained = [value for value in model.parameters() if value.requires_grad]
    with torch.no_grad():
        trained[0].fill_(bad)
    message = r"\d+ of \d+ scores are not finite numbers"
    with pytest.raises(RerankerError, match=message):
        scores_of(model, all_pairs())


OF_THE_CPU = "[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate"
MEMORY = [
    torch.OutOfMemoryError("CUDA out of memory."),
    MemoryError(),
    RuntimeError(f"{OF_THE_CPU} memory: you"),
]


@pytest.mark.parametrize("error", MEMORY, ids=repr)
def test_too_little_memory_is_an_error(monkeypatch: Patch, error: Exception) -> None:
    model = small_model("mp_hcnn", "robust")
    monkeypatch.setattr(type(model), "head", Mock(side_effect=error))
    message = r"too little memory on cpu .* `batch_size` or"
    with pytest.raises(RerankerError, match=message):
        scores_of(model, all_pairs())
