"""Losses over lists of scores.

A loss takes scores [lists, candidates], which are logits, and the number of positives.
Each list holds a topic's positives before its negatives. The result is a mean.
"""

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

Loss = Callable[[Tensor, int], Tensor]


def pointwise(scores: Tensor, positives: int) -> Tensor:
    """Return the negative log likelihood of each pair's label.

    Source: Rao et al. (2019), section 3.4.
    """
    labels = torch.zeros_like(scores)
    labels[:, :positives] = 1.0
    return F.binary_cross_entropy_with_logits(scores, labels)


def pairwise(scores: Tensor, positives: int) -> Tensor:
    """Return the hinge loss of each positive against each negative.

    Source: Rao et al. (2016), section 3.1.
    """
    # [lists, positives, negatives]
    differences = scores[:, :positives, None] - scores[:, None, positives:]
    return F.relu(1.0 - differences).mean()


def listwise(scores: Tensor, positives: int) -> Tensor:
    """Return the cross-entropy of each positive among its topic's negatives.

    It is the top-one loss of Cao et al. (2007), but the sum for a positive omits the
    other positives.
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
