"""Losses over lists of scores.

A loss reads scores [lists, candidates] (logits), in each list a topic's positives
before its negatives, and the number of positives. It is a mean.
"""

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

Loss = Callable[[Tensor, int], Tensor]


def pointwise(scores: Tensor, positives: int) -> Tensor:
    """Negative log likelihood of each pair's label (Rao et al. 2019, section 3.4)."""
    labels = torch.zeros_like(scores)
    labels[:, :positives] = 1.0
    return F.binary_cross_entropy_with_logits(scores, labels)


def pairwise(scores: Tensor, positives: int) -> Tensor:
    """Hinge loss of each positive against each negative: Rao et al. (2016), 3.1."""
    # [lists, positives, negatives]
    differences = scores[:, :positives, None] - scores[:, None, positives:]
    return F.relu(1.0 - differences).mean()


def listwise(scores: Tensor, positives: int) -> Tensor:
    """Cross-entropy of each positive among its topic's negatives.

    Cao et al. (2007), top one. The sum of a positive omits the other positives.
    """
    relevant = scores[:, :positives]
    negatives = torch.logsumexp(
        scores[:, positives:],
        dim=1,
        keepdim=True,
    )
    return (torch.logaddexp(relevant, negatives) - relevant).mean()


LOSSES: Mapping[str, Loss] = {
    "listwise": listwise,
    "pairwise": pairwise,
    "pointwise": pointwise,
}
