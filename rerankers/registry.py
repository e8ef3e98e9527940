"""Names of all models: the files of ``networks/models`` and of ``trees``.

The name of a model's file is its name on every command line.
"""

import importlib
import pkgutil
from pathlib import Path
from typing import Any

from tweetrerank.rerankers.reranker_error import RerankerError

TREES = ("fusion", "lambdamart", "window")  # Files of rerankers/trees with a model
NETWORKS = Path(__file__).parent / "networks" / "models"


def names() -> list[str]:
    """Names of the models, sorted."""
    networks = []
    for module in pkgutil.iter_modules([str(NETWORKS)]):
        if not module.name.startswith("_"):
            networks.append(module.name)
    return sorted([*networks, *TREES])


def find(name: str) -> Any:
    """Return the class of a model, which its file calls ``Model``.

    The class has ``configurations``. It is a subclass of
    :class:`tweetrerank.rerankers.networks.base.Reranker` or of
    :class:`tweetrerank.rerankers.trees.boosting.Trees`. Raises RerankerError for an
    unknown name, and for a network if PyTorch is missing.
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
    """Whether a model of this name is computed by PyTorch."""
    return name in names() and name not in TREES


def reads(name: str) -> Any:
    """How a model reads candidates (:data:`tweetrerank.rerankers.model.Reads`).

    None if there is no model of this name.
    """
    if name in TREES:
        return find(name).reads
    if name in names():
        return "posts"
    return None
