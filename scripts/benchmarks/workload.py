"""Workload of the benchmark: pairs of a collection, and the trained MP-HCNN."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from pipeline.collections.collection import Collection
from pipeline.collections.named import ANSWERS, open_collection
from pipeline.ranking.checkpoints import default_directory
from pipeline.ranking.retrievers import Candidates, retriever_for
from rerankers import checkpoint
from rerankers.pairs import Pairs
from rerankers.reranker import TrainedReranker


@dataclass(frozen=True)
class Workload:
    """Options of all parts, and data that is loaded on first use."""

    collection: str
    count: int  # Maximal number of pairs in comparisons
    rounds: int
    device: str
    data: Path | None
    minutes: int = 1  # Of the service's overload
    sizes: Sequence[int] = ()  # Of the growing collections
    engine: str | None = None  # Address of a search engine
    is_chosen: bool = False  # Whether the device was named, and not found

    @property
    def directory(self) -> Path:
        """Folder of the measured checkpoint.

        For answer selection it is the one trained on all tweets: it ranks answers badly, but in the
        same time.
        """
        if self.collection in ANSWERS:
            return checkpoint.SHIPPED / "mp_hcnn" / "all"
        return default_directory("mp_hcnn", self.collection)

    @cached_property
    def source(self) -> Collection:
        """The collection."""
        return open_collection(self.collection, data=self.data)

    @cached_property
    def candidates(self) -> Candidates:
        """All candidates: given, of the official query-likelihood run, or of our own."""
        retriever = retriever_for(self.source, "ql" if "ql" in self.source.runs else None)
        return retriever.search(self.source.topics)

    @cached_property
    def pairs(self) -> Pairs:
        """The first ``count`` candidates as pairs of texts."""
        pairs = self.candidates.pairs()
        return pairs.take(np.arange(min(self.count, len(pairs))))

    @cached_property
    def checkpoint(self) -> TrainedReranker:
        """The trained MP-HCNN."""
        return checkpoint.load(self.directory, "mp_hcnn", self.device)
