"""Rerankers as parts of other frameworks, each of which is imported when it is used."""

from collections.abc import Sequence
from typing import Any

from tweetrerank.rerankers.model import Model


def for_pyterrier(reranker: Model, weight: float | None = None) -> Any:
    """A transformer of PyTerrier: new scores and ranks for results with ``query`` and ``text``.

    A column ``url`` has the URLs that posts link to, if there is one; numbers that the model reads
    have columns of their names. Scores of a first stage in a column ``score`` are mixed with the
    model's; see :meth:`Model.predict`, also for ``weight`` and errors.
    """
    import pyterrier as pt

    class Reranking(pt.Transformer):
        def transform(self, inp: Any) -> Any:
            pt.validate.result_frame(inp, extra_columns=["query", "text"])
            names = ("text", "url", *reranker.numbers)
            posts = inp[[name for name in names if name in inp]].to_dict("records")
            queries, first = (
                inp["query"].tolist(),
                inp["score"].tolist() if "score" in inp else [],
            )
            scores = [0.0] * len(inp)
            # Two topics may have one text.
            for places in (
                inp.reset_index(drop=True).groupby("qid", sort=False).indices.values()
            ):
                pairs = [(queries[place], posts[place]) for place in places]
                mixing = ([first[place] for place in places], weight) if first else ()
                for place, score in zip(
                    places, reranker.predict(pairs, *mixing), strict=True
                ):
                    scores[place] = float(score)
            return pt.model.add_ranks(inp.assign(score=scores))

    return Reranking()


def for_langchain(
    reranker: Model, top_n: int | None = None, weight: float | None = None
) -> Any:
    """A document compressor of LangChain: the best ``top_n`` documents, or all, best first.

    Their scores go into the metadata as ``relevance_score``. ``url`` in the metadata is the URL
    that a post links to; numbers that the model reads are there, too. If all documents have the
    ``score`` of a first stage there, it is mixed with the model's; see :meth:`Model.predict`, also
    for ``weight`` and errors.
    """
    from langchain_core.documents import BaseDocumentCompressor

    class Reranking(BaseDocumentCompressor):
        def compress_documents(
            self, documents: Sequence[Any], query: str, callbacks: Any = None
        ) -> Sequence[Any]:
            posts = [{**each.metadata, "text": each.page_content} for each in documents]
            scores = [each.metadata.get("score") for each in documents]
            mixing = () if not documents or None in scores else (scores, weight)
            ranking = reranker.rank(query, posts, top_n, *mixing)
            best = [documents[post.index].model_copy(deep=True) for post in ranking]
            for document, post in zip(best, ranking, strict=True):
                document.metadata["relevance_score"] = post.score
            return best

    return Reranking()
