"""Parts 1 and 2: pairs/s of plain forward passes and of the engine, and of matchzoo-py's K-NRM."""

import collections.abc
import importlib
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.measuring import Row, alternate, compared
from benchmarks.plain import PaddedPairs, to_length
from benchmarks.workload import Workload
from indexes.posts import Post
from pipeline.checkpoints import precomputed_for
from pipeline.reranking import NeuralReranker
from rerankers import checkpoint, models
from rerankers.base import WORDS, Pairs, Reranker
from rerankers.engine import fast_paths
from rerankers.engine.scoring import BATCH_SIZE, score_tokenized
from rerankers.engine.tokenized import Tokenized
from rerankers.text.inputs import TextEncoder

Scores = npt.NDArray[np.float32]
Way = Callable[[], Scores]

PLAIN = "plain, padded"
ENGINE = "engine"
NARROW = "engine, bf16"
PRECOMPUTED = "engine, posts precomputed"

VECTOR_SIZE = 100
OTHERS = {"sm_cnn": "SM-CNN", "knrm": "K-NRM"}
THEIRS = "K-NRM of matchzoo-py"


def measure_paper_size(workload: Workload) -> list[Row]:
    """Part 1: MP-HCNN of the paper's largest size, with random weights."""
    return compare("MP-HCNN at the paper's size", *workload.paper_model(), workload)


def measure_models(workload: Workload) -> list[Row]:
    """Part 2: the shipped MP-HCNN, two smaller models, and another project's K-NRM."""
    loaded = workload.checkpoint
    rows = compare("MP-HCNN, shipped", loaded.model, loaded.encoder, workload)
    encoder = workload.encoder(VECTOR_SIZE)
    for name, title in OTHERS.items():
        configuration = next(iter(models.find(name).configurations.values()))
        model = workload.random_model(name, configuration, encoder)
        rows += compare(title, model, encoder, workload)
    # The last model is our K-NRM.
    return rows + _compare_with_theirs(model, encoder, workload)


def compare(title: str, model: Reranker, encoder: TextEncoder, workload: Workload) -> list[Row]:
    """Measure and print all ways of a model, and the differences of their scores.

    ``engine`` starts with tokenized texts; ``engine, posts precomputed`` with texts, and the posts'
    vectors on disk.
    """
    pairs = workload.pairs
    tokenized = Tokenized.from_pairs(pairs, encoder, model)
    padded = PaddedPairs(tokenized, model)
    ways: dict[str, Way] = {
        PLAIN: lambda: padded.score(model),
        ENGINE: lambda: score_tokenized(model, tokenized),
    }
    if fast_paths.find(model, tokenized, "bf16"):
        ways[NARROW] = lambda: score_tokenized(model, tokenized, precision="bf16")
    with TemporaryDirectory() as directory:
        if workload.device == "cpu":
            ways |= precomputed(model, encoder, pairs, Path(directory))
        timings = alternate(ways, workload.rounds)
    plain = timings[PLAIN].result
    for name, timing in timings.items():
        difference = float(np.abs(timing.result - plain).max(initial=0.0))
        # Scores of random weights are nearly alike: a difference needs their spread beside it.
        spread = f"standard deviation {np.std(plain):.1e}"
        print(f"{title}, {name}: scores ({spread}) differ by at most {difference:.1e}")
    return compared(title, timings, lambda timing: f"{len(pairs) / timing.median:,.0f} pairs/s")


def precomputed(
    model: Reranker, encoder: TextEncoder, pairs: Pairs, directory: Path
) -> dict[str, Way]:
    """The way with precomputed posts, which are written into the folder; empty if no use."""
    name = type(model).__module__.rpartition(".")[2]
    checkpoint.save(directory / "checkpoint", name, model, encoder, {})
    loaded = checkpoint.load(directory / "checkpoint", name, idf=encoder.idf)
    reranker = NeuralReranker(loaded)
    texts = zip(pairs.texts, pairs.urls, strict=True)
    posts = [Post(str(number), text, url) for number, (text, url) in enumerate(texts)]
    started = time.perf_counter()
    ready = precomputed_for(reranker, posts, directory / "precomputed")
    if ready is reranker:
        return {}
    seconds = time.perf_counter() - started
    megabytes = folder_size(directory / "precomputed") / 1e6
    print(f"precomputing {len(posts):,} posts: {seconds:.1f} s, {megabytes:,.0f} MB")
    return {PRECOMPUTED: lambda: ready.checkpoint.score(pairs)}


def folder_size(directory: Path) -> int:
    """Bytes of all files in a folder."""
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def _compare_with_theirs(model: Reranker, encoder: TextEncoder, workload: Workload) -> list[Row]:
    """Their K-NRM and ours on the same padded pairs, both with random weights."""
    tokenized = Tokenized.from_pairs(workload.pairs, encoder, model)
    try:
        theirs = _their_way(model, tokenized, encoder)
    except ModuleNotFoundError as error:
        print(f"{THEIRS}: not installed ({error}; `pip install matchzoo-py`)")
        return [(THEIRS, "not installed")]
    except ImportError as error:
        print(f"{THEIRS}: installed, but it cannot be imported ({error})")
        return [(THEIRS, "cannot be imported")]
    ways = {THEIRS: theirs, ENGINE: lambda: score_tokenized(model, tokenized)}
    timings = alternate(ways, workload.rounds)
    ratio = timings[ENGINE].ratio(timings[THEIRS])
    measured = f"{len(workload.pairs) / timings[THEIRS].median:,.0f} pairs/s"
    print(f"{THEIRS}: {measured}; our engine's is {ratio:.2f} times as fast")
    return [(THEIRS, f"{measured} (engine: {ratio:.2f} ×)")]


def _their_way(model: Reranker, tokenized: Tokenized, encoder: TextEncoder) -> Way:
    """Forward passes of their model over ids padded as in our plain way.

    Raises:
        ImportError: matchzoo-py, or one of its dependencies, is missing.
    """
    # Release 1.1.1 imports this name from its place in Python 3.9.
    vars(collections).setdefault("Iterable", collections.abc.Iterable)
    package: Any = importlib.import_module("matchzoo.models")
    # The older package for TensorFlow has the same name.
    if not issubclass(package.KNRM, torch.nn.Module):
        raise ImportError("the installed matchzoo is the one for TensorFlow")
    vocabulary = encoder.vocabulary
    shape = (1 + len(vocabulary.known) + vocabulary.buckets, vocabulary.vectors.shape[1])
    network = package.KNRM()
    network.params["embedding"] = np.random.default_rng(1).normal(size=shape)
    network.params["kernel_num"] = 1 + model.config.soft_kernels
    network.guess_and_fill_missing_params(verbose=0)
    network.build()
    device = model.device_of()
    network.to(device).eval()
    padded = PaddedPairs(tokenized, model)

    def run() -> Scores:
        scores = np.zeros(len(tokenized.query_index), dtype=np.float32)
        with torch.inference_mode():
            for start in range(0, len(scores), BATCH_SIZE):
                rows = slice(start, start + BATCH_SIZE)
                left = tokenized.queries[WORDS].batch(tokenized.query_index[rows], device).ids
                right = tokenized.posts[WORDS].batch(tokenized.post_index[rows], device).ids
                texts = {
                    "text_left": to_length(left, padded.query_lengths[WORDS]),
                    "text_right": to_length(right, padded.post_lengths[WORDS]),
                }
                scores[rows] = network(texts).flatten().float().cpu().numpy()
        return scores

    return run
