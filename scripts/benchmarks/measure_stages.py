"""Measures the CPU time of each stage of a request."""

import time
from collections import defaultdict
from collections.abc import Iterator
from statistics import median
from typing import Any

import numpy as np
import orjson

from benchmarks import Options, workload
from benchmarks.workload import MODEL, Row, requests, served_model
from tweetrerank.pipeline.ranking.ranker import Stopwatch
from tweetrerank.pipeline.service.formats import TEI
from tweetrerank.pipeline.service.request_record import Record
from tweetrerank.pipeline.service.rerank_service import pairs_of
from tweetrerank.pipeline.service.score_request import read_request
from tweetrerank.pipeline.service.scorer import ServedModel
from tweetrerank.rerankers import devices, features
from tweetrerank.rerankers.trees.boosting import Trees

WARM_UP = 5  # Requests before the ones that count


def measure(options: Options) -> Iterator[Row]:
    """Yield the median CPU time of each stage and of all stages, on one core.

    Each request is followed by one with the same posts and another query, so that posts
    are new in the first request and known in the second. If families of features share
    a computation, the first family is charged for it.
    """
    model, trees = served_model()
    devices.set_threads(1)
    count = WARM_UP + workload.SINGLE
    first_requests = requests(options, workload.LOAD)[:count]
    second_requests = requests(options, workload.LOAD, " today")[:count]
    seconds: dict[str, list[float]] = defaultdict(list)
    for first, second in zip(first_requests, second_requests, strict=True):
        for kind, body in (("new", first), ("known", second)):
            stages = stages_of(model, trees, body)
            stages["all stages"] = sum(stages.values())
            for stage, value in stages.items():
                title = f"{MODEL}, {workload.LOAD} {kind} posts, {stage}"
                seconds[title].append(value)
    for title, values in seconds.items():
        start = min(WARM_UP, len(values) // 2)
        yield title, f"{1000 * median(values[start:]):.2f} ms"


def stages_of(
    model: ServedModel,
    trees: Trees,
    body: bytes,
) -> dict[str, float]:
    """Return the CPU seconds of each stage of a request in TEI's format.

    Raises RuntimeError if the scores differ from those of the service.
    """
    watch = Stopwatch(time.process_time)
    request = read_request(body, workload.LOAD)
    pairs, _ = pairs_of(request, model, in_order=True)
    watch.stop("read the request")
    lists = features.CandidateLists(
        pairs,
        trees.families,
        trees.idf,
        trees.recent,
    )
    candidates = lists.candidates(lists.rows[0])
    candidates.tokens  # noqa: B018  The tokens are computed at their first use.
    watch.stop("cut the posts into words")
    columns: list[Any] = []
    for family in trees.families:
        columns += features.find(family).columns(candidates)
        watch.stop(f"features {family}")
    table = np.array(columns, dtype=np.float32)  # [F, P]
    scores = trees.evaluate(table.round(features.DECIMALS).T)
    watch.stop("trees")
    response = model.respond(request, scores)
    orjson.dumps(
        TEI.write(
            response,
            Record(
                "",
                "POST",
                "/rerank",
            ),
        )
    )
    watch.stop("write the response")
    if not np.allclose(
        scores,
        trees.score(pairs),
        atol=1e-5,
    ):
        raise RuntimeError("the stages and the service give different scores")
    return watch.seconds
