"""Part 9: the learned fusion, with posts read now and with precomputed ones."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.measuring import Row, alternate, by_threads, compared
from benchmarks.scoring import folder_size
from benchmarks.workload import Workload
from pipeline.checkpoints import load_reranker
from pipeline.collections.trec import Run
from pipeline.fusion import Fusion, UnionRetriever
from pipeline.reranking import Candidates, NeuralReranker

TOPICS = 20


def measure(workload: Workload) -> list[Row]:
    """Milliseconds for 1000 candidates, from texts to scores, without searches.

    The neural scores that the fusion reads are included.
    """
    collection = workload.source

    def load(name: str, folder: Path | None = None) -> NeuralReranker:
        return load_reranker(name, collection, folder)

    now = Fusion.load(collection, load("fusion"), load)
    candidates = UnionRetriever(collection, now.rankers).search(collection.topics[:TOPICS])
    with TemporaryDirectory() as directory:
        posts = list(candidates.posts.values())
        precomputed = now.precomputed_for(posts, Path(directory))
        megabytes = folder_size(Path(directory)) / 1e6
        print(f"precomputing {len(posts):,} posts: {megabytes:,.0f} MB on disk")
        ways = {
            f"{name}, {threads}": way
            for name, fusion in (("posts read now", now), ("posts precomputed", precomputed))
            for threads, way in by_threads(partial(_score, fusion, candidates), "cpu").items()
        }
        timings = alternate(ways, workload.rounds)
    count = len(candidates.keys())
    return compared(
        "fusion, 1000 candidates", timings, lambda timing: f"{1e6 * timing.median / count:.1f} ms"
    )


def _score(fusion: Fusion, candidates: Candidates) -> Run:
    fresh = replace(candidates, memo={})
    return fusion.score(fusion.read(fresh))
