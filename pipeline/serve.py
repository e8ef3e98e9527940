"""Serve rerankers over HTTP, in the formats of search engines and their clients.

python -m pipeline.serve
python -m pipeline.serve --checkpoint mp_hcnn --checkpoint my-checkpoint --port 8080
python -m pipeline.serve --host 0.0.0.0 --api-key-file keys.txt
python -m pipeline.serve --collection my-posts.toml --grades grades.txt
python -m pipeline.serve --engine http://localhost:9200 --engine-index 'posts-*'
python -m pipeline.serve --engine http://localhost:9200 --collection a.toml --log log
python -m pipeline.serve --collection a.toml  # with the proxy, if it names an engine
"""

from __future__ import annotations

import errno
import gc
import logging
import multiprocessing
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from logging.handlers import QueueListener
from multiprocessing import forkserver
from typing import TYPE_CHECKING, Any

from tweetrerank.indexes.data_error import DataError
from tweetrerank.pipeline.command.main import run
from tweetrerank.pipeline.runtime import choose_device, read_keys
from tweetrerank.pipeline.service.service_options import (
    DEFAULT_CHECKPOINT,
    LOOPBACK,
    Options,
    with_engine_of,
)

if TYPE_CHECKING:
    from tweetrerank.pipeline.collections.collection import Collection
    from tweetrerank.pipeline.service.limits import Limits
    from tweetrerank.pipeline.service.log import SearchLog
    from tweetrerank.pipeline.service.page.search_page import SearchPage
    from tweetrerank.pipeline.service.proxy.ask import PostFields
    from tweetrerank.pipeline.service.served_models import Models

LOG = logging.getLogger("tweetrerank.service")

# Names of this machine in the HTTP header Host
LOOPBACK_NAMES = ("127.0.0.1", "[::1]", "localhost")
# Modules that the fork server imports before it forks processes that score by trees
PRELOADED = ("tweetrerank.pipeline.service.workers", "wordfreq")
# Number of connections that may wait to be accepted
BACKLOG = 2048


def main(options: Options) -> None:
    """Check the options, bind the port, and serve.

    The port is bound before the models are loaded, so that a port in use is reported at
    once.
    """
    # SIGHUP asks to reload. There is nothing to reload until the event loop runs.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    collections = _open_collections(options)
    options = with_engine_of(options, collections)
    keys = read_keys(options.api_key_file) if options.api_key_file else []
    listening = bind(options.host, options.port)
    if not options.checkpoint and not options.collection:
        options = replace(options, checkpoint=(DEFAULT_CHECKPOINT,))
    names = list(options.checkpoint)
    names += [collection.name for collection in collections]
    # People read stdout; the log is on stderr.
    print(f"loading {', '.join(names)} …", flush=True)
    _import_service()
    serve(options, keys, collections, listening)


def _open_collections(options: Options) -> Sequence[Collection]:
    """Return the collections to search.

    If only ``--index`` is given, there is one collection without a name. Without both
    there is none.
    """
    names: list[str | None] = list(options.collection)
    if not names and options.index:
        names = [None]
    if not names:
        return []
    from tweetrerank.pipeline.collections.named import open_collection

    return [open_collection(name, options.index, data=options.data) for name in names]


def _import_service() -> None:
    """Import the service in this process while the fork server imports its modules.

    Raises DataError if the packages of the extra ``serve`` are not installed.
    """
    multiprocessing.set_forkserver_preload(list(PRELOADED))
    forkserver.ensure_running()
    try:
        import_module("tweetrerank.pipeline.service.app")
    except ModuleNotFoundError as error:
        raise DataError(
            f"found no package {error.name}; install the extra: "
            "pip install 'tweetrerank[serve]'"
        ) from None


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to the address but does not listen yet.

    Raises DataError if the address cannot be bound.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            remedy = "end the other program, or choose another port"
        else:
            remedy = (
                "expected an address of this machine, and a port that this user may "
                "take"
            )
        problem = f"--host {host} --port {port}: {error.strerror or error}"
        raise DataError(f"{problem}; {remedy}") from None
    return listening


# Building the application


def serve(
    options: Options,
    keys: list[str],
    collections: Sequence[Collection],
    listening: socket.socket,
) -> None:
    """Load the models, build the application, and serve until a signal ends it."""
    from tweetrerank.pipeline.service import app, connections
    from tweetrerank.pipeline.service.json_log import log_in_background
    from tweetrerank.pipeline.service.page.page_routes import routes
    from tweetrerank.pipeline.service.served_models import Models

    device = choose_device(options.device)
    load_tls = partial(
        connections.tls_of,
        options.ssl_certfile,
        options.ssl_keyfile,
        options.ssl_ca_certs,
    )
    tls = load_tls() if options.ssl_certfile else None
    threads = options.threads or len(os.sched_getaffinity(0))
    models = Models(
        options.checkpoint,
        options.cache,
        threads,
        collections if options.collection else (),
        device,
        options.challenger,
    )
    service = app.Service(
        models,
        _limits(options, keys),
        threads,
        options.log_texts,
        options.order == "first_stage",
    )
    page = _page(options, collections, models, device)
    log_listener = log_in_background()
    log = _search_log(options)
    fields: dict[str, PostFields] = {}  # Shared with the proxy
    proxy = None
    if options.engine:
        from tweetrerank.pipeline.service.proxy import proxy_setup

        fields.update(proxy_setup.fields_by_index(options, collections))
        proxy = proxy_setup.proxy_of(options, service, log, fields)

    def reload() -> None:
        if proxy:
            fields.update(proxy_setup.fields_by_index(options, collections))
        read_again(options, keys, partial(load_tls, known=tls))
        models.reload()
        if page:
            page.reload()

    connections.Connection.most_of_client = options.client_connections
    application = app.build(service, routes(page), proxy, log, reload)
    config = connections.config(application, tls, loop="uvloop")
    if not keys and options.host not in LOOPBACK:
        LOG.warning("everybody who reaches %s is served", options.host)
    listen(connections.Server(config), listening, models.served)
    for resource in (page, log):
        if resource:
            resource.close()
    end(log_listener)


def _page(
    options: Options, collections: Sequence[Collection], models: Models, device: str
) -> SearchPage | None:
    """Return the page that searches the first collection, None without a collection."""
    from tweetrerank.pipeline.service.page.grades import Grades
    from tweetrerank.pipeline.service.page.search_page import SearchPage

    grades = Grades(options.grades) if options.grades else None
    if not collections:
        return None
    return SearchPage(collections[0], lambda: models.served, grades, device)


def _limits(options: Options, keys: list[str]) -> Limits:
    from tweetrerank.pipeline.service.limits import Limits

    hosts = options.allow_host
    if not hosts and options.host in LOOPBACK:
        hosts = LOOPBACK_NAMES
    return Limits(
        documents=options.max_documents,
        body=options.max_body,
        waiting_documents=10 * options.max_documents,
        held=32 * options.max_body,
        hosts=hosts,
        keys=keys,
        origins=options.cors_origin,
        rate=options.client_requests,
    )


def _search_log(options: Options) -> SearchLog | None:
    from tweetrerank.pipeline.service.log import SearchLog

    if options.log is None:
        return None
    return SearchLog(
        options.log,
        options.log_queries == "plain",
        options.log_days,
        options.share,
    )


# Running it


def listen(server: Any, listening: socket.socket, names: Iterable[str]) -> None:
    """Listen, print the address, and serve until a signal ends it."""
    listening.listen(BACKLOG)  # From here on no connection is refused.
    host, port = listening.getsockname()[:2]
    if ":" in host:
        host = f"[{host}]"
    scheme = "https" if server.config.ssl else "http"
    url = f"{scheme}://{host}:{port}"
    LOG.info("serving %s on %s", ", ".join(names), url)
    print(url, flush=True)
    # Loaded objects stay until the end. Garbage collections need not look at them.
    gc.freeze()
    # uvicorn raises the signal again after the last request. It must not look like a
    # failure, because this is a regular end.
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    server.run(sockets=[listening])


def read_again(
    options: Options, keys: list[str], load_tls: Callable[[], object]
) -> None:
    """Read the keys and the certificate again, and write to the log what was read.

    If a file cannot be read, the old keys or the old certificate stay in use.
    """
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


def end(log_listener: QueueListener) -> None:
    """Write the last lines of the log, and wait up to 2 seconds for each thread.

    If a thread still runs then, the process exits at once.
    """
    threads = [
        thread
        for thread in threading.enumerate()
        if thread.name.startswith(("reload", "search"))
    ]
    flushing = threading.Thread(target=log_listener.stop, daemon=True)
    flushing.start()
    threads.append(flushing)
    for thread in threads:
        thread.join(2)
    if any(thread.is_alive() for thread in threads):
        # A regular exit would wait for these threads, which may wait for an engine.
        os._exit(0)


if __name__ == "__main__":
    run("serve")
