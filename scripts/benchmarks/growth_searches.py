"""Child process of the part growth: times of searching one index and reranking its hits, as JSON.

    python growth_searches.py COLLECTION INDEX CHECKPOINT ROUNDS [DATA]

Topics are searched one after the other on one thread, once to warm up. Milliseconds are medians
over the rounds of the medians over the topics.
"""

import json
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from indexes.lucene import LuceneIndex
from indexes.methods import METHODS
from pipeline.collections import named
from pipeline.command.runtime import keep_allocations
from pipeline.ranking.retrievers import Candidates, IndexRetriever
from rerankers import checkpoint


def main(collection: str, index: str, directory: str, rounds: str, data: str = "") -> None:
    """Print the figures by name."""
    topics = named.find(collection, Path(data) if data else None).topics
    model = checkpoint.load(Path(directory), "mp_hcnn")
    with LuceneIndex.open(index) as opened:
        figures = {}
        for name in ("ql", "rm3"):

            def search(topic: Any, name: str = name) -> None:
                opened.search([topic], METHODS[name](), threads=1)

            figures[name] = _milliseconds(search, topics, int(rounds))
        retriever = IndexRetriever(opened, METHODS["ql"]())
        runs = {topic: retriever.search([topic]).run for topic in topics}

        def rerank(topic: Any) -> None:
            run = runs[topic]
            posts = opened.posts.get_many(run.get(topic.query_id, {}))
            model.score(Candidates([topic], run, posts).pairs())

        figures["rerank"] = _milliseconds(rerank, topics, int(rounds))
        figures["search_peak"] = _peak() / 1e6
    print(json.dumps(figures))


def _peak() -> int:
    """The most memory of this process so far, in bytes, with the parts of files that it mapped."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return 1024 * int(re.findall(r"VmHWM:\s+(\d+)", status)[0])


def _milliseconds(action: Callable[[Any], object], topics: list[Any], rounds: int) -> float:
    medians = []
    for _ in range(rounds + 1):
        times = []
        for topic in topics:
            started = time.perf_counter()
            action(topic)
            times.append(time.perf_counter() - started)
        medians.append(median(times))
    return 1000 * median(medians[1:])


if __name__ == "__main__":
    keep_allocations()
    main(*sys.argv[1:])
