"""Faster ways to scores with gradients, for models that have one: a file of the model's name each.

What a learner computes is the model's own ``interact`` after its encoders, for a batch as training
draws it; tests hold scores and gradients together.
"""

import importlib
import pkgutil
from collections.abc import Callable

from torch import Tensor

from rerankers.base import Inputs, Interactions, Reranker

Learner = Callable[[Reranker, Inputs, Inputs, Tensor], Interactions]
"""Of a model, the queries, the posts and the query of each post: their comparison."""


def find(model: Reranker) -> Learner | None:
    """The learner of a model, None where its own forward pass is the only way.

    That is so on a GPU, too: it would wait for the processor to sort out the windows.
    """
    name = type(model).__module__.rpartition(".")[2]
    if model.device_of().type != "cpu" or name not in _names():
        return None
    learner: Learner = importlib.import_module(f"{__name__}.{name}").interact
    return learner


def _names() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(__path__))
