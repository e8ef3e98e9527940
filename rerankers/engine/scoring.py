"""The engine: many pairs through a model, as fast as the machine allows.

Each distinct text is read once (tokenised, looked up) and kept packed. A topic's posts go through
the model together with its query, sorted by length so that batches hold little padding. A model
that has a file in ``rerankers/fast_paths`` goes its faster way to the same scores. Several GPUs
share the topics, and a batch that is too large for the memory goes through in halves.
"""

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import torch

from rerankers.base import Pairs, Reranker, require_choice
from rerankers.engine.batch_scorer import PRECISIONS, BatchScorer, Rows, Scored
from rerankers.engine.precomputed import PrecomputedPosts, PrecomputedVectors
from rerankers.engine.threads import one_thread_each
from rerankers.engine.tokenized import Scorable, Tokenized
from rerankers.errors import RerankerError
from rerankers.text.inputs import TextEncoder

BATCH_SIZE = 256
"""Pairs in a batch: enough to keep two cores busy, and its matrices still fit their caches."""

SHARING = 4
"""So many times the pairs are in a batch where a fast_path computes what they share once."""

HELD = 64
"""Batches whose scores stay on a GPU before it is waited for and they are fetched together."""


def score(
    model: Reranker,
    pairs: Pairs,
    encoder: TextEncoder,
    batch_size: int = BATCH_SIZE,
    progress: Callable[[int], None] = lambda pairs_done: None,
    precision: str = "fp32",
    devices: Sequence[torch.device] = (),
    precomputed: PrecomputedVectors | PrecomputedPosts | None = None,
) -> npt.NDArray[np.float32]:
    """Score all pairs.

    Args:
        model: on the device that is to be used.
        pairs: what to score.
        encoder: reads the texts.
        batch_size: pairs in a forward pass; fewer where the memory is too small, with a warning.
        progress: called with the number of pairs of each finished batch.
        precision: one of :data:`rerankers.engine.batch_scorer.PRECISIONS`.
        devices: share the topics; the model is on the first. Empty is the model's own device.
        precomputed: posts that need not be encoded any more, of use on a CPU in fp32, or need not be
            read any more for features.

    Returns:
        [P] scores, higher is better.

    Raises:
        RerankerError: the model gave a score that is not a number, the memory is too small for
            a single pair, or there is no such precision.
    """
    on_cpu = model.device_of().type == "cpu" and precision == "fp32"
    if not (isinstance(precomputed, PrecomputedVectors) and on_cpu):
        stored = precomputed if isinstance(precomputed, PrecomputedPosts) else None
        encoded = Tokenized.from_pairs(pairs, encoder, model, stored)
        return score_tokenized(model, encoded, batch_size, progress, precision, devices)
    scores = np.zeros(len(pairs), dtype=np.float32)
    known = precomputed.find(pairs)[pairs.post_index]
    for rows in (np.flatnonzero(known >= 0), np.flatnonzero(known < 0)):
        if len(rows):
            part = pairs if len(rows) == len(pairs) else pairs.part(rows)
            if known[rows[0]] >= 0:
                encoded = Tokenized.from_precomputed(part, known[rows], encoder, model, precomputed)
            else:
                encoded = Tokenized.from_pairs(part, encoder, model)
            scores[rows] = score_tokenized(model, encoded, batch_size, progress)
    return scores


def score_tokenized(
    model: Reranker,
    encoded: Scorable,
    batch_size: int = BATCH_SIZE,
    progress: Callable[[int], None] = lambda pairs_done: None,
    precision: str = "fp32",
    devices: Sequence[torch.device] = (),
) -> npt.NDArray[np.float32]:
    """Score pairs whose texts have been read; see :func:`score`."""
    require_choice("precision", precision, PRECISIONS)
    scores = np.zeros(len(encoded.query_index), dtype=np.float32)
    held: list[Scored] = []
    with _evaluating(model):
        batch_scorers = [BatchScorer(model, encoded, precision)]
        # The more posts there are in a batch, the more windows they share.
        is_matched = batch_scorers[0].fast_path is not None
        size = batch_size
        if is_matched:
            # Large, but never so large that a thread has nothing to do at the end.
            share = -(-len(scores) // (4 * torch.get_num_threads()))
            size = min(SHARING * batch_size, max(batch_size, share))
        # A fast_path pads nothing, so its batches need not be of one length: better of one duration.
        parts = batches_of(encoded, size, is_mixed=is_matched)
        if parts and not model.post_inputs and len(devices) < 2:
            # It reads features alone, of which there are all: nothing is padded or encoded.
            parts = [np.concatenate(parts)]
        shares = deal(parts, encoded.query_index, max(1, len(devices)))
        for device in devices[1 : len(shares)]:
            batch_scorers.append(BatchScorer(copy.deepcopy(model).to(device), encoded, precision))
        for found in _each(batch_scorers, shares):
            held += found
            progress(sum(len(rows) for rows, _ in found))
            if len(held) >= HELD:
                _fetch(held, scores)
                held = []
        _fetch(held, scores)
    if not np.isfinite(scores).all():
        raise RerankerError(
            f"found {int((~np.isfinite(scores)).sum())} scores that are not finite numbers among "
            f"{len(scores)}, expected none: the checkpoint's weights are damaged or training "
            "diverged; train again with a smaller learning rate or restore the checkpoint"
        )
    return scores


def _each(
    batch_scorers: Sequence[BatchScorer], shares: Sequence[Sequence[Rows]]
) -> Iterator[list[Scored]]:
    """Score each batch: on a CPU several at a time, on GPUs one at a time on each.

    A batch is too small to be shared among threads, and what is not PyTorch's has one thread only.
    """
    threads, is_only = torch.get_num_threads(), len(batch_scorers) == 1
    on_gpu = batch_scorers[0].device.type != "cpu"
    if is_only and (on_gpu or threads == 1 or len(shares[0]) == 1):
        yield from map(batch_scorers[0].score, shares[0])
        return
    with one_thread_each():
        pools = [ThreadPoolExecutor(threads if is_only else 1) for _ in batch_scorers]
        try:
            work = [
                pool.submit(batch_scorer.score, rows)
                for pool, batch_scorer, share in zip(pools, batch_scorers, shares, strict=True)
                for rows in share
            ]
            for done in as_completed(work):
                yield done.result()
        finally:
            for pool in pools:
                pool.shutdown(wait=False, cancel_futures=True)
            for pool in pools:
                pool.shutdown()


def _fetch(found: Sequence[Scored], scores: npt.NDArray[np.float32]) -> None:
    """Put what was ``found`` in its places, by one transfer from each device."""
    for device in {values.device for _, values in found}:
        here = [(rows, values) for rows, values in found if values.device == device]
        values = torch.cat([values for _, values in here])
        scores[np.concatenate([rows for rows, _ in here])] = values.cpu().numpy()


@contextmanager
def _evaluating(model: Reranker) -> Iterator[None]:
    """The model in evaluation mode, and cuDNN in full single precision, as the CPU is."""
    training, is_coarse = model.training, torch.backends.cudnn.allow_tf32
    model.eval()
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = is_coarse
        model.train(training)


def represent_tokenized(model: Reranker, encoded: Scorable) -> torch.Tensor:
    """The vector of each pair just before it is judged: [P, K], on the CPU."""
    device = model.device_of()
    parts, order = [], []
    with _evaluating(model), torch.inference_mode():
        for rows in batches_of(encoded, BATCH_SIZE):
            parts.append(model.represent(encoded.compared(model, rows, device)).float().cpu())
            order.append(rows)
    places = np.argsort(np.concatenate(order), kind="stable")
    # A copy made outside of inference mode can be part of later computations.
    return torch.cat(parts)[torch.from_numpy(places)].clone()


def batches_of(
    encoded: Scorable, batch_size: int, is_mixed: bool = False
) -> list[npt.NDArray[np.int64]]:
    """Rows of all pairs, batch by batch, in the order that is cheapest.

    By query first, so that a batch encodes one query; by length next, against padding. Batches
    that are mixed come with the most work first: its memory serves all that follow, and threads
    end together.
    """
    lengths = encoded.lengths()
    order = np.lexsort((lengths, encoded.query_index))
    found = batches(order, encoded.query_index, batch_size, is_mixed)
    if is_mixed:
        found.sort(key=lambda rows: -int(lengths[rows].sum()))
    return found


def batches(
    order: npt.NDArray[np.int64], query_index: npt.NDArray[np.int64], batch_size: int,
    is_mixed: bool = False,
) -> list[npt.NDArray[np.int64]]:  # fmt: skip
    """Cut ``order`` [P] where the query changes, and each query's part into equal batches.

    Batches are runs of neighbours, or, if they are to be mixed, each has pairs of the whole part:
    then all are the same amount of work.
    """
    borders = np.flatnonzero(np.diff(query_index[order])) + 1
    found = []
    for part in np.split(order, borders):
        count = -(-len(part) // batch_size)
        if is_mixed:
            found += [part[start::count] for start in range(count)]
        elif count:
            found += np.array_split(part, count)
    return found


def deal(batches: Sequence[Rows], query_index: Rows, count: int) -> list[list[Rows]]:
    """Share the batches out among ``count``, by whole topics and about equal in pairs.

    The largest topic goes first, each to who has the fewest pairs. There are fewer shares than
    ``count`` where there are fewer topics, and always one.
    """
    topics: Counter[int] = Counter()
    for rows in batches:
        topics[int(query_index[rows[0]])] += len(rows)
    owner, pairs = {}, [0] * count
    for topic, size in topics.most_common():
        owner[topic] = pairs.index(min(pairs))
        pairs[owner[topic]] += size
    shares: list[list[Rows]] = [[] for _ in range(min(count, max(1, len(topics))))]
    for rows in batches:
        shares[owner[int(query_index[rows[0]])]].append(rows)
    return shares
