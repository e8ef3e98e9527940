"""Rerankers for short posts, which score texts for a query.

>>> import tweetrerank
>>> reranker = tweetrerank.load()
>>> posts = ["my coffee is cold", "Storm warning for the coast"]
>>> best, *_ = reranker.rank("storm warning", posts)
>>> best.text
'Storm warning for the coast'
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tweetrerank.rerankers.reranker_error import RerankerError

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from tweetrerank.rerankers.reranker import Reranker

__all__ = ["RerankerError", "load"]


def load(model: str | Path = "window", device: torch.device | str = "cpu") -> Reranker:
    """Load a trained reranker by its name, or from the folder of a checkpoint.

    ``window`` is the best model for a list of posts. ``mp_hcnn`` and ``sm_cnn`` score
    each post by itself. A network runs on the device ``cpu``, ``cuda``, or ``cuda:1``
    for the second GPU; other models always run on the CPU.

    Raises RerankerError if there is no such model, folder or device, if a file is
    missing, damaged or of another version, or if a network needs PyTorch and it is not
    installed.
    """
    # These imports are here so that importing the package alone takes no time.
    from tweetrerank.rerankers import checkpoint
    from tweetrerank.rerankers.reranker import Reranker

    return Reranker(checkpoint.load(checkpoint.find(model), device=device))
