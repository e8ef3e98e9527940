"""Part 7: steps of training, plainly and as ``rerankers/training.py`` takes them.

Both ways start with the same weights, draw the same lists and lower the same loss with Adam, whose
weight decay is decoupled in both. The plain way pads every pair to the lengths that the model
reads at most, has a copy of the query for each pair, and goes through all layers in every step;
its Adam is PyTorch's dense one over all that trains. Ours computes what fixed weights give once,
and moves only the vectors that a step has read (``rerankers/training/optimizers.py``). Dropout,
whose draws depend on padding, is off. So the gradients of both ways differ by rounding alone; what
the vectors that a step has not read are worth, AP on held-out topics shows.

Topics are those of the judged years but ``LEFT_OUT``, whatever collection the other parts take.
"""

import dataclasses
import itertools
import time
from collections.abc import Callable
from functools import cached_property
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.measuring import Row, alternate
from benchmarks.ways import in_full, padded_lengths
from benchmarks.workload import Workload
from pipeline.collections import named
from pipeline.training.folds import Fold, folds_of
from pipeline.training.training_set import JudgedCandidates, load_training_data
from rerankers.base import Pairs, Reranker
from rerankers.engine.scoring import score_tokenized
from rerankers.engine.tokenized import Tokenized
from rerankers.models.mp_hcnn import Model
from rerankers.training.examples import CachedInteractions
from rerankers.training.loop import EpochTrainer, Examples
from rerankers.training.settings import Settings

LEFT_OUT = "mb2013"
"""The test year: no figure here is about its topics."""

Rows = npt.NDArray[np.int64]

PLAIN = "plain, padded, dense Adam"
OURS = "ours"


@dataclasses.dataclass(frozen=True)
class Case:
    """A configuration to train.

    Attributes:
        config: of the model.
        vector_size: numbers of a word's vector.
        steps: in a round of one way.
    """

    config: Any
    vector_size: int = 100
    steps: int = 10


CASES = {
    "MP-HCNN as shipped": Case(Model.configurations["robust"]),
    "MP-HCNN, vectors and filters trained": Case(
        dataclasses.replace(Model.configurations["robust"], train_vectors=True, train_filters=True)
    ),
    "MP-HCNN of the paper's size": Case(Model.configurations["paper"], 300, 2),
}
"""Title -> the first two have word vectors of 100 numbers as the shipped checkpoints, 128 filters
for words, 64 for trigrams, depth 2; the last has what section 4.3 of the paper has."""


class FullLength:
    """Pairs whose texts have been read, for steps that take them plainly."""

    def __init__(self, encoded: Tokenized, model: Reranker) -> None:
        self.encoded, self.query_index = encoded, encoded.query_index
        self.query_lengths, self.post_lengths = padded_lengths(model, encoded)

    def scores_of(self, model: Reranker, rows: Rows, device: torch.device) -> torch.Tensor:
        """Scores [B] of the pairs ``rows`` [B], each padded in full and with its own query."""
        pairs = self.encoded
        queries = in_full(pairs.queries, pairs.query_index[rows], self.query_lengths, device)
        posts = in_full(pairs.posts, pairs.post_index[rows], self.post_lengths, device)
        own = torch.arange(len(rows), device=device)
        scores: torch.Tensor = model(queries, posts, own, pairs.features_of(rows, device))
        return scores


@dataclasses.dataclass(frozen=True)
class Task:
    """What to train on.

    Attributes:
        data: candidates and their judgments.
        pairs: the candidates.
        fold: rows of ``pairs`` to train on, and those of held-out topics (15 %).
        workload: has rounds, and the words that a model knows.
    """

    data: JudgedCandidates
    pairs: Pairs
    fold: Fold
    workload: Workload

    @classmethod
    def of(cls, workload: Workload) -> "Task":
        """Raises DataError if files are missing."""
        data = training_data(workload)
        pairs = data.candidates.pairs()
        fold = next(folds_of(pairs.query_index, 1, Model.training_settings.seed))
        return cls(data, pairs, fold, workload)

    def settings(self, case: Case) -> Settings:
        """An epoch of the loop is a round of the benchmark."""
        rounds = self.workload.rounds
        return dataclasses.replace(Model.training_settings, epochs=rounds, steps=case.steps)

    @cached_property
    def relevant(self) -> npt.NDArray[np.bool_]:
        """Of each pair of the fold's training part whether it is relevant."""
        return self.data.relevant()[self.fold.training]

    @property
    def held_out_topics(self) -> int:
        """How many there are."""
        return len(np.unique(self.pairs.query_index[self.fold.held_out]))

    def average_precision(self, model: Reranker, encoded: Tokenized) -> float:
        """MAP of the held-out topics; ``encoded`` are all pairs."""
        rows = self.fold.held_out
        run = self.data.run_of(rows, score_tokenized(model, encoded.subset(rows)))
        return self.data.mean_of("AP", run)


def training_data(workload: Workload) -> JudgedCandidates:
    """The judged years but ``LEFT_OUT``. Raises DataError if files are missing."""
    names = named.training_collections(LEFT_OUT, workload.data)
    return load_training_data([named.find(name, workload.data) for name in names])


def measure(workload: Workload) -> list[Row]:
    """Steps/s of both ways, and the AP that they reach."""
    task = Task.of(workload)
    rows = []
    for title, case in CASES.items():
        rows += _compare(f"training {title}", case, task)
    return rows


def _compare(title: str, case: Case, task: Task) -> list[Row]:
    workload, settings = task.workload, task.settings(case)
    encoder = workload.encoder(case.vector_size)
    config = dataclasses.replace(case.config, dropout=0.0)
    theirs, ours = (workload.random_model("mp_hcnn", config, encoder) for _ in range(2))
    encoded = Tokenized.of(task.pairs, encoder, ours)
    known, started = encoded.subset(task.fold.training), time.perf_counter()
    prepared = CachedInteractions.compute(ours, known) if ours.interactions_are_fixed() else known
    beforehand = time.perf_counter() - started
    plainly = Examples(cast(Any, FullLength(known, theirs)), task.relevant)
    timings = alternate(
        {
            PLAIN: _epochs(EpochTrainer(theirs, plainly, settings, _dense(theirs, settings))),
            OURS: _epochs(EpochTrainer(ours, Examples(prepared, task.relevant), settings)),
        },
        workload.rounds,
    )
    speeds = {
        name: f"{case.steps / timing.median:,.2f} steps/s" for name, timing in timings.items()
    }
    speeds[OURS] += f" ({timings[OURS].ratio(timings[PLAIN]):.2f} ×)"
    if prepared is not known:
        speeds[OURS] += f", after {beforehand:.1f} s for {len(known.query_index):,} pairs"
    reached = [task.average_precision(model, encoded) for model in (theirs, ours)]
    rows = [(f"{title}, {name}", speed) for name, speed in speeds.items()]
    rows.append(
        (
            f"{title}, AP of {task.held_out_topics} held-out topics after "
            f"{case.steps * workload.rounds} steps",
            f"{reached[0]:.4f} plainly, {reached[1]:.4f} by ours",
        )
    )
    for row in rows:
        print(": ".join(row), flush=True)
    return rows


def _dense(model: Reranker, settings: Settings) -> torch.optim.Optimizer:
    """Adam over all rows of all weights that train.

    AdamW is Adam but for how it shrinks weights: its work is the same.
    """
    return torch.optim.AdamW(
        [parameter for parameter in model.parameters() if parameter.requires_grad],
        lr=settings.learning_rate, weight_decay=settings.weight_decay,
    )  # fmt: skip


def _epochs(trainer: EpochTrainer) -> Callable[[], float]:
    """Takes the steps of the next epoch whenever it is called, and gives their mean loss."""
    numbers = itertools.count(1)
    return lambda: trainer.train_epoch(next(numbers))
