"""Part 7: training steps of MP-HCNN as shipped, plainly and as ``rerankers.training`` takes them.

Both ways start with the same weights, draw the same lists and minimise the same loss. The plain way
passes padded pairs, each with its own query, through all layers in every step, and its AdamW
updates all trained weights densely. Ours computes the interactions of fixed vectors and filters
once, before the first step. Dropout is off, as its draws depend on padding. So the gradients differ
by rounding only, which the AP on held-out topics confirms.

The topics are those of the judged years but ``LEFT_OUT``, whatever collection other parts take.
"""

import dataclasses
import itertools
import time
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch

from benchmarks.measuring import Row, alternate, compared, printed
from benchmarks.plain import PaddedPairs
from benchmarks.workload import Workload
from pipeline.collections import named
from pipeline.training.folds import split_topics
from pipeline.training.training_set import JudgedCandidates, load_training_data
from rerankers.base import Reranker
from rerankers.models.mp_hcnn import Model
from rerankers.scoring.batches import score_tokenized
from rerankers.scoring.tokenized import Tokenized
from rerankers.training.examples import CachedInteractions
from rerankers.training.loop import EpochTrainer, Examples

LEFT_OUT = "mb2013"
"""The test year; its topics are not used."""

CONFIG: Any = Model.configurations["robust"]
VECTOR_SIZE = 100
STEPS = 10
"""Steps per round of each way."""

PLAIN, OURS = "plain, padded, dense AdamW", "ours"


def training_data(workload: Workload) -> JudgedCandidates:
    """The judged years but ``LEFT_OUT``. Raises DataError if files are missing."""
    names = named.training_collections(LEFT_OUT, workload.data)
    return load_training_data([named.find(name, workload.data) for name in names])


def measure(workload: Workload) -> list[Row]:
    """Steps/s of both ways, and AP on held-out topics afterwards."""
    data = training_data(workload)
    pairs = data.candidates.pairs()
    fold = next(split_topics(pairs.query_index, 1, Model.training_settings.seed))
    encoder = workload.encoder(VECTOR_SIZE)
    config = dataclasses.replace(CONFIG, dropout=0.0)
    models = {name: workload.random_model("mp_hcnn", config, encoder) for name in (PLAIN, OURS)}
    tokenized = Tokenized.from_pairs(pairs, encoder, models[OURS])
    steps = both_ways(
        models, tokenized.take(fold.training), data.relevant()[fold.training], workload.rounds
    )
    timings = alternate({name: _epochs(way) for name, way in steps.items()}, workload.rounds)
    title = "training MP-HCNN as shipped"
    rows = compared(title, timings, lambda timing: f"{STEPS / timing.median:,.2f} steps/s")
    reached = []
    for name, model in models.items():
        run = data.run_of(fold.held_out, score_tokenized(model, tokenized.take(fold.held_out)))
        reached.append(f"{data.mean_of('AP', run):.4f} {name}")
    topics = len(np.unique(pairs.query_index[fold.held_out]))
    after = f"AP of {topics} held-out topics after {STEPS * workload.rounds} steps"
    return rows + printed([(f"{title}, {after}", "; ".join(reached))])


def both_ways(
    models: dict[str, Reranker], tokenized: Tokenized, relevant: Any, rounds: int
) -> dict[str, EpochTrainer]:
    """Trainers of each way; an epoch of the training loop is a round of the benchmark."""
    settings = dataclasses.replace(Model.training_settings, epochs=rounds, steps=STEPS)
    # Takes the place of tokenized pairs in the training loop.
    padded = cast(Tokenized, PaddedPairs(tokenized, models[PLAIN]))
    started = time.perf_counter()
    cached = CachedInteractions.compute(models[OURS], tokenized)
    seconds, count = time.perf_counter() - started, len(tokenized.query_index)
    print(f"interactions of {count:,} pairs, once: {seconds:.1f} s")
    trained = [weights for weights in models[PLAIN].parameters() if weights.requires_grad]
    rate, decay = settings.learning_rate, settings.weight_decay
    dense = torch.optim.AdamW(trained, lr=rate, weight_decay=decay)
    return {
        PLAIN: EpochTrainer(models[PLAIN], Examples(padded, relevant), settings, dense),
        OURS: EpochTrainer(models[OURS], Examples(cached, relevant), settings),
    }


def _epochs(trainer: EpochTrainer) -> Callable[[], float]:
    """A function that takes the steps of the next epoch and returns their mean loss."""
    numbers = itertools.count(1)
    return lambda: trainer.train_epoch(next(numbers))
