"""SM-CNN by distinct windows: its wide convolution as a sum of table rows, once for each."""

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from rerankers.base import MASKED_WORDS, WORDS, Interactions
from rerankers.contexts import Ids, Texts, distinct, used_ids
from rerankers.encoded import Encoded
from rerankers.models.sm_cnn import Encoding, Model
from rerankers.one_query import OneQueryMatcher
from rerankers.views import Packed

_CPU = torch.device("cpu")


class Matcher(OneQueryMatcher[Encoding]):
    """Vectors of posts by their windows, compared as the model does it."""

    def __init__(self, model: Model, encoded: Encoded) -> None:
        super().__init__(model, encoded)
        posts = encoded.posts[MASKED_WORDS]
        ids = used_ids([posts])
        rows = np.zeros(int(ids.max(initial=0)) + 1, dtype=np.int32)
        rows[ids] = np.arange(1, len(ids) + 1)
        convolution = model.post_sentence.convolution
        self.width = convolution.width
        self.posts = _widened(Packed(rows[posts.ids], posts.starts), self.width - 1)
        self.longest = int(self.posts.lengths.max(initial=0))
        # Row 0 of each offset is what lies beyond a text's ends.
        vectors = F.pad(model.vectors(torch.from_numpy(ids)), (0, 0, 1, 0))
        weights = convolution.weight.unflatten(0, (self.width, -1))
        self.table = torch.einsum("ne,wef->nwf", vectors, weights).flatten(0, 1)

    def compared(self, rows: npt.NDArray[np.int64]) -> Interactions:
        """The pairs ``rows`` [P] of one query, compared but not yet judged."""
        question = self.question(rows)
        posts = self.encoded.post_index[rows]
        words = self.encoded.posts[WORDS].padded(posts, _CPU)
        found: Interactions = self.model.compare(
            question, Encoding(self._vectors(posts), words),
            torch.zeros(len(rows), dtype=torch.int64), self.encoded.features_of(rows, _CPU),
        )  # fmt: skip
        return found

    def _vectors(self, posts: Ids) -> Tensor:
        """Vectors [P, F] of the texts ``posts`` [P]."""
        texts = Texts.of(self.posts, posts, self.longest)
        windows = texts.windows(texts.ids, self.width)
        first, which = distinct(windows)
        places = np.stack([column[first] for column in windows], axis=1)
        places = places * self.width + np.arange(self.width)
        hidden = F.embedding_bag(torch.from_numpy(places), self.table, mode="sum")
        hidden = F.relu_(hidden.add_(self.model.post_sentence.bias))
        # After a ReLU nothing is below 0: the row for places beyond a text's windows.
        hidden = F.pad(hidden, (0, 0, 0, 1))
        rows = torch.from_numpy(texts.padded(which, len(first))).T
        # The maximum over the first axis, of rows that index_select brings, is the quickest.
        return hidden.index_select(0, rows.flatten()).view(*rows.shape, -1).amax(dim=0)


def _widened(packed: Packed, margin: int) -> Packed:
    """Every text that has a term with ``margin`` zeros before it."""
    lengths = packed.lengths
    before = np.where(lengths > 0, margin, 0)
    starts = np.concatenate([[0], np.cumsum(lengths + before)])
    ids = np.zeros(starts[-1], dtype=packed.ids.dtype)
    shifts = starts[:-1] + before - packed.starts[:-1]
    ids[np.arange(len(packed.ids)) + np.repeat(shifts, lengths)] = packed.ids
    return Packed(ids, starts)
