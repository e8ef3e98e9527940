"""The engine: many pairs through a model, as fast as the machine allows.

Each distinct text is read once (tokenised, looked up) and kept packed. A topic's posts go through
the model together with its query, sorted by length so that batches hold little padding.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from rerankers.base import Interactions, Pairs, Reranker, Views
from rerankers.errors import RerankerError
from rerankers.views import Packed, TextEncoder


class Scorable(Protocol):
    """Pairs that can be put through a model by row."""

    query_index: npt.NDArray[np.int64]

    def scores_of(
        self, model: Reranker, rows: npt.NDArray[np.int64], device: torch.device
    ) -> torch.Tensor:
        """Scores [B] of the pairs ``rows`` [B], with gradients if they are enabled."""

    def compared(
        self, model: Reranker, rows: npt.NDArray[np.int64], device: torch.device
    ) -> Interactions:
        """The pairs ``rows`` [B], compared but not yet judged."""

    def lengths(self) -> npt.NDArray[np.int64]:
        """[P] a number for each pair that grows with its work."""


BATCH_SIZE = 256
"""Pairs in a batch: enough to keep two cores busy, and its matrices still fit their caches."""


@dataclass
class Encoded:
    """Pairs whose texts have been read: packed views of the queries and of the posts."""

    queries: dict[str, Packed]
    posts: dict[str, Packed]
    query_index: npt.NDArray[np.int64]
    post_index: npt.NDArray[np.int64]
    priors: npt.NDArray[np.float32] | None = None

    @classmethod
    def of(cls, pairs: Pairs, encoder: TextEncoder, model: Reranker) -> "Encoded":
        """Read the texts of ``pairs`` into the views that ``model`` declares."""
        return cls(
            dict(encoder.queries(pairs.queries, model.query_views)),
            dict(encoder.posts(pairs.texts, pairs.urls, model.post_views)),
            pairs.query_index,
            pairs.post_index,
            pairs.priors,
        )

    def scores_of(
        self, model: Reranker, rows: npt.NDArray[np.int64], device: torch.device
    ) -> torch.Tensor:
        """One forward pass over the pairs ``rows`` [B]: scores [B]."""
        scores: torch.Tensor = model(*self.batch(rows, device), self.priors_of(rows, device))
        return scores

    def compared(
        self, model: Reranker, rows: npt.NDArray[np.int64], device: torch.device
    ) -> Interactions:
        """The pairs ``rows`` [B], compared but not yet judged."""
        queries, posts, query_of_post = self.batch(rows, device)
        return model.compare(
            model.encode_queries(queries), model.encode_posts(posts), query_of_post,
            self.priors_of(rows, device),
        )  # fmt: skip

    def priors_of(self, rows: npt.NDArray[np.int64], device: torch.device) -> torch.Tensor | None:
        """Priors [B] of the pairs ``rows``, None if there are none."""
        return None if self.priors is None else torch.from_numpy(self.priors[rows]).to(device)

    def batch(
        self, rows: npt.NDArray[np.int64], device: torch.device
    ) -> tuple[Views, Views, torch.Tensor]:
        """The pairs ``rows`` [B] as a model's input: queries, posts, query of each post."""
        queries, query_of_post = np.unique(self.query_index[rows], return_inverse=True)
        posts = self.post_index[rows]
        return (
            {view: packed.padded(queries, device) for view, packed in self.queries.items()},
            {view: packed.padded(posts, device) for view, packed in self.posts.items()},
            torch.from_numpy(query_of_post.astype(np.int64)).to(device),
        )

    def subset(self, rows: npt.NDArray[np.int64]) -> "Encoded":
        """The pairs ``rows`` alone."""
        return Encoded(
            self.queries, self.posts, self.query_index[rows], self.post_index[rows],
            None if self.priors is None else self.priors[rows],
        )  # fmt: skip

    def with_pairs(
        self, query_index: npt.NDArray[np.int64], post_index: npt.NDArray[np.int64]
    ) -> "Encoded":
        """The same pairs and, after them, others of the same texts, whose prior is 0."""
        return Encoded(
            self.queries, self.posts,
            np.concatenate([self.query_index, query_index]),
            np.concatenate([self.post_index, post_index]),
            None if self.priors is None
            else np.concatenate([self.priors, np.zeros(len(query_index), np.float32)]),
        )  # fmt: skip

    def lengths(self) -> npt.NDArray[np.int64]:
        """[P] terms of each pair's post over all views, the measure of its work."""
        total = np.sum([packed.lengths for packed in self.posts.values()], axis=0)
        lengths: npt.NDArray[np.int64] = total[self.post_index]
        return lengths


def score(
    model: Reranker,
    pairs: Pairs,
    encoder: TextEncoder,
    batch_size: int = BATCH_SIZE,
    progress: Callable[[int], None] = lambda pairs_done: None,
) -> npt.NDArray[np.float32]:
    """Score all pairs.

    Args:
        model: on the device that is to be used.
        pairs: what to score.
        encoder: reads the texts.
        batch_size: pairs in a forward pass.
        progress: called with the number of pairs of each finished batch.

    Returns:
        [P] scores, higher is better.

    Raises:
        RerankerError: the model gave a score that is not a number.
    """
    return score_encoded(model, Encoded.of(pairs, encoder, model), batch_size, progress)


def score_encoded(
    model: Reranker,
    encoded: Scorable,
    batch_size: int = BATCH_SIZE,
    progress: Callable[[int], None] = lambda pairs_done: None,
) -> npt.NDArray[np.float32]:
    """Score pairs whose texts have been read; see :func:`score`."""
    device = model.device_of()
    scores = np.zeros(len(encoded.query_index), dtype=np.float32)
    training = model.training
    model.eval()
    with torch.inference_mode():
        for rows in batches_of(encoded, batch_size):
            scores[rows] = encoded.scores_of(model, rows, device).float().cpu().numpy()
            progress(len(rows))
    model.train(training)
    if not np.isfinite(scores).all():
        raise RerankerError(
            f"found {int((~np.isfinite(scores)).sum())} scores that are not finite numbers among "
            f"{len(scores)}, expected none: the checkpoint's weights are damaged or training "
            "diverged; train again with a smaller learning rate or restore the checkpoint"
        )
    return scores


def represent_encoded(model: Reranker, encoded: Scorable) -> torch.Tensor:
    """The vector of each pair just before it is judged: [P, K], on the CPU."""
    device, training = model.device_of(), model.training
    model.eval()
    parts, order = [], []
    with torch.inference_mode():
        for rows in batches_of(encoded, BATCH_SIZE):
            parts.append(model.represent(encoded.compared(model, rows, device)).float().cpu())
            order.append(rows)
    model.train(training)
    places = np.argsort(np.concatenate(order), kind="stable")
    # A copy made outside of inference mode can be part of later computations.
    return torch.cat(parts)[torch.from_numpy(places)].clone()


def batches_of(encoded: Scorable, batch_size: int) -> list[npt.NDArray[np.int64]]:
    """Rows of all pairs, batch by batch, in the order that is cheapest.

    By query first, so that a batch encodes one query; by length next, against padding.
    """
    order = np.lexsort((encoded.lengths(), encoded.query_index))
    return batches(order, encoded.query_index, batch_size)


def batches(
    order: npt.NDArray[np.int64], query_index: npt.NDArray[np.int64], batch_size: int
) -> list[npt.NDArray[np.int64]]:
    """Cut ``order`` [P] where the query changes, and each query's part into equal batches."""
    borders = np.flatnonzero(np.diff(query_index[order])) + 1
    return [
        batch
        for part in np.split(order, borders)
        if len(part)
        for batch in np.array_split(part, -(-len(part) // batch_size))
    ]
