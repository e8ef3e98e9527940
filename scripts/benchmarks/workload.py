"""What is measured: the pairs of a collection, a trained model, and models of random weights."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pipeline.checkpoints import default_directory
from pipeline.collections.collection import Collection
from pipeline.collections.named import ANSWERS, open_collection
from pipeline.reranking import retriever_for
from rerankers import checkpoint, models
from rerankers.base import WORDS, Pairs, Reranker
from rerankers.checkpoint import TrainedReranker
from rerankers.text.inputs import TextEncoder
from rerankers.text.vocabulary import Vocabulary


@dataclass(frozen=True)
class Workload:
    """What all parts are told; the rest is made when a part first asks for it.

    Attributes:
        collection: its name.
        count: pairs to compare ways on, at most.
        rounds: times that each way is measured.
        device: ``cpu`` or ``cuda``.
        data: data folder; None is the usual one.
    """

    collection: str
    count: int
    rounds: int
    device: str
    data: Path | None

    @property
    def directory(self) -> Path:
        """The checkpoint to measure with.

        For answer selection it is the one trained on all tweets, which ranks answers badly, but
        takes the same time.
        """
        if self.collection in ANSWERS:
            return checkpoint.SHIPPED / "mp_hcnn" / "all"
        return default_directory("mp_hcnn", self.collection)

    @cached_property
    def source(self) -> Collection:
        """Topics, posts and index."""
        return open_collection(self.collection, data=self.data)

    @cached_property
    def all_pairs(self) -> Pairs:
        """Every candidate: given, of the official query-likelihood run, or found by our own."""
        source = self.source
        retriever = retriever_for(source, "ql" if "ql" in source.runs else None)
        return retriever.search(source.topics).pairs()

    @cached_property
    def pairs(self) -> Pairs:
        """The first ``count`` of them."""
        return self.all_pairs.part(np.arange(min(self.count, len(self.all_pairs))))

    @cached_property
    def checkpoint(self) -> TrainedReranker:
        """The trained MP-HCNN."""
        return checkpoint.load(self.directory, "mp_hcnn", self.device)

    def encoder(self, size: int) -> TextEncoder:
        """Reads texts by the checkpoint's words, whose vectors have ``size`` numbers.

        What is missing beyond the checkpoint's own vectors is drawn as widely spread.
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
