"""Sums of trigram vectors over texts or over words."""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from tweetrerank.rerankers import devices
from tweetrerank.rerankers.networks.layers.positions import mask_of_lengths
from tweetrerank.rerankers.text.words import TRIGRAM_CLASSES, TRIGRAM_COUNT

# Knuth's multiplicative hash: 2³² divided by the golden ratio, made odd. It spreads
# trigrams that differ only in their last letter.
_MULTIPLIER = 2654435761


class TrigramSums(nn.Module):
    """The product of a trained matrix with the trigram counts of texts or words.

    The product is a sum of one vector for each trigram. The counts, almost all of which
    are zero, are therefore never computed. The matrix has ``size`` columns and
    ``buckets`` rows. If there are fewer buckets than trigrams, trigrams share rows.
    Initial weights are drawn from U[-bound, bound]. A text has tens of trigrams, so
    their sum is then in the steep range of tanh.
    """

    def __init__(
        self,
        size: int,
        buckets: int,
        bound: float = 0.1,
    ) -> None:
        super().__init__()
        self.buckets = buckets
        self.sparse = False  # Whether gradients are sparse
        # Row 0 is for padding and is never read.
        self.weight = nn.Parameter(torch.empty(buckets + 1, size))
        nn.init.uniform_(self.weight, -bound, bound)

    def forward(self, ids: Tensor, offsets: Tensor | None = None) -> Tensor:
        """Return the sum over each text: trigrams ``ids`` [B, L] become [B, K].

        With ``offsets`` [B], ``ids`` [T] are one text, and the sums are over the parts
        of it that begin at these offsets.
        """
        if self.buckets < TRIGRAM_COUNT:
            mixed = (ids * _MULTIPLIER) & 0xFFFFFFFF
            rows = ((mixed * self.buckets) >> 32) + 1
            ids = torch.where(ids > 0, rows, 0)
        return F.embedding_bag(
            ids,
            self.weight,
            offsets,
            mode="sum",
            padding_idx=0,
            sparse=self.sparse,
        )

    def by_word(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return (sums [B, W, K], mask [B, W]) over each word of texts.

        ``ids`` [B, L] are trigrams. W is the number of words of the longest text, but
        at least 1. On a GPU, W is its upper limit L, because the GPU should not wait
        for the number.
        """
        # Only the first trigram of a word begins with # (class 0).
        starts = (ids > 0) & (ids <= TRIGRAM_CLASSES**2)
        counts = starts.sum(dim=1)
        most = ids.shape[1]
        if ids.device.type in devices.HOSTS:
            most = max(1, int(counts.max()))
        mask = mask_of_lengths(counts, most)  # [B, W]
        # [B, L] is the word of each trigram, ascending. Padding belongs to a row's last
        # word.
        places = torch.arange(mask.numel(), device=ids.device)
        places = places.view(mask.shape)
        in_text = (starts.cumsum(dim=1) - 1).clamp_min(0)
        words = in_text + places[:, :1]
        offsets = torch.searchsorted(words.flatten(), places.flatten())
        sums = self(ids.flatten(), offsets)  # [B · W, K]
        return sums.view(len(mask), most, -1), mask
