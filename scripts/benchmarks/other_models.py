"""Part 2: the shipped MP-HCNN, two smaller models, and another project's K-NRM."""

import collections.abc
import importlib
from typing import Any

import numpy as np
import torch

from benchmarks.measuring import Row, alternate
from benchmarks.ways import ENGINE, Scores, Way, compare, padded_lengths
from benchmarks.workload import Workload
from rerankers import models
from rerankers.base import WORDS, Reranker
from rerankers.engine.scoring import BATCH_SIZE, score_tokenized
from rerankers.engine.tokenized import Tokenized
from rerankers.text.inputs import TextEncoder

VECTOR_SIZE = 100
OTHERS = {"sm_cnn": "SM-CNN", "knrm": "K-NRM"}
THEIRS = "K-NRM of matchzoo-py"


def measure(workload: Workload) -> list[Row]:
    """Pairs/s of each model, plainly and by the engine."""
    loaded = workload.checkpoint
    rows = compare("MP-HCNN, shipped", loaded.model, loaded.encoder, workload)
    encoder = workload.encoder(VECTOR_SIZE)
    for name, title in OTHERS.items():
        configuration = next(iter(models.find(name).configurations.values()))
        model = workload.random_model(name, configuration, encoder)
        rows += compare(title, model, encoder, workload)
    # ``model`` is our K-NRM now, the last of them.
    return rows + _compare_with_theirs(model, encoder, workload)


def _compare_with_theirs(model: Reranker, encoder: TextEncoder, workload: Workload) -> list[Row]:
    """Their K-NRM and ours on the same padded pairs; weights are random, so scores say nothing."""
    encoded = Tokenized.of(workload.pairs, encoder, model)
    try:
        theirs = _their_way(model, encoded, encoder)
    except ModuleNotFoundError as error:
        print(f"{THEIRS}: not installed ({error}; `pip install matchzoo-py`)")
        return [(THEIRS, "not installed")]
    except ImportError as error:
        print(f"{THEIRS}: installed, but it cannot be imported ({error})")
        return [(THEIRS, "cannot be imported")]
    ways = {THEIRS: theirs, ENGINE: lambda: score_tokenized(model, encoded)}
    timings = alternate(ways, workload.rounds)
    ratio = timings[ENGINE].ratio(timings[THEIRS])
    measured = f"{len(workload.pairs) / timings[THEIRS].median:,.0f} pairs/s"
    print(f"{THEIRS}: {measured}; our engine's is {ratio:.2f} times as fast")
    return [(THEIRS, f"{measured} (engine: {ratio:.2f} ×)")]


def _their_way(model: Reranker, encoded: Tokenized, encoder: TextEncoder) -> Way:
    """Batches of identifiers padded as for our plain way, through their forward pass.

    Raises:
        ImportError: matchzoo-py, or something that it needs, is not there.
    """
    # Its last release (1.1.1) imports this name from where Python 3.9 still had it.
    vars(collections).setdefault("Iterable", collections.abc.Iterable)
    package: Any = importlib.import_module("matchzoo.models")
    # The older package matchzoo, for TensorFlow, has the same name.
    if not issubclass(package.KNRM, torch.nn.Module):
        raise ImportError("the installed matchzoo is the one for TensorFlow")
    vocabulary = encoder.vocabulary
    words = 1 + len(vocabulary.known) + vocabulary.buckets
    network = package.KNRM()
    network.params["embedding"] = np.random.default_rng(1).normal(
        size=(words, vocabulary.vectors.shape[1])
    )
    network.params["kernel_num"] = 1 + model.config.soft_kernels
    network.guess_and_fill_missing_params(verbose=0)
    network.build()
    device = model.device_of()
    network.to(device).eval()
    queries, posts = encoded.queries[WORDS], encoded.posts[WORDS]
    query_lengths, post_lengths = padded_lengths(model, encoded)

    def identifiers(packed: Any, rows: Any, length: int) -> torch.Tensor:
        ids = packed.batch(rows, device).ids[:, :length]
        return torch.nn.functional.pad(ids, (0, length - ids.shape[1]))

    def run() -> Scores:
        scores = np.zeros(len(encoded.query_index), dtype=np.float32)
        with torch.inference_mode():
            for start in range(0, len(scores), BATCH_SIZE):
                rows = slice(start, start + BATCH_SIZE)
                left = identifiers(queries, encoded.query_index[rows], query_lengths[WORDS])
                right = identifiers(posts, encoded.post_index[rows], post_lengths[WORDS])
                found = network({"text_left": left, "text_right": right})
                scores[rows] = found.flatten().float().cpu().numpy()
        return scores

    return run
