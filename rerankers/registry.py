"""Find models by name.

A model is a file of ``networks/models`` or one of three files of ``trees``. The name of
the file is the model's name on every command line.
"""

import importlib
import pkgutil
from pathlib import Path
from typing import Any

from tweetrerank.rerankers.reranker_error import RerankerError

TREES = ("fusion", "lambdamart", "window")  # Files of rerankers/trees with a model
NETWORKS = Path(__file__).parent / "networks" / "models"


def names() -> list[str]:
    """Return the names of all models, sorted."""
    networks = []
    for module in pkgutil.iter_modules([str(NETWORKS)]):
        if not module.name.startswith("_"):
            networks.append(module.name)
    return sorted([*networks, *TREES])


def find(name: str) -> Any:
    """Return the class of a model. Its name in the model's file is ``Model``.

    The class is a subclass of
    :class:`tweetrerank.rerankers.networks.base.Reranker` or of
    :class:`tweetrerank.rerankers.trees.boosting.Trees`. Its ``configurations`` are the
    hyperparameters by name. Raises RerankerError for an unknown name, and for a network
    if PyTorch is missing.
    """
    if name not in names():
        raise RerankerError(
            f"found the model name {name!r}, expected one of {', '.join(names())}"
        )
    package = "tweetrerank.rerankers.networks.models"
    if name in TREES:
        package = "tweetrerank.rerankers.trees"
    try:
        return importlib.import_module(f"{package}.{name}").Model
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise RerankerError(
            f"found no PyTorch, which {name} needs; install it: "
            "pip install 'tweetrerank[neural]'"
        ) from None


def is_network(name: str) -> bool:
    """Return whether the name is that of a network, which needs PyTorch."""
    return name in names() and name not in TREES


def reads(name: str) -> Any:
    """Return how a model reads candidates; None if there is no model of this name.

    The values are those of :data:`tweetrerank.rerankers.model.Reads`. The answer needs
    no PyTorch, because every network reads single posts.
    """
    if name in TREES:
        return find(name).reads
    if name in names():
        return "posts"
    return None
