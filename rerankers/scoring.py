"""The engine: many pairs through a model, as fast as the machine allows.

Each distinct text is read once (tokenised, looked up) and kept packed. A topic's posts go through
the model together with its query, sorted by length so that batches hold little padding. A model
that has a file in ``rerankers/matchers`` goes its faster way to the same scores.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import torch

from rerankers import matchers
from rerankers.base import Pairs, Reranker
from rerankers.encoded import Encoded, Scorable
from rerankers.errors import RerankerError
from rerankers.views import TextEncoder

BATCH_SIZE = 256
"""Pairs in a batch: enough to keep two cores busy, and its matrices still fit their caches."""

SHARING = 2
"""So many times the pairs are in a batch where a matcher computes what they share once."""


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
        matcher = matchers.find(model, encoded)

    def work(rows: npt.NDArray[np.int64]) -> int:
        # Each thread has to say anew that no gradients are wanted.
        with torch.inference_mode():
            found = matcher.scores_of(rows) if matcher else encoded.scores_of(model, rows, device)
            scores[rows] = found.float().cpu().numpy()
        return len(rows)

    # The more posts there are in a batch, the more windows they share.
    size = batch_size * (SHARING if matcher else 1)
    for done in _each(work, batches_of(encoded, size), device):
        progress(done)
    model.train(training)
    if not np.isfinite(scores).all():
        raise RerankerError(
            f"found {int((~np.isfinite(scores)).sum())} scores that are not finite numbers among "
            f"{len(scores)}, expected none: the checkpoint's weights are damaged or training "
            "diverged; train again with a smaller learning rate or restore the checkpoint"
        )
    return scores


def _each(
    work: Callable[[npt.NDArray[np.int64]], int], batches: Sequence[npt.NDArray[np.int64]],
    device: torch.device,
) -> Iterator[int]:  # fmt: skip
    """Do the work of each batch: on a CPU several at a time, each on a thread of its own.

    A batch is too small to be shared among threads, and what is not PyTorch's has one thread only.
    """
    threads = torch.get_num_threads()
    if device.type != "cpu" or threads == 1 or len(batches) == 1:
        yield from map(work, batches)
        return
    torch.set_num_threads(1)
    pool = ThreadPoolExecutor(threads)
    try:
        yield from pool.map(work, batches)
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)


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
