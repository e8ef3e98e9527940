"""MP-HCNN as shipped: its own forward pass and the fast one, and another device beside them."""

import copy
import time
from collections import defaultdict
from functools import partial
from statistics import median
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch

from benchmarks import Options, Row, candidates_of
from pipeline.ranking.checkpoints import default_directory
from rerankers import checkpoint
from rerankers.networks.base import Reranker
from rerankers.networks.batches import BATCH_SIZE, batches_of, score_tokenized
from rerankers.networks.inputs import Tokenized
from rerankers.networks.network import Network

OWN = "own forward pass"  # On the CPU, as the fast one is


def measure(options: Options) -> list[Row]:
    """Pairs/s of tokenized texts by each way; prints the differences of the scores."""
    pairs = candidates_of(options).pairs()
    pairs = pairs.take(np.arange(min(options.pairs, len(pairs))))
    folder = default_directory("mp_hcnn", options.collection)
    trained = cast(Network, checkpoint.load(folder, "mp_hcnn"))
    model, tokenized = trained.model, Tokenized.from_pairs(pairs, trained.encoder, trained.model)
    ways = {OWN: partial(own_scores, model), "fast": partial(score_tokenized, model)}
    if options.device != "cpu":
        other = copy.deepcopy(model).to(options.device)
        name = f"{options.device} ({torch.cuda.get_device_name(options.device)})"
        ways[name] = partial(score_tokenized, other)
        ways[name](tokenized)  # Kernels are loaded at first.
    scores: dict[str, Any] = {}
    seconds: dict[str, list[float]] = defaultdict(list)
    # In turn: a slower phase of the machine affects all ways.
    for name, way in [*ways.items()] * options.rounds:
        started = time.perf_counter()
        scores[name] = way(tokenized)
        seconds[name].append(time.perf_counter() - started)
    rows = []
    for name, of in seconds.items():
        difference = float(np.abs(scores[name] - scores[OWN]).max(initial=0.0))
        print(f"MP-HCNN, {name}: scores differ by at most {difference:.1e}")
        ratio = median(own / ours for own, ours in zip(seconds[OWN], of, strict=True))
        text = f"{len(pairs) / median(of):,.0f} pairs/s" + f" ({ratio:.2f} ×)" * (name != OWN)
        rows.append((f"MP-HCNN, {name}", text))
    return rows


def own_scores(model: Reranker, tokenized: Tokenized) -> npt.NDArray[np.float32]:
    """Scores [P] by the model's forward pass, batch by batch."""
    scores = np.zeros(len(tokenized.query_index), dtype=np.float32)
    with torch.inference_mode():
        for rows in batches_of(tokenized, BATCH_SIZE):
            scores[rows] = tokenized.scores_of(model, rows).numpy()
    return scores
