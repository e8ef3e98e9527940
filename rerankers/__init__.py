"""Small rerankers for short posts: text in, scores out.

>>> import rerankers
>>> reranker = rerankers.load()
>>> best, *_ = reranker.rank("storm warning", ["my coffee is cold", "Storm warning for the coast"])
>>> best.text
'Storm warning for the coast'
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rerankers import models
from rerankers.errors import RerankerError

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from rerankers.reranker import Model

__all__ = ["Model", "RerankerError", "load", "models"]


def load(model: str | Path = "window", device: torch.device | str = "cpu") -> Model:
    """Load a trained reranker: one that comes with the package, or the folder of a checkpoint.

    ``window`` is the best one for a list of posts; ``mp_hcnn`` and ``sm_cnn`` score each post by
    itself. The device of a network is ``cpu``, ``cuda``, or ``cuda:1`` for another GPU than the
    first. Raises RerankerError if there is no such model or folder, a file is missing, damaged or
    of another version, the device is not there, or PyTorch is missing for a network.
    """
    # `import rerankers` alone takes no time.
    from rerankers import checkpoint

    return checkpoint.load(checkpoint.find(model), device=device)


def __getattr__(name: str) -> Any:
    """The contract, whose module is loaded with it, or the version."""
    if name == "Model":
        return import_module("rerankers.reranker").Model
    if name == "__version__":
        from importlib import metadata

        try:
            return metadata.version("tweetrerank")
        except metadata.PackageNotFoundError:  # A checkout that is not installed.
            return "0+unknown"
    raise AttributeError(f"module 'rerankers' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__, "__version__"])
