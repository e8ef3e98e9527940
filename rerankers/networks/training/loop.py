"""The training loop: steps, validation after each epoch, and early stopping.

Every random choice depends only on the seed and on the epoch or step.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from tweetrerank.rerankers import devices
from tweetrerank.rerankers.networks import network
from tweetrerank.rerankers.networks.base import Reranker
from tweetrerank.rerankers.networks.layers.convolutions import ConvolutionTower
from tweetrerank.rerankers.networks.training.examples import Examples
from tweetrerank.rerankers.networks.training.losses import LOSSES
from tweetrerank.rerankers.networks.training.optimizers import make_optimizer
from tweetrerank.rerankers.networks.training.sampling import BatchSampler, random_lists
from tweetrerank.rerankers.networks.training.training_settings import Settings
from tweetrerank.rerankers.reranker_error import RerankerError
from tweetrerank.rerankers.text.ragged import Rows

VALIDATION_BATCHES = 8  # Number of batches in a validation loss

Measure = Callable[[npt.NDArray[np.float32]], float]
"""Takes the scores [P] of the validation pairs and returns a figure; higher is
better."""

Progress = Callable[[int, int, str], object]
"""Called with the epoch, the step (0 at the end of the epoch) and a message."""


@dataclass
class History:
    """The course of a training so far."""

    epochs: list[dict[str, float]] = field(default_factory=list)
    """The figures of each epoch."""
    best: int = 0  # Number of the best epoch, from 1; 0 before the first
    best_merit: float = -np.inf  # Figure of the best epoch; higher is better
    setbacks: int = 0
    """Number of times that the learning rate was halved because epochs had no better
    validation figure."""

    def add(
        self,
        figures: dict[str, float],
        merit: float,
        halve_after: int,
    ) -> bool:
        """Add the figures of an epoch. Return whether it is the best one so far.

        Epochs are compared by ``merit``. Every ``halve_after`` epochs in a row without
        a better one are a setback.
        """
        self.epochs.append(figures)
        epoch = len(self.epochs)
        if epoch == 1 or merit > self.best_merit:
            self.best = epoch
            self.best_merit = merit
            return True
        if (epoch - self.best) % halve_after == 0:
            self.setbacks += 1
        return False


def train(
    model: Reranker,
    training: Examples,
    validation: Examples | None,
    measure: Measure,
    settings: Settings,
    progress: Progress = lambda epoch, step, message: None,
) -> History:
    """Train a model in place. It keeps the weights of its best epoch.

    ``measure`` is applied to the scores of the validation pairs after each epoch.
    Without validation pairs, the last epoch is the best. Raises RerankerError if there
    is nothing to learn from, or if a loss is not a number.
    """
    if not training.topics():
        raise RerankerError(
            "found no training topic with both a relevant and another post among its "
            "candidates"
        )
    history = History()
    if settings.epochs:
        validator = None
        if validation is not None:
            validator = Validator(validation, measure, settings)
        trainer = Trainer(
            model,
            training,
            settings,
            progress,
        )
        _train_epochs(trainer, validator, history)
    if model.needs_fit:
        representations = network.represent_tokenized(model, training.pairs)
        model.fit(representations, torch.from_numpy(training.relevant))
    return history


def _train_epochs(
    trainer: Trainer,
    validator: Validator | None,
    history: History,
) -> None:
    """Train until the last epoch or the end of patience, and restore the best one."""
    model = trainer.model
    settings = trainer.settings
    best_weights = deepcopy(model.state_dict())
    for epoch in range(1, settings.epochs + 1):
        figures = {"training_loss": trainer.train_epoch(epoch, history.setbacks)}
        merit = float(epoch)
        if validator is not None:
            figures |= validator.figures_of(model)
            merit = validator.merit_of(figures)
        if history.add(figures, merit, settings.halve_after):
            best_weights = deepcopy(model.state_dict())
        named = [f"{name} {value:.4f}" for name, value in figures.items()]
        trainer.progress(epoch, 0, "  ".join(named))
        if epoch - history.best >= settings.patience:
            break
    model.load_state_dict(best_weights)


class Trainer:
    """Makes the gradient steps of a training."""

    def __init__(
        self,
        model: Reranker,
        training: Examples,
        settings: Settings,
        progress: Progress,
    ) -> None:
        self.model = model
        self.settings = settings
        self.progress = progress
        self._sampler = BatchSampler(training, settings)
        self._steps = training.steps_of_epoch(settings)
        self._optimizer = make_optimizer(model, settings)
        has_bfloat16 = devices.has_bfloat16(model.device_of().type)
        for module in model.modules():
            if isinstance(module, ConvolutionTower):
                module.precision = settings.precision if has_bfloat16 else "fp32"

    def train_epoch(self, epoch: int, setbacks: int) -> float:
        """Train one epoch, and return the mean loss of its steps.

        Epochs are counted from 1. ``setbacks`` is the number of times that the schedule
        ``plateau`` has halved the learning rate. Raises RerankerError if a loss is not
        a finite number.
        """
        settings = self.settings
        self._sampler.start_epoch(self.model, epoch)
        rng = np.random.default_rng([settings.seed, epoch])
        torch.manual_seed(settings.seed * 1_000_003 + epoch)
        self.model.train()
        losses = []
        for step in range(self._steps):
            steps_before = (epoch - 1) * self._steps + step
            rate = self._learning_rate(steps_before, setbacks)
            for group in self._optimizer.param_groups:
                group["lr"] = rate
            rows, positives = self._sampler.draw(steps_before, rng)
            loss = self._step(rows, positives)
            if not np.isfinite(loss):
                raise RerankerError(
                    f"epoch {epoch}, step {step + 1}: the loss is {loss}; "
                    "train with a smaller `learning_rate`"
                )
            losses.append(loss)
            self.progress(epoch, step + 1, f"loss {loss:.3f}")
        return float(np.mean(losses))

    def _learning_rate(self, steps_before: int, setbacks: int) -> float:
        """Return the learning rate of a step.

        ``steps_before`` counts the steps before it, over all epochs.
        """
        settings = self.settings
        share = 1.0
        if settings.schedule == "linear":
            share = 1.0 - 0.9 * steps_before / (settings.epochs * self._steps)
        elif settings.schedule == "plateau":
            share = 0.5**setbacks
        return settings.learning_rate * share

    def _step(self, rows: Rows, positives: int) -> float:
        """Make one gradient step on lists [lists, candidates], and return its loss."""
        loss = _loss(
            self.model,
            self._sampler.examples,
            rows,
            positives,
            self.settings,
        )
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        clipping = self.settings.clipping
        if clipping:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), clipping)
        self._optimizer.step()
        return loss.item()


class Validator:
    """Computes the figures of the validation pairs after each epoch.

    Raises RerankerError if a validation loss is to select the epoch but no topic can
    have one.
    """

    def __init__(
        self,
        validation: Examples,
        measure: Measure,
        settings: Settings,
    ) -> None:
        self._validation = validation
        self._measure = measure
        self._settings = settings
        is_by_lists = settings.select == "loss" and settings.sampling != "pairs"
        if is_by_lists and not validation.topics():
            raise RerankerError(
                "found no held-out topic with both a relevant and another post, so "
                "there is no validation loss to select by; select by map, or hold more "
                "topics out"
            )

    def figures_of(self, model: Reranker) -> dict[str, float]:
        """Return name -> validation figure of a model."""
        settings = self._settings
        scores = network.score_tokenized(model, self._validation.pairs)
        figures: dict[str, float] = {}
        if settings.select == "loss":
            if settings.sampling == "pairs":
                figures["validation_loss"] = self._loss_of_scores(scores)
            else:
                figures["validation_loss"] = self._loss_of_lists(model)
        name = "validation_mrr" if settings.select == "mrr" else "validation_map"
        figures[name] = self._measure(scores)
        return figures

    def merit_of(self, figures: dict[str, float]) -> float:
        """Return the figure that selects the best epoch.

        Its sign is such that higher is better.
        """
        if self._settings.select == "loss":
            return -figures["validation_loss"]
        if self._settings.select == "mrr":
            return figures["validation_mrr"]
        return figures["validation_map"]

    def _loss_of_scores(self, scores: npt.NDArray[np.float32]) -> float:
        """Return the mean cross-entropy of all pairs."""
        labels = torch.from_numpy(self._validation.relevant).float()
        logits = torch.from_numpy(scores)
        return F.binary_cross_entropy_with_logits(logits, labels).item()

    def _loss_of_lists(self, model: Reranker) -> float:
        """Return the mean loss over a fixed set of lists, so that epochs compare."""
        settings = self._settings
        topics = self._validation.topics()
        count = settings.positives
        rng = np.random.default_rng([settings.seed, 0])
        lists = []
        for _ in range(VALIDATION_BATCHES):
            lists.append(
                random_lists(
                    topics,
                    settings.batch_topics,
                    count,
                    count * settings.negatives,
                    rng,
                )
            )
        model.eval()
        losses = []
        with torch.inference_mode():
            for rows in lists:
                loss = _loss(
                    model,
                    self._validation,
                    rows,
                    count,
                    settings,
                )
                losses.append(loss.item())
        return float(np.mean(losses))


def _loss(
    model: Reranker,
    examples: Examples,
    rows: Rows,
    positives: int,
    settings: Settings,
) -> Tensor:
    """Return the loss over lists of pairs.

    ``rows`` [lists, candidates] holds the positives of each list first.
    """
    scores = examples.pairs.scores_of(model, rows.ravel())
    return LOSSES[settings.loss](scores.view(rows.shape), positives)
