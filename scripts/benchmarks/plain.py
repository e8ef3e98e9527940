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

from rerankers.base import TRIGRAMS, URL_TRIGRAMS, WORDS, Inputs, Terms
from rerankers.layers.convolutions import ConvolutionTower
from rerankers.layers.embeddings import mask_of
from rerankers.models.mp_hcnn import Model, Perspective, PhraseVectors
from rerankers.scoring.batches import BATCH_SIZE
from rerankers.scoring.tokenized import Tokenized
from rerankers.text.inputs import TokenIds


def padded_scores(model: Model, tokenized: Tokenized) -> npt.NDArray[np.float32]:
    """Scores [P], texts padded to the paper's lengths 10/51/68/140/120 (section 4.3)."""
    config, device = model.config, model.device_of()
    query_lengths = {WORDS: config.query_words, TRIGRAMS: config.query_trigrams}
    post_lengths = {
        WORDS: config.post_words,
        TRIGRAMS: config.post_trigrams,
        URL_TRIGRAMS: config.url_trigrams,
    }
    scores = np.zeros(len(tokenized.query_index), dtype=np.float32)
    with torch.inference_mode(), _with_padding(model):
        for rows in np.split(np.arange(len(scores)), range(BATCH_SIZE, len(scores), BATCH_SIZE)):
            queries = _padded(tokenized.queries, tokenized.query_index[rows], query_lengths, device)
            posts = _padded(tokenized.posts, tokenized.post_index[rows], post_lengths, device)
            own = torch.arange(len(rows), device=device)
            batch = model(queries, posts, own, tokenized.features_of(rows, device))
            scores[rows] = batch.float().cpu().numpy()
    return scores


@contextmanager
def _with_padding(model: Model) -> Iterator[None]:
    """Let the model compute all positions."""
    towers = list(model.towers.values())
    for tower in towers:
        tower.of_parts = partial(_levels, tower)  # type: ignore[arg-type, assignment]
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
    model: Model,
    queries: PhraseVectors,
    posts: Inputs,
    query_of_post: torch.Tensor,
    perspective: Perspective,
) -> list[list[torch.Tensor]]:
    """The same of MP-HCNN's comparisons."""
    similarities = model.similarities(queries, posts, query_of_post, perspective)
    return [model.pool(each, perspective) for each in similarities]


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
