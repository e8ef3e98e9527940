"""SM-CNN on distinct windows: its wide convolution is a sum of table rows, once for each."""

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from rerankers.base import MASKED_WORDS, WORDS, Interactions
from rerankers.models.sm_cnn import Model, SentenceVectors
from rerankers.scoring.fast_paths import PerQueryFastPath
from rerankers.scoring.tokenized import Tokenized
from rerankers.scoring.windows import distinct_windows, rows_by_id, used_ids
from rerankers.text.ragged import Ragged, Rows

_CPU = torch.device("cpu")


class FastPath(PerQueryFastPath[SentenceVectors]):
    """Vectors of posts by their distinct windows; the model compares them."""

    def __init__(self, model: Model, pairs: Tokenized) -> None:
        super().__init__(model, pairs)
        self.words, posts = pairs.posts[WORDS], pairs.posts[MASKED_WORDS]
        ids = used_ids([posts])
        rows = rows_by_id(ids).astype(np.int32)
        convolution = model.post_sentence.convolution
        self.width, self.bias = convolution.width, model.post_sentence.bias
        self.posts = _widened(Ragged(rows[posts.values], posts.starts), self.width - 1)
        self.longest = int(self.posts.lengths.max(initial=0))
        # Row 0 of each offset is for positions outside of the text.
        vectors = F.pad(model.vectors(torch.from_numpy(ids)), (0, 0, 1, 0))
        self.table = convolution.products(vectors)

    def compared(self, rows: Rows) -> Interactions:
        """Interactions of the pairs ``rows`` [P] of one query."""
        posts = self.pairs.post_index[rows]
        interactions: Interactions = self.model.compare(
            self.query(rows),
            SentenceVectors(self._vectors(posts), self.words.batch(posts, _CPU)),
            torch.zeros(len(rows), dtype=torch.int64),
            self.pairs.features_of(rows, _CPU),
        )
        return interactions

    def _vectors(self, rows: Rows) -> Tensor:
        """Vectors [P, F] of the posts ``rows`` [P]."""
        sequences = self.posts.take(rows, self.longest)
        places, which = distinct_windows(sequences, sequences.values, self.width)
        hidden = F.embedding_bag(torch.from_numpy(places), self.table, mode="sum")
        hidden = F.relu_(hidden.add_(self.bias))
        # The row for padding: after a ReLU, no value is below 0.
        hidden = F.pad(hidden, (0, 0, 0, 1))
        padded = torch.from_numpy(sequences.padded(len(places), which)).T
        # index_select, then a maximum over the first axis, is the fastest way.
        values = hidden.index_select(0, padded.flatten()).view(*padded.shape, len(self.bias))
        return values.amax(dim=0)


def _widened(texts: Ragged, margin: int) -> Ragged:
    """Texts with ``margin`` zeros before each one that has a term."""
    before = np.where(texts.lengths > 0, margin, 0)
    lengths = texts.lengths + before
    wide = Ragged.from_lengths(np.zeros(lengths.sum(), dtype=texts.values.dtype), lengths)
    wide.values[(wide.starts[:-1] + before)[texts.owners] + texts.positions] = texts.values
    return wide
