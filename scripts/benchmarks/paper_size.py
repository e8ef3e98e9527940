"""Part 1: MP-HCNN as large as the paper's largest, with random weights."""

import dataclasses
from typing import Any

from benchmarks.measuring import Row
from benchmarks.ways import compare
from benchmarks.workload import Workload
from rerankers.base import Reranker
from rerankers.models.mp_hcnn import Model
from rerankers.text.inputs import TextEncoder

VECTOR_SIZE = 300
"""Numbers of a word's vector (section 4.3)."""


def measure(workload: Workload) -> list[Row]:
    """Pairs/s of the plain way and of the engine."""
    model, encoder = paper_model(workload)
    return compare("MP-HCNN at the paper's size", model, encoder, workload)


def paper_model(workload: Workload) -> tuple[Reranker, TextEncoder]:
    """Configuration ``paper``: 300 numbers a word, 256 filters, depth 4 (section 4.3)."""
    encoder = workload.encoder(VECTOR_SIZE)
    config: Any = dataclasses.replace(
        Model.configurations["paper"], word_filters=256, trigram_filters=256, depth=4
    )
    return workload.random_model("mp_hcnn", config, encoder), encoder
