"""What the parts share: candidates of a collection."""

from functools import cache

from benchmarks import Options
from pipeline.collections.named import open_collection
from pipeline.ranking.retrievers import Candidates, retriever_for

Row = tuple[str, str]  # What was measured, and the outcome


@cache
def candidates_of(options: Options) -> Candidates:
    """All candidates: of the official query-likelihood run, or of our own."""
    source = open_collection(options.collection, data=options.data)
    retriever = retriever_for(source, "ql" if "ql" in source.runs else None)
    return retriever.search(source.topics)
