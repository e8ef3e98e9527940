"""Adapters that make a reranker usable in other frameworks.

A framework is imported only when its adapter is made.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tweetrerank.rerankers.reranker import Reranker

if TYPE_CHECKING:
    import pandas as pd


def for_pyterrier(reranker: Reranker, weight: float | None = None) -> Any:
    """Return a PyTerrier transformer that gives results new scores and ranks.

    The results must have the columns ``query`` and ``text``. The optional column
    ``url`` has the URLs that the posts link to. A number that the model reads is in the
    column of its name. If there is a column ``score``, its first-stage scores are mixed
    with the model's. For ``weight`` and errors see :meth:`Reranker.predict`.
    """
    import pyterrier as pt

    class Reranking(pt.Transformer):
        def transform(self, inp: "pd.DataFrame") -> Any:
            pt.validate.result_frame(inp, extra_columns=["query", "text"])
            scores = _scores_of_frame(reranker, inp, weight)
            return pt.model.add_ranks(inp.assign(score=scores))

    return Reranking()


def _scores_of_frame(
    reranker: Reranker, frame: "pd.DataFrame", weight: float | None
) -> list[float]:
    """Score the rows of a PyTerrier frame topic by topic; return a score per row."""
    columns = ("text", "url", *reranker.numbers)
    posts = frame[[name for name in columns if name in frame]].to_dict("records")
    queries = frame["query"].tolist()
    has_scores = "score" in frame and len(frame) > 0
    scores = [0.0] * len(frame)
    # Two topics may have the same text, so rows are grouped by topic identifier.
    topics = frame.reset_index(drop=True).groupby("qid", sort=False)
    for rows in topics.indices.values():
        pairs = [(queries[row], posts[row]) for row in rows]
        if has_scores:
            first = frame["score"].iloc[rows].tolist()
            values = reranker.predict(pairs, first, weight)
        else:
            values = reranker.predict(pairs)
        for row, score in zip(rows, values, strict=True):
            scores[row] = float(score)
    return scores


def for_langchain(
    reranker: Reranker, top_n: int | None = None, weight: float | None = None
) -> Any:
    """Return a LangChain document compressor that keeps the best ``top_n`` documents.

    The documents come best first; with ``top_n`` None all are kept. Each one has its
    score in the metadata as ``relevance_score``. The metadata of the input may have the
    ``url`` that a post links to, and the numbers that the model reads. If every
    document has a first-stage ``score`` there, it is mixed with the model's score. For
    ``weight`` and errors see :meth:`Reranker.predict`.
    """
    from langchain_core.documents import BaseDocumentCompressor

    class Reranking(BaseDocumentCompressor):
        def compress_documents(
            self, documents: Sequence[Any], query: str, callbacks: Any = None
        ) -> Sequence[Any]:
            return _best_documents(reranker, documents, query, top_n, weight)

    return Reranking()


def _best_documents(
    reranker: Reranker,
    documents: Sequence[Any],
    query: str,
    top_n: int | None,
    weight: float | None,
) -> list[Any]:
    """Return copies of the best documents, with their scores in the metadata."""
    posts: list[Mapping[str, object]] = []
    for document in documents:
        posts.append({**document.metadata, "text": document.page_content})
    first = [document.metadata.get("score") for document in documents]
    if not documents or None in first:
        ranking = reranker.rank(query, posts, top_n)
    else:
        ranking = reranker.rank(query, posts, top_n, first, weight)
    best = []
    for post in ranking:
        document = documents[post.index].model_copy(deep=True)
        document.metadata["relevance_score"] = post.score
        best.append(document)
    return best
