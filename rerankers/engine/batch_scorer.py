"""A model on one device, scoring batches there: its precision, and what memory allows."""

import sys
import warnings
from contextlib import nullcontext
from threading import Lock

import numpy as np
import numpy.typing as npt
import torch

from rerankers.base import Reranker
from rerankers.engine import fast_paths
from rerankers.engine.tokenized import Scorable
from rerankers.errors import RerankerError

PRECISIONS = ("fp32", "bf16")
"""Of a model's arithmetic; bf16 is for what autocast gives it to (matrix products, convolutions),
the rest stays in single precision."""

Rows = npt.NDArray[np.int64]
Scored = tuple[Rows, torch.Tensor]
"""Pairs and their scores."""


def devices_of(device: torch.device | str) -> list[torch.device]:
    """The devices that a name stands for: ``cuda`` for every GPU, any other for one device."""
    named = torch.device(device)
    if named.type != "cuda" or named.index is not None:
        return [named]
    # Without a GPU it is for PyTorch to say so.
    return [torch.device("cuda", n) for n in range(torch.cuda.device_count())] or [named]


class BatchScorer:
    """A model in evaluation mode on its device, and what it takes to score batches there.

    Attributes:
        fast_path: the model's faster way, if there is one.
        largest: pairs that may go through the model at once.
    """

    def __init__(self, model: Reranker, encoded: Scorable, precision: str) -> None:
        self.model, self.encoded, self.precision = model, encoded, precision
        self.device = model.device_of()
        self.largest, self._lock = sys.maxsize, Lock()
        with torch.inference_mode():
            self.fast_path = fast_paths.find(model, encoded, precision)

    def score(self, rows: Rows) -> list[Scored]:
        """Scores of the pairs ``rows``, in parts where the memory is too small.

        They are of one query where there is a fast_path.

        Raises:
            RerankerError: it is too small for one pair.
        """
        if len(rows) <= self.largest:
            try:
                return [(rows, self._forward(rows))]
            except (MemoryError, RuntimeError) as error:
                if not _is_out_of_memory(error):
                    raise
                self._shrink(len(rows))
        # Here the error is gone, and with it the tensors of the pass that failed.
        return [part for half in np.array_split(rows, 2) for part in self.score(half)]

    def _forward(self, rows: Rows) -> torch.Tensor:
        # Each thread has to say anew which GPU it uses and that no gradients are wanted.
        gpu = torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()
        # A fast_path has its own ways to be narrow.
        by_torch = self.precision == "bf16" and self.fast_path is None
        narrow = torch.autocast(self.device.type, torch.bfloat16, by_torch)
        with gpu, narrow, torch.inference_mode():
            if self.fast_path:
                return self.fast_path.scores_of(rows).float()
            return self.encoded.scores_of(self.model, rows, self.device).float()

    def _shrink(self, pairs: int) -> None:
        """From now on half as many pairs at once; says so the first time."""
        if pairs == 1:
            way_out = (
                "end other programs, or use fewer --threads"
                if self.device.type == "cpu"
                else "end other programs on this GPU, or use --device cpu"
            )
            raise RerankerError(
                f"found too little memory on {self.device}, expected enough to score one pair at "
                f"a time; {way_out}"
            ) from None
        with self._lock:
            first, self.largest = self.largest == sys.maxsize, min(self.largest, -(-pairs // 2))
        if first:
            warnings.warn(
                f"the memory of {self.device} is too small for {pairs} pairs at once; going on "
                "with smaller batches, as a smaller --batch-size does from the start",
                RuntimeWarning, stacklevel=2,
            )  # fmt: skip


def _is_out_of_memory(error: Exception) -> bool:
    """Whether it is of Python, of CUDA or of PyTorch's allocator on the CPU."""
    return (
        isinstance(error, MemoryError | torch.OutOfMemoryError)
        or "DefaultCPUAllocator" in str(error)
    )  # fmt: skip
