"""The one training loop: lists of candidates, a loss over them, early stopping on validation.

Interrupted training goes on from the last whole epoch and ends with the same weights as if it had
never stopped: every random choice is drawn from the seed and the epoch's number alone.
"""

import dataclasses
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from rerankers.base import Reranker
from rerankers.errors import RerankerError
from rerankers.interactions import CachedInteractions
from rerankers.losses import LOSSES
from rerankers.negatives import TopicRows, random_lists, topics_of
from rerankers.scoring import Encoded, score_encoded


@dataclasses.dataclass(frozen=True)
class Settings:
    """How to train; none of it is needed to score."""

    loss: str = "listwise"
    """``listwise``, ``pairwise`` or ``pointwise``."""
    optimizer: str = "adamw"
    """``adamw`` or ``sgd`` (Nesterov momentum 0.9)."""
    learning_rate: float = 2e-3
    """At the first step; falls linearly to a tenth at the last."""
    weight_decay: float = 1e-3
    """L2 (decoupled for AdamW)."""
    epochs: int = 12
    """At most so many."""
    steps: int = 50
    """Steps an epoch."""
    lists: int = 12
    """Topics in a step."""
    positives: int = 3
    """Relevant posts drawn for each topic of a step."""
    negatives: int = 7
    """Other posts drawn for each relevant one."""
    patience: int = 4
    """Epochs without a better validation figure before stopping."""
    select: str = "map"
    """What decides the best epoch: validation ``map`` or validation ``loss``."""
    seed: int = 1
    """Of every random choice."""


@dataclasses.dataclass
class History:
    """What happened: one entry an epoch, and the best epoch's number (from 1)."""

    epochs: list[dict[str, float]] = dataclasses.field(default_factory=list)
    best: int = 0


@dataclasses.dataclass(frozen=True)
class Examples:
    """Pairs with labels.

    Attributes:
        encoded: the pairs, read, or already compared where the model does not change that.
        relevant: [P] whether the post is relevant to the query.
    """

    encoded: Encoded | CachedInteractions
    relevant: npt.NDArray[np.bool_]

    def topics(self) -> list[TopicRows]:
        """The topics that have both kinds of posts."""
        return topics_of(self.encoded.query_index, self.relevant)


def train(
    model: Reranker,
    training: Examples,
    validation: Examples | None,
    measure: Callable[[npt.NDArray[np.float32]], float],
    settings: Settings,
    state_file: Path,
    resume: bool = False,
    progress: Callable[[int, int, str], None] = lambda epoch, step, message: None,
) -> History:
    """Train ``model`` in place and leave it with the weights of its best epoch.

    Args:
        model: on the device to train on.
        training: pairs to learn from.
        validation: pairs of other topics; without them all epochs are run and the last is best.
        measure: scores [P] of the validation pairs -> a figure, higher is better.
        settings: how to train.
        state_file: written after every epoch, and what ``resume`` reads.
        resume: go on from ``state_file`` if it is there.
        progress: called after every step and epoch.

    Raises:
        RerankerError: nothing to learn from, a loss that is not a number, or a state file of
            other settings.
    """
    topics = training.topics()
    if not topics:
        raise RerankerError(
            "found no training topic with both a relevant and another post among its candidates"
        )
    if validation is not None and settings.select == "loss" and not validation.topics():
        raise RerankerError(
            "found no held-out topic with both a relevant and another post, so there is no "
            "validation loss to select by; select by map, or hold more topics out"
        )
    optimizer = _optimizer(model, settings)
    history, best = History(), _weights(model)
    if resume and state_file.exists():
        history, best = _restore(state_file, model, optimizer, settings)
    for epoch in range(len(history.epochs) + 1, settings.epochs + 1):
        if epoch - 1 - history.best >= settings.patience and history.best:
            break
        loss = _train_epoch(model, training, topics, optimizer, settings, epoch, progress)
        figures = {"training_loss": loss}
        if validation is not None:
            figures["validation_loss"] = _validation_loss(model, validation, settings)
            figures["validation_map"] = measure(score_encoded(model, validation.encoded))
        history.epochs.append(figures)
        if (
            validation is None
            or history.best == 0
            or _better(figures, history.epochs[history.best - 1], settings)
        ):
            history.best, best = epoch, _weights(model)
        _store(state_file, model, optimizer, history, best, settings)
        progress(epoch, 0, "  ".join(f"{name} {value:.4f}" for name, value in figures.items()))
    model.load_state_dict(best)
    return history


def _train_epoch(
    model: Reranker, training: Examples, topics: list[TopicRows],
    optimizer: torch.optim.Optimizer, settings: Settings, epoch: int,
    progress: Callable[[int, int, str], None],
) -> float:  # fmt: skip
    """One epoch of steps; gives the mean loss."""
    rng = np.random.default_rng([settings.seed, epoch])
    torch.manual_seed(settings.seed * 1_000_003 + epoch)
    model.train()
    losses = []
    for step in range(settings.steps):
        _set_learning_rate(optimizer, settings, (epoch - 1) * settings.steps + step)
        loss = _list_loss(model, training, topics, settings, rng)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        losses.append(loss.item())
        if not np.isfinite(losses[-1]):
            raise RerankerError(
                f"epoch {epoch}, step {step + 1}: the loss is {losses[-1]}; "
                "train with a smaller --learning-rate"
            )
        progress(epoch, step + 1, f"loss {losses[-1]:.3f}")
    return float(np.mean(losses))


def _list_loss(
    model: Reranker, examples: Examples, topics: list[TopicRows], settings: Settings,
    rng: np.random.Generator,
) -> Tensor:  # fmt: skip
    count = settings.positives
    rows = random_lists(topics, settings.lists, count, count * settings.negatives, rng)
    scores = examples.encoded.scores_of(model, rows.ravel(), model.device_of())
    return LOSSES[settings.loss](scores.view(rows.shape), count)


def _validation_loss(model: Reranker, validation: Examples, settings: Settings) -> float:
    """Mean loss over lists that are the same after every epoch; 0 without validation topics."""
    topics = validation.topics()
    if not topics:
        return 0.0
    rng = np.random.default_rng([settings.seed, 0])
    model.eval()
    with torch.inference_mode():
        return float(
            np.mean([_list_loss(model, validation, topics, settings, rng).item()
                     for _ in range(8)])
        )  # fmt: skip


def _better(new: Mapping[str, float], old: Mapping[str, float], settings: Settings) -> bool:
    if settings.select == "loss":
        return new["validation_loss"] < old["validation_loss"]
    return new["validation_map"] > old["validation_map"]


def _optimizer(model: Reranker, settings: Settings) -> torch.optim.Optimizer:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if settings.optimizer == "sgd":
        return torch.optim.SGD(
            trained, lr=settings.learning_rate, momentum=0.9, nesterov=True,
            weight_decay=settings.weight_decay,
        )  # fmt: skip
    return torch.optim.AdamW(trained, lr=settings.learning_rate, weight_decay=settings.weight_decay)


def _set_learning_rate(optimizer: torch.optim.Optimizer, settings: Settings, step: int) -> None:
    share = step / (settings.epochs * settings.steps)
    for group in optimizer.param_groups:
        group["lr"] = settings.learning_rate * (1.0 - 0.9 * share)


def _weights(model: Reranker) -> dict[str, Tensor]:
    return {key: value.detach().clone() for key, value in model.state_dict().items()}


def _store(
    path: Path, model: Reranker, optimizer: torch.optim.Optimizer, history: History,
    best: Mapping[str, Tensor], settings: Settings,
) -> None:  # fmt: skip
    """Write the state of training, all of it or nothing."""
    tensors = {f"model.{key}": value for key, value in model.state_dict().items()}
    tensors |= {f"best.{key}": value for key, value in best.items()}
    for index, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{key}": value for key, value in state.items()}
    metadata = {
        "history": json.dumps(dataclasses.asdict(history)),
        "settings": json.dumps(dataclasses.asdict(settings)),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(descriptor)
    try:
        contiguous = {key: value.cpu().clone().contiguous() for key, value in tensors.items()}
        save_file(contiguous, temporary, metadata)
        with Path(temporary).open("rb") as stream:
            os.fsync(stream.fileno())
        Path(temporary).replace(path)
    finally:
        Path(temporary).unlink(missing_ok=True)


def _restore(
    path: Path, model: Reranker, optimizer: torch.optim.Optimizer, settings: Settings
) -> tuple[History, dict[str, Tensor]]:
    """Put ``model`` and ``optimizer`` back to where :func:`_store` was called."""
    device = str(model.device_of())
    try:
        with safe_open(path, "pt", device=device) as file:
            metadata: dict[str, Any] = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        history = History(**json.loads(metadata["history"]))
    except (OSError, SafetensorError, KeyError, ValueError, TypeError) as error:
        raise RerankerError(
            f"{path}: the interrupted training cannot be read ({error}); "
            "start it anew without --resume"
        ) from None
    if json.loads(metadata["settings"]) != dataclasses.asdict(settings):
        raise RerankerError(
            f"{path}: the interrupted training had other settings ({metadata['settings']}); "
            "repeat them, or start anew without --resume"
        )
    try:
        model.load_state_dict(_with_prefix(tensors, "model."))
    except RuntimeError:
        raise RerankerError(
            f"{path}: the interrupted training was of a model of other sizes; "
            "repeat its configuration, or start anew without --resume"
        ) from None
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in _with_prefix(tensors, "optimizer.").items():
        index, _, name = key.partition(".")
        state.setdefault(int(index), {})[name] = value
    optimizer.load_state_dict(optimizer.state_dict() | {"state": state})
    return history, _with_prefix(tensors, "best.")


def _with_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
