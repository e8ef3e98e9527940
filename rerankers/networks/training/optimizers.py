"""Optimizers that have a weight decay for each parameter, and sparse gradients."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from tweetrerank.rerankers.networks.base import Reranker
from tweetrerank.rerankers.networks.layers.trigram_sums import TrigramSums
from tweetrerank.rerankers.networks.training.training_settings import Settings

LARGE = 20_000
"""Plain gradient descent has sparse gradients for tables with this number of rows or
more. A step reads only a few thousand rows. For tables below about 10,000 rows, dense
gradients are faster."""


def make_optimizer(model: Reranker, settings: Settings) -> torch.optim.Optimizer:
    """Return the optimizer of the settings. Each parameter has its own weight decay.

    Also set which tables of the model have sparse gradients.
    """
    is_sparse = _allows_sparse_gradients(settings)
    for module in model.modules():
        if isinstance(module, nn.Embedding | TrigramSums):
            module.sparse = is_sparse and len(module.weight) >= LARGE
    sgd: dict[str, Any] = {
        "momentum": settings.momentum,
        "nesterov": settings.momentum > 0,
        # One pass over weights and gradients takes a third of the time, but they must
        # be dense.
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
    """Return whether a step only subtracts the product of learning rate and gradient.

    Momentum, weight decay and clipping would change every row of a table.
    """
    if settings.optimizer != "sgd":
        return False
    return not (settings.momentum or settings.weight_decay or settings.clipping)


def _parameter_groups(
    model: Reranker,
    weight_decay: float,
) -> list[dict[str, Any]]:
    """Return a parameter group for each trained parameter, with its weight decay."""
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
