"""One file per published model. The file's name is the model's name on every command line."""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING

from rerankers.errors import RerankerError

if TYPE_CHECKING:
    from rerankers.base import Reranker


def names() -> list[str]:
    """Names of the models: the files of this folder."""
    return sorted(m.name for m in pkgutil.iter_modules(__path__) if m.name[0] != "_")


def find(name: str) -> type[Reranker]:
    """The model class of ``rerankers/models/<name>.py``, which its file calls ``Model``.

    Raises:
        RerankerError: unknown name; the message lists the known ones.
    """
    if name not in names():
        raise RerankerError(f"found the model name {name!r}, expected one of {', '.join(names())}")
    model: type[Reranker] = importlib.import_module(f"{__name__}.{name}").Model
    return model


def reads_rankers(name: str) -> bool:
    """Whether a model of this name reads the scores of several rankers, as fusions do."""
    return name in names() and find(name).reads_rankers


def reads_windows(name: str) -> bool:
    """Whether a model of this name ranks lists of given candidates as a whole."""
    return name in names() and find(name).reads_windows


def reads_lists(name: str) -> bool:
    """Whether a model of this name ranks a topic's candidates as a whole, searched or given."""
    return reads_rankers(name) or reads_windows(name)
