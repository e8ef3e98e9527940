"""Whole rankers in PyTerrier; :mod:`rerankers.adapters` has the models alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pipeline.collections.topics import Topic
from pipeline.ranking.retrievers import Candidates

if TYPE_CHECKING:
    import pyterrier

    from pipeline.ranking.ranker import Ranker


def for_pyterrier(ranker: Ranker, hits: int = 1000) -> pyterrier.Transformer:
    """A transformer of PyTerrier that ranks by a whole ranker.

    Queries (``qid``, ``query``) are searched for; results (``docno``, ``text``, ``score`` besides,
    and optionally ``url``) are reranked.

    Args:
        ranker: of :func:`pipeline.ranker`.
    """
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
            return ranker.rerank(_candidates(inp, topics)).to_dataframe()

    return Ranking()


def _candidates(results: Any, topics: list[Topic]) -> Candidates:
    """The candidates in a frame of results."""
    from indexes.posts import Post

    urls = results["url"].fillna("") if "url" in results else [""] * len(results)
    rows = zip(results["qid"], results["docno"], results["score"], strict=True)
    run: dict[str, dict[str, float]] = {topic.query_id: {} for topic in topics}
    for query_id, doc_id, score in rows:
        run[query_id][doc_id] = float(score)
    posts = zip(results["docno"], results["text"], urls, strict=True)
    return Candidates(topics, run, {doc_id: Post(doc_id, text, url) for doc_id, text, url in posts})
