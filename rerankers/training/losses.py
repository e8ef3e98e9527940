"""Losses over lists of candidates: each list holds one topic's positives, then its negatives.

Every loss takes scores [T, positives + negatives] (logits) and the number of positives.
"""

from collections.abc import Callable, Mapping
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from rerankers.training.settings import Settings

Loss = Callable[[Tensor, int], Tensor]


def pointwise(scores: Tensor, positives: int) -> Tensor:
    """Negative log likelihood of each label, every pair on its own (Rao et al. 2019, 3.4)."""
    labels = torch.zeros_like(scores)
    labels[:, :positives] = 1.0
    return F.binary_cross_entropy_with_logits(scores, labels)


def pairwise(scores: Tensor, positives: int, margin: float = 1.0) -> Tensor:
    """Hinge between each positive and each negative.

    Rao et al. (2016), section 3.1, with margin 1; Qiu & Huang (2015), equation 2, with margin γ.
    """
    differences = scores[:, :positives, None] - scores[:, None, positives:]
    return F.relu(margin - differences).mean()


def listwise(scores: Tensor, positives: int) -> Tensor:
    """Cross-entropy of each positive among all negatives of its topic (Cao et al. 2007, top one).

    One positive at a time stands against the negatives: another positive is no rival.
    """
    negatives = torch.logsumexp(scores[:, positives:], dim=1, keepdim=True)
    chosen = scores[:, :positives]
    return (torch.logaddexp(chosen, negatives) - chosen).mean()


LOSSES: Mapping[str, Loss] = {"listwise": listwise, "pairwise": pairwise, "pointwise": pointwise}


def loss_of(settings: Settings) -> Loss:
    """The loss that the settings ask for."""
    if settings.loss == "pairwise":
        return partial(pairwise, margin=settings.margin)
    return LOSSES[settings.loss]
