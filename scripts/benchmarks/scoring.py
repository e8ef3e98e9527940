"""MP-HCNN as shipped: its own forward pass and the fast one."""

from collections.abc import Callable
from typing import cast

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.measuring import Row, alternate, compared
from benchmarks.workload import Workload
from rerankers.models.mp_hcnn import Model
from rerankers.scoring import fast_paths
from rerankers.scoring.batches import BATCH_SIZE, batches_of, score_tokenized
from rerankers.scoring.tokenized import Tokenized

OWN = "own forward pass"


def measure(workload: Workload) -> list[Row]:
    """Pairs/s of tokenized texts by each way; prints the differences of the scores."""
    pairs, model = workload.pairs, cast(Model, workload.checkpoint.model)
    tokenized = Tokenized.from_pairs(pairs, workload.checkpoint.encoder, model)
    ways: dict[str, Callable[[], npt.NDArray[np.float32]]] = {
        OWN: lambda: own_scores(model, tokenized),
        "fast": lambda: score_tokenized(model, tokenized),
    }
    if fast_paths.find(model, tokenized, "bf16"):
        ways["fast, bf16"] = lambda: score_tokenized(model, tokenized, precision="bf16")
    timings = alternate(ways, workload.rounds)
    for name, timing in timings.items():
        difference = float(np.abs(timing.result - timings[OWN].result).max(initial=0.0))
        print(f"MP-HCNN, {name}: scores differ by at most {difference:.1e}")
    return compared("MP-HCNN", timings, lambda timing: f"{len(pairs) / timing.median:,.0f} pairs/s")


def own_scores(model: Model, tokenized: Tokenized) -> npt.NDArray[np.float32]:
    """Scores [P] by the model's forward pass, batch by batch."""
    scores = np.zeros(len(tokenized.query_index), dtype=np.float32)
    with torch.inference_mode():
        for rows in batches_of(tokenized, BATCH_SIZE):
            scores[rows] = tokenized.scores_of(model, rows, model.device_of()).cpu().numpy()
    return scores
