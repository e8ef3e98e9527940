"""Stages of a request of 100 posts for the service's default model, on one core.

New posts, and then the same ones for another query. What several families of features read is
computed by the first of them.
"""

import time
from collections import defaultdict
from statistics import median
from typing import cast

import numpy as np
import orjson

from benchmarks import Options
from benchmarks.measuring import Row
from benchmarks.service import CACHE, LOAD, MODEL, requests
from pipeline.ranking.build import Source
from pipeline.ranking.ranker import Stopwatch
from pipeline.service.formats import format_of
from pipeline.service.http.models import ServedModel
from pipeline.service.http.requests import score_request
from pipeline.service.http.scheduler import Slice, joined
from pipeline.service.http.service import distinct_pairs
from pipeline.service.record import Record
from rerankers import checkpoint, devices, features
from rerankers.trees.boosting import Trees

REQUESTS, BEFORE = 40, 5  # Measured requests, and others before them


def measure(options: Options) -> list[Row]:
    """Median milliseconds of CPU time of each stage and of all together."""
    model = ServedModel.load(MODEL, Source(checkpoint.SHIPPED / MODEL / "all"), CACHE, 1)
    seconds: dict[str, list[float]] = defaultdict(list)
    devices.set_threads(1)
    for request in requests(options, LOAD)[: BEFORE + REQUESTS]:
        again = request._replace(query=f"{request.query} today")
        for kind, wanted in (("new", request), ("known", again)):
            stages = _stages(model, wanted.body())
            stages["all stages"] = sum(stages.values())
            for stage, value in stages.items():
                seconds[f"{MODEL}, {LOAD} {kind} posts, {stage}"].append(value)
    for of in seconds.values():
        del of[: min(BEFORE, len(of) // 2)]
    return [(name, f"{1000 * median(of):.2f} ms") for name, of in seconds.items()]


def _stages(model: ServedModel, body: bytes) -> dict[str, float]:
    """CPU time of each stage of a request in TEI's form, in order."""
    watch, trees, content = (
        Stopwatch(time.process_time),
        cast(Trees, model.scorer),
        orjson.loads(body),
    )
    wire = format_of("/rerank", set(content))
    wanted = score_request(content, wire, LOAD)
    queued, _ = distinct_pairs(wanted, model)
    watch.stop("read the request")
    pairs = joined([Slice(queued, 0, len(queued.texts))])
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
    orjson.dumps(wire.write(model.respond(wanted, scores), Record("", "POST", "/rerank")))
    watch.stop("write the response")
    if not np.allclose(scores, trees.score(pairs), atol=1e-5):
        raise RuntimeError("the stages give other scores than the service")
    return watch.seconds
