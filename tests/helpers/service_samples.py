"""Services that run in this process or another one, and the wire formats they speak."""

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

from helpers.index_samples import write_lines
from helpers.processes import ROOT, end_with_parent, started
from helpers.reranking_samples import POSTS
from tweetrerank.pipeline.collections.named import SAMPLE
from tweetrerank.pipeline.collections.own import read_collection
from tweetrerank.pipeline.service.app import build
from tweetrerank.pipeline.service.connections import Server, config
from tweetrerank.pipeline.service.limits import Limits
from tweetrerank.pipeline.service.page.grades import Grades
from tweetrerank.pipeline.service.page.page_routes import routes
from tweetrerank.pipeline.service.page.search_page import SearchPage
from tweetrerank.pipeline.service.proxy.ask import SearchDefaults
from tweetrerank.pipeline.service.proxy.routes import Proxy
from tweetrerank.pipeline.service.proxy.upstream import Upstream
from tweetrerank.pipeline.service.rerank_service import Service
from tweetrerank.pipeline.service.served_models import Models
from tweetrerank.rerankers.reranker_error import RerankerError

QUERY = "bbc world service cuts"
TEXTS = [text for text, _ in POSTS]
DOCUMENTS = [{"text": text, "url": url} for text, url in POSTS]

HOSTILE = [
    # Markup, entities and control characters, with a link that is a script
    {
        "id": "168731105250123001",
        "text": "<script>hacked=1</script> xylophone \"quoted\" 'one' &amp; &lt; & "
        "\u202e\u0007 <img src=x>",
        "url": "javascript:hacked=1",
    },
    # Closing tags, joined emoji and Hebrew, with a link that closes an attribute
    {
        "id": "168731105250123002",
        "text": "xylophone </p><b>bold</b> \ufeff \U0001f469\u200d\U0001f680 "
        "\u05de\u05d5\u05d6\u05d9\u05e7\u05d4",
        "url": 'http://x.org/"><script>hacked=1</script>',
    },
]
"""Posts for the page that look like markup."""
HOSTILE_QUERY = 'xylophone <script>hacked=1</script> "x" & <img src=x onerror=hacked=1>'


@functools.cache
def models(name: str = "mp_hcnn") -> Models:
    """Return a shipped model, which is loaded once for all tests."""
    return Models([name], 10_000_000)


def chance(logit: float, model: str = "mp_hcnn") -> float:
    """Return the probability of relevance for a logit of a shipped model."""
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
    """Return a new service over the shipped model, or over the option ``models``.

    If ``engine`` has addresses, the service is a proxy in front of these nodes. Further
    options are passed to the limits and to the service.
    """
    names = options.keys() & {"hosts", "origins", "rate"}
    of_callers = {name: options.pop(name) for name in names}
    limits = replace(limits or Limits(), keys=keys, **of_callers)
    served = options.pop("models", None) or models()
    service = Service(served, limits, 2, **options)
    proxy = None
    if engine:
        upstream = Upstream(engine.split(","), ca)
        proxy = Proxy(service, upstream, defaults or SearchDefaults(), log)
    return build(service, routes(page), proxy, log)


@contextmanager
def client_of(*arguments: Any, **options: Any) -> Iterator[TestClient]:
    """Yield a client of :func:`app_of` that needs no network."""
    with TestClient(app_of(*arguments, **options)) as client:
        yield client


@contextmanager
def listening(
    app: ASGIApp, port: int = 0, tls: ssl.SSLContext | None = None
) -> Iterator[str]:
    """Run an application in a thread, and yield its address.

    The address has no slash at its end.
    """
    server = Server(config(app, tls, port=port, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started and thread.is_alive():
        time.sleep(0.01)
    scheme = "https" if tls else "http"
    try:
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"{scheme}://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()


def scored_by(scorer: Any, name: str = "mp_hcnn") -> Models:
    """Return a shipped model with another scorer."""
    changed = copy.copy(models(name))
    changed._all = {name: replace(changed.default, scorer=scorer)}
    return changed


class GatedScorer:
    """Scores pairs by the lengths of text and query, once its gate is open.

    Raises RerankerError for the text ``fail``.
    """

    def __init__(self) -> None:
        self.gate = threading.Event()  # The gate is open once this is set
        self.begun = threading.Event()  # Set by the first call
        self.seen: list[int] = []  # Number of pairs in each call
        self.first_texts: list[str] = []  # First text in each call

    def counts(self, name: str) -> Counter[str]:
        return Counter()

    async def ask(self, name: str, pairs: Any) -> Any:
        return await asyncio.to_thread(self.score, pairs)

    def score(self, pairs: Any) -> Any:
        self.seen.append(len(pairs))
        self.first_texts.append(pairs.texts[pairs.post_index[0]])
        self.begun.set()
        assert self.gate.wait(30)
        if "fail" in pairs.texts:
            raise RerankerError("found the text fail")
        lengths = [len(pairs.texts[row]) for row in pairs.post_index]
        queries = [len(pairs.queries[row]) for row in pairs.query_index]
        scores = np.array(lengths, dtype=np.float32)
        return scores + 100 * np.array(queries, dtype=np.float32)


_RERANK_FIELDS = ("id", "object", "model", "mix", "results", "data", "meta", "usage")


class Wire(NamedTuple):
    """A wire format in the way that its clients use it."""

    path: str
    extra: Mapping[str, Any] = {}  # Fields that clients of this format send
    documents: str = "documents"  # Field of the documents
    results: str = "results"  # Field of the results; "" if the answer is their list
    score: str = "relevance_score"  # Field of the score in a result
    fields: Set[str] = frozenset(_RERANK_FIELDS)  # Fields of the answer
    result: Set[str] = frozenset(("index", "relevance_score"))  # Fields of a result
    raw: Mapping[str, Any] = {"raw_scores": True}  # Fields that request logits
    echo: Mapping[str, Any] = {"return_documents": "true"}  # Fields for the texts
    top: str = "top_n"  # Field of the number of results
    error: Set[str] = frozenset(("message", "detail", "id"))  # Fields of an error
    wrong: int = 422  # Status of a request with a wrong value
    client: Any = None

    @property
    def is_tei(self) -> bool:
        return self.documents == "texts"

    def body(self, documents: Sequence[Any] = TEXTS, **fields: Any) -> dict[str, Any]:
        """Return the body of a request for the scores of documents."""
        return {"query": QUERY, self.documents: documents} | self.extra | fields

    def post(self, documents: Sequence[Any] = TEXTS, **fields: Any) -> httpx.Response:
        """Request the scores of documents, and return the response."""
        return self.client.post(self.path, json=self.body(documents, **fields))

    def ranked(
        self, documents: Sequence[Any] = TEXTS, **fields: Any
    ) -> list[dict[str, Any]]:
        """Request the scores of documents, and return the results, best first."""
        return self.results_of(self.post(documents, **fields).json())

    def results_of(self, content: Any) -> list[dict[str, Any]]:
        """Return the results in the body of a response, best first."""
        results = content[self.results] if self.results else content
        assert isinstance(results, list)
        return results

    def scores_of(self, results: Sequence[Mapping[str, Any]]) -> list[float]:
        """Return the scores of all documents in the order of the request."""
        scores = {result["index"]: result[self.score] for result in results}
        return [scores[row] for row in range(len(scores))]


WIRES = {
    "tei": Wire(
        "/rerank",
        documents="texts",
        results="",
        score="score",
        fields=frozenset(),
        result={"index", "score"},
        echo={"return_text": True},
        error={"error", "error_type"},
    ),
    "cohere": Wire("/v2/rerank", {"model": "rerank-v3.5"}),
    "jina": Wire("/v1/rerank", {"model": "jina-reranker-v2"}),
    "voyage": Wire(
        "/v1/rerank",
        {"model": "rerank-2.5", "truncation": True},
        results="data",
        top="top_k",
    ),
    "infinity": Wire(
        "/infinity/rerank",
        {"return_documents": False},
        fields=set(_RERANK_FIELDS) - {"data"} | {"created"},
        wrong=400,
    ),
    "vllm": Wire(
        "/rerank",
        result={"index", "relevance_score", "document"},
        raw={"use_activation": False},
        echo={},
        wrong=400,
    ),
}
"""The wire formats by name."""
BODY = WIRES["tei"].body(raw_scores=True)


def run_apart(main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Run a coroutine in another thread, and return its result.

    This thread may already have an event loop, which a browser runs.
    """
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: asyncio.run(main())).result()


class Running(NamedTuple):
    """A service that runs as a process, with its address and the log lines so far."""

    process: subprocess.Popen[str]
    address: str
    lines: list[str]

    def post(
        self, body: object = BODY, path: str = "/rerank", auth: Any = None
    ) -> httpx.Response:
        return httpx.post(f"{self.address}{path}", json=body, timeout=60, auth=auth)

    def wait_for(self, text: str, seconds: float = 60) -> str:
        """Wait for a line of the log that contains a text, and return it.

        Raises AssertionError if there is none within ``seconds``.
        """
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for line in list(self.lines):
                if text in line:
                    return line
            time.sleep(0.02)
        raise AssertionError(f"no {text!r} in {self.lines[-5:]}")

    def reload(self, text: str) -> None:
        """Send SIGHUP, and wait until the log contains a text."""
        self.process.send_signal(signal.SIGHUP)
        self.wait_for(text)


@contextmanager
def running(
    *arguments: object, is_read: bool = True, is_ready: bool = True
) -> Iterator[Running]:
    """Run a service as a process, and yield it.

    With ``is_read``, its log is read to the end, and otherwise up to the line with the
    address. With ``is_ready``, this waits until the service is ready, and finds its
    address. The process is killed at the end.
    """
    command = (sys.executable, "-m", "pipeline.serve", "--port", "0", *arguments)
    process = started(
        *command,
        env=dict(os.environ) | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        start_new_session=True,
        preexec_fn=end_with_parent,
    )
    assert process.stdout and process.stderr
    log = process.stderr
    lines: list[str] = []

    def read_log() -> None:
        for line in iter(log.readline, ""):
            lines.append(line)
            if not is_read and "serving " in line:
                return

    reader = threading.Thread(target=read_log)
    reader.start()
    service = Running(process, "", lines)
    try:
        if is_ready:
            service.wait_for("serving ")
            assert process.stdout.readline().startswith("loading ")
            service = service._replace(address=process.stdout.readline().strip())
        yield service
    finally:
        process.kill()
        process.wait()
        # The worker processes ignore SIGTERM, and a test may have stopped one of them.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        reader.join()


class ServedPage(NamedTuple):
    """The page, and its address, which has no slash at the end."""

    page: SearchPage
    address: str


@contextmanager
def served(folder: Path) -> Iterator[ServedPage]:
    """Serve the page in this process, over a new collection in ``folder``."""
    hostile = write_lines(folder / "hostile.jsonl", HOSTILE)
    description = folder / "pages.toml"
    description.write_text(
        f'posts = ["{SAMPLE}/posts.jsonl", "{hostile}"]\n'
        f'topics = "{SAMPLE}/topics.txt"\nqrels = "{SAMPLE}/qrels.txt"\n'
    )
    grades = Grades(folder / "grades.txt")
    page = SearchPage(read_collection(description), lambda: models().served, grades)
    with closing(page), listening(app_of(page=page)) as address:
        yield ServedPage(page, address)
