"""Part 7: steps of training, plainly and as ``rerankers/training.py`` takes them.

Both ways start with the same weights, draw the same lists and lower the same loss with Adam, whose
weight decay is decoupled in both. The plain way pads every pair to the lengths that the model
reads at most, has a copy of the query for each pair, and goes through all layers in every step;
its Adam is PyTorch's dense one over all that trains. Dropout, whose draws depend on padding, is
off, so the weights of both ways differ by rounding alone, and their AP on held-out topics shows it.

Topics are those of the judged years but ``LEFT_OUT``, whatever collection the other parts take.
"""

import dataclasses
import itertools
import time
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.measuring import Row, alternate
from benchmarks.ways import in_full, padded_lengths
from benchmarks.workload import Workload
from pipeline import collections
from pipeline.material import TrainingData, load_training_data
from pipeline.training import Fold, folds_of
from rerankers.base import Pairs, Reranker
from rerankers.encoded import Encoded
from rerankers.interactions import CachedInteractions
from rerankers.models.mp_hcnn import Model
from rerankers.scoring import score_encoded
from rerankers.settings import Settings
from rerankers.training import Examples, Steps
from rerankers.views import TextEncoder

LEFT_OUT = "mb2013"
"""The test year: no figure here is about its topics."""

VECTOR_SIZE = 100
"""Numbers of a word's vector, as the shipped checkpoints have."""

STEPS = 10
"""Steps in a round of one way."""

Rows = npt.NDArray[np.int64]

PLAIN = "plain, padded, dense Adam"
OURS = "ours"

CONFIGURATIONS = {
    "MP-HCNN as shipped": Model.configurations["robust"],
    "MP-HCNN, vectors and filters trained": dataclasses.replace(
        Model.configurations["robust"], train_vectors=True, train_filters=True
    ),
}
"""Title -> the sizes of both are 128 filters for words, 64 for trigrams, depth 2."""


class FullLength:
    """Pairs whose texts have been read, for steps that take them plainly."""

    def __init__(self, encoded: Encoded, model: Reranker) -> None:
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
        encoder: reads texts.
        settings: an epoch of the loop is a round of the benchmark.
    """

    data: TrainingData
    pairs: Pairs
    fold: Fold
    encoder: TextEncoder
    settings: Settings

    @classmethod
    def of(cls, workload: Workload) -> "Task":
        """Raises DataError if files are missing."""
        data = training_data(workload)
        settings = dataclasses.replace(
            Model.training_settings, epochs=workload.rounds, steps=STEPS
        )  # fmt: skip
        pairs = data.candidates.pairs()
        fold = next(folds_of(pairs.query_index, 1, settings.seed))
        return cls(data, pairs, fold, workload.encoder(VECTOR_SIZE), settings)

    @cached_property
    def relevant(self) -> npt.NDArray[np.bool_]:
        """Of each pair of the fold's training part whether it is relevant."""
        return self.data.relevant()[self.fold.training]

    @property
    def held_out_topics(self) -> int:
        """How many there are."""
        return len(np.unique(self.pairs.query_index[self.fold.held_out]))

    def average_precision(self, model: Reranker, encoded: Encoded) -> float:
        """MAP of the held-out topics; ``encoded`` are all pairs."""
        rows = self.fold.held_out
        run = self.data.run_of(rows, score_encoded(model, encoded.subset(rows)))
        return self.data.mean_of("AP", run)


def training_data(workload: Workload) -> TrainingData:
    """The judged years but ``LEFT_OUT``. Raises DataError if files are missing."""
    names = collections.training_collections(LEFT_OUT, workload.data)
    return load_training_data([collections.find(name, workload.data) for name in names])


def measure(workload: Workload) -> list[Row]:
    """Steps/s of both ways, and the AP that they reach."""
    task = Task.of(workload)
    rows = []
    for title, configuration in CONFIGURATIONS.items():
        config = dataclasses.replace(configuration, dropout=0.0)
        rows += _compare(f"training {title}", config, task, workload)
    return rows


def _compare(title: str, config: Any, task: Task, workload: Workload) -> list[Row]:
    theirs, ours = (workload.random_model("mp_hcnn", config, task.encoder) for _ in range(2))
    encoded = Encoded.of(task.pairs, task.encoder, ours)
    known, started = encoded.subset(task.fold.training), time.perf_counter()
    prepared = CachedInteractions.of(ours, known) if ours.interactions_are_fixed() else known
    beforehand = time.perf_counter() - started
    plainly = Examples(FullLength(known, theirs), task.relevant)
    timings = alternate(
        {
            PLAIN: _epochs(Steps(theirs, plainly, task.settings, _dense(theirs, task.settings))),
            OURS: _epochs(Steps(ours, Examples(prepared, task.relevant), task.settings)),
        },
        workload.rounds,
    )
    speeds = {name: f"{STEPS / timing.median:,.2f} steps/s" for name, timing in timings.items()}
    speeds[OURS] += f" ({timings[OURS].ratio(timings[PLAIN]):.2f} ×)"
    if prepared is not known:
        speeds[OURS] += f", after {beforehand:.1f} s for {len(known.query_index):,} pairs"
    reached = [task.average_precision(model, encoded) for model in (theirs, ours)]
    rows = [(f"{title}, {name}", speed) for name, speed in speeds.items()]
    rows.append(
        (
            f"{title}, AP of {task.held_out_topics} held-out topics after "
            f"{STEPS * workload.rounds} steps",
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


def _epochs(steps: Steps) -> Callable[[], float]:
    """Takes the steps of the next epoch whenever it is called, and gives their mean loss."""
    numbers = itertools.count(1)
    return lambda: steps.epoch(next(numbers))
