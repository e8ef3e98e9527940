"""What is measured: the pairs of a collection, a trained model, and models of random weights."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from indexes.methods import METHODS
from pipeline.checkpoints import default_directory
from pipeline.collections import answers
from pipeline.collections.sources import Source, open_source
from pipeline.collections.trec import read_run
from pipeline.reranking import Candidates, LuceneRetriever, RunRetriever
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
        if self.collection in answers.NAMES:
            return checkpoint.SHIPPED / "mp_hcnn" / "all"
        return default_directory("mp_hcnn", self.collection)

    @cached_property
    def source(self) -> Source:
        """Topics, posts and index. Raises DataError if files are missing."""
        return open_source(self.collection, None, None, self.data)

    @cached_property
    def all_pairs(self) -> Pairs:
        """Every candidate: given, of the official query-likelihood run, or found by our own."""
        source = self.source
        if source.given is not None:
            ids = [doc_id for scores in source.given.values() for doc_id in scores]
            candidates = Candidates(source.topics, source.given, source.find_posts(ids), {})
        elif "ql" in source.runs:
            path = source.runs["ql"]
            candidates = RunRetriever(read_run(path), source.find_posts, str(path)).search(
                source.topics
            )
        else:
            candidates = LuceneRetriever(source.index(), METHODS["ql"]()).search(source.topics)
        return candidates.pairs()

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
