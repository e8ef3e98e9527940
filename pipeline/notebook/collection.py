"""A collection that searches, adapts, trains and measures itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pipeline import adapt
from pipeline.collections import named
from pipeline.collections.collection import Collection, SearchedCollection
from pipeline.collections.topics import Topic
from pipeline.collections.trec import Qrels, ranked
from pipeline.errors import UsageError
from pipeline.ranking.build import ranker
from pipeline.ranking.checkpoints import warn_of_seen
from pipeline.ranking.ranker import require_positive
from pipeline.ranking.reports import Evaluation, evaluate
from pipeline.training import task

if TYPE_CHECKING:
    from pipeline.ranking.ranker import Ranker


class Hit(NamedTuple):
    """A post that a search found."""

    doc_id: str
    score: float
    text: str
    url: str


class NotebookCollection:
    """An opened collection, with what the commands do as methods.

    Attributes:
        collection: topics, posts and judgments.
    """

    def __init__(self, collection: Collection) -> None:
        self.collection = collection
        self._best: Ranker | None = None

    def __repr__(self) -> str:
        return f"<collection {self.collection.title}>"

    def __getstate__(self) -> dict[str, Any]:
        """Without the ranker, which is loaded again where it is needed."""
        return {"collection": self.collection, "_best": None}

    @property
    def topics(self) -> list[Topic]:
        """The topics, in the order of their file."""
        return self.collection.topics

    @property
    def qrels(self) -> Qrels | None:
        """The judgments; None without any."""
        return self.collection.qrels

    def search(self, query: str, k: int = 10) -> list[Hit]:
        """The ``k`` best posts for a query, by the best ranker there is, best first."""
        if not isinstance(query, str):
            raise UsageError(f"`query`: found {query!r}, expected a text")
        k = require_positive("k", k)
        self._best = self._best or ranker(self.collection)
        ranking = self._best.rank(query)
        posts, runs = ranking.candidates.posts, list(ranking.run.values())
        return [
            Hit(doc_id, score, posts[doc_id].text, posts[doc_id].url)
            for doc_id, score in ranked(runs[0] if runs else {})[:k]
            if doc_id in posts
        ]

    def adapt(self, **options: Any) -> None:
        """Adapt word vectors to the posts, as ``pipeline.adapt`` does; options are its fields."""
        adapt.adapt(adapt.Options(**options), self.collection)
        vars(self.collection).pop("adapted_space", None)  # It was read before.
        self._best = None

    def train(self, model: str = "fusion", **options: Any) -> Path:
        """Train a model on the judged topics, and print its gain on held-out ones.

        Options are fields of ``pipeline.training.task.Options``; returns the checkpoint's folder.
        """
        if not isinstance(self.collection, SearchedCollection) or not self.collection.file:
            raise UsageError(
                f"{self.collection.name} is no own collection; use `python -m pipeline.train`"
            )
        self._best = None
        return task.train(task.Options(model=model, **options), self.collection)

    def evaluate(self, measures: Sequence[str] = (), **arguments: Any) -> Evaluation:
        """Measures of every stage of a ranking of the topics.

        ``arguments`` are those of :func:`pipeline.ranker`; by default the best ranker there is.
        """
        measures = [measures] if isinstance(measures, str) else measures
        chosen = ranker(self.collection, **arguments)
        warn_of_seen(chosen)
        return evaluate(chosen.rank(), *measures)


def open_collection(*arguments: Any, **named_arguments: Any) -> NotebookCollection:
    """A collection by its name, file or folder, or from values in memory.

    See :func:`pipeline.collections.named.open_collection` for the arguments.
    """
    return NotebookCollection(named.open_collection(*arguments, **named_arguments))
