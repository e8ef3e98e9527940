"""Workload of the benchmark: pairs of a collection, the trained MP-HCNN, and one of paper size."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pipeline.collections.collection import Collection
from pipeline.collections.named import ANSWERS, open_collection
from pipeline.ranking.checkpoints import default_directory
from pipeline.ranking.retrievers import Candidates, retriever_for
from rerankers import checkpoint
from rerankers.base import Pairs
from rerankers.models.mp_hcnn import Model
from rerankers.reranker import TrainedReranker
from rerankers.text.inputs import TextEncoder
from rerankers.text.vocabulary import Vocabulary

PAPER_VECTOR_SIZE = 300
"""Size of MP-HCNN's word vectors in the paper (section 4.3)."""


@dataclass(frozen=True)
class Workload:
    """Options of all parts, and data that is loaded on first use.

    Attributes:
        count: maximal number of pairs in comparisons.
        minutes: of the service's overload.
        sizes: of the growing collections.
        engine: address of a search engine.
        is_chosen: whether the device was named, and not found.
    """

    collection: str
    count: int
    rounds: int
    device: str
    data: Path | None
    minutes: int = 1
    sizes: Sequence[int] = ()
    engine: str | None = None
    is_chosen: bool = False

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

    def paper_model(self) -> tuple[Model, TextEncoder]:
        """MP-HCNN with 300 numbers per word, 256 filters and depth 4 (section 4.3), untrained."""
        torch.manual_seed(1)
        trained = self.checkpoint.encoder
        known = trained.vocabulary
        shape = (len(known.known), PAPER_VECTOR_SIZE)
        vectors = np.random.default_rng(1).normal(0, 0.4, shape).astype(np.float32)
        encoder = TextEncoder(Vocabulary(known.known, vectors, known.buckets), trained.idf)
        config: Any = dataclasses.replace(
            Model.configurations["paper"], word_filters=256, trigram_filters=256, depth=4
        )
        model = Model(config, encoder.vocabulary)
        return model.to(self.device).eval(), encoder
