"""Ranking of short posts: texts in, scores out; topics in, a ranking out.

    import tweetrerank

    reranker = tweetrerank.load()
    best = reranker.rank("storm warning", ["my coffee is cold", "Storm warning"])

    ranker = tweetrerank.ranker("my-posts.toml")
    ranking = ranker.rank(hits=1000)
    tweetrerank.write_run("mine.run", ranking.run)
    print(tweetrerank.evaluate(ranking, "AP", "P@30"))

Types: Collection, Evaluation, Hit, Post, RankedPost, Ranker, Ranking, Reranker, Topic.
Errors: DataError (a file or an index cannot be used), RerankerError (a model or its
input cannot be used), UsageError (wrong arguments).
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tweetrerank.indexes.data_error import DataError as DataError
    from tweetrerank.indexes.methods import Topic as Topic
    from tweetrerank.indexes.posts import Post as Post
    from tweetrerank.pipeline.collections.collection import Collection as Collection
    from tweetrerank.pipeline.ranking.ranker import Hit as Hit
    from tweetrerank.pipeline.ranking.ranker import Ranker as Ranker
    from tweetrerank.pipeline.ranking.ranker import Ranking as Ranking
    from tweetrerank.pipeline.ranking.stage_table import Evaluation as Evaluation
    from tweetrerank.pipeline.usage_error import UsageError as UsageError
    from tweetrerank.rerankers.reranker import RankedPost as RankedPost
    from tweetrerank.rerankers.reranker import Reranker as Reranker
    from tweetrerank.rerankers.reranker_error import RerankerError as RerankerError

_ROOT = Path(__file__).parent.parent
if not (_ROOT / "tweetrerank" / "pipeline").exists():
    # A checkout, whose three packages lie beside this one; an installation has them inside.
    __path__.append(str(_ROOT))

_TYPES = {
    "Collection": "pipeline.collections.collection",
    "DataError": "indexes.data_error",
    "Evaluation": "pipeline.ranking.stage_table",
    "Hit": "pipeline.ranking.ranker",
    "Post": "indexes.posts",
    "RankedPost": "rerankers.reranker",
    "Ranker": "pipeline.ranking.ranker",
    "Ranking": "pipeline.ranking.ranker",
    "Reranker": "rerankers.reranker",
    "RerankerError": "rerankers.reranker_error",
    "Topic": "indexes.methods",
    "UsageError": "pipeline.usage_error",
}
"""Type -> its module, which is imported when the type is first used."""

_FUNCTIONS = {
    "adapt": "pipeline.library",
    "evaluate": "pipeline.ranking.stage_table",
    "load": "rerankers",
    "open_collection": "pipeline.collections.named",
    "ranker": "pipeline.ranking.build",
    "read_run": "pipeline.collections.trec",
    "train": "pipeline.library",
    "write_run": "pipeline.collections.trec",
}

__all__ = [
    "__version__",
    "adapt",
    "evaluate",
    "load",
    "open_collection",
    "ranker",
    "read_run",
    "train",
    "write_run",
    *_TYPES,
]


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version

        return version("tweetrerank")
    module = {**_TYPES, **_FUNCTIONS}.get(name)
    if module is None:
        raise AttributeError(f"module 'tweetrerank' has no attribute {name!r}")
    return getattr(import_module(f"tweetrerank.{module}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
