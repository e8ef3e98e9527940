"""Measures the speed of MP-HCNN's forward passes."""

import copy
import time
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from typing import NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch

from benchmarks import Options
from benchmarks.workload import Row, candidates_of, in_turn
from tweetrerank.pipeline.ranking.checkpoints import default_directory
from tweetrerank.rerankers import checkpoint
from tweetrerank.rerankers.networks.base import Reranker
from tweetrerank.rerankers.networks.inputs import Tokenized
from tweetrerank.rerankers.networks.network import (
    BATCH_SIZE,
    Network,
    batches_of,
    score_tokenized,
)

Scores = npt.NDArray[np.float32]  # [P]

PLAIN = "own forward pass"  # Runs on the CPU, like the fast one


class Measurement(NamedTuple):
    """The scores of all pairs, and the seconds that they took."""

    seconds: float
    scores: Scores


def measure(options: Options) -> Iterator[Row]:
    """Yield the pairs scored per second in each way, once texts are tokenized.

    Also prints how far the scores of each way differ from the plain forward pass.
    """
    pairs = candidates_of(options).pairs()
    pairs = pairs.take(np.arange(min(options.pairs, len(pairs))))
    folder = default_directory("mp_hcnn", options.collection)
    network = cast(Network, checkpoint.load(folder, "mp_hcnn"))
    tokenized = Tokenized.from_pairs(pairs, network.encoder, network.model)
    scorers = {
        PLAIN: partial(plain_scores, network.model, tokenized),
        "fast": partial(score_tokenized, network.model, tokenized),
    }
    if options.device != "cpu":
        name = f"{options.device} ({torch.cuda.get_device_name(options.device)})"
        model = copy.deepcopy(network.model).to(options.device)
        scorers[name] = partial(score_tokenized, model, tokenized)
        scorers[name]()  # The first call loads kernels.
    ways = {name: partial(timed, scorer) for name, scorer in scorers.items()}
    measurements = in_turn(ways, options.rounds)
    reference = measurements[PLAIN]
    for name, rounds in measurements.items():
        difference = np.abs(rounds[-1].scores - reference[-1].scores).max(initial=0.0)
        print(f"MP-HCNN, {name}: scores differ by at most {float(difference):.1e}")
        seconds = median(measured.seconds for measured in rounds)
        figure = f"{len(pairs) / seconds:,.0f} pairs/s"
        if name != PLAIN:
            figure += f" ({speed_up(rounds, reference):.2f} ×)"
        yield f"MP-HCNN, {name}", figure


def timed(scorer: Callable[[], Scores]) -> Measurement:
    """Call a scorer, and measure how long it takes."""
    started = time.perf_counter()
    scores = scorer()
    return Measurement(time.perf_counter() - started, scores)


def speed_up(
    rounds: list[Measurement],
    reference: list[Measurement],
) -> float:
    """Return how many times faster a scorer is than the reference.

    This is the median of the ratios in each round.
    """
    ratios = []
    for measured, base in zip(rounds, reference, strict=True):
        ratios.append(base.seconds / measured.seconds)
    return median(ratios)


def plain_scores(model: Reranker, tokenized: Tokenized) -> Scores:
    """Return the scores [P] by the model's own forward pass, computed in batches."""
    scores = np.zeros(len(tokenized.query_index), dtype=np.float32)
    with torch.inference_mode():
        for rows in batches_of(tokenized, BATCH_SIZE):
            scores[rows] = tokenized.scores_of(model, rows).numpy()
    return scores
