"""A service in this process, shared by its tests, and its wire formats as requests and answers."""

import asyncio
import copy
import functools
import math
import os
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
from starlette.testclient import TestClient
from starlette.types import ASGIApp

from helpers.index_samples import table
from helpers.processes import ROOT, end_with_parent, started
from helpers.reranking_samples import POSTS
from tweetrerank.pipeline.collections.named import SAMPLE
from tweetrerank.pipeline.collections.own import read_collection
from tweetrerank.pipeline.service.app import Service, build
from tweetrerank.pipeline.service.connections import Server, config
from tweetrerank.pipeline.service.page.page import Grades, SearchPage, routes
from tweetrerank.pipeline.service.proxy.ask import SearchDefaults
from tweetrerank.pipeline.service.proxy.routes import Proxy
from tweetrerank.pipeline.service.proxy.upstream import Upstream
from tweetrerank.pipeline.service.requests import Limits
from tweetrerank.pipeline.service.served_models import Models
from tweetrerank.rerankers.reranker_error import RerankerError

QUERY = "bbc world service cuts"
TEXTS = [text for text, _ in POSTS]
DOCUMENTS = [{"text": text, "url": url} for text, url in POSTS]
HOSTILE = table("hostile.jsonl")
HOSTILE_QUERY = 'xylophone <script>hacked=1</script> "x" & <img src=x onerror=hacked=1>'


@functools.cache
def models(name: str = "mp_hcnn") -> Models:
    """A shipped model, loaded once for all tests."""
    return Models([name], 10_000_000)


def chance(logit: float, model: str = "mp_hcnn") -> float:
    """P(relevant) of a score by a shipped model."""
    slope, intercept = models(model).default.calibration
    return 1 / (1 + math.exp(-(slope * logit + intercept)))


def app_of(
    limits: Limits | None = None,
    keys: Sequence[str] = (),
    engine: str = "",
    defaults: SearchDefaults | None = None,
    ca: Any = None,
    log: Any = None,
    page: SearchPage | None = None,
    **options: Any,
) -> ASGIApp:
    """A new service over the shipped model, in front of the nodes of an ``engine`` if given."""
    given = {
        name: options.pop(name)
        for name in ("hosts", "origins", "rate")
        if name in options
    }
    served = options.pop("models", None) or models()
    service = Service(
        served, replace(limits or Limits(), keys=keys, **given), 2, **options
    )
    proxy = None
    if engine:
        proxy = Proxy(
            service, Upstream(engine.split(","), ca), defaults or SearchDefaults(), log
        )
    return build(service, routes(page), proxy, log)


@contextmanager
def client_of(*arguments: Any, **options: Any) -> Iterator[TestClient]:
    """A client of :func:`app_of`, without a network."""
    with TestClient(app_of(*arguments, **options)) as client:
        yield client


@contextmanager
def listening(
    app: ASGIApp, port: int = 0, tls: ssl.SSLContext | None = None
) -> Iterator[str]:
    """The address, without a slash at its end, where an application answers in this process."""
    server = Server(config(app, tls, port=port, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started and thread.is_alive():
        time.sleep(0.01)
    try:
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"{'https' if tls else 'http'}://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()


def scored_by(scorer: Any, name: str = "mp_hcnn") -> Models:
    """A shipped model's place, with another scorer in it."""
    actual = copy.copy(models(name))
    actual._all = {name: replace(actual.default, scorer=scorer)}
    return actual


class GatedScorer:
    """Scores by the length of a text, when it may."""

    def __init__(self) -> None:
        self.gate = threading.Event()  # Closed until it is set
        self.begun = threading.Event()  # Set by the first call
        self.seen: list[int] = []  # Number of pairs of each call
        self.first_texts: list[str] = []  # First text of each call

    def counts(self, name: str) -> Counter[str]:
        return Counter()

    async def ask(self, name: str, given: Any) -> Any:
        return await asyncio.to_thread(self.score, given)

    def score(self, given: Any) -> Any:
        self.seen.append(len(given))
        self.first_texts.append(given.texts[given.post_index[0]])
        self.begun.set()
        assert self.gate.wait(30)
        if "fail" in given.texts:
            raise RerankerError("found the text fail")
        lengths = [len(given.texts[row]) for row in given.post_index]
        queries = [len(given.queries[row]) for row in given.query_index]
        return np.array(lengths, dtype=np.float32) + 100 * np.array(
            queries, dtype=np.float32
        )


_FIELDS = frozenset(
    ("id", "object", "model", "mix", "results", "data", "meta", "usage")
)


class Wire(NamedTuple):
    """A wire format."""

    path: str
    extra: Mapping[str, Any] = {}  # Fields that make it this format
    documents: str = "documents"  # Field of the documents
    results: str = (
        "results"  # Field of the results; "" if the answer is the list of them
    )
    score: str = "relevance_score"  # Field of the score in a result
    fields: Set[str] = _FIELDS  # Of the answer
    result: Set[str] = frozenset(("index", "relevance_score"))  # Fields of a result
    raw: Mapping[str, Any] = {"raw_scores": True}  # Fields that ask for logits
    echo: Mapping[str, Any] = {
        "return_documents": "true"
    }  # Fields that ask for the texts
    top: str = "top_n"  # Field of the number of results
    error: Set[str] = frozenset(("message", "detail", "id"))  # Fields of an error
    wrong: int = 422  # Status of a request with a wrong value

    def body(self, documents: Sequence[Any] = TEXTS, **more: Any) -> dict[str, Any]:
        return {"query": QUERY, self.documents: documents, **self.extra, **more}

    def results_of(self, content: Any) -> list[dict[str, Any]]:
        results = content[self.results] if self.results else content
        assert isinstance(results, list)
        return results


_TEI: dict[str, Any] = {"echo": {"return_text": True}, "error": {"error", "error_type"}}
_VOYAGE = {"model": "rerank-2.5", "truncation": True}
_INFINITY = _FIELDS - {"data"} | {"created"}
_VLLM: dict[str, Any] = {"result": {"index", "relevance_score", "document"}, "echo": {}}
WIRES = {
    "tei": Wire("/rerank", {}, "texts", "", "score", set(), {"index", "score"}, **_TEI),
    "cohere": Wire("/v2/rerank", {"model": "rerank-v3.5"}),
    "jina": Wire("/v1/rerank", {"model": "jina-reranker-v2"}),
    "voyage": Wire("/v1/rerank", _VOYAGE, results="data", top="top_k"),
    "infinity": Wire(
        "/infinity/rerank", {"return_documents": False}, fields=_INFINITY, wrong=400
    ),
    "vllm": Wire("/rerank", raw={"use_activation": False}, wrong=400, **_VLLM),
}
"""Name -> wire format, as its clients use it."""
BODY = WIRES["tei"].body(raw_scores=True)


def run_apart(main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """The result of a coroutine, from a thread of its own: a browser's loop may run in this one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: asyncio.run(main())).result()


class Running(NamedTuple):
    """A service, its address, and the lines of its log until now."""

    process: subprocess.Popen[str]
    address: str
    lines: list[str]

    def post(
        self, body: object = BODY, path: str = "/rerank", auth: Any = None
    ) -> httpx.Response:
        return httpx.post(f"{self.address}{path}", json=body, timeout=60, auth=auth)

    def wait_for(self, text: str, seconds: float = 60) -> str:
        """The first line of the log with this text."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if with_text := [line for line in self.lines if text in line]:
                return with_text[0]
            time.sleep(0.02)
        raise AssertionError(f"no {text!r} in {self.lines[-5:]}")

    def reload(self, text: str) -> None:
        """Send SIGHUP, and wait for this text in the log."""
        self.process.send_signal(signal.SIGHUP)
        self.wait_for(text)


@contextmanager
def running(
    *arguments: object, is_read: bool = True, is_ready: bool = True
) -> Iterator[Running]:
    """A service, whose log is read to its end or up to its address; perhaps before it is ready."""
    command = (sys.executable, "-m", "pipeline.serve", "--port", "0", *arguments)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    options = {"start_new_session": True, "preexec_fn": end_with_parent}
    process = started(*command, env=environment, **options)
    lines: list[str] = []
    stderr = process.stderr
    assert stderr

    def read() -> None:
        while line := stderr.readline():
            lines.append(line)
            if not is_read and "serving " in line:
                return

    reader = threading.Thread(target=read)
    reader.start()
    service = Running(process, "", lines)
    try:
        if is_ready:
            service.wait_for("serving ")
            assert process.stdout
            loading, address = (process.stdout.readline() for _ in range(2))
            assert loading.startswith("loading ")
            service = service._replace(address=address.strip())
        yield service
    finally:
        process.kill()
        process.wait()
        # Its processes that score are deaf to SIGTERM, and a test may have stopped one.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        reader.join()


class ServedPage(NamedTuple):
    """The page, and its address without a slash at the end."""

    page: SearchPage
    address: str


@contextmanager
def served(folder: Path) -> Iterator[ServedPage]:
    """The page in this process, over a collection that is made in ``folder``."""
    description = folder / "pages.toml"
    description.write_text(
        f'posts = ["{SAMPLE}/posts.jsonl", "{ROOT}/tests/helpers/hostile.jsonl"]\n'
        f'topics = "{SAMPLE}/topics.txt"\nqrels = "{SAMPLE}/qrels.txt"\n'
    )
    grades = Grades(folder / "grades.txt")
    page = SearchPage(read_collection(description), lambda: models().served, grades)
    with closing(page), listening(app_of(page=page)) as address:
        yield ServedPage(page, address)
