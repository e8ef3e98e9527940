"""Stages of a request of 100 posts for the service's default model, on one core.

New posts, and then the same ones for another query.
"""

from __future__ import annotations

import time
from collections import defaultdict
from statistics import median

import numpy as np
import orjson
import torch
from rerankers.scoring.cached import CachedScorer

from benchmarks.measuring import Row, printed, threads
from benchmarks.service import requests
from benchmarks.workload import Workload
from pipeline.ranking.build import Source
from pipeline.ranking.ranker import Stopwatch
from pipeline.service.formats import format_of
from pipeline.service.http.models import ServedModel
from pipeline.service.http.requests import score_request
from pipeline.service.http.service import distinct_pairs
from pipeline.service.record import Record
from rerankers import checkpoint, features
from rerankers.pairs import Pairs

MODEL, POSTS = "window", 100
REQUESTS, BEFORE = 40, 5  # Measured requests, and others before them


def measure(workload: Workload) -> list[Row]:
    """Median milliseconds of CPU time of each stage and of all together."""
    source = Source(checkpoint.SHIPPED / MODEL / "all")
    model = ServedModel.load(MODEL, source, 1_000_000, 1)
    seconds: dict[str, list[float]] = defaultdict(list)
    with threads(1):
        for request in requests(workload, POSTS)[: BEFORE + REQUESTS]:
            again = request._replace(query=f"{request.query} today")
            for kind, wanted in (("new", request), ("known", again)):
                stages = _stages(model, wanted.body())
                for stage, value in (stages | {"all stages": sum(stages.values())}).items():
                    seconds[f"{kind} posts, {stage}"].append(value)
    return printed(
        [
            (f"{MODEL}, {POSTS} {stage}", f"{1000 * median(values[BEFORE:]):.2f} ms")
            for stage, values in seconds.items()
        ]
    )


def _stages(model: ServedModel, body: bytes) -> dict[str, float]:
    """CPU time of each stage of a request in TEI's form, in order.

    What several families of features read is computed by the first of them.
    """
    watch = Stopwatch(time.process_time)
    reranker, scorer = model.checkpoint, model.scorer
    assert isinstance(scorer, CachedScorer)
    content = orjson.loads(body)
    wire = format_of("/rerank", set(content))
    wanted = score_request(content, wire, POSTS)
    queued, _ = distinct_pairs(wanted, model)
    watch.stop("read the request")
    rows = np.arange(len(queued.texts))
    pairs = Pairs(
        queued.queries, queued.texts, queued.urls, queued.query_index, rows, queued.signals
    )
    families = reranker.model.feature_families
    lists = features.CandidateLists(pairs, families, scorer.encoder.idf, scorer.recent)
    candidates = lists.candidates(lists.rows[0])
    candidates.tokens  # noqa: B018  Computed at the first use.
    watch.stop("cut the posts into words")
    columns = []
    for family in families:
        columns.append(features.find(family).compute(candidates))
        watch.stop(f"features {family}")
    with torch.inference_mode():
        scores = reranker.model.head(torch.from_numpy(np.concatenate(columns, axis=1))).numpy()
    watch.stop("trees")
    orjson.dumps(wire.write(model.respond(wanted, scores), Record("", "POST", "/rerank")))
    watch.stop("write the response")
    if not np.allclose(scores, scorer.score(pairs), atol=1e-5):
        raise RuntimeError("the stages give other scores than the service")
    return watch.seconds
