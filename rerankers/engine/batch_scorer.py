"""Scoring of batches by a model on one device, in halves where memory is short."""

import sys
import warnings
from contextlib import nullcontext
from threading import Lock

import numpy as np
import torch

from rerankers.base import Reranker
from rerankers.engine import fast_paths
from rerankers.engine.tokenized import Scorable
from rerankers.errors import RerankerError
from rerankers.text.ragged import Rows

PRECISIONS = ("fp32", "bf16")
"""Number formats of a model's arithmetic. With bf16, PyTorch's autocast chooses the operations
(matrix products, convolutions); all others stay in single precision."""

Scored = tuple[Rows, torch.Tensor]
"""Rows of pairs, and their scores."""


def devices_of(device: torch.device | str) -> list[torch.device]:
    """Devices by name: all GPUs for ``cuda``, one device for any other name."""
    named = torch.device(device)
    if named.type != "cuda" or named.index is not None:
        return [named]
    # Without a GPU, PyTorch raises the error.
    return [torch.device("cuda", n) for n in range(torch.cuda.device_count())] or [named]


class BatchScorer:
    """Scores batches of pairs by a model on its device.

    Args:
        model: in evaluation mode.
        pairs: tokenized, or cached interactions.
        precision: one of :data:`PRECISIONS`.

    Attributes:
        fast_path: of the model, if there is one for these pairs.
        largest: number of pairs in a forward pass at most.
    """

    def __init__(self, model: Reranker, pairs: Scorable, precision: str) -> None:
        self.model, self.pairs, self.precision = model, pairs, precision
        self.device = model.device_of()
        self.largest, self._lock = sys.maxsize, Lock()
        with torch.inference_mode():
            self.fast_path = fast_paths.find(model, pairs, precision)

    def score(self, rows: Rows) -> list[Scored]:
        """Scores of the pairs ``rows``, in parts if they do not fit into memory.

        Args:
            rows: for a fast path, pairs of one query.

        Raises:
            RerankerError: one pair does not fit into memory.
        """
        if len(rows) <= self.largest:
            try:
                return [(rows, self._forward(rows))]
            except (MemoryError, RuntimeError) as error:
                if not _is_out_of_memory(error):
                    raise
                self._shrink(len(rows))
        # Outside of the except block, the error no longer holds the failed pass's tensors.
        return [part for half in np.array_split(rows, 2) for part in self.score(half)]

    def _forward(self, rows: Rows) -> torch.Tensor:
        # The current GPU and the inference mode are states of a thread.
        gpu = torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()
        # A fast path chooses its own operations in bfloat16.
        by_torch = self.precision == "bf16" and self.fast_path is None
        narrow = torch.autocast(self.device.type, torch.bfloat16, by_torch)
        with gpu, narrow, torch.inference_mode():
            if self.fast_path:
                return self.fast_path.scores_of(rows).float()
            return self.pairs.scores_of(self.model, rows, self.device).float()

    def _shrink(self, pairs: int) -> None:
        """Halve the number of pairs in a forward pass, with a warning the first time."""
        if pairs == 1:
            advice = (
                "end other programs, or use fewer --threads"
                if self.device.type == "cpu"
                else "end other programs on this GPU, or use --device cpu"
            )
            raise RerankerError(
                f"found too little memory on {self.device}, expected enough to score one pair at "
                f"a time; {advice}"
            ) from None
        with self._lock:
            first, self.largest = self.largest == sys.maxsize, min(self.largest, -(-pairs // 2))
        if first:
            warnings.warn(
                f"the memory of {self.device} is too small for {pairs} pairs at once; going on "
                "with smaller batches, as a smaller --batch-size does from the start",
                RuntimeWarning,
                stacklevel=2,
            )


def _is_out_of_memory(error: Exception) -> bool:
    """Whether an error of Python, CUDA or PyTorch's CPU allocator is about memory."""
    is_error_of_memory = isinstance(error, MemoryError | torch.OutOfMemoryError)
    return is_error_of_memory or "DefaultCPUAllocator" in str(error)
