"""Serve rerankers over HTTP, in the formats that search engines and their clients speak.

python -m pipeline.serve
python -m pipeline.serve --checkpoint mp_hcnn --checkpoint my-checkpoint --port 8080
python -m pipeline.serve --host 0.0.0.0 --api-key-file keys.txt
python -m pipeline.serve --collection my-posts.toml --grades grades.txt
python -m pipeline.serve --engine http://localhost:9200 --engine-index 'posts-*' --text-field body
python -m pipeline.serve --engine http://localhost:9200 --collection mine.toml --log log
python -m pipeline.serve --collection mine.toml      # and the proxy, if it names an engine's index
"""

from __future__ import annotations

import errno
import gc
import logging
import multiprocessing
import os
import re
import signal
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from logging.handlers import QueueListener
from multiprocessing import forkserver
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tweetrerank.indexes.data_error import DataError
from tweetrerank.pipeline.command.main import run
from tweetrerank.pipeline.command.options import (
    existing_file,
    fraction,
    option,
    output_file,
    positive_float,
    positive_int,
    size,
)
from tweetrerank.pipeline.ranking.ranking_options import addresses
from tweetrerank.pipeline.runtime import choose_device, read_keys
from tweetrerank.pipeline.usage_error import UsageError
from tweetrerank.rerankers.devices import device_name

if TYPE_CHECKING:
    from tweetrerank.pipeline.collections.collection import Collection
    from tweetrerank.pipeline.service.proxy.ask import PostFields

LOG = logging.getLogger("tweetrerank.service")

DEFAULT_CHECKPOINT = "window"
LOOPBACK = ("127.0.0.1", "::1", "localhost")  # Addresses that only this machine reaches
LOOPBACK_NAMES = ("127.0.0.1", "[::1]", "localhost")  # Of them in the header Host
ENGINE_SECONDS = 5.0  # For an answer of the engine at a start and a reload
PRELOADED = (
    "tweetrerank.pipeline.service.workers",
    "wordfreq",
)  # What trees need
BACKLOG = 2048  # Connections that wait to be accepted


def renamed(text: str) -> tuple[tuple[str, str], ...]:
    """Pairs of ``NAME=FIELD,…``; a NAME alone is the field's, too."""
    items = [item.strip().partition("=") for item in text.split(",")]
    if not all(name for name, _, _ in items):
        raise ValueError(
            f"found {text!r}, expected NAME=FIELD, several separated by commas"
        )
    return tuple((name, field or name) for name, _, field in items)


def port(text: str) -> int:
    """A port; 0 is any free one."""
    if not text.isascii() or not text.isdigit() or int(text) > 65535:
        raise ValueError(
            f"found {text!r}, expected a port from 0 (any free one) to 65535"
        )
    return int(text)


def index_pattern(text: str) -> str:
    """The name of an index, or a pattern of names."""
    if text[:1] in ("", *"._-+<") or any(character in text for character in " ,/?#"):
        raise ValueError(
            f"found {text!r}, expected the name of an index, or a pattern such as 'posts-*'; "
            "several are given by several options"
        )
    return text


def host_name(text: str) -> str:
    """A name in the header Host, without a port, or ``*.example.com``."""
    if not re.fullmatch(r"(\*\.)?[^*\s/:\[\]]+|\[[0-9a-f:.]+\]", name := text.lower()):
        raise ValueError(
            f"found {text!r}, expected a name without scheme and port: example.com"
        )
    return name


def origin(text: str) -> str:
    """An origin as browsers send it, in lower case and without a path; or ``*``."""
    if not re.fullmatch(r"\*|null|[a-z][a-z0-9+.-]*://[^\s/?#*]+", text.lower()):
        raise ValueError(
            f"found {text!r}, expected * or an address such as https://example.com"
        )
    return text.lower()


FILE: Any = {"parse": existing_file, "metavar": "FILE"}
SIZE: Any = {"parse": size, "metavar": "SIZE"}
NAMES: Any = {"many": True, "metavar": "NAME"}


@dataclass(frozen=True)
class Options:
    """Models, collection, engine, address and limits."""

    checkpoint: tuple[str, ...] = option(
        f"model to serve, by its name or its folder (default: {DEFAULT_CHECKPOINT}); may be given "
        "several times, then requests choose by `model`",
        many=True,
        metavar="NAME|DIR",
    )
    host: str = option(
        "address to listen on; 0.0.0.0 is every network", default="127.0.0.1"
    )
    port: int = option("port to listen on; 0 is any free one", default=8080, parse=port)
    api_key_file: Path | None = option(
        "file of keys, one a line, of which requests need one (default: none needed)",
        **FILE,
    )
    allow_host: tuple[str, ...] = option(
        "name in the header Host of requests, or *.example.com; may be given several times "
        "(default: those of this machine where --host is one; else any)",
        parse=host_name,
        **NAMES,
    )
    cors_origin: tuple[str, ...] = option(
        "address of pages that may call this service from a browser, such as https://example.com, "
        "or *; may be given several times (default: none)",
        parse=origin,
        many=True,
        metavar="ORIGIN",
    )
    client_requests: int | None = option(
        "requests of a client in a second (default: any)", parse=positive_int
    )
    client_connections: int | None = option(
        "connections of a client at a time (default: any)", parse=positive_int
    )
    ssl_certfile: Path | None = option(
        "certificate for HTTPS, in PEM; it is read again after SIGHUP", **FILE
    )
    ssl_keyfile: Path | None = option("its key (default: in the same file)", **FILE)
    ssl_ca_certs: Path | None = option(
        "authorities of clients, which need a certificate then", **FILE
    )
    threads: int | None = option(
        "processes that score, each on a core (default: one for each core)",
        parse=positive_int,
    )
    device: str = option(
        "where networks score, and the page's models: auto, cpu, cuda or cuda:N; trees are always "
        "on the CPU, encodings of posts are not kept on a GPU",
        default="cpu",
        parse=device_name,
    )
    max_documents: int = option(
        "documents of a request", default=2000, parse=positive_int
    )
    max_body: int = option(
        "bytes of a request, or 500KB, 8MB, …", default=8_000_000, **SIZE
    )
    cache: int = option(
        "bytes for the posts that were read last, or 64MB, 1GB, …; all processes together",
        default=128_000_000,
        **SIZE,
    )
    order: str = option(
        "order of the documents of requests that do not say: first_stage is best first, unknown "
        "for clients that send them in no order, or in parts of up to 32, whose scores compare if "
        "all are in one language",
        default="first_stage",
        choices=("first_stage", "unknown"),
    )
    log_texts: bool = option("write queries and documents into the log", flag=True)
    engine_auth: Path | None = option(
        "file of ca for --engine, whose callers name themselves (default: $TWEETRERANK_ENGINE_CA)",
        **FILE,
    )
    index: Path | None = option(
        "index that the page searches", parse=Path, metavar="DIR"
    )
    collection: tuple[str, ...] = option(
        "collection whose best model is served, under its name, and that the page searches; the "
        "proxy takes it for the collection's index. May be given several times: the page has the "
        "first",
        many=True,
        metavar="NAME|FILE",
    )
    grades: Path | None = option(
        "file of judgments in TREC's form, into which the page writes grades given by hand, with "
        "their topics in .topics.jsonl beside it (default: the page takes none)",
        parse=output_file,
        metavar="FILE",
    )
    data: Path | None = option("data folder (default: $TWEETRERANK_DATA)", parse=Path)
    engine: str | None = option(
        "answer the searches of OpenSearch or Elasticsearch at this address, reranked; several "
        "nodes are separated by commas (default: that of --collection)",
        parse=addresses,
        metavar="URL",
    )
    engine_index: tuple[str, ...] = option(
        "index that may be searched, by its name or a pattern such as 'posts-*'; may be given "
        "several times (default: that of --collection)",
        parse=index_pattern,
        many=True,
        metavar="PATTERN",
    )
    text_field: str | None = option(
        "field of the texts in the engine's indexes (default: that of --collection; else contents, "
        "and url of the links)",
        metavar="FIELD",
    )
    url_field: str | None = option("its field of links", metavar="FIELD")
    signals: tuple[tuple[str, str], ...] = option(
        "its fields of the numbers that the model was trained with, where they have other names "
        "there: likes=favorite_count,created=date",
        default=(),
        parse=renamed,
        metavar="NAME=FIELD,…",
    )
    rerank_window: int = option(
        "hits of a search of the engine to rerank", default=100, parse=positive_int
    )
    rerank_timeout: float = option(
        "seconds for it; then the engine's own ranking goes out",
        default=5.0,
        parse=positive_float,
    )
    rerank_weight: float | None = option(
        "share of the model beside the engine's score, both from 0 to 1 in each search; for "
        "queries whose own scores say more than their words (default: the model alone)",
        parse=fraction,
    )
    log: Path | None = option(
        "folder for a log of the reranked searches of --engine, and of their events (POST /events)",
        parse=Path,
        metavar="DIR",
    )
    log_queries: str = option(
        "whether queries stand in it: plain, or none (models cannot learn from it)",
        default="none",
        choices=("none", "plain"),
    )
    log_days: float = option(
        "days after which its files are deleted, counted back from the newest one",
        default=30.0,
        parse=positive_float,
        metavar="DAYS",
    )
    challenger: str | None = option(
        "model to compare with the served one by clicks, by its name or its folder: some searches "
        "of --engine show an interleaving of both; needs --log",
        metavar="NAME|DIR",
    )
    share: float = option("share of these searches", default=0.2, parse=fraction)


def main(options: Options) -> None:
    """Check the options, take the port, and serve."""
    # Until the event loop runs, there is nothing to load again.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    keys = read_keys(options.api_key_file) if options.api_key_file else []
    collections: Sequence[Collection] = ()
    if names := options.collection or ((None,) if options.index else ()):
        from tweetrerank.pipeline.collections.named import open_collection

        collections = [
            open_collection(name, options.index, data=options.data) for name in names
        ]
    options = with_engine_of(options, collections)
    listening = bind(options.host, options.port)
    named = options.checkpoint or (() if options.collection else (DEFAULT_CHECKPOINT,))
    # People read stdout; the log is on stderr.
    print(
        f"loading {', '.join([*named, *(each.name for each in collections)])} …",
        flush=True,
    )
    # The process that others are forked from imports while this one does.
    multiprocessing.set_forkserver_preload([*PRELOADED])
    forkserver.ensure_running()
    try:
        import_module("tweetrerank.pipeline.service.app")
    except ModuleNotFoundError as error:
        raise DataError(
            f"found no package {error.name}; install the extra: pip install 'tweetrerank[serve]'"
        ) from None
    serve(replace(options, checkpoint=named), keys, collections, listening)


def serve(
    options: Options,
    keys: list[str],
    collections: Sequence[Collection],
    listening: socket.socket,
) -> None:
    """Load the models, and serve them until a signal."""
    from tweetrerank.pipeline.service import app, connections
    from tweetrerank.pipeline.service.json_log import log_in_background
    from tweetrerank.pipeline.service.limits import Limits
    from tweetrerank.pipeline.service.log import SearchLog
    from tweetrerank.pipeline.service.page.grades import Grades
    from tweetrerank.pipeline.service.page.page_routes import routes
    from tweetrerank.pipeline.service.page.search_page import SearchPage
    from tweetrerank.pipeline.service.served_models import Models

    files = options.ssl_certfile, options.ssl_keyfile, options.ssl_ca_certs
    load_tls = partial(connections.tls_of, *files)
    tls = load_tls() if options.ssl_certfile else None
    device, threads = (
        choose_device(options.device),
        options.threads or len(os.sched_getaffinity(0)),
    )
    served, challenger = collections if options.collection else (), options.challenger
    models = Models(
        options.checkpoint, options.cache, threads, served, device, challenger
    )
    documents, body = options.max_documents, options.max_body
    hosts = options.allow_host or (LOOPBACK_NAMES if options.host in LOOPBACK else ())
    callers: Any = {
        "keys": keys,
        "origins": options.cors_origin,
        "rate": options.client_requests,
    }
    limits = Limits(
        documents, body, 10 * documents, held=32 * body, hosts=hosts, **callers
    )
    is_ordered = options.order == "first_stage"
    service = app.Service(models, limits, threads, options.log_texts, is_ordered)
    grades, page = Grades(options.grades) if options.grades else None, None
    if collections:
        page = SearchPage(collections[0], lambda: models.served, grades, device)
    lines = log_in_background()
    how = options.log_queries == "plain", options.log_days, options.share
    log = SearchLog(options.log, *how) if options.log else None
    indexes = behind_aliases(options, collections)
    proxy = proxy_of(options, service, log, indexes) if options.engine else None

    def reload() -> None:
        indexes.update(behind_aliases(options, collections))
        read_again(options, keys, partial(load_tls, known=tls))
        models.reload()
        if page:
            page.reload()

    connections.Connection.most_of_client = options.client_connections
    built = app.build(service, routes(page), proxy, log, reload)
    config = connections.config(built, tls, loop="uvloop")
    if not keys and options.host not in LOOPBACK:
        LOG.warning("everybody who reaches %s is served", options.host)
    listen(connections.Server(config), listening, models.served)
    end(lines, *filter(None, (page, log)))


def listen(server: Any, listening: socket.socket, names: Iterable[str]) -> None:
    """Listen, say where, and serve until a signal."""
    listening.listen(BACKLOG)  # From now on nobody is refused.
    host, number = listening.getsockname()[:2]
    where = f"[{host}]:{number}" if ":" in host else f"{host}:{number}"
    where = f"{'https' if server.config.ssl else 'http'}://{where}"
    LOG.info("serving %s on %s", ", ".join(names), where)
    print(where, flush=True)
    # What is loaded stays: no collection of garbage has to look at it again.
    gc.freeze()
    # uvicorn raises the signal once more after the last request; it ends this command well.
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    server.run(sockets=[listening])


def end(lines: QueueListener, *opened: Any) -> None:
    """Close the page and the log of searches, and write the lines of the log that wait."""
    for each in opened:
        each.close()
    waiting = [
        t for t in threading.enumerate() if t.name.startswith(("reload", "search"))
    ]
    waiting.append(threading.Thread(target=lines.stop, daemon=True))
    waiting[-1].start()
    for thread in waiting:
        thread.join(2)
    if any(thread.is_alive() for thread in waiting):
        os._exit(0)  # The interpreter's end would wait for them, as for an engine.


def read_again(
    options: Options, keys: list[str], load_tls: Callable[[], object]
) -> None:
    """Read keys and certificate as they are now; those that cannot be read stay, which is told."""
    try:
        if options.api_key_file:
            keys[:] = read_keys(options.api_key_file)
            LOG.info("--api-key-file: %d keys", len(keys))
    except DataError as error:
        LOG.error("--api-key-file: the old keys stay: %s", error)
    try:
        if options.ssl_certfile:
            load_tls()
            LOG.info("--ssl-certfile: read again")
    except DataError as error:
        LOG.error("--ssl-certfile: the old certificate stays: %s", error)


def with_engine_of(options: Options, collections: Sequence[Collection]) -> Options:
    """The options with the engine and the indexes of the collections, unless they name some; raises
    UsageError for options that lack what they are for."""
    engines = [each.engine for each in collections if each.engine]
    if options.engine is None and engines:
        for name in ("url", "auth"):
            values = dict.fromkeys(str(getattr(address, name)) for address in engines)
            if len(values) > 1:
                problem = f"found {name} {' and '.join(values)}, expected the same"
                raise UsageError(
                    f"--collection: {problem}; serve each of them by itself"
                )
        auth = options.engine_auth or engines[0].auth
        options = replace(options, engine=engines[0].url, engine_auth=auth)
    of_engine = "--engine, expected the address of one"
    problems = []
    for names, given, problem in (
        ("grades", collections, "--collection or --index, expected one to search"),
        (
            "ssl_keyfile ssl_ca_certs",
            options.ssl_certfile,
            "--ssl-certfile, expected one",
        ),
        ("log", options.engine, "--engine, whose reranked searches are logged"),
        ("challenger", options.log, "--log, expected the folder of one"),
        ("engine_index text_field url_field signals", options.engine, of_engine),
    ):
        told = [
            f"--{name.replace('_', '-')}"
            for name in names.split()
            if getattr(options, name)
        ]
        if told and not given:
            problems.append(f"{' and '.join(told)}: found no {problem}")
    if problems:
        raise UsageError(problems)
    if options.engine and not options.engine_index:
        if not engines:
            raise UsageError(
                "--engine: found no --engine-index, expected the indexes that may be searched, "
                "such as --engine-index posts or --engine-index 'posts-*'"
            )
        options = replace(options, engine_index=tuple(each.index for each in engines))
    return options


def fields_of(options: Options, address: Any = None) -> PostFields:
    """The fields of posts: those of the options, of an engine's index, and else of ours."""
    from tweetrerank.indexes.engines.layout import SIGNALS, TEXT, URL
    from tweetrerank.pipeline.service.proxy.ask import PostFields

    text = options.text_field or getattr(address, "text_field", None)
    url = options.url_field or getattr(address, "url_field", None)
    of_ours = address.signals if address and address.has_methods else ()
    signals = (*((name, f"{SIGNALS}.{name}") for name in of_ours), *options.signals)
    return PostFields((text or TEXT,), url or (None if text else URL), signals)


def behind_aliases(
    options: Options, collections: Sequence[Collection]
) -> dict[str, PostFields]:
    """Model and fields of the collections' indexes, and of those that are behind their names."""
    from tweetrerank.indexes.engines.client import Engine

    found: dict[str, PostFields] = {}
    for each in collections if options.engine else ():
        if (address := each.engine) is None:
            continue
        found[address.index] = served = replace(
            fields_of(options, address), model=each.name
        )
        pool = ThreadPoolExecutor(1, "reload")
        ask = partial(
            lambda at: Engine(at).request("GET", f"/{at.index}/_alias"), address
        )
        try:
            found |= dict.fromkeys(pool.submit(ask).result(ENGINE_SECONDS), served)
        except (
            DataError,
            OSError,
        ) as error:  # TimeoutError, a lost file of its user or CA
            problem = str(error) or f"no answer within {ENGINE_SECONDS:g} s"
            LOG.warning(
                "%s: its index may be an alias, which is not known: %s",
                each.name,
                problem,
            )
        pool.shutdown(wait=False)
    return found


def proxy_of(
    options: Options, service: Any, log: Any, served: dict[str, PostFields]
) -> Any:
    """The searches of the engine's indexes. ``served``: index -> options of its own."""
    from tweetrerank.indexes.engines.client import Credentials
    from tweetrerank.pipeline.service.proxy.ask import SearchDefaults
    from tweetrerank.pipeline.service.proxy.routes import Proxy
    from tweetrerank.pipeline.service.proxy.upstream import Upstream

    assert options.engine
    defaults = SearchDefaults(
        fields=fields_of(options),
        candidates=options.rerank_window,
        most=options.max_documents,
        seconds=options.rerank_timeout,
        weight=options.rerank_weight,
        indexes=options.engine_index,
        served=served,
        reads_ubi=log is not None,
    )
    upstream = Upstream(
        options.engine.split(","), Credentials.read(options.engine_auth).ca
    )
    if options.host not in LOOPBACK and upstream.is_open():
        LOG.warning(
            "%s asks for no password: everybody who reaches %s reads %s",
            *(options.engine, options.host, ", ".join(options.engine_index)),
        )
    return Proxy(service, upstream, defaults, log)


def bind(host: str, port: int) -> socket.socket:
    """A socket with an address, which does not listen yet; raises DataError."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
    except OSError as error:
        remedy = "end the other program, or choose another port"
        if error.errno != errno.EADDRINUSE:
            remedy = "expected an address of this machine, and a port that this user may take"
        problem = f"--host {host} --port {port}: {error.strerror or error}; {remedy}"
        raise DataError(problem) from None
    return listening


if __name__ == "__main__":
    run("serve")
