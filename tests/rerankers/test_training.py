"""Training: settings, losses, pairs of the steps, the loop, early stopping, and errors."""

import copy
import dataclasses
import math
import sys
from collections.abc import Callable, Iterator
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
from tweetrerank.rerankers.networks.layers import ConvolutionTower
from tweetrerank.rerankers.networks.training import loop
from tweetrerank.rerankers.networks.training.loop import (
    BatchSampler,
    Examples,
    History,
    compared_once,
    train,
)
from tweetrerank.rerankers.networks.training.training_settings import Settings
from tweetrerank.rerankers.reranker_error import RerankerError

FAST = Settings(
    epochs=4, steps=5, batch_topics=3, positives=2, negatives=2, learning_rate=5e-3
)
LABELS = np.random.default_rng(11).permutation(np.arange(48) % 3 == 0)
CHOICES = {
    each.name: each.metadata.get("choices", ()) for each in dataclasses.fields(Settings)
}


def model_of(name: str = "mp_hcnn", configuration: str = "robust") -> Reranker:
    """MP-HCNN's interactions are cached."""
    return small_model(name, configuration, dropout=0.3 if name == "mp_hcnn" else 0.0)


def run(
    model: Reranker, settings: Settings = FAST, measure: Any = None, **of: Any
) -> History:
    """Train on some pairs; they are the validation, too."""
    pairs = Tokenized.from_pairs(all_pairs(), encoder(), model)
    pairs = compared_once(model, pairs) if model.interactions_are_fixed else pairs
    data = Examples(pairs, of.pop("labels", LABELS))
    measured = measure or (
        lambda scores: float(scores[LABELS].mean() - scores[~LABELS].mean())
    )
    return train(model, data, of.pop("validation", data), measured, settings, **of)


# A learning rate for each optimizer that suits these few pairs.
RATES = {"adamw": 1e-2, "adadelta": 1.0, "adagrad": 5e-2, "rmsprop": 5e-3, "sgd": 5e-2}


def settings_of(
    sampling: str = "random", optimizer: str = "adamw", **changes: Any
) -> Settings:
    loss = "pointwise" if sampling == "pairs" else "listwise"
    options = {
        "loss": loss,
        "batch_pairs": 10,
        "learning_rate": RATES[optimizer],
        **changes,
    }
    return dataclasses.replace(FAST, sampling=sampling, optimizer=optimizer, **options)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sampling", "optimizer", "loss"),
    [
        *((sampling, "adamw", "pointwise") for sampling in CHOICES["sampling"]),
        *(("random", optimizer, "listwise") for optimizer in CHOICES["optimizer"]),
        ("random", "adamw", "pairwise"),
    ],
)
def test_every_choice_lowers_the_losses(
    sampling: str, optimizer: str, loss: str
) -> None:
    settings = settings_of(
        sampling, optimizer, epochs=4, steps=15, select="loss", loss=loss
    )
    history = run(model_of("sm_cnn", "static"), settings)
    for figure in ("training_loss", "validation_loss"):
        values = [epoch[figure] for epoch in history.epochs]
        assert values[-1] < 0.95 * values[0], figure


def test_losses_and_labels_that_teach_nothing_are_errors(monkeypatch: Patch) -> None:
    with pytest.raises(RerankerError, match="no training topic"):
        run(model_of(), labels=np.ones(48, dtype=bool))
    monkeypatch.setitem(
        loop.LOSSES, "listwise", lambda scores, count: scores.sum() * torch.nan
    )
    with pytest.raises(
        RerankerError, match=r"epoch 1, step 1: the loss is .*`learning_rate`"
    ):
        run(model_of())


def figures_of(*values: float) -> Any:
    """A measure that returns these figures, one an epoch."""
    left = list(values)
    return lambda scores: left.pop(0)


def test_early_stopping_keeps_the_best_epoch() -> None:
    settings = dataclasses.replace(FAST, epochs=9, patience=2)
    after_epoch: dict[int, dict[str, torch.Tensor]] = {}
    model = model_of()

    def progress(epoch: int, step: int, message: str) -> None:
        if step == 0:
            after_epoch[epoch] = copy.deepcopy(model.state_dict())

    measure = figures_of(0.1, 0.3, 0.2, 0.3, 0.9)
    history = run(model, settings, measure=measure, progress=progress)
    assert history.best == 2
    assert [round(f["validation_map"], 1) for f in history.epochs] == [
        0.1,
        0.3,
        0.2,
        0.3,
    ]
    torch.testing.assert_close(
        copy.deepcopy(model.state_dict()), after_epoch[2], rtol=0, atol=0
    )


@pytest.mark.parametrize("select", CHOICES["select"])
def test_best_epoch_by_each_figure(select: str) -> None:
    """The lowest loss or the highest measure, recorded by its name."""
    settings = dataclasses.replace(FAST, select=select, patience=9, learning_rate=0.3)
    history = run(model_of(), settings, measure=figures_of(0.2, 0.5, 0.9, 0.6))
    measured = "validation_mrr" if select == "mrr" else "validation_map"
    assert [epoch[measured] for epoch in history.epochs] == [0.2, 0.5, 0.9, 0.6]
    if select == "loss":
        figures = [epoch["validation_loss"] for epoch in history.epochs]
        assert history.best == 1 + figures.index(min(figures))
    else:
        assert history.best == 3
        assert all(
            set(epoch) == {"training_loss", measured} for epoch in history.epochs
        )


def test_without_validation_the_last_of_all_epochs_is_best() -> None:
    settings = dataclasses.replace(FAST, epochs=6, patience=1)
    history = run(model_of(), settings, figures_of(), validation=None)  # never called
    assert (len(history.epochs), history.best) == (6, 6)
    assert all(set(figures) == {"training_loss"} for figures in history.epochs)


def test_schedules_of_the_learning_rate(monkeypatch: Patch) -> None:
    settings = settings_of(optimizer="sgd", epochs=5, patience=9, learning_rate=0.8)
    real_step, rates = torch.optim.SGD.step, list[float]()

    def step(self: torch.optim.SGD, closure: Any = None) -> Any:
        rates.append(self.param_groups[0]["lr"])
        return real_step(self, closure)

    monkeypatch.setattr(torch.optim.SGD, "step", step)
    expected = {
        "linear": [0.8 * (1 - 0.9 * done / 5) for done in range(5)],
        "constant": [0.8] * 5,
        "plateau": [0.8, 0.8, 0.8, 0.4, 0.2],
    }
    for schedule, of_epochs in expected.items():
        rates.clear()
        changed = dataclasses.replace(settings, schedule=schedule)
        run(model_of(), changed, figures_of(0.1, 0.3, 0.2, 0.2, 0.5))
        assert rates[:: settings.steps] == pytest.approx(of_epochs)


def test_epoch_without_a_number_of_steps_is_a_pass_over_the_pairs() -> None:
    settings = settings_of("pairs", epochs=2, steps=0, batch_pairs=20, select="loss")
    seen: list[tuple[int, int]] = []
    history = run(model_of(), settings, progress=lambda *now: seen.append(now[:2]))
    # 48 pairs in steps of 20
    assert [now for now in seen if now[1]] == [*product((1, 2), (1, 2, 3))]
    assert all(0 < figures["validation_loss"] < 2 for figures in history.epochs)


# Loss -> its terms for one list
NAIVE: dict[str, Callable[[list[float], list[float]], list[float]]] = {
    "pointwise": lambda positives, negatives: [
        math.log(1 + math.exp(-s)) for s in (*positives, *(-n for n in negatives))
    ],
    "pairwise": lambda positives, negatives: [
        max(0, 1 - p + n) for p in positives for n in negatives
    ],
    "listwise": lambda positives, negatives: [
        math.log(1 + sum(math.exp(n - p) for n in negatives)) for p in positives
    ],
}


@pytest.mark.parametrize(("lists", "positives", "negatives"), [(1, 1, 1), (4, 3, 7)])
@pytest.mark.parametrize("name", loop.LOSSES)
def test_losses_are_means_over_loops(
    name: str, lists: int, positives: int, negatives: int
) -> None:
    torch.manual_seed(lists + positives)
    scores = 3 * torch.randn(lists, positives + negatives, dtype=torch.float64)
    of_lists = [
        NAIVE[name](row[:positives], row[positives:]) for row in scores.tolist()
    ]
    terms = [term for row in of_lists for term in row]
    assert loop.LOSSES[name](scores, positives).item() == pytest.approx(
        sum(terms) / len(terms)
    )
    extreme = torch.tensor([[1e4, -1e4, 1e4, -1e4]], requires_grad=True)
    loss = loop.LOSSES[name](extreme, 2)
    loss.backward()
    assert (
        loss.isfinite() and extreme.grad is not None and extreme.grad.isfinite().all()
    )


@pytest.mark.parametrize(("has_bfloat16", "used"), [(False, "fp32"), (True, "bf16")])
def test_low_precision(has_bfloat16: bool, used: str, monkeypatch: Patch) -> None:
    """Processors without it emulate it, many times slower."""
    monkeypatch.setattr(devices, "has_bfloat16", lambda _: has_bfloat16)
    run(
        model := model_of(configuration="paper"),
        dataclasses.replace(FAST, precision="bf16"),
    )
    assert {
        m.precision for m in model.modules() if isinstance(m, ConvolutionTower)
    } == {used}


def test_settings_name_all_mistakes_at_once() -> None:
    wrong = {
        "loss": "pairwize",
        "optimizer": "adam",
        "sampling": "hard",
        "select": "ndcg",
    }
    with pytest.raises(RerankerError) as caught:
        Settings(**wrong, schedule="cosine", steps=0, held_out=1.5)
    assert str(caught.value).splitlines() == [
        "setting loss: found 'pairwize', expected one of listwise, pairwise, pointwise",
        "setting optimizer: found 'adam', expected one of adamw, adadelta, adagrad, rmsprop, sgd",
        "setting schedule: found 'cosine', expected one of linear, constant, plateau",
        "setting sampling: found 'hard', expected one of random, max, mix, corrupted, pairs",
        "setting select: found 'ndcg', expected one of map, mrr, loss",
        "setting held_out: found 1.5, expected a share in (0, 1)",
        "setting steps: found 0, one pass over all relevant posts, with 3 of them in a list; "
        "expected `positives` 1, or a number of steps",
    ]
    assert Settings(loss="pointwise", sampling="pairs").sampling == "pairs"
    message = "found pairs with the loss listwise.*expected the loss pointwise"
    with pytest.raises(RerankerError, match=message):
        Settings(loss="listwise", sampling="pairs")


# Topic 0 has both kinds, 1 only negatives, 2 only positives, 3 one of each, 4 many; mixed up.
QUERY_INDEX = np.array([4, 0, 0, 1, 2, 3, 3, 0, 1, *[4] * 30])
RELEVANT = np.array([0, 1, 0, 0, 1, 1, 0, 0, 0, *[1] * 25, *[0] * 5], dtype=bool)
VECTORS = np.random.default_rng(3).normal(size=(len(QUERY_INDEX), 5))


def sampler_of(sampling: str, **changes: Any) -> BatchSampler:
    loss = "pointwise" if sampling == "pairs" else "listwise"
    options = {"batch_topics": 30, "positives": 2, "seed": 3} | changes
    examples = Examples(SimpleNamespace(query_index=QUERY_INDEX), RELEVANT)
    return BatchSampler(examples, Settings(loss, sampling=sampling, **options))


def drawn(sampler: BatchSampler, steps: int = 1) -> Iterator[list[int]]:
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
    monkeypatch: Patch, sampling: str, count: int
) -> None:
    vectors = torch.from_numpy(VECTORS).float()
    monkeypatch.setattr(network, "represent_tokenized", lambda model, pairs: vectors)
    sampler = sampler_of(sampling, negatives=count)
    sampler.start_epoch(None, 2)
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


def test_missing_faiss_is_explained(monkeypatch: Patch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    monkeypatch.setattr(
        network, "represent_tokenized", lambda model, pairs: torch.ones(39, 5)
    )
    with pytest.raises(
        RerankerError, match=r"pip install 'tweetrerank\[cpu\]'.*`sampling` random"
    ):
        sampler_of("max").start_epoch(None, 2)


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
    sampler = sampler_of(
        "random", steps=0, batch_topics=lists, positives=1, negatives=2
    )
    steps = sampler.examples.steps_of_epoch(
        Settings(steps=0, positives=1, batch_topics=lists)
    )
    rows = np.array([*drawn(sampler, steps)])
    assert (len(rows), len({*rows[:, 0]})) == (27, 27)
    assert RELEVANT[rows[:, 0]].all() and not RELEVANT[rows[:, 1:]].any()
    assert {*map(len, map(set, QUERY_INDEX[rows]))} == {1}
