"""Rank short posts: score texts for a query, or rank a collection for its topics.

    reranker = tweetrerank.load()
    best = reranker.rank("storm warning", ["my coffee is cold", "Storm warning"])

    ranker = tweetrerank.ranker("my-posts.toml")
    ranking = ranker.rank(hits=1000)
    tweetrerank.write_run("mine.run", ranking.run)
    print(tweetrerank.evaluate(ranking, "AP", "P@30"))

This module also has the types Collection, Evaluation, Hit, Post, RankedPost, Ranker,
Ranking, Reranker and Topic, and three errors: DataError (a file or an index cannot be
used), RerankerError (a model or its input cannot be used) and UsageError (an argument
is wrong).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from tweetrerank.indexes.data_error import DataError as DataError
    from tweetrerank.indexes.methods import Topic as Topic
    from tweetrerank.indexes.posts import Post as Post
    from tweetrerank.pipeline.collections.collection import Collection as Collection
    from tweetrerank.pipeline.collections.in_memory import IrDataset, JudgmentsLike
    from tweetrerank.pipeline.collections.topics import Rows, TopicsLike
    from tweetrerank.pipeline.collections.trec import Run
    from tweetrerank.pipeline.ranking.ranker import Hit as Hit
    from tweetrerank.pipeline.ranking.ranker import Ranker as Ranker
    from tweetrerank.pipeline.ranking.ranker import Ranking as Ranking
    from tweetrerank.pipeline.ranking.stage_table import Evaluation as Evaluation
    from tweetrerank.pipeline.usage_error import UsageError as UsageError
    from tweetrerank.rerankers.reranker import RankedPost as RankedPost
    from tweetrerank.rerankers.reranker import Reranker as Reranker
    from tweetrerank.rerankers.reranker_error import RerankerError as RerankerError

__all__ = [
    "adapt",
    "evaluate",
    "load",
    "open_collection",
    "ranker",
    "read_run",
    "train",
    "write_run",
]

_ROOT = Path(__file__).parent.parent
if not (_ROOT / "tweetrerank" / "pipeline").exists():
    # In a checkout, indexes, pipeline and rerankers lie next to this package. In a
    # wheel they lie inside it.
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
# Maps each type to its module. A type is imported when it is first used, and a function
# imports what it needs when it is called. So importing the package takes no time.


def load(model: str | Path = "window", device: torch.device | str = "cpu") -> Reranker:
    """Load a trained reranker by name (window, mp_hcnn, sm_cnn, …) or from a folder.

    A network may also run on the device "cuda". Raises RerankerError.
    """
    from tweetrerank import rerankers

    return rerankers.load(model, device)


def open_collection(
    name: str | Path | None = None,
    index: str | Path | None = None,
    qrels: JudgmentsLike | None = None,
    data: Path | None = None,
    engine: Mapping[str, object] | None = None,
    *,
    posts: Rows | None = None,
    topics: TopicsLike | None = None,
    beir: str | Path | None = None,
    ir_dataset: str | IrDataset | None = None,
    signals: Sequence[str] = (),
) -> Collection:
    """Open a collection by name ("mb2012") or file, or make one from posts in memory.

    Each post is a record with "id", "text" and optionally "url". topics maps query ids
    to texts; qrels maps query ids to doc ids to grades. Both may also be rows. beir is
    a BEIR folder, index the folder of an index, and engine the address of a search
    engine. Raises UsageError or DataError. See tweetrerank.pipeline.collections.named.
    """
    from tweetrerank.pipeline.collections import named

    return named.open_collection(
        name,
        index,
        qrels,
        data,
        engine,
        posts=posts,
        topics=topics,
        beir=beir,
        ir_dataset=ir_dataset,
        signals=signals,
    )


def ranker(
    collection: str | Path | Collection,
    reranker: str = "auto",
    first_stage: str | None = None,
    weight: float | None = None,
    *,
    candidates: str | None = None,
    parameters: Mapping[str, object] | Sequence[str] = (),
    checkpoint: str | Path | None = None,
    data: str | Path | None = None,
    device: str = "auto",
    threads: int | None = None,
) -> Ranker:
    """Make a ranker for a collection, by default the best one available for it.

    reranker is a model's name, or "none" for the first stage alone. first_stage is
    "ql", "bm25", "rm3" or "axiom". weight is λ, the share of the new score (by default
    the tuned one). candidates is a TREC run to rerank in place of a search. Raises
    UsageError, DataError or RerankerError. See tweetrerank.pipeline.ranking.build.
    """
    from tweetrerank.pipeline.ranking import build

    return build.ranker(
        collection,
        reranker,
        first_stage,
        weight,
        candidates=candidates,
        parameters=parameters,
        checkpoint=checkpoint,
        data=data,
        device=device,
        threads=threads,
    )


def evaluate(
    ranking: Ranking | Run,
    *measures: str,
    qrels: JudgmentsLike | None = None,
    title: str = "run",
) -> Evaluation:
    """Measure every stage of a ranking, or a run against qrels ("AP", "P@30", …).

    Raises DataError if there are no judgments, and UsageError for an unknown measure.
    """
    from tweetrerank.pipeline.ranking import stage_table

    return stage_table.evaluate(ranking, *measures, qrels=qrels, title=title)


def read_run(path: str | Path) -> Run:
    """Read a TREC run: query id -> doc id -> score. Raises DataError."""
    from tweetrerank.pipeline.collections import trec

    return trec.read_run(path)


def write_run(path: str | Path, run: Run, tag: str = "tweetrerank") -> None:
    """Write a TREC run atomically. trec_eval will read its posts in the same order."""
    from tweetrerank.pipeline.collections import trec

    trec.write_run(path, run, tag)


def train(
    collection: Collection,
    model: str = "fusion",
    *,
    configuration: str | None = None,
    settings: Sequence[str] = (),
    folds: int = 5,
    seed: int = 1,
    device: str = "auto",
    threads: int | None = None,
    output: Path | None = None,
) -> Path:
    """Train a model on a collection's judgments and return the model's folder.

    The gain on held-out topics is printed. Each setting is a text "NAME=VALUE". Raises
    UsageError, DataError or RerankerError.
    """
    from tweetrerank.pipeline import library

    return library.train(
        collection,
        model,
        configuration=configuration,
        settings=settings,
        folds=folds,
        seed=seed,
        device=device,
        threads=threads,
        output=output,
    )


def adapt(
    collection: Collection,
    *,
    teacher: str | None = None,
    posts: int = 200_000,
    device: str = "auto",
    threads: int | None = None,
) -> None:
    """Fit word vectors to a collection's posts by means of a sentence transformer.

    posts is the largest number of posts to encode. Raises UsageError or DataError.
    """
    from tweetrerank.pipeline import library

    library.adapt(
        collection, teacher=teacher, posts=posts, device=device, threads=threads
    )


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version

        return version("tweetrerank")
    if name not in _TYPES:
        raise AttributeError(f"module 'tweetrerank' has no attribute {name!r}")
    return getattr(import_module(f"tweetrerank.{_TYPES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
