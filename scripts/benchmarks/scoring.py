"""Parts 1, 2, 4 and 9: speed of plain forward passes, of the engine and of the learned fusion."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.measuring import Row, Timing, alternate, compared, threads
from benchmarks.plain import PaddedPairs
from benchmarks.workload import Workload
from indexes.posts import Post
from pipeline.collections.trec import Run
from pipeline.ranking.checkpoints import load_scorer, precomputed_for
from pipeline.ranking.fusion import Fusion, UnionRetriever
from pipeline.ranking.scorers import ModelScorer
from rerankers import checkpoint, models
from rerankers.base import Pairs, Reranker
from rerankers.scoring import fast_paths
from rerankers.scoring.batches import score, score_tokenized
from rerankers.scoring.tokenized import Tokenized
from rerankers.text.inputs import TextEncoder

Way = Callable[[], npt.NDArray[np.float32]]

PLAIN = "plain, padded"
VECTOR_SIZE = 100
OTHERS = {"sm_cnn": "SM-CNN", "knrm": "K-NRM"}

SIZES = (10, 100, 1000, 10_000)
"""Candidates per topic of part 4."""

TOPICS, FUSION_TOPICS = 3, 20
"""Topics of parts 4 and 9."""


def measure_paper_size(workload: Workload) -> list[Row]:
    """Part 1: MP-HCNN of the paper's largest size, with random weights."""
    return compare("MP-HCNN at the paper's size", *workload.paper_model(), workload)


def measure_models(workload: Workload) -> list[Row]:
    """Part 2: the shipped MP-HCNN, and two smaller models."""
    loaded = workload.checkpoint
    rows = compare("MP-HCNN, shipped", loaded.model, loaded.encoder, workload)
    encoder = workload.encoder(VECTOR_SIZE)
    for name, title in OTHERS.items():
        configuration = next(iter(models.find(name).configurations.values()))
        model = workload.random_model(name, configuration, encoder)
        rows += compare(title, model, encoder, workload)
    return rows


def compare(title: str, model: Reranker, encoder: TextEncoder, workload: Workload) -> list[Row]:
    """Measure all ways of a model, and print the differences of their scores.

    ``engine`` starts with tokenized texts; ``engine, posts precomputed`` with texts, and the posts'
    vectors on disk.
    """
    pairs = workload.pairs
    tokenized = Tokenized.from_pairs(pairs, encoder, model)
    padded = PaddedPairs(tokenized, model)
    ways: dict[str, Way] = {
        PLAIN: lambda: padded.score(model),
        "engine": lambda: score_tokenized(model, tokenized),
    }
    if fast_paths.find(model, tokenized, "bf16"):
        ways["engine, bf16"] = lambda: score_tokenized(model, tokenized, precision="bf16")
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
    reranker = ModelScorer(checkpoint.load(directory / "checkpoint", name, idf=encoder.idf))
    texts = zip(pairs.texts, pairs.urls, strict=True)
    posts = [Post(str(number), text, url) for number, (text, url) in enumerate(texts)]
    started = time.perf_counter()
    ready = precomputed_for(reranker, posts, directory / "precomputed")
    if ready is reranker:
        return {}
    seconds = time.perf_counter() - started
    print(f"precomputing {len(posts):,} posts: {seconds:.1f} s, {_size(directory / 'precomputed')}")
    return {"engine, posts precomputed": lambda: ready.checkpoint.score(pairs)}


def measure_growth(workload: Workload, sizes: Sequence[int] | None = None) -> list[Row]:
    """Part 4: seconds per topic of the shipped MP-HCNN, from strings to scores.

    :data:`TOPICS` topics are scored in one call, so each bears a third of the fixed costs.
    """
    loaded, rows = workload.checkpoint, []
    for size in sizes or SIZES:
        pairs = enlarged(workload.all_pairs, size)
        topics, posts = len(pairs.queries), len(pairs.texts)
        print(f"{size:,} candidates a topic, {posts:,} distinct ones in {topics} topics")
        ways = {"": partial(score, loaded.model, pairs, loaded.encoder)}
        timings = alternate(_by_threads(ways, workload.device), workload.rounds)
        per_topic = partial(_seconds, topics=topics)
        rows += compared(f"a topic of {size:,} candidates", timings, per_topic)
    return rows


def _seconds(timing: Timing, topics: int) -> str:
    return f"{timing.median / topics:.3f} s"


def enlarged(pairs: Pairs, size: int, topics: int = TOPICS) -> Pairs:
    """The first topics with ``size`` candidates each.

    A topic's own candidates come first, then those of other topics, then all of them again.
    """
    rows = []
    queries = list(dict.fromkeys(pairs.query_index.tolist()))[:topics]
    for query in queries:
        own = pairs.post_index[pairs.query_index == query]
        others = np.setdiff1d(pairs.post_index, own)
        rows.append(np.resize(np.concatenate([own, others]), size))
    posts, post_index = np.unique(np.concatenate(rows), return_inverse=True)
    return Pairs(
        [pairs.queries[query] for query in queries],
        [pairs.texts[post] for post in posts],
        [pairs.urls[post] for post in posts],
        np.repeat(np.arange(len(queries)), size),
        post_index.astype(np.int64),
    )


def measure_fusion(workload: Workload) -> list[Row]:
    """Part 9: milliseconds of the learned fusion for 1000 candidates, from texts to scores.

    Searches are excluded, the neural scores that the fusion reads are included.
    """
    collection = workload.source

    def load(name: str, folder: Path | None = None) -> ModelScorer:
        return load_scorer(name, collection, folder)

    now = Fusion.load(collection, load("fusion"), load)
    candidates = UnionRetriever(collection, now.retriever.rankers).search(
        collection.topics[:FUSION_TOPICS]
    )

    def rerank(fusion: Fusion) -> Run:
        return fusion.score(fusion.read(replace(candidates, memo={})))

    with TemporaryDirectory() as directory:
        posts = list(candidates.posts.values())
        ready = now.precomputed_for(posts, Path(directory))
        print(f"precomputing {len(posts):,} posts: {_size(Path(directory))} on disk")
        ways = {
            "posts read now, ": lambda: rerank(now),
            "posts precomputed, ": lambda: rerank(ready),
        }
        timings = alternate(_by_threads(ways, "cpu"), workload.rounds)
    count = len(candidates.keys())
    return compared(
        "fusion, 1000 candidates", timings, lambda timing: f"{1e6 * timing.median / count:.1f} ms"
    )


def _by_threads(ways: Mapping[str, Callable[[], Any]], device: str) -> dict[str, Callable[[], Any]]:
    """Each way on one thread and, on a CPU with several cores, on two threads."""

    def on(count: int, way: Callable[[], Any]) -> Any:
        with threads(count):
            return way()

    counts = (1, 2) if device == "cpu" and (os.cpu_count() or 1) > 1 else (1,)
    return {
        f"{name}{count} thread{'s' * (count > 1)}": partial(on, count, way)
        for name, way in ways.items()
        for count in counts
    }


def _size(directory: Path) -> str:
    files = (path for path in directory.rglob("*") if path.is_file())
    return f"{sum(path.stat().st_size for path in files) / 1e6:,.0f} MB"
