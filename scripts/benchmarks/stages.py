"""Stages of a request of 100 posts for the service's default model, on one core.

New posts, and then the same ones for another query. What several families of features read is
computed by the first of them.
"""

import time
from collections import defaultdict
from dataclasses import replace
from statistics import median
from typing import cast

import numpy as np
import orjson

from benchmarks import Options, Row
from benchmarks.service import CACHE, LOAD, MODEL, requests
from pipeline.ranking.ranker import Stopwatch
from pipeline.service.app import pairs_of
from pipeline.service.formats import TEI, read
from pipeline.service.models import Models, ServedModel
from pipeline.service.record import Record
from rerankers import devices, features
from rerankers.trees.boosting import Trees

REQUESTS, BEFORE = 40, 5  # Measured requests, and others before them


def measure(options: Options) -> list[Row]:
    """Median milliseconds of CPU time of each stage and of all together."""
    model = Models([MODEL], CACHE).default
    trees = cast(Trees, model.checkpoint.remembering(CACHE))
    seconds: dict[str, list[float]] = defaultdict(list)
    devices.set_threads(1)
    for request in requests(options, LOAD)[: BEFORE + REQUESTS]:
        again = request._replace(query=f"{request.query} today")
        for kind, wanted in (("new", request), ("known", again)):
            stages = _stages(model, trees, wanted.body())
            stages["all stages"] = sum(stages.values())
            for stage, value in stages.items():
                seconds[f"{MODEL}, {LOAD} {kind} posts, {stage}"].append(value)
    for of in seconds.values():
        del of[: min(BEFORE, len(of) // 2)]
    return [(name, f"{1000 * median(of):.2f} ms") for name, of in seconds.items()]


def _stages(model: ServedModel, trees: Trees, body: bytes) -> dict[str, float]:
    """CPU time of each stage of a request in TEI's form, in order."""
    watch = Stopwatch(time.process_time)
    wanted = read(body, LOAD)
    pairs, _ = pairs_of(replace(wanted, in_order=True), model)
    watch.stop("read the request")
    lists = features.CandidateLists(pairs, trees.families, trees.idf, trees.recent)
    candidates = lists.candidates(lists.rows[0])
    candidates.tokens  # noqa: B018  Computed at the first use.
    watch.stop("cut the posts into words")
    columns = []
    for family in trees.families:
        columns.append(features.find(family).compute(candidates))
        watch.stop(f"features {family}")
    scores = trees.evaluate(np.concatenate(columns, axis=1))
    watch.stop("trees")
    orjson.dumps(TEI.write(model.respond(wanted, scores), Record("", "POST", "/rerank")))
    watch.stop("write the response")
    if not np.allclose(scores, trees.score(pairs), atol=1e-5):
        raise RuntimeError("the stages give other scores than the service")
    return watch.seconds
