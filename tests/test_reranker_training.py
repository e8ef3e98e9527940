"""The training loop: resuming, stopping early, what it refuses, and the cached interactions."""

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from reranking_samples import all_pairs, encoder, small_model
from safetensors.torch import save_file
from torch import Tensor

from rerankers.base import Reranker
from rerankers.engine.tokenized import Tokenized
from rerankers.errors import RerankerError
from rerankers.training import loop
from rerankers.training import losses as loss_functions
from rerankers.training.interactions import CachedInteractions
from rerankers.training.loop import Examples, train
from rerankers.training.settings import LOSSES, OPTIMIZERS, SAMPLINGS, SELECTIONS, Settings
from rerankers.training.sparse_adamw import SparseAdamW
from rerankers.training.state import History

FAST = Settings(
    epochs=4, steps=5, batch_topics=3, positives=2, negatives=2, learning_rate=5e-3, seed=7
)
LABELS = np.random.default_rng(11).permutation(np.arange(48) % 3 == 0)


def model_of(configuration: str = "robust", seed: int = 0) -> Reranker:
    return small_model("mp_hcnn", configuration, seed=seed, dropout=0.3)


def examples(model: Reranker, labels: np.ndarray = LABELS) -> Examples:
    encoded = Tokenized.of(all_pairs(), encoder(), model)
    cached = CachedInteractions.of(model, encoded) if model.interactions_are_fixed() else encoded
    return Examples(cached, labels)


def run(
    model: Reranker, state: Path, settings: Settings = FAST, validate: bool = True,
    measure: Any = None, **options: Any,
) -> History:  # fmt: skip
    data = examples(model)
    measured = measure or (lambda scores: float(scores[LABELS].mean() - scores[~LABELS].mean()))
    return train(model, data, data if validate else None, measured, settings, state, **options)


def weights(model: Reranker) -> dict[str, Tensor]:
    return {key: value.clone() for key, value in model.state_dict().items()}


def assert_same(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    assert a.keys() == b.keys()
    for key in a:
        assert torch.equal(a[key], b[key]), key


def interrupt_at(epoch: int, step: int) -> Any:
    def progress(now: int, done: int, message: str) -> None:
        if (now, done) == (epoch, step):
            raise KeyboardInterrupt

    return progress


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("configuration", ["robust", "paper"])
@pytest.mark.parametrize("epoch", [1, 3])
def test_resumed_training_ends_with_the_same_weights(
    tmp_path: Path, optimizer: str, configuration: str, epoch: int
) -> None:
    settings = dataclasses.replace(FAST, optimizer=optimizer)
    whole = model_of(configuration)
    history = run(whole, tmp_path / "whole", settings)
    state = tmp_path / "state"
    with pytest.raises(KeyboardInterrupt):
        run(model_of(configuration), state, settings, progress=interrupt_at(epoch, 3))
    # What else the process has drawn must not matter.
    torch.manual_seed(99)
    resumed = model_of(configuration)
    seen: list[int] = []
    again = run(
        resumed, state, settings, resume=True, progress=lambda now, done, text: seen.append(now)
    )
    assert min(seen) == epoch, "began from another epoch than the interrupted one"
    assert again == history
    assert_same(weights(resumed), weights(whole))


def test_resuming_what_had_ended_changes_nothing(tmp_path: Path) -> None:
    whole = model_of()
    history = run(whole, tmp_path / "state")
    again = model_of(seed=5)
    assert run(again, tmp_path / "state", resume=True) == history
    assert_same(weights(again), weights(whole))


def test_without_resume_a_state_file_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("of another day")
    first, second = model_of(), model_of()
    run(first, tmp_path / "state")
    run(second, tmp_path / "state")
    assert_same(weights(first), weights(second))


def test_seeds_matter(tmp_path: Path) -> None:
    first, second = model_of(), model_of()
    run(first, tmp_path / "a")
    run(second, tmp_path / "b", dataclasses.replace(FAST, seed=8))
    assert any(not torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(),
                                                     strict=True))  # fmt: skip


def test_every_step_of_every_epoch_sees_other_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[bytes] = []
    draw = loop.random_lists

    def spy(*arguments: Any) -> np.ndarray:
        rows = draw(*arguments)
        drawn.append(rows.tobytes())
        return rows

    monkeypatch.setattr(loop, "random_lists", spy)
    run(model_of(), tmp_path / "state", validate=False)
    assert len(drawn) == len(set(drawn)) == FAST.epochs * FAST.steps


def test_what_is_not_trainable_stays(tmp_path: Path) -> None:
    model = model_of()
    before = weights(model)
    run(model, tmp_path / "state")
    trained = {key for key, value in model.named_parameters() if value.requires_grad}
    for key, value in weights(model).items():
        assert torch.equal(value, before[key]) is (key not in trained), key


@pytest.mark.parametrize("loss", ["listwise", "pairwise", "pointwise"])
@pytest.mark.parametrize("configuration", ["robust", "paper"])
def test_every_loss_falls(tmp_path: Path, loss: str, configuration: str) -> None:
    settings = dataclasses.replace(FAST, loss=loss, epochs=6, steps=15, learning_rate=2e-2)
    model = small_model("mp_hcnn", configuration, hidden=32, dropout=0.0)
    history = run(model, tmp_path / "state", settings, validate=False)
    losses = [figures["training_loss"] for figures in history.epochs]
    assert losses[-1] < 0.8 * losses[0]


def test_the_learning_rate_falls_linearly_to_a_tenth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates: list[float] = []
    set_rate = loop._set_learning_rate

    def spy(optimizer: torch.optim.Optimizer, settings: Settings, step: int) -> None:
        set_rate(optimizer, settings, step)
        rates.append(optimizer.param_groups[0]["lr"])

    monkeypatch.setattr(loop, "_set_learning_rate", spy)
    run(model_of(), tmp_path / "state", validate=False)
    expected = [5e-3 * (1 - 0.9 * step / 20) for step in range(20)]
    np.testing.assert_allclose(rates, expected)


def figures_of(*values: float) -> Any:
    """A measure that gives these figures, one an epoch."""
    left = list(values)
    return lambda scores: left.pop(0)


def test_early_stopping_stops_and_the_best_epoch_is_kept(tmp_path: Path) -> None:
    settings = dataclasses.replace(FAST, epochs=9, patience=2)
    after_epoch: dict[int, dict[str, Tensor]] = {}
    model = model_of()

    def progress(epoch: int, step: int, message: str) -> None:
        if step == 0:
            after_epoch[epoch] = weights(model)

    measure = figures_of(0.1, 0.3, 0.2, 0.3, 0.9)
    history = run(model, tmp_path / "state", settings, measure=measure, progress=progress)
    assert history.best == 2
    assert [round(f["validation_map"], 1) for f in history.epochs] == [0.1, 0.3, 0.2, 0.3]
    assert_same(weights(model), after_epoch[2])
    resumed = model_of(seed=3)
    assert run(resumed, tmp_path / "state", settings, resume=True) == history
    assert_same(weights(resumed), weights(model))


def test_a_late_best_epoch_gives_more_epochs(tmp_path: Path) -> None:
    settings = dataclasses.replace(FAST, epochs=5, patience=2)
    history = run(
        model_of(), tmp_path / "state", settings, measure=figures_of(0.1, 0.05, 0.2, 0.1, 0.3)
    )
    assert (history.best, len(history.epochs)) == (5, 5)


def test_select_by_loss_and_by_map(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for select, best in (("map", 1), ("loss", 3)):
        losses = [0.9, 0.8, 0.4, 0.5]
        monkeypatch.setattr(
            loop, "_validation_loss", lambda *_, left=losses: left.pop(0)
        )  # fmt: skip
        history = run(
            model_of(), tmp_path / select, dataclasses.replace(FAST, select=select),
            measure=figures_of(0.9, 0.8, 0.7, 0.6),
        )  # fmt: skip
        assert history.best == best
        assert len(history.epochs) == 4


def test_without_validation_all_epochs_are_run_and_the_last_is_best(tmp_path: Path) -> None:
    def never(scores: np.ndarray) -> float:
        raise AssertionError("measured without validation pairs")

    settings = dataclasses.replace(FAST, epochs=6, patience=1)
    history = run(model_of(), tmp_path / "state", settings, validate=False, measure=never)
    assert (len(history.epochs), history.best) == (6, 6)
    assert all(set(figures) == {"training_loss"} for figures in history.epochs)


def test_validation_loss_is_of_the_same_lists_after_every_epoch() -> None:
    model = model_of()
    data = examples(model)
    first = loop._validation_loss(model, data, FAST)
    np.random.default_rng().random(5)
    torch.manual_seed(1)
    assert loop._validation_loss(model, data, FAST) == first > 0
    unjudged = Examples(data.encoded, np.zeros(48, dtype=bool))
    assert loop._validation_loss(model, unjudged, FAST) == 0.0


@pytest.mark.parametrize(
    "change", [{"learning_rate": 1e-3}, {"seed": 8}, {"epochs": 5}, {"loss": "pairwise"}]
)
def test_a_state_file_of_other_settings_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    run(model_of(), tmp_path / "state.safetensors")
    with pytest.raises(RerankerError, match=r"state\.safetensors: .*had other settings"):
        run(
            model_of(), tmp_path / "state.safetensors", dataclasses.replace(FAST, **change),
            resume=True,
        )  # fmt: skip


@pytest.mark.parametrize("kept", [0, 5, 100, -1])
def test_a_truncated_state_file_is_refused(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "state.safetensors"
    run(model_of(), path)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(RerankerError, match=r"state\.safetensors: .*without --resume"):
        run(model_of(), path, resume=True)


def test_a_state_file_of_another_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    run(model_of("paper"), path)
    with pytest.raises(RerankerError, match=r"state\.safetensors: .*without --resume"):
        run(model_of("robust"), path, resume=True)


def test_a_file_that_is_no_state_of_training_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    save_file({"x": torch.zeros(2)}, path)
    with pytest.raises(RerankerError, match=r"state\.safetensors: .*without --resume"):
        run(model_of(), path, resume=True)


def test_a_failed_write_leaves_the_state_of_the_epoch_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = model_of()
    run(whole, tmp_path / "whole")
    state, calls = tmp_path / "states" / "state", []

    def full(tensors: object, path: str, metadata: object) -> None:
        calls.append(path)
        Path(path).write_bytes(b"half")
        if len(calls) == 3:
            raise OSError(28, "No space left on device")
        save_file(tensors, path, metadata)  # type: ignore[arg-type]

    monkeypatch.setattr(state, "save_file", full)
    with pytest.raises(OSError, match="No space"):
        run(model_of(), state)
    assert [path.name for path in state.parent.iterdir()] == ["state"]
    resumed = model_of()
    run(resumed, state, resume=True)
    assert_same(weights(resumed), weights(whole))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_loss_that_is_not_a_number_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad: float
) -> None:
    monkeypatch.setitem(loss_functions.LOSSES, "listwise", lambda scores, count: scores.sum() * bad)
    with pytest.raises(RerankerError, match=r"epoch 1, step 1: the loss is .*--learning-rate"):
        run(model_of(), tmp_path / "state")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("labels", [np.zeros(48, dtype=bool), np.ones(48, dtype=bool)])
def test_nothing_to_learn_from_is_an_error(tmp_path: Path, labels: np.ndarray) -> None:
    model = model_of()
    with pytest.raises(RerankerError, match="no training topic"):
        train(model, examples(model, labels), None, lambda s: 0.0, FAST, tmp_path / "state")


def test_selecting_by_a_loss_that_cannot_be_computed_is_an_error(tmp_path: Path) -> None:
    model, settings = model_of(), dataclasses.replace(FAST, select="loss")
    unjudged = examples(model, np.zeros(48, dtype=bool))
    with pytest.raises(RerankerError, match="select by map"):
        train(model, examples(model), unjudged, lambda s: 0.0, settings, tmp_path / "state")


def test_cached_and_computed_interactions_train_alike(tmp_path: Path) -> None:
    cached, computed = (small_model("mp_hcnn", "robust", dropout=0.0) for _ in range(2))
    # AdamW would make whole steps of rounding errors where the gradient is nothing.
    settings = dataclasses.replace(FAST, optimizer="sgd", learning_rate=0.05)
    encoded = Tokenized.of(all_pairs(), encoder(), computed)
    train(cached, examples(cached), None, lambda s: 0.0, settings, tmp_path / "a")
    train(computed, Examples(encoded, LABELS), None, lambda s: 0.0, settings, tmp_path / "b")
    for a, b in zip(cached.parameters(), computed.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_caching_compares_in_evaluation_mode_and_leaves_the_mode() -> None:
    model = model_of().train()
    encoded = Tokenized.of(all_pairs(), encoder(), model)
    cached = CachedInteractions.of(model, encoded)
    assert model.training
    assert sorted(map(tuple, cached.places.tolist())) == [
        (part, row) for part in range(4) for row in range(12)
    ]
    assert not any(values.requires_grad for part in cached.parts for values in part.values())


# Optimizer -> a learning rate at which it learns these few pairs.
RATES = {"adamw": 1e-2, "adadelta": 1.0, "adagrad": 5e-2, "rmsprop": 5e-3, "sgd": 5e-2}


def sampled(sampling: str, optimizer: str = "adamw", **changes: Any) -> Settings:
    """Settings of a sampling with the loss that it can have."""
    loss = "pointwise" if sampling == "pairs" else "listwise"
    return dataclasses.replace(
        FAST, sampling=sampling, optimizer=optimizer, loss=loss, batch_pairs=10,
        learning_rate=RATES[optimizer], **changes,
    )  # fmt: skip


def train_anew(
    state: Path, settings: Settings, dropout: float = 0.3, **options: Any
) -> tuple[Reranker, Examples, History]:
    """A model that computes its interactions in every step, trained on all pairs."""
    model = small_model("sm_cnn", "static", dropout=dropout)
    data = Examples(Tokenized.of(all_pairs(), encoder(), model), LABELS)
    history = train(model, data, None, lambda scores: 0.0, settings, state, **options)
    return model, data, history


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_every_sampling_and_every_optimizer_lower_the_loss(
    tmp_path: Path, sampling: str, optimizer: str
) -> None:
    """The loss over random lists, which is the same for every sampling."""
    settings = sampled(sampling, optimizer, epochs=4, steps=15)
    untrained = small_model("sm_cnn", "static", dropout=0.0)
    model, data, history = train_anew(tmp_path / "state", settings, dropout=0.0)
    before = loop._validation_loss(untrained, data, settings)
    after = loop._validation_loss(model, data, settings)
    assert len(history.epochs) == 4
    losses = [figures["training_loss"] for figures in history.epochs]
    assert losses[-1] < 0.95 * losses[0]
    assert after < 0.9 * before


CHANGES = [("max", "adamw"), ("mix", "adamw"), ("corrupted", "adamw"), ("pairs", "adamw"),
           ("random", "adadelta"), ("random", "adagrad"), ("random", "rmsprop"),
           ("pairs", "adadelta"), ("corrupted", "adagrad"), ("max", "rmsprop")]  # fmt: skip


@pytest.mark.parametrize(("sampling", "optimizer"), CHANGES)
@pytest.mark.parametrize("epoch", [2, 3])
def test_resuming_is_exact_for_every_sampling_and_optimizer(
    tmp_path: Path, sampling: str, optimizer: str, epoch: int
) -> None:
    settings = sampled(sampling, optimizer)
    whole, _, history = train_anew(tmp_path / "whole", settings)
    with pytest.raises(KeyboardInterrupt):
        train_anew(tmp_path / "state", settings, progress=interrupt_at(epoch, 2))
    torch.manual_seed(99)
    seen: list[int] = []
    resumed, _, again = train_anew(
        tmp_path / "state", settings, resume=True, progress=lambda now, *_: seen.append(now)
    )
    assert min(seen) == epoch
    assert again == history
    assert_same(weights(resumed), weights(whole))


def test_the_first_epoch_of_mined_negatives_is_random(tmp_path: Path) -> None:
    """There is no model yet whose likeness could be gone by."""
    figures = {
        sampling: train_anew(tmp_path / sampling, sampled(sampling))[2].epochs
        for sampling in ("random", "max", "mix")
    }
    first = [epochs[0]["training_loss"] for epochs in figures.values()]
    second = [epochs[1]["training_loss"] for epochs in figures.values()]
    assert len(set(first)) == 1
    assert len(set(second)) == 3
    once = [
        weights(train_anew(tmp_path / f"{sampling}-once", sampled(sampling, epochs=1))[0])
        for sampling in ("random", "max")
    ]
    assert_same(*once)


def test_mined_negatives_are_those_of_the_model_of_the_last_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found once an epoch from the second on, by the vectors that are judged, without dropout."""
    given: list[Tensor] = []
    find = loop.negatives.nearest_negatives

    def spy(representations: Tensor, *arguments: Any) -> Any:
        given.append(representations.clone())
        return find(representations, *arguments)

    monkeypatch.setattr(loop.negatives, "nearest_negatives", spy)
    expected: list[Tensor] = []

    def progress(epoch: int, step: int, message: str) -> None:
        if step == 0:
            expected.append(loop.represent_tokenized(model, data.encoded))

    model = small_model("sm_cnn", "static", dropout=0.3)
    data = Examples(Tokenized.of(all_pairs(), encoder(), model), LABELS)
    train(
        model, data, None, lambda s: 0.0, sampled("max"), tmp_path / "state", progress=progress
    )  # fmt: skip
    assert len(given) == FAST.epochs - 1
    for found, wanted in zip(given, expected, strict=False):
        assert torch.equal(found, wanted)
    assert not torch.equal(given[0], given[1])


def test_pairs_are_seen_once_in_a_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With their own labels: positives come first and are counted."""
    seen: list[int] = []
    compute = loop._loss

    def spy(model: Any, examples: Examples, rows: np.ndarray, positives: int, s: Any) -> Tensor:
        assert rows.shape == (1, 10)
        assert LABELS[rows[0]].tolist() == [True] * positives + [False] * (10 - positives)
        seen.extend(rows[0].tolist())
        return compute(model, examples, rows, positives, s)

    monkeypatch.setattr(loop, "_loss", spy)
    train_anew(tmp_path / "state", sampled("pairs", epochs=2, steps=12))
    assert Counter(seen) == dict.fromkeys(range(48), 5)
    for number in range(5):  # the last step of a pass may have some pairs of the next
        whole_steps = seen[-(-48 * number // 10) * 10 : (48 * number + 48) // 10 * 10]
        assert len(whole_steps) == len(set(whole_steps)) >= 30


def test_corrupted_pairs_cannot_have_been_compared_before(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="corrupted"):
        run(model_of("robust"), tmp_path / "state", sampled("corrupted"))


def test_each_optimizer_is_the_one_of_its_name() -> None:
    model = model_of()
    kinds = {name: type(loop._optimizer(model, Settings(optimizer=name))) for name in OPTIMIZERS}
    assert kinds == {
        "adamw": SparseAdamW, "adadelta": torch.optim.Adadelta,
        "adagrad": torch.optim.Adagrad, "rmsprop": torch.optim.RMSprop, "sgd": torch.optim.SGD,
    }  # fmt: skip


def test_settings_refuse_all_that_is_wrong_at_once() -> None:
    with pytest.raises(RerankerError) as caught:
        Settings(loss="pairwize", optimizer="adam", sampling="hard", select="ndcg")
    assert str(caught.value).splitlines() == [
        "setting loss: found 'pairwize', expected one of listwise, pairwise, pointwise",
        "setting optimizer: found 'adam', expected one of adamw, adadelta, adagrad, rmsprop, sgd",
        "setting sampling: found 'hard', expected one of random, max, mix, corrupted, pairs",
        "setting select: found 'ndcg', expected one of map, mrr, loss",
    ]
    with pytest.raises(RerankerError) as caught:
        Settings(loss="pairwise", optimizer="adam", sampling="pairs")
    first, second = str(caught.value).splitlines()
    assert first.startswith("setting optimizer: found 'adam'")
    assert second.startswith("setting sampling: found pairs with the loss pairwise")
    assert second.endswith("expected the loss pointwise, or another sampling")


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_pairs_go_with_the_pointwise_loss_alone(loss: str, sampling: str) -> None:
    if sampling != "pairs" or loss == "pointwise":
        assert Settings(loss=loss, sampling=sampling).sampling == sampling
        return
    with pytest.raises(RerankerError, match=f"pairs with the loss {loss}"):
        Settings(loss=loss, sampling=sampling)


def test_the_losses_that_can_be_asked_for_are_those_there_are() -> None:
    assert set(LOSSES) == set(loss_functions.LOSSES)
    for name in LOSSES:
        scores = torch.randn(3, 5)
        asked = loss_functions.loss_of(Settings(loss=name))(scores, 2)
        assert asked == loss_functions.LOSSES[name](scores, 2)


@pytest.mark.parametrize("margin", [0.05, 1.0, 2.5])
def test_the_margin_is_that_of_the_hinge(margin: float) -> None:
    torch.manual_seed(4)
    scores = torch.randn(3, 5)
    terms = [
        max(0.0, margin - positive + negative)
        for row in scores.tolist() for positive in row[:2] for negative in row[2:]
    ]  # fmt: skip
    hinge = loss_functions.loss_of(Settings(loss="pairwise", margin=margin))
    assert hinge(scores, 2).item() == pytest.approx(sum(terms) / len(terms), rel=1e-5)
    for name in ("listwise", "pointwise"):
        asked = loss_functions.loss_of(Settings(loss=name, margin=margin))
        assert asked(scores, 2) == loss_functions.LOSSES[name](scores, 2)


@pytest.mark.parametrize("select", SELECTIONS)
def test_what_decides_is_recorded_by_its_name(tmp_path: Path, select: str) -> None:
    figures = {"map": {"validation_map"}, "mrr": {"validation_mrr"},
               "loss": {"validation_loss", "validation_map"}}[select]  # fmt: skip
    history = run(model_of(), tmp_path / "state", dataclasses.replace(FAST, select=select))
    assert all(set(epoch) == figures | {"training_loss"} for epoch in history.epochs)


def test_the_best_epoch_is_that_of_the_highest_mrr(tmp_path: Path) -> None:
    history = run(
        model_of(), tmp_path / "state", dataclasses.replace(FAST, select="mrr"),
        measure=figures_of(0.2, 0.5, 0.9, 0.6),
    )  # fmt: skip
    assert history.best == 3
    assert [epoch["validation_mrr"] for epoch in history.epochs] == [0.2, 0.5, 0.9, 0.6]
