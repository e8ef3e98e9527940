"""Optimizers of networks."""

import torch
from torch import Tensor, nn

from rerankers.networks.base import Reranker
from rerankers.networks.models.dssm import TrigramSums
from rerankers.networks.training.settings import Settings

LARGE = 20_000
"""Rows of a table from which on plain gradient descent has sparse gradients: a step reads a few
thousand of them. Below about 10,000 dense ones are faster."""


def make_optimizer(model: Reranker, settings: Settings) -> torch.optim.Optimizer:
    """The optimizer of the settings; parameters are grouped by their share of the weight decay."""
    rate, momentum, is_sgd = settings.learning_rate, settings.momentum, settings.optimizer == "sgd"
    # All but the product of rate and gradient would move every row.
    is_plain = is_sgd and not (momentum or settings.weight_decay or settings.clipping)
    for module in model.modules():
        if isinstance(module, nn.Embedding | TrigramSums):
            module.sparse = is_plain and len(module.weight) >= LARGE
    shares: dict[float, list[Tensor]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            shares.setdefault(model.decay_share(name), []).append(parameter)
    groups = [
        {"params": parameters, "weight_decay": settings.weight_decay * share}
        for share, parameters in shares.items()
    ]
    match settings.optimizer:
        case "sgd":
            # One pass over weights and gradients, a third of the time; dense gradients only.
            fused = not is_plain
            return torch.optim.SGD(groups, rate, momentum, nesterov=momentum > 0, fused=fused)
        case "adadelta":
            return torch.optim.Adadelta(groups, lr=rate, rho=0.95)
        case "adagrad":
            return torch.optim.Adagrad(groups, lr=rate)
        case "rmsprop":
            return torch.optim.RMSprop(groups, lr=rate)
    return torch.optim.AdamW(groups, lr=rate)
