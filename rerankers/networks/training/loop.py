"""The training loop: steps, validation after each epoch, early stopping; optimizers and losses.

Every random choice follows from the seed and the epoch or step alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from rerankers.errors import RerankerError
from rerankers.networks.base import Reranker
from rerankers.networks.batches import represent_tokenized, score_tokenized
from rerankers.networks.layers import ConvolutionTower
from rerankers.networks.models.dssm import TrigramSums
from rerankers.networks.training.examples import BatchSampler, Examples, Rows, random_lists
from rerankers.networks.training.settings import Settings

LARGE = 20_000
"""Rows of a table from which on plain gradient descent has sparse gradients: a step reads a few
thousand of them. Below about 10,000 dense ones are faster."""

VALIDATION_BATCHES = 8  # Batches of a validation loss

Measure = Callable[[npt.NDArray[np.float32]], float]
"""Scores [P] of the validation pairs -> a figure, higher is better."""

Progress = Callable[[int, int, str], object]
"""Called with the epoch, the step (0 at the end of the epoch) and a message."""


@dataclass
class History:
    """Training so far."""

    epochs: list[dict[str, float]] = field(default_factory=list)
    """Figures of each epoch."""
    best: int = 0  # Number of the best epoch, from 1; 0 before the first
    setbacks: int = 0  # Times that epochs without a better validation figure halved the rate


def train(
    model: Reranker,
    training: Examples,
    validation: Examples | None,
    measure: Measure,
    settings: Settings,
    progress: Progress = lambda epoch, step, message: None,
) -> History:
    """Train in place; the weights of the best epoch remain, without validation those of the last.
    ``measure`` is applied to the scores of the validation pairs after each epoch. RerankerError if
    there is nothing to learn from, or a loss is not a number."""
    if not training.topics():
        raise RerankerError(
            "found no training topic with both a relevant and another post among its candidates"
        )
    by_lists = settings.select == "loss" and settings.sampling != "pairs"
    if settings.epochs and validation and by_lists and not validation.topics():
        raise RerankerError(
            "found no held-out topic with both a relevant and another post, so there is no "
            "validation loss to select by; select by map, or hold more topics out"
        )
    history, best, highest = History(), deepcopy(model.state_dict()), -np.inf
    for epoch, loss in enumerate(_epochs(model, training, settings, history, progress), start=1):
        figures, merit = {"training_loss": loss}, np.inf
        if validation is not None:
            merit = _validated(figures, model, validation, measure, settings)
        history.epochs.append(figures)
        if merit > highest or validation is None or not history.best:
            history.best, highest, best = epoch, merit, deepcopy(model.state_dict())
        else:
            history.setbacks += (epoch - history.best) % settings.halve_after == 0
        progress(epoch, 0, "  ".join(f"{name} {value:.4f}" for name, value in figures.items()))
        if epoch - history.best >= settings.patience:
            break
    model.load_state_dict(best)
    if model.needs_fit:
        model.fit(represent_tokenized(model, training.pairs), torch.from_numpy(training.relevant))
    return history


def _epochs(
    model: Reranker, training: Examples, settings: Settings, history: History, progress: Progress
) -> Iterator[float]:
    """Train epoch by epoch; the mean loss of each one's steps."""
    if not settings.epochs:
        return
    sampler, steps = BatchSampler(training, settings), training.steps_of_epoch(settings)
    optimizer = make_optimizer(model, settings)
    for module in model.modules():
        if isinstance(module, ConvolutionTower):
            module.precision = settings.precision
    for epoch in range(1, settings.epochs + 1):
        sampler.start_epoch(model, epoch)
        rng = np.random.default_rng([settings.seed, epoch])
        torch.manual_seed(settings.seed * 1_000_003 + epoch)
        model.train()
        losses = []
        for step in range(steps):
            done = (epoch - 1) * steps + step
            shares = {
                "linear": 1.0 - 0.9 * done / (settings.epochs * steps),
                "plateau": 0.5**history.setbacks,
            }
            for group in optimizer.param_groups:
                group["lr"] = settings.learning_rate * shares.get(settings.schedule, 1.0)
            rows, positives = sampler.draw(done, rng)
            loss = _loss(model, sampler.examples, rows, positives, settings)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            if settings.clipping:
                torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clipping)
            optimizer.step()
            losses.append(loss.item())
            if not np.isfinite(losses[-1]):
                raise RerankerError(
                    f"epoch {epoch}, step {step + 1}: the loss is {losses[-1]}; "
                    "train with a smaller `learning_rate`"
                )
            progress(epoch, step + 1, f"loss {losses[-1]:.3f}")
        yield float(np.mean(losses))


def make_optimizer(model: Reranker, settings: Settings) -> torch.optim.Optimizer:
    """The optimizer of the settings, with each parameter's share of the weight decay."""
    momentum, is_sgd = settings.momentum, settings.optimizer == "sgd"
    # All but the product of rate and gradient would move every row.
    is_plain = is_sgd and not (momentum or settings.weight_decay or settings.clipping)
    for module in model.modules():
        if isinstance(module, nn.Embedding | TrigramSums):
            module.sparse = is_plain and len(module.weight) >= LARGE
    groups: list[dict[str, Any]] = []
    for name, parameter in model.named_parameters():
        share = next((share for part, share in model.decay_shares.items() if part in name), 1.0)
        if parameter.requires_grad:
            groups.append({"params": [parameter], "weight_decay": settings.weight_decay * share})
    # One pass over weights and gradients, a third of the time; dense gradients only.
    sgd: dict[str, Any] = {"momentum": momentum, "nesterov": momentum > 0, "fused": not is_plain}
    kinds: Mapping[str, Callable[..., torch.optim.Optimizer]] = {
        "adamw": torch.optim.AdamW,
        "adadelta": partial(torch.optim.Adadelta, rho=0.95),
        "adagrad": torch.optim.Adagrad,
        "rmsprop": torch.optim.RMSprop,
        "sgd": partial(torch.optim.SGD, **sgd),
    }
    return kinds[settings.optimizer](groups, lr=settings.learning_rate)


def _validated(
    figures: dict[str, float],
    model: Reranker,
    validation: Examples,
    measure: Measure,
    settings: Settings,
) -> float:
    """Add an epoch's figures; the selecting one, higher is better."""
    scores, merit = score_tokenized(model, validation.pairs), None
    if settings.select == "loss":
        if settings.sampling == "pairs":
            labels = torch.from_numpy(validation.relevant).float()
            loss = F.binary_cross_entropy_with_logits(torch.from_numpy(scores), labels).item()
        else:
            loss = _validation_loss(model, validation, settings)
        figures["validation_loss"], merit = loss, -loss
    name = "validation_mrr" if settings.select == "mrr" else "validation_map"
    figures[name] = measure(scores)
    return figures[name] if merit is None else merit


def _loss(
    model: Reranker, examples: Examples, rows: Rows, positives: int, settings: Settings
) -> Tensor:
    """The loss over lists of pairs: ``rows`` [lists, candidates], positives first."""
    scores = examples.pairs.scores_of(model, rows.ravel())
    return LOSSES[settings.loss](scores.view(rows.shape), positives)


def _validation_loss(model: Reranker, validation: Examples, settings: Settings) -> float:
    """Mean loss over lists that are the same after every epoch."""
    topics, count = validation.topics(), settings.positives
    rng = np.random.default_rng([settings.seed, 0])
    model.eval()
    losses = []
    with torch.inference_mode():
        for _ in range(VALIDATION_BATCHES):
            size = count * settings.negatives
            rows = random_lists(topics, settings.batch_topics, count, size, rng)
            losses.append(_loss(model, validation, rows, count, settings).item())
    return float(np.mean(losses))


Loss = Callable[[Tensor, int], Tensor]
"""Scores [lists, candidates] (logits), in each list a topic's positives before its negatives, and
the number of positives -> a loss."""


def pointwise(scores: Tensor, positives: int) -> Tensor:
    """Negative log likelihood of each pair's label (Rao et al. 2019, section 3.4)."""
    labels = torch.zeros_like(scores)
    labels[:, :positives] = 1.0
    return F.binary_cross_entropy_with_logits(scores, labels)


def pairwise(scores: Tensor, positives: int) -> Tensor:
    """Hinge loss of each positive against each negative: Rao et al. (2016), section 3.1."""
    differences = scores[:, :positives, None] - scores[:, None, positives:]
    return F.relu(1.0 - differences).mean()


def listwise(scores: Tensor, positives: int) -> Tensor:
    """Cross-entropy of each positive among its topic's negatives (Cao et al. 2007, top one). The
    other positives of the list are left out of the sum."""
    negatives = torch.logsumexp(scores[:, positives:], dim=1, keepdim=True)
    chosen = scores[:, :positives]
    return (torch.logaddexp(chosen, negatives) - chosen).mean()


LOSSES: Mapping[str, Loss] = {"listwise": listwise, "pairwise": pairwise, "pointwise": pointwise}
