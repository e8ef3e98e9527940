"""Scoring of many pairs by a model.

Each distinct text is tokenized once. A batch has posts of one query, sorted by length, so that it
has little padding; MP-HCNN takes its fast path on a CPU (:mod:`rerankers.networks.fast_path`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, nullcontext

import numpy as np
import numpy.typing as npt
import torch

from rerankers.devices import is_host, one_thread_each, threads
from rerankers.errors import RerankerError
from rerankers.networks import fast_path
from rerankers.networks.base import Reranker
from rerankers.networks.inputs import TextEncoder
from rerankers.networks.tokenized import Scorable, Tokenized
from rerankers.pairs import Pairs
from rerankers.reranker import Progress, check_finite, silent
from rerankers.text.ragged import Rows

Scored = tuple[Rows, torch.Tensor]
"""Rows of pairs, and their scores."""

BATCH_SIZE = 256
"""Pairs in a batch: enough for two cores, and the matrices fit into their caches."""

SHARING = 4
"""Batch size multiplier for a fast path, which shares work between pairs."""

ON_DEVICE = 16
"""Batch size multiplier on a GPU, which thousands of pairs keep busy."""


def score(
    model: Reranker,
    pairs: Pairs,
    encoder: TextEncoder,
    batch_size: int = BATCH_SIZE,
    progress: Progress = silent,
) -> npt.NDArray[np.float32]:
    """Score all pairs.

    Args:
        model: on the device to use.
        pairs: queries and posts.
        encoder: of the model's checkpoint.
        batch_size: pairs in a forward pass; on a GPU :data:`ON_DEVICE` times as many.
        progress: called with the number of pairs of each finished batch; on a GPU, of each that
            is begun.

    Returns:
        [P] scores, higher is better.

    Raises:
        RerankerError: a score is not a finite number, or a batch does not fit into memory.
    """
    size = batch_size if is_host(model.device_of()) else ON_DEVICE * batch_size
    return score_tokenized(model, Tokenized.from_pairs(pairs, encoder, model), size, progress)


def score_tokenized(
    model: Reranker,
    pairs: Scorable,
    batch_size: int = BATCH_SIZE,
    progress: Progress = silent,
) -> npt.NDArray[np.float32]:
    """Score tokenized pairs; see :func:`score`."""
    size, scored = batch_size, []
    with _evaluating(model):
        batch_scorer = BatchScorer(model, pairs)
        has_fast_path = batch_scorer.fast_path is not None
        if has_fast_path:
            # Larger batches share more windows, but all threads need work until the end.
            share = -(-len(pairs.query_index) // (4 * threads()))
            size = min(SHARING * batch_size, max(batch_size, share))
        # A fast path needs no padding: mixed lengths give batches of equal duration.
        parts = batches_of(pairs, size, is_mixed=has_fast_path)
        for rows, values in _each(batch_scorer, parts):
            scored.append((rows, values))
            progress(len(rows))
    return _fetched(scored, len(pairs.query_index))


def _each(batch_scorer: BatchScorer, parts: Sequence[Rows]) -> Iterator[Scored]:
    """Score each batch: several at a time on a CPU, one at a time on a GPU.

    A batch is too small for several threads, and NumPy uses one thread only.
    """
    count, is_gpu = threads(), not is_host(batch_scorer.device)
    if is_gpu or count == 1 or len(parts) == 1:
        yield from map(batch_scorer.score, parts)
        return
    with one_thread_each():
        pool = ThreadPoolExecutor(count)
        try:
            for done in as_completed([pool.submit(batch_scorer.score, rows) for rows in parts]):
                yield done.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _fetched(scored: Sequence[Scored], count: int) -> npt.NDArray[np.float32]:
    """Finite scores [P] of ``count`` rows, with one transfer from the device."""
    scores = np.zeros(count, dtype=np.float32)
    if scored:
        rows, values = zip(*scored, strict=True)
        scores[np.concatenate(rows)] = torch.cat(values).cpu().numpy()
    check_finite(scores)
    return scores


class BatchScorer:
    """Scores batches of pairs by a model on its device.

    Args:
        model: in evaluation mode.
        pairs: tokenized, or cached interactions.
    """

    def __init__(self, model: Reranker, pairs: Scorable) -> None:
        self.model, self.pairs = model, pairs
        self.device = model.device_of()
        with torch.inference_mode():
            self.fast_path = fast_path.find(model, pairs)

    def score(self, rows: Rows) -> Scored:
        """Scores of the pairs ``rows``, which are of one query for a fast path.

        Raises:
            RerankerError: they do not fit into memory.
        """
        try:
            return rows, self._forward(rows)
        except (MemoryError, RuntimeError) as error:
            of_memory = isinstance(error, MemoryError | torch.OutOfMemoryError)
            if not of_memory and "DefaultCPUAllocator" not in str(error):
                raise
            raise RerankerError(
                f"found too little memory on {self.device} for {len(rows)} pairs at once; use a "
                "smaller `batch_size` or fewer `threads`, or end other programs there"
            ) from None

    def _forward(self, rows: Rows) -> torch.Tensor:
        # The current GPU and the inference mode are states of a thread.
        gpu = torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()
        with gpu, torch.inference_mode():
            if self.fast_path:
                return self.fast_path.scores_of(rows)
            return self.pairs.scores_of(self.model, rows, self.device)


@contextmanager
def _evaluating(model: Reranker) -> Iterator[None]:
    """Evaluation mode, and cuDNN in full single precision, as on a CPU."""
    training, is_coarse = model.training, torch.backends.cudnn.allow_tf32
    model.eval()
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = is_coarse
        model.train(training)


def represent_tokenized(model: Reranker, pairs: Scorable) -> torch.Tensor:
    """Input [P, K] of the model's head for each pair, on the CPU."""
    device = model.device_of()
    parts, order = [], []
    with _evaluating(model), torch.inference_mode():
        for rows in batches_of(pairs, BATCH_SIZE):
            parts.append(model.represent(pairs.compared(model, rows, device)).float().cpu())
            order.append(rows)
    places = np.argsort(np.concatenate(order), kind="stable")
    # Outside of inference mode, a copy can take part in later gradients.
    return torch.cat(parts)[torch.from_numpy(places)].clone()


def batches_of(
    pairs: Scorable, batch_size: int, is_mixed: bool = False
) -> list[npt.NDArray[np.int64]]:
    """Rows of all pairs by batch: of one query, and of similar lengths against padding.

    Mixed batches start with the largest: later ones reuse its memory, and threads end together.
    """
    lengths = pairs.lengths()
    order = np.lexsort((lengths, pairs.query_index))
    parts = _cut(order, pairs.query_index, batch_size, is_mixed)
    if is_mixed:
        parts.sort(key=lambda rows: -int(lengths[rows].sum()))
    return parts


def _cut(order: Rows, query_index: Rows, batch_size: int, is_mixed: bool = False) -> list[Rows]:
    """Cut ``order`` [P] where the query changes, and each query's part into equal batches.

    A batch has neighbours in ``order``; a mixed one has pairs of the whole part, so that all
    batches of a query are the same amount of work.
    """
    borders = np.flatnonzero(np.diff(query_index[order])) + 1
    parts = []
    for part in np.split(order, borders):
        count = -(-len(part) // batch_size)
        if is_mixed:
            parts += [part[start::count] for start in range(count)]
        elif count:
            parts += np.array_split(part, count)
    return parts
