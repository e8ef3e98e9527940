"""The interface of every model, which scores lists of posts.

:class:`tweetrerank.rerankers.trees.boosting.Trees` and
:class:`tweetrerank.rerankers.networks.network.Network` implement it. Users hold a
:class:`tweetrerank.rerankers.reranker.Reranker`, which wraps a model.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt

from tweetrerank.rerankers import features
from tweetrerank.rerankers.explanation import Explanation
from tweetrerank.rerankers.pairs import NUMBER, PRIOR, Pairs, Resources, numbers_of
from tweetrerank.rerankers.reranker_error import RerankerError
from tweetrerank.rerankers.text.vocabulary import Idf

Reads = Literal["posts", "lists", "searches"]
"""How a model reads candidates.

``posts``: it scores each post alone, and its scores are mixed with the first stage's.
``lists``: it reads a whole list of candidates, with the scores of a first stage, with
their order only, or with neither. ``searches``: it reads the scores of several
searches. The best posts of these searches are its candidates.
"""

Progress = Callable[[int], object]
"""Callback that gets the number of pairs scored since its last call."""

Scores = npt.NDArray[np.floating]  # [P]

PROBE = Pairs(
    queries=["cuts"],
    texts=["bbc cuts jobs", "lunch"],
    urls=["", ""],
    query_index=np.zeros(2, np.int64),
    post_index=np.arange(2),
)
"""Two pairs that are scored to find out whether a model works."""

# Files of a network in a checkpoint
VOCABULARY = "vocabulary.json"
WEIGHTS = "model.safetensors"

TUNING_FILE = "lambda.json"
"""File in a checkpoint's folder that has the tuned λ and says where it comes from."""


def silent(pairs_done: int) -> None:
    """Report no progress."""


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Model(ABC):
    """A trained model that scores pairs of queries and posts. It is thread-safe."""

    reads: ClassVar[Reads]

    name: str  # Model name; see :mod:`tweetrerank.rerankers.registry`
    config: Any  # Hyperparameters
    idf: Idf  # Word frequencies
    metrics: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Content of the checkpoint's ``metrics.json``."""
    directory: Path = Path()  # Folder of the checkpoint
    resources: Resources = dataclasses.field(default_factory=dict)
    """Knowledge of a collection, used for pairs that bring none."""
    read_again: Callable[..., Model] | None = None
    """Function that reads the checkpoint in another process; None without a checkpoint.
    """

    @property
    @abstractmethod
    def families(self) -> Sequence[str]:
        """Feature families that the model reads; see ``rerankers/features``."""

    @property
    def device(self) -> str:
        """Type of the device that computes the scores."""
        return "cpu"

    @property
    def description(self) -> str:
        """Sentence for reports on how the model uses the first stage's scores."""
        return "λ = 1 (its score contains the first stage's)"

    @abstractmethod
    def score(self, pairs: Pairs, progress: Progress = silent) -> Scores:
        """Return the scores [P] of the pairs; a higher score is better.

        Raises RerankerError if a score is not a finite number, or if a batch does not
        fit into memory.
        """

    def stages(
        self,
        pairs: Pairs,
        progress: Progress = silent,
        first_stage: str = "first stage",
    ) -> Iterator[tuple[str, Scores]]:
        """Yield (name, scores [P]) of each step of the scoring; the last is the result.

        ``first_stage`` is the name of the search that found the pairs. It becomes part
        of the name of a mixture.
        """
        yield self.name, self.score(pairs, progress)

    @abstractmethod
    def files(self) -> Mapping[str, bytes]:
        """Return the content of the model's files in a checkpoint, by file name."""

    @property
    def reads_given(self) -> bool:
        """Whether texts suffice as input, with scores or order of one first stage."""
        if self.reads == "posts":
            return self.signals <= {PRIOR}
        return self.reads == "lists"

    @property
    def explains(self) -> Literal["matches", "contributions", ""]:
        """Kind of explanation that the model gives; "" for none."""
        return ""

    def explain(self, pairs: Pairs, rows: Sequence[int]) -> Explanation | None:
        """Explain the scores of the pairs ``rows``; return None if the model cannot.

        ``pairs`` must be the whole list of one query, because the other posts of a list
        may change a post's score.
        """
        return None

    @cached_property
    def signals(self) -> set[str]:
        """Names of the signals that the model reads; see :attr:`Pairs.signals`."""
        return features.signals_of(self.families)

    @property
    def numbers(self) -> list[str]:
        """Names of the numeric fields of posts that the model reads."""
        return numbers_of(self.signals)

    def unknown_numbers(self, pairs: Pairs) -> str:
        """Return a message on how many posts lack each number that the model reads.

        The message is "" if no number is missing.
        """
        missing = []
        for name in self.numbers:
            count = _unknown_count(pairs, name)
            if count:
                missing.append(f"{name} of {count:,}")
        if not missing:
            return ""
        return (
            f"{self.name} reads numbers that are not known: {', '.join(missing)} "
            f"of {len(pairs):,} posts"
        )

    def remembering(self, max_bytes: int) -> Self:
        """Return the model with a cache of posts that takes up to ``max_bytes``.

        A model that gains nothing by a cache returns itself.
        """
        return self

    @property
    def counts(self) -> Counter[str]:
        """``hits`` and ``misses`` of the cache, and its size in ``bytes``.

        The counter is empty if there is no cache.
        """
        return Counter()

    def warm_up(self) -> None:
        """Score a few pairs, so that the first request is as fast as later ones."""
        self.score(PROBE)

    def tuned_weight(self) -> float | None:
        """Return the λ tuned with the checkpoint; None if the model is never mixed."""
        return None

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle or copy the model as its folder, which the other process reads.

        Raises RerankerError if the model has no folder.
        """
        if self.read_again is None or not (self.directory / "config.json").exists():
            raise RerankerError(
                f"{self.name} has no folder and cannot be copied to another process; "
                "save it by rerankers.checkpoint.save, then load it"
            )
        arguments = (
            self.directory.absolute(),
            self.name,
            self.device,
            self.idf.source,
            getattr(self, "batch_size", 256),
            dict(self.resources),
        )
        return self.read_again, arguments

    def __repr__(self) -> str:
        return f"Model({self.name!r}, {str(self.directory)!r})"


def _unknown_count(pairs: Pairs, name: str) -> int:
    """Return how many of the pairs lack the number ``name``."""
    values = pairs.signals.get(NUMBER + name)
    if values is None:
        return len(pairs)
    return int(np.isnan(values).sum())


def check_finite(scores: Scores) -> None:
    """Raise RerankerError unless all scores are finite numbers."""
    is_finite = np.isfinite(scores)
    if not is_finite.all():
        raise RerankerError(
            f"{int((~is_finite).sum())} of {len(scores)} scores are not finite "
            "numbers: the checkpoint's weights are damaged, or training diverged; "
            "restore the checkpoint, or train again with a smaller learning rate"
        )
