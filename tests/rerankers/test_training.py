"""Training: settings, losses, pairs of steps, the loop, early stopping, errors."""

import copy
import dataclasses
import math
import sys
from collections.abc import Callable
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Patch
from helpers.reranking_samples import all_pairs, encoder, small_model

from tweetrerank.rerankers import devices
from tweetrerank.rerankers.networks import network
from tweetrerank.rerankers.networks.base import Reranker
from tweetrerank.rerankers.networks.inputs import Tokenized
from tweetrerank.rerankers.networks.layers.convolutions import ConvolutionTower
from tweetrerank.rerankers.networks.training.examples import Examples, compared_once
from tweetrerank.rerankers.networks.training.loop import History, train
from tweetrerank.rerankers.networks.training.losses import LOSSES
from tweetrerank.rerankers.networks.training.sampling import BatchSampler
from tweetrerank.rerankers.networks.training.training_settings import Settings
from tweetrerank.rerankers.reranker_error import RerankerError

FAST = Settings(
    epochs=4,
    steps=5,
    batch_topics=3,
    positives=2,
    negatives=2,
    learning_rate=5e-3,
)
LABELS = np.random.default_rng(11).permutation(np.arange(48) % 3 == 0)
CHOICES = {
    field.name: field.metadata.get("choices", ())
    for field in dataclasses.fields(Settings)
}


def model_of(name: str = "mp_hcnn", configuration: str = "robust") -> Reranker:
    """MP-HCNN's interactions are cached."""
    dropout = 0.3 if name == "mp_hcnn" else 0.0
    return small_model(name, configuration, dropout=dropout)


def difference_of_means(scores: np.ndarray) -> float:
    return float(scores[LABELS].mean() - scores[~LABELS].mean())


def run(
    model: Reranker,
    settings: Settings = FAST,
    measure: Callable[..., float] = difference_of_means,
    labels: np.ndarray = LABELS,
    has_validation: bool = True,
    **more: Any,
) -> History:
    """Train on some pairs; the validation has the same pairs."""
    pairs = Tokenized.from_pairs(all_pairs(), encoder(), model)
    if model.interactions_are_fixed:
        pairs = compared_once(model, pairs)
    examples = Examples(pairs, labels)
    validation = examples if has_validation else None
    return train(
        model,
        examples,
        validation,
        measure,
        settings,
        **more,
    )


RATES = {"adamw": 1e-2, "adadelta": 1.0, "adagrad": 5e-2, "rmsprop": 5e-3, "sgd": 5e-2}
"""Optimizer -> a learning rate that suits these few pairs."""


def settings_of(
    sampling: str = "random",
    optimizer: str = "adamw",
    **changes: Any,
) -> Settings:
    options = {
        "loss": "pointwise" if sampling == "pairs" else "listwise",
        "batch_pairs": 10,
        "learning_rate": RATES[optimizer],
    }
    options |= changes
    return dataclasses.replace(
        FAST,
        sampling=sampling,
        optimizer=optimizer,
        **options,
    )


TRAINED_CHOICES = [
    *[(sampling, "adamw", "pointwise") for sampling in CHOICES["sampling"]],
    *[("random", optimizer, "listwise") for optimizer in CHOICES["optimizer"]],
    ("random", "adamw", "pairwise"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("sampling", "optimizer", "loss"), TRAINED_CHOICES)
def test_every_choice_lowers_the_losses(
    sampling: str,
    optimizer: str,
    loss: str,
) -> None:
    settings = settings_of(
        sampling,
        optimizer,
        epochs=4,
        steps=15,
        select="loss",
        loss=loss,
    )
    history = run(model_of("sm_cnn", "static"), settings)
    for figure in ("training_loss", "validation_loss"):
        first = history.epochs[0][figure]
        last = history.epochs[-1][figure]
        assert last < 0.95 * first, figure


def test_labels_that_teach_nothing_are_an_error() -> None:
    with pytest.raises(RerankerError, match="no training topic"):
        run(model_of(), labels=np.ones(48, dtype=bool))


def test_a_loss_that_is_not_a_number_is_an_error(monkeypatch: Patch) -> None:
    def not_a_number(scores: torch.Tensor, positives: int) -> torch.Tensor:
        return scores.sum() * torch.nan

    monkeypatch.setitem(LOSSES, "listwise", not_a_number)
    message = r"epoch 1, step 1: the loss is .*`learning_rate`"
    with pytest.raises(RerankerError, match=message):
        run(model_of())


def figures_of(*values: float) -> Callable[..., float]:
    """A measure that returns these figures, one after each epoch."""
    remaining = iter(values)
    return lambda scores: next(remaining)


def test_early_stopping_keeps_the_best_epoch() -> None:
    settings = dataclasses.replace(FAST, epochs=9, patience=2)
    after_epoch: dict[int, dict[str, torch.Tensor]] = {}
    model = model_of()

    def progress(epoch: int, step: int, message: str) -> None:
        if step == 0:
            after_epoch[epoch] = copy.deepcopy(model.state_dict())

    measure = figures_of(
        0.1,
        0.3,
        0.2,
        0.3,
        0.9,
    )
    history = run(
        model,
        settings,
        measure,
        progress=progress,
    )
    assert history.best == 2
    figures = [round(epoch["validation_map"], 1) for epoch in history.epochs]
    assert figures == [0.1, 0.3, 0.2, 0.3]
    weights = copy.deepcopy(model.state_dict())
    torch.testing.assert_close(
        weights,
        after_epoch[2],
        rtol=0,
        atol=0,
    )


def test_the_best_epoch_has_the_lowest_loss() -> None:
    settings = dataclasses.replace(
        FAST,
        select="loss",
        patience=9,
        learning_rate=0.3,
    )
    history = run(model_of(), settings, figures_of(0.2, 0.5, 0.9, 0.6))
    figures = [epoch["validation_map"] for epoch in history.epochs]
    assert figures == [0.2, 0.5, 0.9, 0.6]
    losses = [epoch["validation_loss"] for epoch in history.epochs]
    assert history.best == 1 + losses.index(min(losses))


@pytest.mark.parametrize("select", ["map", "mrr"])
def test_the_best_epoch_has_the_highest_measure(select: str) -> None:
    """The history records it by its name."""
    settings = dataclasses.replace(
        FAST,
        select=select,
        patience=9,
        learning_rate=0.3,
    )
    history = run(model_of(), settings, figures_of(0.2, 0.5, 0.9, 0.6))
    name = f"validation_{select}"
    assert [epoch[name] for epoch in history.epochs] == [0.2, 0.5, 0.9, 0.6]
    assert history.best == 3
    for figures in history.epochs:
        assert set(figures) == {"training_loss", name}


def test_without_validation_the_last_of_all_epochs_is_best() -> None:
    settings = dataclasses.replace(FAST, epochs=6, patience=1)
    never_called = figures_of()
    history = run(
        model_of(),
        settings,
        never_called,
        has_validation=False,
    )
    assert len(history.epochs) == 6
    assert history.best == 6
    for figures in history.epochs:
        assert set(figures) == {"training_loss"}


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("linear", [0.8 * (1 - 0.9 * done / 5) for done in range(5)]),
        ("constant", [0.8] * 5),
        ("plateau", [0.8, 0.8, 0.8, 0.4, 0.2]),
    ],
)
def test_schedules_of_the_learning_rate(
    monkeypatch: Patch,
    schedule: str,
    expected: list[float],
) -> None:
    settings = settings_of(
        optimizer="sgd",
        epochs=5,
        patience=9,
        learning_rate=0.8,
        schedule=schedule,
    )
    real_step = torch.optim.SGD.step
    rates: list[float] = []

    def step(self: torch.optim.SGD, closure: Any = None) -> Any:
        rates.append(self.param_groups[0]["lr"])
        return real_step(self, closure)

    monkeypatch.setattr(torch.optim.SGD, "step", step)
    run(model_of(), settings, figures_of(0.1, 0.3, 0.2, 0.2, 0.5))
    first_of_epochs = rates[:: settings.steps]
    assert first_of_epochs == pytest.approx(expected)


def test_epoch_without_a_number_of_steps_is_a_pass_over_the_pairs() -> None:
    settings = settings_of(
        "pairs",
        epochs=2,
        steps=0,
        batch_pairs=20,
        select="loss",
    )
    reports: list[tuple[int, int]] = []

    def progress(epoch: int, step: int, message: str) -> None:
        reports.append((epoch, step))

    history = run(model_of(), settings, progress=progress)
    steps = [(epoch, step) for epoch, step in reports if step > 0]
    # 48 pairs in steps of 20
    assert steps == list(product((1, 2), (1, 2, 3)))
    for figures in history.epochs:
        assert 0 < figures["validation_loss"] < 2


def naive_pointwise(
    positives: list[float],
    negatives: list[float],
) -> list[float]:
    terms = [math.log(1 + math.exp(-score)) for score in positives]
    return terms + [math.log(1 + math.exp(score)) for score in negatives]


def naive_pairwise(
    positives: list[float],
    negatives: list[float],
) -> list[float]:
    pairs = product(positives, negatives)
    return [max(0, 1 - positive + negative) for positive, negative in pairs]


def naive_listwise(
    positives: list[float],
    negatives: list[float],
) -> list[float]:
    terms = []
    for positive in positives:
        total = sum(math.exp(negative - positive) for negative in negatives)
        terms.append(math.log(1 + total))
    return terms


# Loss -> its terms for one list
NAIVE = {
    "pointwise": naive_pointwise,
    "pairwise": naive_pairwise,
    "listwise": naive_listwise,
}


@pytest.mark.parametrize(("lists", "positives", "negatives"), [(1, 1, 1), (4, 3, 7)])
@pytest.mark.parametrize("name", LOSSES)
def test_losses_are_means_over_loops(
    name: str,
    lists: int,
    positives: int,
    negatives: int,
) -> None:
    torch.manual_seed(lists + positives)
    scores = 3 * torch.randn(lists, positives + negatives, dtype=torch.float64)
    terms = []
    for row in scores.tolist():
        terms += NAIVE[name](row[:positives], row[positives:])
    loss = LOSSES[name](scores, positives).item()
    assert loss == pytest.approx(sum(terms) / len(terms))


@pytest.mark.parametrize("name", LOSSES)
def test_losses_of_extreme_scores_are_finite(name: str) -> None:
    scores = torch.tensor([[1e4, -1e4, 1e4, -1e4]], requires_grad=True)
    loss = LOSSES[name](scores, 2)
    loss.backward()
    assert loss.isfinite()
    assert scores.grad is not None
    assert scores.grad.isfinite().all()


@pytest.mark.parametrize(
    ("has_bfloat16", "precision"),
    [(False, "fp32"), (True, "bf16")],
)
def test_low_precision(has_bfloat16: bool, precision: str, monkeypatch: Patch) -> None:
    """Processors without it emulate it, many times slower."""
    monkeypatch.setattr(devices, "has_bfloat16", lambda _: has_bfloat16)
    model = model_of(configuration="paper")
    run(model, dataclasses.replace(FAST, precision="bf16"))
    precisions = set()
    for module in model.modules():
        if isinstance(module, ConvolutionTower):
            precisions.add(module.precision)
    assert precisions == {precision}


def test_settings_name_all_mistakes_at_once() -> None:
    with pytest.raises(RerankerError) as caught:
        Settings(
            loss="pairwize",
            optimizer="adam",
            sampling="hard",
            select="ndcg",
            schedule="cosine",
            steps=0,
            held_out=1.5,
        )
    assert str(caught.value).splitlines() == [
        "setting loss: found 'pairwize', expected one of listwise, pairwise, pointwise",
        "setting optimizer: found 'adam', expected one of adamw, adadelta, adagrad, "
        "rmsprop, sgd",
        "setting schedule: found 'cosine', expected one of linear, constant, plateau",
        "setting sampling: found 'hard', expected one of random, max, mix, corrupted, "
        "pairs",
        "setting select: found 'ndcg', expected one of map, mrr, loss",
        "setting held_out: found 1.5, expected a share in (0, 1)",
        "setting steps: found 0, one pass over all relevant posts, with 3 of them in a "
        "list; expected `positives` 1, or a number of steps",
    ]


def test_single_pairs_have_no_loss_of_lists() -> None:
    assert Settings(loss="pointwise", sampling="pairs").sampling == "pairs"
    message = "found pairs with the loss listwise.*expected the loss pointwise"
    with pytest.raises(RerankerError, match=message):
        Settings(loss="listwise", sampling="pairs")


# Topic 0 has both kinds, 1 only negatives, 2 only positives, 3 one of each, 4 many;
# mixed up.
QUERY_INDEX = np.array([4, 0, 0, 1, 2, 3, 3, 0, 1] + [4] * 30)
RELEVANT = np.array([0, 1, 0, 0, 1, 1, 0, 0, 0] + [1] * 25 + [0] * 5, dtype=bool)
VECTORS = np.random.default_rng(3).normal(size=(len(QUERY_INDEX), 5))


def sampler_of(sampling: str, **changes: Any) -> BatchSampler:
    loss = "pointwise" if sampling == "pairs" else "listwise"
    options = {"batch_topics": 30, "positives": 2, "seed": 3} | changes
    examples = Examples(SimpleNamespace(query_index=QUERY_INDEX), RELEVANT)
    return BatchSampler(examples, Settings(loss, sampling=sampling, **options))


def drawn(
    sampler: BatchSampler,
    steps: int = 1,
) -> list[list[int]]:
    """Lists of rows of the first steps."""
    rng = np.random.default_rng(0)
    lists = []
    for step in range(steps):
        rows, _ = sampler.draw(step, rng)
        lists += rows.tolist()
    return lists


def topics_of(rows: list[int]) -> set[int]:
    return set(QUERY_INDEX[rows].tolist())


def test_lists_have_positives_and_negatives_of_one_topic() -> None:
    lists = drawn(sampler_of("random", positives=3, negatives=2))
    rows = np.array(lists)
    assert rows.shape == (30, 9)
    assert RELEVANT[rows[:, :3]].all()
    assert not RELEVANT[rows[:, 3:]].any()
    assert all(len(topics_of(row)) == 1 for row in lists)
    assert set(QUERY_INDEX[rows[:, 0]]) == {0, 3, 4}


def nearest(positive: int) -> list[int]:
    """Its topic's negatives, most similar first."""
    unit = VECTORS / np.linalg.norm(VECTORS, axis=1, keepdims=True)
    topic = QUERY_INDEX[positive]
    is_of_topic = topic == QUERY_INDEX
    rows = np.flatnonzero(is_of_topic & ~RELEVANT)
    return rows[np.argsort(-unit[rows] @ unit[positive])].tolist()


@pytest.mark.parametrize(
    ("sampling", "count", "mined"),
    [
        ("max", 1, 1),
        ("max", 5, 5),
        ("mix", 1, 1),
        ("mix", 5, 3),
    ],
)
def test_mined_lists_hold_the_nearest(
    monkeypatch: Patch,
    sampling: str,
    count: int,
    mined: int,
) -> None:
    vectors = torch.from_numpy(VECTORS).float()
    monkeypatch.setattr(network, "represent_tokenized", lambda model, pairs: vectors)
    sampler = sampler_of(sampling, negatives=count)
    sampler.start_epoch(None, 2)
    random_negatives: set[int] = set()
    for row in drawn(sampler):
        for number, positive in enumerate(row[:2]):
            start = 2 + number * count
            block = row[start : start + count]
            negatives = nearest(positive)
            # A topic with few negatives gives them again.
            assert block[:mined] == np.resize(negatives[:count], mined).tolist()
            assert set(block) <= set(negatives)
            random_negatives.update(block[mined:])
    assert len(random_negatives) == (9 if mined < count else 0)
    assert torch.equal(vectors, torch.from_numpy(VECTORS).float())


def test_missing_faiss_is_explained(monkeypatch: Patch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    vectors = torch.ones(39, 5)
    monkeypatch.setattr(network, "represent_tokenized", lambda model, pairs: vectors)
    message = r"pip install 'tweetrerank\[cpu\]'.*`sampling` random"
    with pytest.raises(RerankerError, match=message):
        sampler_of("max").start_epoch(None, 2)


def test_corrupted_pairs_have_posts_of_other_topics() -> None:
    model = small_model("sm_cnn", "static")
    pairs = Tokenized.from_pairs(all_pairs(), encoder(), model)
    # Each topic has other posts.
    pairs = pairs.take(np.flatnonzero(pairs.post_index % 4 == pairs.query_index))
    count = len(pairs.query_index)
    relevant = np.arange(count) % 3 == 0
    settings = Settings(
        sampling="corrupted",
        positives=1,
        negatives=4,
        batch_topics=4,
    )
    sampler = BatchSampler(Examples(pairs, relevant), settings)
    examples = sampler.examples
    assert len(examples.relevant) == count + 4 * relevant.sum()
    assert not examples.relevant[count:].any()
    assert not examples.pairs.prior[count:].any()  # They are in no run.
    for row in drawn(sampler, 10):
        queries = examples.pairs.query_index[row]
        assert len(set(queries)) == 1
        assert examples.relevant[row[0]]
        assert min(row[1:]) >= count
        topics = examples.pairs.post_index[row] % 4
        assert (topics[1:] != topics[0]).all()


@pytest.mark.parametrize("batch", [4, 39, 50])
def test_every_pair_comes_once_in_a_pass(batch: int) -> None:
    """Steps follow each other through the passes, across their borders too."""
    steps = drawn(sampler_of("pairs", batch_pairs=batch), 39)
    assert {len(step) for step in steps} == {batch}
    # 39 pairs: as many passes as pairs in a batch
    assert (np.bincount(np.concatenate(steps)) == batch).all()


def test_passes_are_shuffled_differently() -> None:
    first, second = drawn(sampler_of("pairs", batch_pairs=39), 2)
    assert sorted(first) == sorted(second)
    # A step has its positives first.
    assert sorted(first) != first
    assert first != second


@pytest.mark.parametrize("lists", [1, 3])
def test_every_positive_comes_once_in_a_pass_of_lists(lists: int) -> None:
    """Posts of topics without negatives are left out: 27 positives are in lists."""
    changes = {"steps": 0, "batch_topics": lists, "positives": 1}
    sampler = sampler_of("random", negatives=2, **changes)
    steps = sampler.examples.steps_of_epoch(Settings(**changes))
    drawn_lists = drawn(sampler, steps)
    rows = np.array(drawn_lists)
    assert len(rows) == 27
    assert len(set(rows[:, 0])) == 27
    assert RELEVANT[rows[:, 0]].all()
    assert not RELEVANT[rows[:, 1:]].any()
    assert all(len(topics_of(row)) == 1 for row in drawn_lists)
