"""Losses over lists of candidates; a list holds one topic's positives, then its negatives.

Every loss takes scores [lists, positives + negatives] (logits) and the number of positives.
"""

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

Loss = Callable[[Tensor, int], Tensor]


def pointwise(scores: Tensor, positives: int) -> Tensor:
    """Negative log likelihood of each pair's label (Rao et al. 2019, section 3.4)."""
    labels = torch.zeros_like(scores)
    labels[:, :positives] = 1.0
    return F.binary_cross_entropy_with_logits(scores, labels)


def pointwise_loss(scores: npt.NDArray[np.float32], relevant: npt.NDArray[np.bool_]) -> float:
    """Mean of :func:`pointwise` over pairs with scores and labels [P]."""
    labels = torch.from_numpy(relevant).float()
    return F.binary_cross_entropy_with_logits(torch.from_numpy(scores), labels).item()


def pairwise(scores: Tensor, positives: int) -> Tensor:
    """Hinge loss of each positive against each negative: Rao et al. (2016), section 3.1."""
    differences = scores[:, :positives, None] - scores[:, None, positives:]
    return F.relu(1.0 - differences).mean()


def listwise(scores: Tensor, positives: int) -> Tensor:
    """Cross-entropy of each positive among its topic's negatives (Cao et al. 2007, top one).

    The other positives of the list are left out of the sum.
    """
    negatives = torch.logsumexp(scores[:, positives:], dim=1, keepdim=True)
    chosen = scores[:, :positives]
    return (torch.logaddexp(chosen, negatives) - chosen).mean()


LOSSES: Mapping[str, Loss] = {"listwise": listwise, "pairwise": pairwise, "pointwise": pointwise}
