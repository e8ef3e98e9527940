"""What every reranker must do, for each file in ``rerankers/models`` and each configuration."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from helpers.reranking_samples import (
    AWKWARD,
    POSTS,
    QUERIES,
    all_pairs,
    encoder,
    every_model,
    small_model,
    threads,
)
from torch.utils._python_dispatch import TorchDispatchMode

from rerankers import checkpoint, devices, models
from rerankers.base import Pairs, Reranker, Terms
from rerankers.errors import RerankerError
from rerankers.scoring import batches as scoring
from rerankers.scoring.tokenized import Tokenized
from rerankers.training.examples import CachedInteractions
from rerankers.training.losses import listwise, pointwise

CPU = torch.device("cpu")

FIRST = {name: (name, key) for name, key in reversed(every_model())}.values()
"""The first configuration of each model."""


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(case, id="-".join(case), marks=[] if case in FIRST else [pytest.mark.slow])
        for case in every_model()
    ],
)
def case(request: pytest.FixtureRequest) -> tuple[str, str]:
    """The names of a model and of a configuration; a quick run has the first configurations."""
    name, configuration = request.param
    return name, configuration


@pytest.fixture(scope="module")
def named(case: tuple[str, str]) -> tuple[str, Reranker]:
    """A model and its name; tests leave its weights alone."""
    return case[0], small_model(*case)


@pytest.fixture
def model(named: tuple[str, Reranker]) -> Reranker:
    return named[1].eval()


def score(model: Reranker, pairs: Pairs, batch_size: int = 256) -> np.ndarray:
    return scoring.score(model, pairs, encoder(), batch_size)


def test_scores_are_finite_and_tell_posts_apart(model: Reranker) -> None:
    scores = score(model, all_pairs())
    assert scores.shape == (len(QUERIES) * len(POSTS),)
    assert np.isfinite(scores).all()
    first = scores[: len(POSTS)]
    assert np.ptp(first) > 1e-5, "all posts score the same"


def test_padding_does_not_change_scores(model: Reranker) -> None:
    tokenized = Tokenized.from_pairs(all_pairs(), encoder(), model)
    rows = np.arange(len(tokenized.query_index))
    queries, posts, query_of_post, features, _ = tokenized.batch(rows, CPU)

    def wider(inputs: Any, columns: int) -> dict[str, Terms]:
        return {
            name: Terms(
                F.pad(terms.ids, (0, columns)),
                F.pad(terms.weights, (0, columns if terms.weights.shape[1] else 0)),
            )
            for name, terms in inputs.items()
        }

    with torch.no_grad():
        narrow = model(queries, posts, query_of_post, features)
        for columns in (1, 90):
            wider_inputs = wider(queries, columns), wider(posts, columns)
            wide = model(*wider_inputs, query_of_post, features)
            torch.testing.assert_close(wide, narrow, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("device", ["CPU", "GPU"])
def test_the_engine_scores_as_one_forward_pass(
    model: Reranker, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All pairs in one batch, padded to the longest, by nothing but the model."""
    short = [(text, text) for text in AWKWARD.values() if len(text) < 100]
    pairs = all_pairs([*QUERIES, AWKWARD["emoji"], ""], [*POSTS, *short, POSTS[3], POSTS[0]])
    tokenized = Tokenized.from_pairs(pairs, encoder(), model)
    with torch.no_grad():
        plain = model(*tokenized.batch(np.arange(len(pairs)), CPU)).numpy()
    if device == "GPU":
        monkeypatch.setattr(devices, "HOSTS", ())  # The CPU is a device like any other.
    for size in (1, 256):
        np.testing.assert_allclose(score(model, pairs, size), plain, rtol=1e-5, atol=1e-5)


def test_batches_order_and_threads_do_not_change_scores(model: Reranker) -> None:
    pairs = all_pairs()
    expected = score(model, pairs)
    order = np.random.default_rng(3).permutation(len(pairs))
    shuffled = Pairs(
        pairs.queries, pairs.texts, pairs.urls, pairs.query_index[order], pairs.post_index[order]
    )
    for count, size in ((1, 7), (2, 256)):
        with threads(count):
            found = score(model, shuffled, size)
        np.testing.assert_allclose(found, expected[order], rtol=1e-6, atol=1e-6)


class NoMasks(TorchDispatchMode):
    """Raises where a mask chooses places: a GPU would have to count them first."""

    def __torch_dispatch__(
        self, operation: Any, types: Any, arguments: Any = (), options: Any = None
    ) -> Any:
        if "index" in operation.name():
            for indices in (values for values in arguments if isinstance(values, list | tuple)):
                assert all(index is None or index.dtype != torch.bool for index in indices)
        return operation(*arguments, **(options or {}))


def test_nothing_waits_for_a_gpu(model: Reranker) -> None:
    """On a device without numbers, which raises where one of them is wanted."""
    if not model.post_inputs:
        pytest.skip("trees are on the CPU, and features come from there")
    pairs = all_pairs(posts=[*POSTS, POSTS[3]])
    tokenized, nowhere = Tokenized.from_pairs(pairs, encoder(), model), torch.device("meta")
    with torch.inference_mode(), NoMasks():
        batch = tokenized.batch(np.arange(len(pairs)), nowhere)
        assert batch.post_of_pair is not None
        scores = copy.deepcopy(model).to(nowhere)(*batch)
    assert (scores.device, scores.shape) == (nowhere, (len(pairs),))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_a_gpu_gives_the_scores_of_the_cpu(model: Reranker) -> None:
    on_gpu = copy.deepcopy(model).to("cuda")
    np.testing.assert_allclose(
        score(on_gpu, all_pairs()), score(model, all_pairs()), rtol=1e-4, atol=1e-4
    )


def test_awkward_texts_score_alone_as_together(model: Reranker) -> None:
    """As queries, as texts of posts and as URLs; pairs in batches, and one by one."""
    texts = list(AWKWARD.values())
    posts = [POSTS[2], *((text, text) for text in texts), *(("water", text) for text in texts)]
    pairs, count = all_pairs([QUERIES[1], *texts], posts), len(posts)
    # Every post with the first query, every query with the first post.
    whole = Tokenized.from_pairs(pairs, encoder(), model)
    whole = whole.take(np.append(np.arange(count), count * np.arange(1, len(texts) + 1)))
    together, alone = (scoring.score_tokenized(model, whole, size) for size in (7, 1))
    assert np.isfinite(together).all()
    np.testing.assert_allclose(alone, together, rtol=1e-5, atol=1e-5)


def test_no_pairs_no_scores(model: Reranker) -> None:
    nothing = np.zeros(0, dtype=np.int64)
    assert score(model, Pairs([], [], [], nothing, nothing)).shape == (0,)


def test_every_trainable_parameter_gets_a_gradient(model: Reranker) -> None:
    if not model.trained_by_gradients:
        pytest.skip("this model has no trainable parameter")
    tokenized = Tokenized.from_pairs(all_pairs(), encoder(), model)
    rows = np.arange(len(tokenized.query_index))
    trained = {key: value for key, value in model.named_parameters() if value.requires_grad}
    assert trained
    steep: dict[str, bool] = dict.fromkeys(trained, False)
    # The listwise loss does not see a shift of all scores; the pointwise one does.
    for loss in (listwise, pointwise):
        model.zero_grad(set_to_none=True)
        loss(tokenized.scores_of(model, rows, CPU).view(len(QUERIES), len(POSTS)), 3).backward()
        for key, value in trained.items():
            assert value.grad is not None, f"{key} has no gradient"
            assert bool(value.grad.isfinite().all()), f"{key} has a gradient that is not finite"
            steep[key] |= bool(value.grad.abs().max() > 0)
    model.zero_grad(set_to_none=True)
    assert all(steep.values()), [key for key, moved in steep.items() if not moved]


def test_gradients_are_finite_for_equal_and_empty_texts(case: tuple[str, str]) -> None:
    """Where lengths and distances are 0; word vectors are trained, if the model can."""
    model = small_model(*case, vectors="positive")
    tokenized = Tokenized.from_pairs(
        all_pairs([QUERIES[1], ""], [(QUERIES[1], ""), ("", "")]), encoder(), model
    )
    if not model.trained_by_gradients:
        pytest.skip("this model has no trainable parameter")
    tokenized.scores_of(model, np.arange(4), CPU).sum().backward()
    gradients = {key: value.grad for key, value in model.named_parameters()}
    assert any(gradient is not None for gradient in gradients.values())
    for key, gradient in gradients.items():
        assert gradient is None or bool(gradient.isfinite().all()), key


def test_saved_and_loaded_gives_identical_scores(
    named: tuple[str, Reranker], tmp_path: Path
) -> None:
    name, model = named
    idf = tmp_path / "idf.tsv"
    idf.write_text("1000\nthe\t900\nin\t800\nworld\t90\nwater\t40\nservice\t30\nbbc\t20\n")
    reader = checkpoint.TextEncoder(encoder().vocabulary, checkpoint.idf_from(str(idf)))
    before = scoring.score(model, all_pairs(), reader)
    checkpoint.save(tmp_path / "saved", name, model, reader, {"note": "é"})
    loaded = checkpoint.load(tmp_path / "saved", name)
    assert loaded.name == name
    assert loaded.metrics == {"note": "é"}
    assert loaded.model.config == model.config
    assert not loaded.model.training
    np.testing.assert_array_equal(loaded.score(all_pairs()), before)


def test_ten_pairs_can_be_overfitted(case: tuple[str, str]) -> None:
    """Labels against the words: only a model that learns can tell the pairs apart."""
    name, configuration = case
    if not models.find(name).trained_by_gradients:
        pytest.skip("this model has no trainable parameter")
    model = small_model(name, configuration, seed=1, hidden=32, dropout=0.0)
    pairs = Tokenized.from_pairs(all_pairs(QUERIES[:1], POSTS[:10]), encoder(), model)
    is_fixed = model.interactions_are_fixed()
    examples = CachedInteractions.compute(model, pairs) if is_fixed else pairs
    order = np.array([5, 6, 1, 9, 3, 0, 2, 4, 7, 8])  # the first three are positives
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.02)
    losses = []
    for _ in range(300):
        loss = listwise(examples.scores_of(model, order, CPU).view(1, 10), 3)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if losses[-1] < 0.1 * losses[0]:
            break
    assert losses[-1] < 0.1 * losses[0], f"the loss fell from {losses[0]} to {losses[-1]} only"


def test_cached_interactions_give_the_same_scores(model: Reranker) -> None:
    if not model.interactions_are_fixed():
        pytest.skip("this configuration trains what comes before the evidence")
    tokenized = Tokenized.from_pairs(all_pairs(), encoder(), model)
    cached = CachedInteractions.compute(model, tokenized)
    rows = np.random.default_rng(1).integers(len(tokenized.query_index), size=60)  # with repeats
    with torch.no_grad():
        torch.testing.assert_close(
            cached.scores_of(model, rows, CPU),
            tokenized.scores_of(model, rows, CPU),
            rtol=1e-5,
            atol=1e-5,
        )
    np.testing.assert_allclose(
        scoring.score_tokenized(model, cached, 7),
        scoring.score_tokenized(model, tokenized),
        rtol=1e-5,
        atol=1e-5,
    )


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("cntn", {"bilinear": "none", "linear": False}),
    ("drmm", {"bins": 1}),
    ("dssm", {"trigram_buckets": 0}),
    ("dssm", {"trigram_buckets": 64_001}),
    ("duet", {"region": 0}),
    ("duet", {"terms": "letters"}),
    ("fusion", {"bagging": 1.5}),
    ("fusion", {"families": "signal:,links"}),
    ("fusion", {"feature_fraction": 0.0}),
    ("fusion", {"objectives": "binary,map"}),
    ("knrm", {"vectors": "dynamic"}),
    ("lambdamart", {"families": "overlap,urls"}),
    ("lambdamart", {"learning_rate": 0.0}),
    ("lambdamart", {"leaves": 1}),
    ("lambdamart", {"parts": 1}),
    ("match_pyramid", {"pooled_rows": 1}),
    ("match_pyramid", {"similarity": "gaussian"}),
    ("mp_cnn", {"l1": "other"}),
    ("pwim", {"channel_share": 0.0}),
    ("pwim", {"size": 0}),
    ("sm_cnn", {"vectors": "statik"}),
]


@pytest.mark.parametrize(("name", "changes"), REFUSED)
def test_impossible_settings_are_errors_that_name_them(name: str, changes: dict[str, Any]) -> None:
    message = rf"settings? .*{next(iter(changes))}.*: found|feature family"
    with pytest.raises(RerankerError, match=message):
        small_model(name, next(iter(models.find(name).configurations)), **changes)
