"""Rerankers for short posts: text in, scores out.

>>> import tweetrerank
>>> reranker = tweetrerank.load()
>>> best, *_ = reranker.rank("storm warning", ["my coffee is cold", "Storm warning for the coast"])
>>> best.text
'Storm warning for the coast'
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tweetrerank.rerankers.reranker_error import RerankerError

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from tweetrerank.rerankers.reranker import Model

__all__ = ["RerankerError", "load"]


def load(model: str | Path = "window", device: torch.device | str = "cpu") -> Model:
    """Load a trained reranker: one that comes with the package, or the folder of a checkpoint.

    ``window`` is the best one for a list of posts; ``mp_hcnn`` and ``sm_cnn`` score each post by
    itself. The device of a network is ``cpu``, ``cuda``, or ``cuda:1`` for another GPU than the
    first. Raises RerankerError if there is no such model or folder, a file is missing, damaged or
    of another version, the device is not there, or PyTorch is missing for a network.
    """
    # `import rerankers` alone takes no time.
    from tweetrerank.rerankers import checkpoint

    return checkpoint.load(checkpoint.find(model), device=device)
