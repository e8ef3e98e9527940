"""Names of all models: the files of ``rerankers/networks/models`` and of ``rerankers/trees``.

A file's name is its model's name on every command line.
"""

import importlib
import pkgutil
from pathlib import Path
from typing import Any

from tweetrerank.rerankers.reranker_error import RerankerError

TREES = ("fusion", "lambdamart", "window")  # Files of rerankers/trees with a model
NETWORKS = Path(__file__).parent / "networks" / "models"


def names() -> list[str]:
    """Names of the models."""
    networks = [
        m.name for m in pkgutil.iter_modules([str(NETWORKS)]) if m.name[0] != "_"
    ]
    return sorted([*networks, *TREES])


def find(name: str) -> Any:
    """The class of a model, which its file calls ``Model``. It has ``configurations``, and is a
    :class:`tweetrerank.rerankers.networks.base.Reranker` or :class:`tweetrerank.rerankers.trees.boosting.Trees`. Raises
    RerankerError for an unknown name (the message lists the known ones), and for a network without
    PyTorch."""
    if name not in names():
        raise RerankerError(
            f"found the model name {name!r}, expected one of {', '.join(names())}"
        )
    folder = (
        "tweetrerank.rerankers.trees"
        if name in TREES
        else "tweetrerank.rerankers.networks.models"
    )
    try:
        return importlib.import_module(f"{folder}.{name}").Model
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise RerankerError(
            f"found no PyTorch, which {name} needs; install it: pip install 'tweetrerank[neural]'"
        ) from None


def is_network(name: str) -> bool:
    """Whether a model of this name is computed by PyTorch."""
    return name in names() and name not in TREES


def reads(name: str) -> Any:
    """How a model of this name reads candidates, as :data:`tweetrerank.rerankers.model.Reads`; None for the
    name of none."""
    found = find(name).reads if name in TREES else None
    return found or ("posts" if name in names() else None)
