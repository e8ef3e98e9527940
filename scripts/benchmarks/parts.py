"""Parts of ``scripts/benchmark.py``, each a function ``measure_PART`` that gives its rows."""

import copy
import http.client
import json
import re
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, partial
from itertools import cycle
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import orjson
import torch

from benchmarks import Options
from tweetrerank.indexes.data_error import DataError
from tweetrerank.pipeline.collections.named import open_collection
from tweetrerank.pipeline.ranking.checkpoints import default_directory
from tweetrerank.pipeline.ranking.ranker import Stopwatch
from tweetrerank.pipeline.ranking.retrievers import Candidates, retriever_for
from tweetrerank.pipeline.service.formats import TEI
from tweetrerank.pipeline.service.request_record import Record
from tweetrerank.pipeline.service.rerank_service import pairs_of
from tweetrerank.pipeline.service.score_request import read_request
from tweetrerank.pipeline.service.scorer import ServedModel
from tweetrerank.pipeline.service.served_models import Models
from tweetrerank.rerankers import checkpoint, devices, features
from tweetrerank.rerankers.networks.base import Reranker
from tweetrerank.rerankers.networks.inputs import Tokenized
from tweetrerank.rerankers.networks.network import (
    BATCH_SIZE,
    Network,
    batches_of,
    score_tokenized,
)
from tweetrerank.rerankers.trees.boosting import Trees

Row = tuple[str, str]  # What was measured, and the outcome

OWN = "own forward pass"  # On the CPU, as the fast one is
SEARCHES = ("", " --reranker mp_hcnn", " --reranker none")

MEASURED = """
import json, resource, subprocess, sys, time
started = time.perf_counter()
status = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode
seconds = time.perf_counter() - started
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
print(json.dumps([status, seconds, peak / 2 ** (20 if sys.platform == "darwin" else 10)]))
"""
"""A small process: a process's peak includes its parent's memory at the time of the start."""

MODEL = "window"  # The service's default
SINGLE, BEFORE = (
    40,
    5,
)  # Measured requests of one client, of each size, and others before them
CLIENTS, LOAD = 16, 100  # Clients at once, and documents of each of their requests
OVERLOAD = 64  # More clients than the service is made for
SECONDS, MINUTE = 10, 60
CACHE, KEPT = 1_000_000_000, 100  # Bytes, and requests whose posts all fit the cache

Times = dict[int, list[float]]  # Status -> milliseconds of responses


@cache
def candidates_of(options: Options) -> Candidates:
    """All candidates: of the official query-likelihood run, or of our own."""
    source = open_collection(options.collection, data=options.data)
    return retriever_for(source, "ql" if "ql" in source.runs else None).search(
        source.topics
    )


def in_turn(ways: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, list[Any]]:
    """Results of the rounds of each way: a slower phase of the machine affects all of them."""
    results = defaultdict(list)
    for name, way in [*ways.items()] * rounds:
        results[name].append(way())
    return results


def measure_scoring(options: Options) -> Iterable[Row]:
    """Pairs/s of tokenized texts by each way; prints the differences of the scores."""
    pairs = candidates_of(options).pairs()
    pairs = pairs.take(np.arange(min(options.pairs, len(pairs))))
    folder = default_directory("mp_hcnn", options.collection)
    trained = cast(Network, checkpoint.load(folder, "mp_hcnn"))
    model, tokenized = (
        trained.model,
        Tokenized.from_pairs(pairs, trained.encoder, trained.model),
    )
    scorers = {OWN: partial(own_scores, model), "fast": partial(score_tokenized, model)}
    if options.device != "cpu":
        other = copy.deepcopy(model).to(options.device)
        name = f"{options.device} ({torch.cuda.get_device_name(options.device)})"
        scorers[name] = partial(score_tokenized, other)
        scorers[name](tokenized)  # Kernels are loaded at first.

    def timed(name: str) -> tuple[float, npt.NDArray[np.float32]]:
        started, scores = time.perf_counter(), scorers[name](tokenized)
        return time.perf_counter() - started, scores

    results = in_turn({name: partial(timed, name) for name in scorers}, options.rounds)
    for name, of in results.items():
        (seconds, scores), (own_seconds, own) = (
            zip(*r, strict=True) for r in (of, results[OWN])
        )
        difference = float(np.abs(scores[-1] - own[-1]).max(initial=0.0))
        print(f"MP-HCNN, {name}: scores differ by at most {difference:.1e}")
        ratio = median(own / new for own, new in zip(own_seconds, seconds, strict=True))
        rate = f"{len(pairs) / median(seconds):,.0f} pairs/s"
        yield f"MP-HCNN, {name}", rate + f" ({ratio:.2f} ×)" * (name != OWN)


def own_scores(model: Reranker, tokenized: Tokenized) -> npt.NDArray[np.float32]:
    """Scores [P] by the model's forward pass, batch by batch."""
    scores = np.zeros(len(tokenized.query_index), dtype=np.float32)
    with torch.inference_mode():
        for rows in batches_of(tokenized, BATCH_SIZE):
            scores[rows] = tokenized.scores_of(model, rows).numpy()
    return scores


def measure_search(options: Options) -> Iterable[Row]:
    """Seconds and peak MiB; one more round at first builds a missing index and fills caches."""
    common = ["-m", "pipeline.search", "--topics", options.collection, "--show=none"]
    common += ["--device", options.device]
    common += ["--data", str(options.data)] if options.data else []
    with tempfile.TemporaryDirectory() as folder:
        common += ["--output", f"{folder}/run.txt"]
        ways = {way: partial(_measured, *common, *way.split()) for way in SEARCHES}
        results = in_turn(ways, options.rounds + 1)
    for way, (_, *rounds) in results.items():
        seconds, peaks = zip(*rounds, strict=True)
        title = f"`pipeline.search --topics {options.collection}{way}`"
        yield title, f"{median(seconds):.1f} s, {max(peaks):,.0f} MiB at most"


def _measured(*words: str) -> tuple[float, float]:
    """Seconds of a Python process, and its peak memory in MiB."""
    launch = [sys.executable, "-S", "-c", MEASURED, sys.executable, *words]
    done = subprocess.run(
        launch, capture_output=True, text=True, errors="replace", check=True
    )
    status, seconds, peak = json.loads(done.stdout)
    if status:
        last = done.stderr.strip().splitlines()[-3:]
        raise DataError(f"{' '.join(words[:4])} … failed:\n  " + "\n  ".join(last))
    return seconds, peak


# The service


def requests(options: Options, documents: int, suffix: str = "") -> list[bytes]:
    """Bodies in TEI's form, of distinct posts as far as there are any, in random order."""
    candidates = candidates_of(options)
    posts = [
        {"text": p.text, "url": p.url} if p.url else p.text
        for p in candidates.posts.values()
    ]
    np.random.default_rng(1).shuffle(posts)
    size, topics = min(documents, len(posts)), cycle(candidates.topics)
    parts = (
        posts[start : start + size] for start in range(0, len(posts) - size + 1, size)
    )
    return [
        json.dumps(
            {"query": topic.text + suffix, "texts": part, "raw_scores": True}
        ).encode()
        for part, topic in zip(parts, topics, strict=False)
    ]


def load(port: int, bodies: Sequence[bytes], clients: int, seconds: float) -> Times:
    """Times of several clients, each with a connection, for some seconds; one: each body once."""
    times: Times = defaultdict(list)
    end, left = (
        time.perf_counter() + seconds,
        cycle(bodies) if clients > 1 else iter(bodies),
    )

    def client(_: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        for body in left:
            started = time.perf_counter()
            connection.request(
                "POST", "/rerank", body, {"Content-Type": "application/json"}
            )
            response = connection.getresponse()
            response.read()
            times[response.status].append(1000 * (time.perf_counter() - started))
            if clients > 1 and time.perf_counter() > end:
                break

    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(client, range(clients)))
    return dict(times)


@contextmanager
def serving() -> Iterator[tuple[int, int]]:
    """A service in a process of its own: its process and its port."""
    words = [
        "-m",
        "pipeline.serve",
        f"--checkpoint={MODEL}",
        "--port=0",
        f"--cache={CACHE}",
    ]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([sys.executable, *words], **pipes, text=True) as process:
        assert process.stdout
        _, address = process.stdout.readline(), process.stdout.readline().strip()
        if not address:
            raise DataError(f"the service did not start; try python {' '.join(words)}")
        try:
            yield process.pid, int(address.rpartition(":")[2])
        finally:
            process.kill()


def memory(pid: int) -> float:
    """MiB of a process and those below it, shared pages counted once."""
    folder = Path(f"/proc/{pid}")
    children = (folder / f"task/{pid}/children").read_text(encoding="ascii").split()
    (own,) = re.findall(
        r"\nPss: +(\d+) kB", (folder / "smaps_rollup").read_text(encoding="ascii")
    )
    return int(own) / 1024 + sum(memory(int(child)) for child in children)


def measure_service(options: Options) -> Iterable[Row]:
    """Start, latency, throughput, overload and memory."""
    few, many = requests(options, LOAD)[:KEPT], requests(options, 1000)
    in_process = _in_process(few)
    started = time.perf_counter()
    # The clients' work must not be this process's.
    with serving() as (pid, port), ProcessPoolExecutor(1, get_context("spawn")) as pool:
        load(port, [b"{}"], 1, 0)
        yield (
            "service, from its start to a response",
            f"{time.perf_counter() - started:.1f} s",
        )
        # A service in use knows common words.
        load(port, many[SINGLE : SINGLE + 4], 1, 0)
        for title, some in (("100", few), ("1,000", many)):
            for kind in ("new posts", "posts of an earlier request"):
                times = load(port, some[:SINGLE], 1, 0)
                yield f"service, one request of {title}, {kind}: median", _spread(times)
        yield "scoring in-process, known posts", f"{in_process:,.0f} pairs/s"
        for clients, seconds in (
            (CLIENTS, SECONDS),
            *[(OVERLOAD, MINUTE)] * options.minutes,
        ):
            times = pool.submit(load, port, few, clients, seconds).result()
            rate = len(times[200]) * LOAD / seconds
            text = f"{rate:,.0f} pairs/s, {rate / in_process:.0%} of in-process; {_spread(times)}"
            text += f"; memory {memory(pid):,.0f} MiB"
            yield f"service, {clients} clients at once, {LOAD} posts each", text


def _spread(times: Times) -> str:
    ms, errors = (
        times[200],
        sum(len(of) for status, of in times.items() if status != 200),
    )
    text = f"{median(ms):.1f} ms (p95 {np.quantile(ms, 0.95):.1f}, p99 {np.quantile(ms, 0.99):.1f})"
    return text + f", {errors} errors" * bool(errors)


def _served() -> tuple[ServedModel, Trees]:
    """The service's model, and its trees with a cache."""
    model = Models([MODEL], CACHE).default
    return model, cast(Trees, model.checkpoint.remembering(CACHE))


def _in_process(bodies: Sequence[bytes]) -> float:
    """Pairs/s of the service's scorer on all cores, of known posts."""
    model, trees = _served()
    pairs = [
        pairs_of(read_request(body, LOAD), model, in_order=True)[0] for body in bodies
    ]
    for _ in ("new", "known"):
        started = time.perf_counter()
        for of_request in pairs:
            trees.score(of_request)
    return sum(map(len, pairs)) / (time.perf_counter() - started)


def measure_stages(options: Options) -> Iterable[Row]:
    """Median milliseconds of CPU time of each stage and of all together, on one core. New posts,
    and then the same ones for another query. What several families of features read is computed by
    the first of them."""
    model, trees = _served()
    devices.set_threads(1)
    seconds: dict[str, list[float]] = defaultdict(list)
    bodies = zip(
        requests(options, LOAD), requests(options, LOAD, " today"), strict=True
    )
    for pair in [*bodies][: BEFORE + SINGLE]:
        for kind, body in zip(("new", "known"), pair, strict=True):
            stages = _stages(model, trees, body)
            for stage, value in (stages | {"all stages": sum(stages.values())}).items():
                seconds[f"{MODEL}, {LOAD} {kind} posts, {stage}"].append(value)
    for name, of in seconds.items():
        yield name, f"{1000 * median(of[min(BEFORE, len(of) // 2) :]):.2f} ms"


def _stages(model: ServedModel, trees: Trees, body: bytes) -> dict[str, float]:
    """CPU time of each stage of a request in TEI's form, in order."""
    watch = Stopwatch(time.process_time)
    wanted = read_request(body, LOAD)
    pairs, _ = pairs_of(wanted, model, in_order=True)
    watch.stop("read the request")
    lists = features.CandidateLists(pairs, trees.families, trees.idf, trees.recent)
    candidates = lists.candidates(lists.rows[0])
    candidates.tokens  # noqa: B018  Computed at the first use.
    watch.stop("cut the posts into words")
    columns: list[Any] = []
    for family in trees.families:
        columns += features.find(family).columns(candidates)
        watch.stop(f"features {family}")
    scores = trees.evaluate(
        np.array(columns, dtype=np.float32).round(features.DECIMALS).T
    )
    watch.stop("trees")
    orjson.dumps(
        TEI.write(model.respond(wanted, scores), Record("", "POST", "/rerank"))
    )
    watch.stop("write the response")
    if not np.allclose(scores, trees.score(pairs), atol=1e-5):
        raise RuntimeError("the stages give other scores than the service")
    return watch.seconds
