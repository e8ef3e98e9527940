"""Collections of posts and their search indexes.

>>> import indexes
>>> _ = indexes.build([indexes.Post("1", "storm closes the harbour")], "my-index")
>>> with indexes.open_index("my-index") as index:
...     list(index.search([indexes.Topic("a", "storm")], indexes.BM25())["a"])
['1']
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from indexes.errors import CollectionError as CollectionError
    from indexes.index import build as build
    from indexes.index import open_index as open_index
    from indexes.methods import BM25 as BM25
    from indexes.methods import METHODS as METHODS
    from indexes.methods import RM3 as RM3
    from indexes.methods import Axiomatic as Axiomatic
    from indexes.methods import QueryLikelihood as QueryLikelihood
    from indexes.methods import Topic as Topic
    from indexes.posts import Post as Post
    from indexes.posts import read_posts as read_posts

_MODULES = {
    "errors": ("CollectionError",),
    "index": ("build", "open_index"),
    "methods": ("BM25", "METHODS", "RM3", "Axiomatic", "QueryLikelihood", "Topic"),
    "posts": ("Post", "read_posts"),
}

__all__ = [name for names in _MODULES.values() for name in names]


def __getattr__(name: str) -> Any:
    """A public name, from its module, which is loaded with it."""
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"indexes.{module}"), name)
    raise AttributeError(f"module 'indexes' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
