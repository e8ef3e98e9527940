"""PyTerrier transformers that run a whole ranker."""

from typing import TYPE_CHECKING

from tweetrerank.indexes.posts import Post
from tweetrerank.pipeline.collections.topics import Topic
from tweetrerank.pipeline.ranking.ranker import Ranker
from tweetrerank.pipeline.ranking.retrievers import Candidates

if TYPE_CHECKING:
    import pandas
    import pyterrier


def for_pyterrier(ranker: Ranker, hits: int = 1000) -> "pyterrier.Transformer":
    """Return a PyTerrier transformer that ranks by a ranker.

    A data frame of queries (columns ``qid`` and ``query``) is searched for. A data
    frame of results, which also has ``docno``, ``text``, ``score`` and optionally
    ``url``, is reranked. For models without a search, see
    :mod:`tweetrerank.rerankers.adapters`.
    """
    import pyterrier as pt

    class Ranking(pt.Transformer):
        def transform(self, inp: "pandas.DataFrame") -> "pandas.DataFrame":
            with pt.validate.any(inp) as columns:
                columns.query_frame(extra_columns=["query"], mode="search")
                columns.result_frame(
                    extra_columns=["query", "text", "score"], mode="rerank"
                )
            topics = _topics(inp)
            if columns.mode == "search":
                ranking = ranker.rank(topics, hits)
            else:
                numbers = ranker.model.numbers if ranker.model else []
                posts = _posts(inp, numbers)
                candidates = Candidates(topics, _run(inp, topics), posts)
                ranking = ranker.rerank(candidates)
            return ranking.to_dataframe()

    return Ranking()


def _topics(frame: "pandas.DataFrame") -> list[Topic]:
    """Return each query of a data frame once."""
    queries = frame[["qid", "query"]].drop_duplicates()
    return [Topic(*row) for row in queries.itertuples(index=False)]


def _run(frame: "pandas.DataFrame", topics: list[Topic]) -> dict[str, dict[str, float]]:
    """Return the scores of a data frame of results as a run."""
    run: dict[str, dict[str, float]] = {topic.query_id: {} for topic in topics}
    rows = zip(frame["qid"], frame["docno"], frame["score"], strict=True)
    for query_id, doc_id, score in rows:
        run[query_id][doc_id] = float(score)
    return run


def _posts(frame: "pandas.DataFrame", numbers: list[str]) -> dict[str, Post]:
    """Return doc_id -> post for a data frame of results.

    The columns that are named in ``numbers`` become the numbers of the posts.
    """
    urls = [""] * len(frame)
    if "url" in frame:
        urls = frame["url"].fillna("")
    signals: list[dict[str, float]] = [{}] * len(frame)
    names = [name for name in numbers if name in frame]
    if names:
        signals = frame[names].to_dict("records")
    rows = zip(frame["docno"], frame["text"], urls, signals, strict=True)
    return {row[0]: Post(*row) for row in rows}
