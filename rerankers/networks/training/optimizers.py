"""Optimizers with a weight decay for each parameter, and sparse gradients."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from tweetrerank.rerankers.networks.base import Reranker
from tweetrerank.rerankers.networks.layers.trigram_sums import TrigramSums
from tweetrerank.rerankers.networks.training.training_settings import Settings

LARGE = 20_000
"""Rows of a table from which on plain gradient descent has sparse gradients.

A step reads a few thousand of them. Below about 10,000 dense gradients are faster."""


def make_optimizer(model: Reranker, settings: Settings) -> torch.optim.Optimizer:
    """The optimizer of the settings, with each parameter's share of weight decay."""
    is_sparse = _allows_sparse_gradients(settings)
    for module in model.modules():
        if isinstance(module, nn.Embedding | TrigramSums):
            module.sparse = is_sparse and len(module.weight) >= LARGE
    sgd: dict[str, Any] = {
        "momentum": settings.momentum,
        "nesterov": settings.momentum > 0,
        # One pass over weights and gradients, a third of the time; dense ones only.
        "fused": not is_sparse,
    }
    optimizers: Mapping[str, Callable[..., torch.optim.Optimizer]] = {
        "adamw": torch.optim.AdamW,
        "adadelta": partial(torch.optim.Adadelta, rho=0.95),
        "adagrad": torch.optim.Adagrad,
        "rmsprop": torch.optim.RMSprop,
        "sgd": partial(torch.optim.SGD, **sgd),
    }
    groups = _parameter_groups(model, settings.weight_decay)
    return optimizers[settings.optimizer](groups, lr=settings.learning_rate)


def _allows_sparse_gradients(settings: Settings) -> bool:
    """Whether a step is the product of rate and gradient, and nothing else.

    Momentum, weight decay and clipping would change every row of a table.
    """
    if settings.optimizer != "sgd":
        return False
    return not (settings.momentum or settings.weight_decay or settings.clipping)


def _parameter_groups(
    model: Reranker,
    weight_decay: float,
) -> list[dict[str, Any]]:
    """A group for each trained parameter, with its weight decay."""
    groups: list[dict[str, Any]] = []
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        decay = weight_decay * _decay_share(model, name)
        groups.append({"params": [parameter], "weight_decay": decay})
    return groups


def _decay_share(model: Reranker, name: str) -> float:
    for part, share in model.decay_shares.items():
        if part in name:
            return share
    return 1.0
