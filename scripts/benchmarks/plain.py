"""The plain way to score: a forward pass over padded pairs, each with its own query.

MP-HCNN's own forward pass leaves padding out; here it is computed and masked, as in the paper.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812

from rerankers.base import TRIGRAMS, URL_TRIGRAMS, WORDS, Inputs, Reranker, Terms
from rerankers.engine.scoring import BATCH_SIZE
from rerankers.engine.tokenized import Tokenized
from rerankers.layers.convolutions import ConvolutionTower
from rerankers.layers.embeddings import mask_of
from rerankers.models import mp_hcnn
from rerankers.text.inputs import TokenIds

_QUERY_SETTINGS = {WORDS: "query_words", TRIGRAMS: "query_trigrams"}
_POST_SETTINGS = {WORDS: "post_words", TRIGRAMS: "post_trigrams", URL_TRIGRAMS: "url_trigrams"}


class PaddedPairs:
    """Pairs whose texts are padded to the model's maximal lengths.

    These are 10/51/68/140/120 for MP-HCNN (section 4.3); a model without maximal lengths gets the
    lengths of the longest texts.
    """

    def __init__(self, tokenized: Tokenized, model: Reranker) -> None:
        self.tokenized, self.query_index = tokenized, tokenized.query_index
        self.query_lengths = _lengths(model, tokenized.queries, _QUERY_SETTINGS)
        self.post_lengths = _lengths(model, tokenized.posts, _POST_SETTINGS)

    def scores_of(
        self, model: Reranker, rows: npt.NDArray[np.int64], device: torch.device
    ) -> torch.Tensor:
        """Scores [B] of the pairs ``rows`` [B]."""
        pairs = self.tokenized
        queries = _padded(pairs.queries, pairs.query_index[rows], self.query_lengths, device)
        posts = _padded(pairs.posts, pairs.post_index[rows], self.post_lengths, device)
        own = torch.arange(len(rows), device=device)
        with _with_padding(model):
            scores: torch.Tensor = model(queries, posts, own, pairs.features_of(rows, device))
        return scores

    def score(self, model: Reranker) -> npt.NDArray[np.float32]:
        """Scores [P] of all pairs, batch by batch."""
        device, count = model.device_of(), len(self.query_index)
        scores = np.zeros(count, dtype=np.float32)
        with torch.inference_mode():
            for start in range(0, count, BATCH_SIZE):
                rows = np.arange(start, min(start + BATCH_SIZE, count))
                scores[rows] = self.scores_of(model, rows, device).float().cpu().numpy()
        return scores


@contextmanager
def _with_padding(model: Reranker) -> Iterator[None]:
    """MP-HCNN computes padding meanwhile; other models always do."""
    if not isinstance(model, mp_hcnn.Model):
        yield
        return
    towers = list(model.towers.values())
    for tower in towers:
        tower.of_parts = partial(_levels, tower)  # type: ignore[arg-type]
    model._pooled = partial(_pooled, model)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for tower in towers:
            del tower.of_parts
        del model._pooled


def _levels(tower: ConvolutionTower, parts: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
    """:meth:`ConvolutionTower.of_parts` over all positions."""
    found = []
    for ids in parts:
        mask = mask_of(ids).unsqueeze(2)
        levels = [tower.vectors(ids)]
        for convolution in tower.convolutions:
            levels.append(convolution(levels[-1], mask))
        found.append(levels)
    return found


def _pooled(
    model: mp_hcnn.Model,
    queries: mp_hcnn.PhraseVectors,
    posts: Inputs,
    query_of_post: torch.Tensor,
    perspective: mp_hcnn.Perspective,
) -> list[list[torch.Tensor]]:
    """The same of MP-HCNN's comparisons."""
    similarities = model.similarities(queries, posts, query_of_post, perspective)
    return [model.pool(each, perspective) for each in similarities]


def _lengths(
    model: Reranker, inputs: Mapping[str, TokenIds], settings: Mapping[str, str]
) -> dict[str, int]:
    longest = {name: max(1, int(ids.lengths.max(initial=0))) for name, ids in inputs.items()}
    return {
        name: int(getattr(model.config, settings.get(name, ""), length))
        for name, length in longest.items()
    }


def _padded(
    inputs: Mapping[str, TokenIds],
    rows: npt.NDArray[np.int64],
    lengths: Mapping[str, int],
    device: torch.device,
) -> Inputs:
    return {
        name: Terms(*(_to_length(part, lengths[name]) for part in ids.batch(rows, device)))
        for name, ids in inputs.items()
    }


def _to_length(part: torch.Tensor, length: int) -> torch.Tensor:
    """[B, L] cut or padded to [B, length]; the weights of posts, [B, 0], stay as they are."""
    return F.pad(part[:, :length], (0, max(0, length - part.shape[1]))) if part.shape[1] else part
