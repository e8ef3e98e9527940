"""The one training loop: lists of candidates, a loss over them, early stopping on validation.

Interrupted training goes on from the last whole epoch and ends with the same weights as if it had
never stopped: every random choice is drawn from the seed and the epoch's number alone.
"""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rerankers.base import Reranker
from rerankers.engine.scoring import represent_tokenized, score_tokenized
from rerankers.engine.tokenized import Tokenized
from rerankers.errors import RerankerError
from rerankers.training import negatives
from rerankers.training.interactions import CachedInteractions
from rerankers.training.losses import loss_of
from rerankers.training.negatives import TopicRows, random_lists, topics_of
from rerankers.training.settings import Settings
from rerankers.training.sparse_adamw import SparseAdamW, clip_gradients, read_by_rows
from rerankers.training.state import History, restore, store, weights_of

Draw = Callable[[int, np.random.Generator], tuple[npt.NDArray[np.int64], int]]
"""Number of a step from 0 over all epochs -> rows [lists, candidates] and how many of each list
are positives."""


@dataclasses.dataclass(frozen=True)
class Examples:
    """Pairs with labels.

    Attributes:
        encoded: the pairs, read, or already compared where the model does not change that.
        relevant: [P] whether the post is relevant to the query.
    """

    encoded: Tokenized | CachedInteractions
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

    A model that is not trained by gradients is only calibrated: the history is empty, and neither
    ``validation`` nor the settings of steps mean anything.

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
    if not training.topics():
        raise RerankerError(
            "found no training topic with both a relevant and another post among its candidates"
        )
    history = History()
    if model.trained_by_gradients:
        history = _train_steps(
            model, training, validation, measure, settings, state_file, resume, progress
        )
    if model.needs_fit():
        model.fit(
            represent_tokenized(model, training.encoded),
            torch.from_numpy(training.relevant),
            torch.from_numpy(training.encoded.query_index),
        )
    return history


def _train_steps(
    model: Reranker, training: Examples, validation: Examples | None,
    measure: Callable[[npt.NDArray[np.float32]], float], settings: Settings, state_file: Path,
    resume: bool, progress: Callable[[int, int, str], None],
) -> History:  # fmt: skip
    """All that is trained by gradients; the model is left with the weights of its best epoch."""
    steps = Steps(model, training, settings)
    if validation is not None and settings.select == "loss" and not validation.topics():
        raise RerankerError(
            "found no held-out topic with both a relevant and another post, so there is no "
            "validation loss to select by; select by map, or hold more topics out"
        )
    history, best = History(), weights_of(model)
    if resume and state_file.exists():
        history, best = restore(state_file, model, steps.optimizer, settings)
    for epoch in range(len(history.epochs) + 1, settings.epochs + 1):
        if epoch - 1 - history.best >= settings.patience and history.best:
            break
        figures = {"training_loss": steps.epoch(epoch, progress)}
        if validation is not None:
            if settings.select == "loss":
                figures["validation_loss"] = _validation_loss(model, validation, settings)
            figures[_measured(settings)] = measure(score_tokenized(model, validation.encoded))
        history.epochs.append(figures)
        if (
            validation is None
            or history.best == 0
            or _better(figures, history.epochs[history.best - 1], settings)
        ):
            history.best, best = epoch, weights_of(model)
        store(state_file, model, steps.optimizer, history, best, settings)
        progress(epoch, 0, "  ".join(f"{name} {value:.4f}" for name, value in figures.items()))
    model.load_state_dict(best)
    return history


@dataclasses.dataclass(frozen=True)
class _Lists:
    """Where the steps' lists are drawn from."""

    examples: Examples
    topics: list[TopicRows]
    settings: Settings

    @classmethod
    def of(cls, training: Examples, settings: Settings) -> "_Lists":
        topics = training.topics()
        if settings.sampling != "corrupted":
            return cls(training, topics, settings)
        if not isinstance(training.encoded, Tokenized):
            raise TypeError("corrupted pairs are new ones, which cached interactions do not have")
        queries, posts, topics = negatives.corrupted_pairs(
            training.encoded.query_index, training.encoded.post_index, topics,
            settings.negatives, np.random.default_rng([settings.seed, 0]),
        )  # fmt: skip
        extended = Examples(
            training.encoded.with_pairs(queries, posts),
            np.concatenate([training.relevant, np.zeros(len(queries), dtype=np.bool_)]),
        )
        return cls(extended, topics, settings)

    def for_epoch(self, model: Reranker, epoch: int) -> Draw:
        """How to draw in this epoch; ``model`` is as the epoch before left it."""
        settings, count = self.settings, self.settings.positives
        if settings.sampling == "pairs":
            return self._pairs
        if settings.sampling in ("random", "corrupted") or epoch == 1:
            size = count * settings.negatives
            return lambda _, rng: (
                random_lists(self.topics, settings.batch_topics, count, size, rng), count,
            )  # fmt: skip
        nearest = negatives.nearest_negatives(
            represent_tokenized(model, self.examples.encoded), self.topics, settings.negatives
        )
        return lambda _, rng: (negatives.mined_lists(self.topics, settings, nearest, rng), count)

    def _pairs(self, step: int, _: np.random.Generator) -> tuple[npt.NDArray[np.int64], int]:
        relevant, settings = self.examples.relevant, self.settings
        rows = negatives.shuffled_pairs(len(relevant), settings.batch_pairs, step, settings.seed)
        rows = np.concatenate([rows[relevant[rows]], rows[~relevant[rows]]])
        return rows[None], int(relevant[rows].sum())


class Steps:
    """The steps of training, an epoch at a time.

    Args:
        model: to train in place, on the device to train on.
        training: pairs to learn from.
        settings: how to train.
        optimizer: what moves the weights; None is what the settings ask for.
    """

    def __init__(
        self, model: Reranker, training: Examples, settings: Settings,
        optimizer: torch.optim.Optimizer | None = None,
    ) -> None:  # fmt: skip
        self.model, self.settings = model, settings
        self.lists = _Lists.of(training, settings)
        self.optimizer = optimizer or _optimizer(model, settings)

    def epoch(
        self, epoch: int, progress: Callable[[int, int, str], None] = lambda *_: None
    ) -> float:
        """The steps of the epoch of this number, from 1; gives the mean loss.

        Raises:
            RerankerError: a loss that is not a number.
        """
        model, settings, optimizer = self.model, self.settings, self.optimizer
        draw = self.lists.for_epoch(model, epoch)
        rng = np.random.default_rng([settings.seed, epoch])
        torch.manual_seed(settings.seed * 1_000_003 + epoch)
        model.train()
        losses = []
        for step in range(settings.steps):
            done = (epoch - 1) * settings.steps + step
            _set_learning_rate(optimizer, settings, done)
            loss = _loss(model, self.lists.examples, *draw(done, rng), settings)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            clip_gradients(model.parameters(), 5.0)
            optimizer.step()
            losses.append(loss.item())
            if not np.isfinite(losses[-1]):
                raise RerankerError(
                    f"epoch {epoch}, step {step + 1}: the loss is {losses[-1]}; "
                    "train with a smaller --learning-rate"
                )
            progress(epoch, step + 1, f"loss {losses[-1]:.3f}")
        return float(np.mean(losses))


def _loss(
    model: Reranker, examples: Examples, rows: npt.NDArray[np.int64], positives: int,
    settings: Settings,
) -> Tensor:  # fmt: skip
    """The loss over lists of pairs: ``rows`` [lists, candidates], positives first."""
    scores = examples.encoded.scores_of(model, rows.ravel(), model.device_of())
    return loss_of(settings)(scores.view(rows.shape), positives)


def _validation_loss(model: Reranker, validation: Examples, settings: Settings) -> float:
    """Mean loss over lists that are the same after every epoch; 0 without validation topics."""
    topics, count = validation.topics(), settings.positives
    if not topics:
        return 0.0
    rng = np.random.default_rng([settings.seed, 0])
    model.eval()
    losses = []
    with torch.inference_mode():
        for _ in range(8):
            rows = random_lists(
                topics, settings.batch_topics, count, count * settings.negatives, rng
            )
            losses.append(_loss(model, validation, rows, count, settings).item())
    return float(np.mean(losses))


def _measured(settings: Settings) -> str:
    return "validation_mrr" if settings.select == "mrr" else "validation_map"


def _better(new: Mapping[str, float], old: Mapping[str, float], settings: Settings) -> bool:
    if settings.select == "loss":
        return new["validation_loss"] < old["validation_loss"]
    return new[_measured(settings)] > old[_measured(settings)]


def _optimizer(model: Reranker, settings: Settings) -> torch.optim.Optimizer:
    """The optimizer, with a group of parameters for each share of the weight decay."""
    read_by_rows(model, settings.optimizer == "adamw")
    shares: dict[float, list[Tensor]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            shares.setdefault(model.decay_share(name), []).append(parameter)
    groups = [
        {"params": parameters, "weight_decay": settings.weight_decay * share}
        for share, parameters in shares.items()
    ]
    rate = settings.learning_rate
    match settings.optimizer:
        case "sgd":
            return torch.optim.SGD(groups, lr=rate, momentum=0.9, nesterov=True)
        case "adadelta":
            return torch.optim.Adadelta(groups, lr=rate, rho=0.95)
        case "adagrad":
            return torch.optim.Adagrad(groups, lr=rate)
        case "rmsprop":
            return torch.optim.RMSprop(groups, lr=rate)
    return SparseAdamW(groups, lr=rate)


def _set_learning_rate(optimizer: torch.optim.Optimizer, settings: Settings, step: int) -> None:
    share = step / (settings.epochs * settings.steps)
    for group in optimizer.param_groups:
        group["lr"] = settings.learning_rate * (1.0 - 0.9 * share)
