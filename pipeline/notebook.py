"""For notebooks: a collection that searches, adapts, trains and measures itself; PyTerrier."""

from collections.abc import Sequence
from dataclasses import fields
from functools import cached_property
from pathlib import Path
from typing import Any

from indexes.posts import Post
from pipeline import adapt
from pipeline.collections import named
from pipeline.collections.collection import Collection
from pipeline.collections.topics import Topic
from pipeline.errors import UsageError
from pipeline.ranking.build import ranker
from pipeline.ranking.checkpoints import warn_of_seen
from pipeline.ranking.ranker import Hit, Ranker, require_positive
from pipeline.ranking.reports import Evaluation, evaluate
from pipeline.ranking.retrievers import Candidates


class NotebookCollection(Collection):
    """A collection with what the commands do as methods."""

    def __repr__(self) -> str:
        return f"<collection {self.title}>"

    def __getstate__(self) -> dict[str, Any]:
        """Without the ranker and what was read, which is read again where it is needed."""
        return _fields(self)

    @cached_property
    def _best(self) -> Ranker:
        return ranker(self)

    def _changed(self) -> None:
        """Forget what was read of the trained models and the adapted word vectors."""
        for name in ("_best", "adapted_space"):
            vars(self).pop(name, None)

    def search(self, query: str, k: int = 10) -> list[Hit]:
        """The ``k`` best posts for a query, by the best ranker there is, best first."""
        if not isinstance(query, str):
            raise UsageError(f"`query`: found {query!r}, expected a text")
        return self._best.rank(query).best(require_positive("k", k))

    def adapt(self, **options: Any) -> None:
        """Adapt word vectors to the posts, as ``pipeline.adapt`` does; options are its fields."""
        adapt.adapt(adapt.Options(**options), self)
        self._changed()

    def train(self, model: str = "fusion", **options: Any) -> Path:
        """Train on the judged topics, and print the gain on held-out ones; the model's folder.
        Options are fields of ``pipeline.training.options.Options``."""
        from pipeline.training.options import Options
        from pipeline.training.task import train

        if not self.file:
            raise UsageError(f"{self.name} is no own collection; use `python -m pipeline.train`")
        self._changed()
        return train(Options(model=model, **options), self)

    def evaluate(self, measures: Sequence[str] = (), **arguments: Any) -> Evaluation:
        """Measures of every stage of a ranking of the topics. ``arguments`` are those of
        :func:`pipeline.ranker`; by default the best ranker there is."""
        measures = [measures] if isinstance(measures, str) else measures
        chosen = ranker(self, **arguments)
        warn_of_seen(chosen)
        return evaluate(chosen.rank(), *measures)


def open_collection(*arguments: Any, **named_arguments: Any) -> NotebookCollection:
    """A collection by its name, file or folder, or from values in memory. See
    :func:`pipeline.collections.named.open_collection` for the arguments."""
    return NotebookCollection(**_fields(named.open_collection(*arguments, **named_arguments)))


def _fields(collection: Collection) -> dict[str, Any]:
    return {field.name: getattr(collection, field.name) for field in fields(collection)}


def for_pyterrier(ranker: Ranker, hits: int = 1000) -> Any:
    """A transformer of PyTerrier that ranks by a whole ranker, which :func:`pipeline.ranker` makes.
    Queries (``qid``, ``query``) are searched for; results (``docno``, ``text``, ``score`` besides,
    and optionally ``url``) are reranked. :mod:`rerankers.adapters` has the models alone."""
    import pyterrier as pt

    class Ranking(pt.Transformer):
        def transform(self, inp: Any) -> Any:
            with pt.validate.any(inp) as columns:
                columns.query_frame(extra_columns=["query"], mode="search")
                columns.result_frame(extra_columns=["query", "text", "score"], mode="rerank")
            queries = inp[["qid", "query"]].drop_duplicates()
            topics = [Topic(*row) for row in queries.itertuples(index=False)]
            if columns.mode == "search":
                return ranker.rank(topics, hits).to_dataframe()
            run: dict[str, dict[str, float]] = {topic.query_id: {} for topic in topics}
            for query_id, doc_id, score in zip(inp["qid"], inp["docno"], inp["score"], strict=True):
                run[query_id][doc_id] = float(score)
            urls = inp["url"].fillna("") if "url" in inp else [""] * len(inp)
            names = [n for n in (ranker.model.numbers if ranker.model else ()) if n in inp]
            signals = inp[names].to_dict("records") if names else [{}] * len(inp)
            rows = zip(inp["docno"], inp["text"], urls, signals, strict=True)
            posts = {row[0]: Post(*row) for row in rows}
            return ranker.rerank(Candidates(topics, run, posts)).to_dataframe()

    return Ranking()
