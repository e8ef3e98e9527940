"""A service in this process, shared by its tests, and its wire formats as requests and answers."""

from __future__ import annotations

import asyncio
import copy
import functools
import math
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import uvicorn
from starlette.testclient import TestClient
from starlette.types import ASGIApp

from helpers.reranking_samples import POSTS
from pipeline.service.app import Access, Service, build
from pipeline.service.connections import config
from pipeline.service.models import Models
from pipeline.service.page.routes import routes
from pipeline.service.proxy.routes import Proxy
from pipeline.service.proxy.search import SearchDefaults
from pipeline.service.proxy.upstream import Upstream
from pipeline.service.requests import Limits
from rerankers.errors import RerankerError
from rerankers.pairs import Pairs
from rerankers.reranker import Counts

QUERY = "bbc world service cuts"
TEXTS = [text for text, _ in POSTS]
DOCUMENTS = [{"text": text, "url": url} for text, url in POSTS]


@functools.cache
def models(name: str = "mp_hcnn") -> Models:
    """A shipped model, loaded once for all tests."""
    return Models([name], 10_000_000)


def chance(logit: float, model: str = "mp_hcnn") -> float:
    """P(relevant) of a score by a shipped model."""
    slope, intercept = models(model).default.calibration
    return 1 / (1 + math.exp(-(slope * logit + intercept)))


def app_of(
    limits: Limits | None = None, keys: Sequence[str] = (), threads: int = 2, **options: Any
) -> ASGIApp:
    """A new service over the shipped model, in front of the nodes of an ``engine`` if given."""
    access = Access(keys, *(options.pop(name, ()) for name in ("hosts", "origins")))
    access = replace(access, rate=options.pop("rate", None))
    engine, defaults = options.pop("engine", None), options.pop("defaults", SearchDefaults())
    ca = options.pop("ca", None)
    service = Service(
        options.pop("models", None) or models(), limits or Limits(), threads, **options
    )
    proxy = Proxy(service, Upstream(engine.split(","), ca), defaults) if engine else None
    return build(service, access, routes(None), proxy=proxy)


@contextmanager
def client_of(*arguments: Any, **options: Any) -> Iterator[TestClient]:
    """A client of :func:`app_of`, without a network."""
    with TestClient(app_of(*arguments, **options), raise_server_exceptions=True) as client:
        yield client


@contextmanager
def listening(app: ASGIApp, port: int = 0) -> Iterator[str]:
    """The address, without a slash at its end, where an application answers in this process."""
    server = uvicorn.Server(config(app, port=port, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started and thread.is_alive():
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def scored_by(scorer: Any) -> Models:
    """The shipped model's place, with another scorer in it."""
    actual = copy.copy(models())
    actual._all = {"mp_hcnn": replace(models().default, scorer=scorer)}
    return actual


class GatedScorer:
    """Scores by the length of a text, when it may.

    Attributes:
        gate: closed until it is set.
        seen: number of pairs of each call.
        begun: set by the first call.
        first_texts: first text of each query in each call.
    """

    def __init__(self) -> None:
        self.gate, self.begun = threading.Event(), threading.Event()
        self.seen: list[int] = []
        self.first_texts: list[list[str]] = []

    def counts(self, name: str) -> Counts:
        return Counts()

    def call(self, number: int, function: Callable[[], Any]) -> Any:
        return function()

    def score(self, number: int, name: str, pairs: Pairs) -> npt.NDArray[np.float32]:
        self.seen.append(len(pairs))
        _, rows = np.unique(pairs.query_index, return_index=True)
        self.first_texts.append([pairs.texts[pairs.post_index[row]] for row in rows])
        self.begun.set()
        assert self.gate.wait(30)
        if "fail" in pairs.texts:
            raise RerankerError("found the text fail")
        lengths = [len(pairs.texts[row]) for row in pairs.post_index]
        queries = [len(pairs.queries[row]) for row in pairs.query_index]
        return np.array(lengths, dtype=np.float32) + 100 * np.array(queries, dtype=np.float32)


_FIELDS = frozenset(("id", "object", "model", "mix", "results", "data", "meta", "usage"))


class Wire(NamedTuple):
    """A wire format.

    Attributes:
        documents: field of the documents.
        extra: fields that make it this format.
        results: field of the results in the answer; "" if the answer is the list of them.
        score: field of the score in a result.
        fields: of the answer.
        result: fields of a result.
        raw: fields that ask for logits.
        echo: fields that ask for the texts.
        top: field of the number of results.
    """

    path: str
    extra: Mapping[str, Any]
    documents: str = "documents"
    results: str = "results"
    score: str = "relevance_score"
    fields: Set[str] = _FIELDS
    result: Set[str] = frozenset(("index", "relevance_score"))
    raw: Mapping[str, Any] = {"raw_scores": True}
    echo: Mapping[str, Any] = {"return_documents": "true"}
    top: str = "top_n"

    def body(self, documents: Sequence[Any] = TEXTS, **more: Any) -> dict[str, Any]:
        """A request."""
        return {"query": QUERY, self.documents: documents, **self.extra, **more}

    def results_of(self, content: Any) -> list[dict[str, Any]]:
        """The results of a response."""
        results = content[self.results] if self.results else content
        assert isinstance(results, list)
        return results


_TEI: dict[str, Any] = {"documents": "texts", "results": "", "score": "score", "fields": set()}
WIRES = {
    "tei": Wire("/rerank", {}, **_TEI, result={"index", "score"}, echo={"return_text": True}),
    "cohere": Wire("/v2/rerank", {"model": "rerank-v3.5"}),
    "jina": Wire("/v1/rerank", {"model": "jina-reranker-v2"}),
    "voyage": Wire(
        "/v1/rerank", {"model": "rerank-2.5", "truncation": True}, results="data", top="top_k"
    ),
    "infinity": Wire(
        "/infinity/rerank", {"return_documents": False}, fields=_FIELDS - {"data"} | {"created"}
    ),
    "vllm": Wire(
        *("/rerank", {}),
        result={"index", "relevance_score", "document"},
        raw={"use_activation": False},
        echo={},
    ),
}
"""Name -> wire format, as its clients use it."""


def run_apart(main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """The result of a coroutine, from a thread of its own: a browser's loop may run in this one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: asyncio.run(main())).result()
