"""Scorers: new scores of candidates."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipeline.collections.collection import Collection
    from pipeline.collections.trec import Run
    from pipeline.ranking.retrievers import Candidates
    from rerankers.reranker import TrainedReranker

Progress = Callable[[int], None]
"""Called with numbers of pairs that have been scored since the last call."""

ProgressBar = Callable[[int], AbstractContextManager[Progress]]
"""Number of pairs to score -> a progress bar."""


def silent(done: int) -> None:
    """Report nothing."""


def hidden(pairs: int) -> AbstractContextManager[Progress]:
    """Show no progress bar."""
    return nullcontext(silent)


@dataclass(frozen=True)
class ModelScorer:
    """A trained model that scores candidates by their texts and first-stage scores.

    See :func:`rerankers.scoring.batches.score` for the batch size (in pairs) and the precision.
    """

    checkpoint: TrainedReranker
    batch_size: int = 256
    precision: str = "fp32"

    @property
    def name(self) -> str:
        """The model's name."""
        return self.checkpoint.name

    def with_needs(self, candidates: Candidates, collection: Collection | None) -> Candidates:
        """Candidates with what the model reads of their collection: its adapted word vectors."""
        from pipeline.ranking.retrievers import with_space
        from rerankers.text.spaces import ADAPTED

        is_read = f"meaning:{ADAPTED}" in self.checkpoint.model.feature_families
        return with_space(candidates, collection) if is_read else candidates

    def score(self, candidates: Candidates, progress: Progress = silent) -> Run:
        """The score of each candidate, higher is better."""
        pairs = candidates.pairs()
        scores = self.checkpoint.score(pairs, self.batch_size, progress, self.precision)
        return candidates.run_of(scores)
