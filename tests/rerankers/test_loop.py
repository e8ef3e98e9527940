"""The training loop: early stopping, errors, and cached interactions."""

import copy
import dataclasses
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from helpers.reranking_samples import all_pairs, encoder, small_model
from torch import Tensor

from rerankers.errors import RerankerError
from rerankers.networks.base import Reranker
from rerankers.networks.inputs import Tokenized
from rerankers.networks.training import loop
from rerankers.networks.training.loop import Examples, History, compared_once, train
from rerankers.networks.training.settings import Settings

pytestmark = pytest.mark.slow

FAST = Settings(
    epochs=4, steps=5, batch_topics=3, positives=2, negatives=2, learning_rate=5e-3, seed=7
)
LABELS = np.random.default_rng(11).permutation(np.arange(48) % 3 == 0)


def model_of(name: str = "mp_hcnn", configuration: str = "robust") -> Reranker:
    """MP-HCNN's interactions are cached."""
    return small_model(name, configuration, dropout=0.3 if name == "mp_hcnn" else 0.0)


def examples_of(model: Reranker, labels: np.ndarray = LABELS) -> Examples:
    pairs = Tokenized.from_pairs(all_pairs(), encoder(), model)
    is_fixed = model.interactions_are_fixed
    return Examples(compared_once(model, pairs) if is_fixed else pairs, labels)


def run(model: Reranker, settings: Settings = FAST, measure: Any = None, **more: Any) -> History:
    """Train on some pairs; they are the validation, too."""
    data = examples_of(model)
    measured = measure or (lambda scores: float(scores[LABELS].mean() - scores[~LABELS].mean()))
    return train(model, data, more.pop("validation", data), measured, settings, **more)


CHOICES = {each.name: each.metadata.get("choices", ()) for each in dataclasses.fields(Settings)}

# A learning rate for each optimizer that suits these few pairs.
RATES = {"adamw": 1e-2, "adadelta": 1.0, "adagrad": 5e-2, "rmsprop": 5e-3, "sgd": 5e-2}


def settings_of(sampling: str = "random", optimizer: str = "adamw", **changes: Any) -> Settings:
    loss = "pointwise" if sampling == "pairs" else "listwise"
    options = {"loss": loss, "batch_pairs": 10, "learning_rate": RATES[optimizer], **changes}
    return dataclasses.replace(FAST, sampling=sampling, optimizer=optimizer, **options)


@pytest.mark.parametrize(
    ("sampling", "optimizer", "loss"),
    [
        *((sampling, "adamw", "pointwise") for sampling in CHOICES["sampling"]),
        *(("random", optimizer, "listwise") for optimizer in CHOICES["optimizer"]),
        ("random", "adamw", "pairwise"),
    ],
)
def test_every_sampling_optimizer_and_loss_lowers_the_validation_loss(
    sampling: str, optimizer: str, loss: str
) -> None:
    settings = settings_of(sampling, optimizer, epochs=4, steps=15, select="loss", loss=loss)
    history = run(model_of("sm_cnn", "static"), settings)
    for figure in ("training_loss", "validation_loss"):
        values = [epoch[figure] for epoch in history.epochs]
        assert values[-1] < 0.95 * values[0], figure


def test_losses_and_labels_that_teach_nothing_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of()
    with pytest.raises(RerankerError, match="no training topic"):
        train(model, examples_of(model, np.ones(48, dtype=bool)), None, lambda s: 0.0, FAST)
    monkeypatch.setitem(loop.LOSSES, "listwise", lambda scores, count: scores.sum() * torch.nan)
    with pytest.raises(RerankerError, match=r"epoch 1, step 1: the loss is .*`learning_rate`"):
        run(model)


def figures_of(*values: float) -> Any:
    """A measure that returns these figures, one an epoch."""
    left = list(values)
    return lambda scores: left.pop(0)


def test_early_stopping_keeps_the_best_epoch() -> None:
    settings = dataclasses.replace(FAST, epochs=9, patience=2)
    after_epoch: dict[int, dict[str, Tensor]] = {}
    model = model_of()

    def progress(epoch: int, step: int, message: str) -> None:
        if step == 0:
            after_epoch[epoch] = copy.deepcopy(model.state_dict())

    measure = figures_of(0.1, 0.3, 0.2, 0.3, 0.9)
    history = run(model, settings, measure=measure, progress=progress)
    assert history.best == 2
    assert [round(f["validation_map"], 1) for f in history.epochs] == [0.1, 0.3, 0.2, 0.3]
    torch.testing.assert_close(copy.deepcopy(model.state_dict()), after_epoch[2], rtol=0, atol=0)


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
        assert all(set(epoch) == {"training_loss", measured} for epoch in history.epochs)


def test_without_validation_the_last_of_all_epochs_is_best() -> None:
    settings = dataclasses.replace(FAST, epochs=6, patience=1)
    history = run(model_of(), settings, figures_of(), validation=None)  # never called
    assert (len(history.epochs), history.best) == (6, 6)
    assert all(set(figures) == {"training_loss"} for figures in history.epochs)


def test_schedules_of_the_learning_rate(monkeypatch: pytest.MonkeyPatch) -> None:
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
