"""Whole rankers as transformers of PyTerrier."""

from typing import Any

from tweetrerank.indexes.posts import Post
from tweetrerank.pipeline.collections.topics import Topic
from tweetrerank.pipeline.ranking.ranker import Ranker
from tweetrerank.pipeline.ranking.retrievers import Candidates


def for_pyterrier(ranker: Ranker, hits: int = 1000) -> Any:
    """A transformer of PyTerrier that ranks by a whole ranker, which :func:`tweetrerank.ranker` makes.
    Queries (``qid``, ``query``) are searched for; results (``docno``, ``text``, ``score`` besides,
    and optionally ``url``) are reranked. :mod:`tweetrerank.rerankers.adapters` has the models alone."""
    import pyterrier as pt

    class Ranking(pt.Transformer):
        def transform(self, inp: Any) -> Any:
            with pt.validate.any(inp) as columns:
                columns.query_frame(extra_columns=["query"], mode="search")
                columns.result_frame(
                    extra_columns=["query", "text", "score"], mode="rerank"
                )
            queries = inp[["qid", "query"]].drop_duplicates()
            topics = [Topic(*row) for row in queries.itertuples(index=False)]
            if columns.mode == "search":
                return ranker.rank(topics, hits).to_dataframe()
            run: dict[str, dict[str, float]] = {topic.query_id: {} for topic in topics}
            for query_id, doc_id, score in zip(
                inp["qid"], inp["docno"], inp["score"], strict=True
            ):
                run[query_id][doc_id] = float(score)
            urls = inp["url"].fillna("") if "url" in inp else [""] * len(inp)
            names = [
                n for n in (ranker.model.numbers if ranker.model else ()) if n in inp
            ]
            signals = inp[names].to_dict("records") if names else [{}] * len(inp)
            rows = zip(inp["docno"], inp["text"], urls, signals, strict=True)
            posts = {row[0]: Post(*row) for row in rows}
            return ranker.rerank(Candidates(topics, run, posts)).to_dataframe()

    return Ranking()
