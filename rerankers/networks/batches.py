"""Scoring of many pairs by a model.

Each distinct text is tokenized once. A batch has posts of one query, sorted by length, so that it
has little padding; MP-HCNN takes its fast path on a CPU (:mod:`rerankers.networks.ngrams`).
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from rerankers.devices import is_host, one_thread_each, threads
from rerankers.errors import RerankerError
from rerankers.networks.base import Reranker
from rerankers.networks.inputs import Scorable
from rerankers.networks.ngrams import fast_path
from rerankers.pairs import lists_of
from rerankers.reranker import Progress, check_finite, silent
from rerankers.text.ragged import Rows

BATCH_SIZE = 256  # Pairs: enough for two cores, and the matrices fit into their caches
SHARING = 4  # Batch size multiplier for a fast path, which shares work between pairs
ON_DEVICE = 16  # Batch size multiplier on a GPU, which thousands of pairs keep busy


def score_tokenized(
    model: Reranker, pairs: Scorable, batch_size: int = BATCH_SIZE, progress: Progress = silent
) -> npt.NDArray[np.float32]:
    """Score all pairs: [P], higher is better; on a GPU by :data:`ON_DEVICE` times larger batches.
    ``progress`` is called with the pairs of each finished batch; on a GPU, of each that is begun.
    Raises RerankerError if a score is not a finite number, or a batch does not fit into memory."""
    count, on_host = len(pairs.query_index), is_host(model.device_of())
    size, found = batch_size if on_host else ON_DEVICE * batch_size, list[torch.Tensor]()
    with evaluating(model), ExitStack() as stack:
        fast = fast_path(model, pairs)
        if fast:
            # Larger batches share more windows, but all threads need work until the end.
            size = min(SHARING * batch_size, max(batch_size, -(-count // (4 * threads()))))
        # A fast path needs no padding: mixed lengths give batches of equal duration.
        parts = batches_of(pairs, size, is_mixed=fast is not None)
        each: Any = map
        if on_host and threads() > 1 and len(parts) > 1:  # A batch is too small for several.
            pool = ThreadPoolExecutor(stack.enter_context(one_thread_each()))
            each = stack.enter_context(pool).map  # Cancels what is left if one raises
        for values in each(partial(_scored, model, fast or pairs), parts):
            found.append(values)
            progress(len(values))
    scores = np.zeros(count, dtype=np.float32)
    if found:
        scores[np.concatenate(parts)] = torch.cat(found).cpu().numpy()  # One transfer
    check_finite(scores)
    return scores


def _scored(model: Reranker, pairs: Scorable, rows: Rows) -> torch.Tensor:
    try:
        with torch.inference_mode():  # A state of each thread
            return pairs.scores_of(model, rows)
    except (MemoryError, RuntimeError) as error:
        of_memory = isinstance(error, MemoryError | torch.OutOfMemoryError)
        if not of_memory and "DefaultCPUAllocator" not in str(error):
            raise
        raise RerankerError(
            f"found too little memory on {model.device_of()} for {len(rows)} pairs at once; use a "
            "smaller `batch_size` or fewer `threads`, or end other programs there"
        ) from None


@contextmanager
def evaluating(model: Reranker) -> Iterator[None]:
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
    order = batches_of(pairs, BATCH_SIZE)
    with evaluating(model), torch.inference_mode():
        parts = [model.represent(pairs.compared(model, rows)).float().cpu() for rows in order]
    places = np.argsort(np.concatenate(order), kind="stable")
    # Outside of inference mode, a copy can take part in later gradients.
    return torch.cat(parts)[torch.from_numpy(places)].clone()


def batches_of(pairs: Scorable, batch_size: int, is_mixed: bool = False) -> list[Rows]:
    """Rows of all pairs by batch: of one query, and of similar lengths against padding. Mixed
    batches have pairs of all lengths, so that those of a query are the same amount of work. They
    start with the largest: later ones reuse its memory, and threads end together."""
    lengths, parts = pairs.lengths(), list[Rows]()
    for rows in lists_of(pairs.query_index, lengths):
        count = -(-len(rows) // batch_size)
        if is_mixed:
            parts += [rows[start::count] for start in range(count)]
        else:
            parts += np.array_split(rows, count)
    if is_mixed:
        parts.sort(key=lambda rows: -int(lengths[rows].sum()))
    return parts
