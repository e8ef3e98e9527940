"""What models share: masks, similarity, pooling, small networks."""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


def weighted_mean(features: Tensor, weights: Tensor) -> Tensor:
    """Mean of ``features`` [P, L, K] over L weighted by ``weights`` [P, L]: [P, K].

    A text without terms has the mean 0.
    """
    total = weights.sum(dim=1, keepdim=True).clamp_min(1e-6)
    return torch.bmm((weights / total).unsqueeze(1), features).squeeze(1)


def window_means(values: Tensor, mask: Tensor, width: int) -> Tensor:
    """Mean of ``values`` [B, L] over the ``width`` positions from each on that hold a term."""
    padding = (0, width - 1)
    sums = F.pad(values * mask, padding).unfold(1, width, 1).sum(dim=2)
    counts = F.pad(mask, padding).unfold(1, width, 1).sum(dim=2)
    return sums / counts.clamp_min(1.0)


def mask_of(ids: Tensor) -> Tensor:
    """1.0 where there is a term, 0.0 where there is padding; the shape of ``ids``."""
    return ids.ne(0).float()


def partial_softmax(logits: Tensor, mask: Tensor, axis: int, length: int) -> Tensor:
    """Softmax over ``length`` positions of which only those of ``mask`` are there.

    A position that is not there has the logit 0: it matches nothing, and takes its share.

    Args:
        logits: [P, Lq, Ld].
        mask: 1 for positions that are there, broadcast to ``logits``.
        axis: to normalise over.
        length: positions in all, at least as many as are there.

    Returns:
        [P, Lq, Ld], 0 where there is no position.
    """
    logits = logits.masked_fill(mask == 0, -torch.inf)
    peak = logits.amax(dim=axis, keepdim=True).clamp_min(0.0)
    exponentials = torch.exp(logits - peak)
    unused = (length - mask.sum(dim=axis, keepdim=True)) * torch.exp(-peak)
    return exponentials / (exponentials.sum(dim=axis, keepdim=True) + unused)


def max_over_posts(similarity: Tensor, post_mask: Tensor) -> Tensor:
    """Best match of each query position: [P, Lq] of ``similarity`` [P, Lq, Ld].

    A post without terms (a row of ``post_mask`` [P, Ld] that is 0) matches nothing: 0.
    """
    best = similarity.masked_fill(post_mask.unsqueeze(1) == 0, -1e4).amax(dim=2)
    return torch.where(post_mask.any(dim=1, keepdim=True), best, 0.0)


def mean_over_posts(similarity: Tensor, post_mask: Tensor, length: int | None = None) -> Tensor:
    """Mean match of each query position: [P, Lq].

    Args:
        similarity: [P, Lq, Ld].
        post_mask: [P, Ld], 1 where the post has a term.
        length: positions to divide by; None is the number of the post's terms.
    """
    total = torch.bmm(similarity, post_mask.unsqueeze(2)).squeeze(2)
    return total / (length or post_mask.sum(dim=1, keepdim=True).clamp_min(1.0))


def perceptron(inputs: int, hidden: int, outputs: int, dropout: float) -> nn.Sequential:
    """Two linear layers with a ReLU between them (Rao et al. 2019, section 3.4)."""
    return nn.Sequential(
        nn.Linear(inputs, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, outputs)
    )


def k_max_pooling(values: Tensor, lengths: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """The ``k`` highest values of each feature, in the order in which they are in the text.

    Of equal values the earlier is kept.

    Args:
        values: [B, L, F].
        lengths: [B] positions of each text that are there; no other is ever kept.
        k: [B] how many values to keep, at least 1.

    Returns:
        [B, K, F] with K the largest ``k``, 0 where a text has no more to keep, and how many of
        each text were kept [B].
    """
    positions, most = values.shape[1], int(k.max())
    kept = torch.minimum(k, lengths)
    rows = values.transpose(1, 2)  # [B, F, L]
    places = torch.arange(positions, device=values.device)
    outside = (places >= lengths.unsqueeze(1)).unsqueeze(1)
    inside_only = rows.masked_fill(outside, -torch.inf)
    best = inside_only.argsort(dim=2, descending=True, stable=True)[:, :, :most]  # [B, F, K]
    chosen = places[: best.shape[2]] < kept.unsqueeze(1)  # [B, K]
    # What is not chosen goes to the end, so that the chosen places come first, in their order.
    best = best.masked_fill(~chosen.unsqueeze(1), positions).sort(dim=2).values
    pooled = rows.gather(2, best.clamp(max=positions - 1)) * chosen.unsqueeze(1)
    return F.pad(pooled.transpose(1, 2), (0, 0, 0, most - best.shape[2])), kept


def bounded(scores: Tensor, bound: float) -> Tensor:
    """``scores`` of any shape pressed into (-bound, bound) by tanh; small ones stay as they are."""
    return bound * torch.tanh(scores / bound)


class GaussianKernels(nn.Module):
    """Soft counts of matches at levels of similarity (Xiong et al. 2017, section 3.1).

    A kernel of mean μ and width σ gives ``exp(-(s - μ)² / 2σ²)`` for a similarity s. The first
    has the mean 1 and is so narrow that it counts exact matches; the means of the ``soft`` others
    divide [-1, 1] evenly: 0.9, 0.7 … -0.9 for ten.

    Args:
        soft: number of the kernels after the first; there are K = soft + 1.
        sigma: their width.
        exact_sigma: width of the first.
    """

    def __init__(self, soft: int = 10, sigma: float = 0.1, exact_sigma: float = 1e-3) -> None:
        super().__init__()
        means = [1.0, *(1.0 - (2 * place + 1) / soft for place in range(soft))]
        widths = [exact_sigma, *[sigma] * soft]
        self.kernels = tuple(zip(means, widths, strict=True))

    def forward(self, similarity: Tensor, post_mask: Tensor) -> Tensor:
        """Sum over the post's terms: [P, Lq, K].

        Args:
            similarity: [P, Lq, Ld], cosines.
            post_mask: [P, Ld], 1 where the post has a term.
        """
        column = post_mask.unsqueeze(2)
        # One kernel after the other: what is in work at a time fits the processor's cache.
        sums = [
            torch.bmm(torch.exp((similarity - mean).square() * (-0.5 / width**2)), column)
            for mean, width in self.kernels
        ]
        return torch.cat(sums, dim=2)
