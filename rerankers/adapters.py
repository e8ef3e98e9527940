"""Rerankers as parts of other frameworks, each of which is imported when it is used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyterrier
    from langchain_core.documents import BaseDocumentCompressor, Document

    from rerankers.reranker import TrainedReranker


def for_pyterrier(reranker: TrainedReranker) -> pyterrier.Transformer:
    """A transformer of PyTerrier: new scores and ranks for results with ``query`` and ``text``.

    A column ``url`` has the URLs that posts link to, if there is one.
    """
    import pyterrier as pt

    class Reranking(pt.Transformer):
        def transform(self, inp: Any) -> Any:
            pt.validate.result_frame(inp, extra_columns=["query", "text"])
            urls = inp["url"].fillna("") if "url" in inp else [""] * len(inp)
            posts = zip(inp["text"], urls, strict=True)
            scores = reranker.predict([*zip(inp["query"], posts, strict=True)])
            return pt.model.add_ranks(inp.assign(score=scores.astype(float)))

    return Reranking()


def for_langchain(reranker: TrainedReranker, top_n: int | None = None) -> BaseDocumentCompressor:
    """A document compressor of LangChain: the best ``top_n`` documents, or all, best first.

    Their scores go into the metadata as ``relevance_score``. ``url`` in the metadata is the URL
    that a post links to.
    """
    from langchain_core.documents import BaseDocumentCompressor

    class Reranking(BaseDocumentCompressor):
        def compress_documents(
            self, documents: Sequence[Document], query: str, callbacks: Any = None
        ) -> Sequence[Document]:
            posts = [(one.page_content, one.metadata.get("url") or "") for one in documents]
            ranking = reranker.rank(query, posts, top_n)
            found = [documents[one.index].model_copy(deep=True) for one in ranking]
            for document, one in zip(found, ranking, strict=True):
                document.metadata["relevance_score"] = one.score
            return found

    return Reranking()
