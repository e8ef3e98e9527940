"""Workload of the benchmark: pairs of a collection, a trained model, models of random weights."""

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
from rerankers import checkpoint, models
from rerankers.base import WORDS, Pairs, Reranker
from rerankers.models.mp_hcnn import Model
from rerankers.reranker import TrainedReranker
from rerankers.text.inputs import TextEncoder
from rerankers.text.vocabulary import Vocabulary

PAPER_VECTOR_SIZE = 300
"""Size of MP-HCNN's word vectors in the paper (section 4.3)."""


@dataclass(frozen=True)
class Workload:
    """Options of all parts, and data that is loaded on first use."""

    collection: str
    count: int
    """Maximal number of pairs in comparisons."""
    rounds: int
    device: str
    data: Path | None
    minutes: int = 1
    """Of the service's overload."""
    sizes: Sequence[int] = ()
    """Of part 11's collections."""
    encoded: int = 0
    """The largest of them whose posts are precomputed."""
    plot: Path | None = None
    engine: str | None = None
    """Address of a search engine."""

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
    def all_pairs(self) -> Pairs:
        """The candidates as pairs of texts."""
        return self.candidates.pairs()

    @cached_property
    def pairs(self) -> Pairs:
        """The first ``count`` pairs."""
        return self.all_pairs.take(np.arange(min(self.count, len(self.all_pairs))))

    @cached_property
    def checkpoint(self) -> TrainedReranker:
        """The trained MP-HCNN."""
        return checkpoint.load(self.directory, "mp_hcnn", self.device)

    def encoder(self, size: int) -> TextEncoder:
        """An encoder with the checkpoint's vocabulary and word vectors of another size.

        Additional components are random, with the standard deviation of the trained ones.
        """
        loaded = self.checkpoint
        known = loaded.encoder.vocabulary
        ids = torch.arange(1, len(known.known) + 1, device=self.device)
        with torch.inference_mode():
            towers: Any = loaded.model.towers
            vectors = towers[WORDS].vectors(ids).cpu().numpy()[:, :size]
        spread = float(vectors.std()) or 1.0
        shape = (len(vectors), size - vectors.shape[1])
        more = np.random.default_rng(1).normal(0, spread, shape).astype(np.float32)
        vocabulary = Vocabulary(known.known, np.hstack([vectors, more]), known.buckets)
        return TextEncoder(vocabulary, loaded.encoder.idf)

    def random_model(self, name: str, config: Any, encoder: TextEncoder) -> Reranker:
        """An untrained model, ready to score."""
        torch.manual_seed(1)
        build: Any = models.find(name)
        model: Reranker = build(config, encoder.vocabulary)
        return model.to(self.device).eval()

    @property
    def mp_hcnns(self) -> dict[str, tuple[Reranker, TextEncoder]]:
        """Both sizes of MP-HCNN: title -> model and encoder."""
        return {
            "MP-HCNN at the paper's size": self.paper_model(),
            "MP-HCNN, shipped": (self.checkpoint.model, self.checkpoint.encoder),
        }

    def paper_model(self) -> tuple[Reranker, TextEncoder]:
        """MP-HCNN with 300 numbers per word, 256 filters and depth 4 (section 4.3), untrained."""
        encoder = self.encoder(PAPER_VECTOR_SIZE)
        config: Any = dataclasses.replace(
            Model.configurations["paper"], word_filters=256, trigram_filters=256, depth=4
        )
        return self.random_model("mp_hcnn", config, encoder), encoder
