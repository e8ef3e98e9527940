"""Makes the proxy of a search engine from the options of the service."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tweetrerank.indexes.data_error import DataError
from tweetrerank.indexes.engines.address import EngineAddress
from tweetrerank.indexes.engines.client import Credentials, Engine
from tweetrerank.indexes.engines.layout import SIGNALS, TEXT, URL
from tweetrerank.pipeline.service.proxy.ask import PostFields, SearchDefaults
from tweetrerank.pipeline.service.proxy.routes import Proxy
from tweetrerank.pipeline.service.proxy.upstream import Upstream
from tweetrerank.pipeline.service.service_options import LOOPBACK, Options

if TYPE_CHECKING:
    from tweetrerank.pipeline.collections.collection import Collection
    from tweetrerank.pipeline.service.log import SearchLog
    from tweetrerank.pipeline.service.rerank_service import Service

LOG = logging.getLogger("tweetrerank.service")

# Seconds in which the engine must answer at the start and at a reload
ENGINE_SECONDS = 5.0


def proxy_of(
    options: Options,
    service: Service,
    log: SearchLog | None,
    served: dict[str, PostFields],
) -> Proxy:
    """Return the proxy for searches in the engine's indexes.

    Logs a warning if other machines could read an engine that needs no password.

    Args:
        options: the options of the service, which must name an engine.
        service: the service that scores the hits.
        log: the log for reranked searches, or None.
        served: the model and the fields for each index that belongs to a collection.
    """
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
    urls = options.engine.split(",")
    upstream = Upstream(urls, Credentials.read(options.engine_auth).ca)
    if options.host not in LOOPBACK and upstream.is_open():
        LOG.warning(
            "%s asks for no password: everybody who reaches %s reads %s",
            options.engine,
            options.host,
            ", ".join(options.engine_index),
        )
    return Proxy(service, upstream, defaults, log)


def fields_of(options: Options, address: EngineAddress | None = None) -> PostFields:
    """Return the fields of the posts in an index.

    Fields named by the options take precedence over those of the address, and these
    over the fields of indexes built by this project.
    """
    text = options.text_field
    url = options.url_field
    signals: list[tuple[str, str]] = []
    if address:
        text = text or address.text_field
        url = url or address.url_field
        if address.has_methods:  # An index that this project has built
            signals += [(name, f"{SIGNALS}.{name}") for name in address.signals]
    if not text:
        text = TEXT
        url = url or URL
    return PostFields((text,), url, (*signals, *options.signals))


def fields_by_index(
    options: Options, collections: Sequence[Collection]
) -> dict[str, PostFields]:
    """Return the model and the fields for each index that belongs to a collection.

    If a collection names an alias, the indexes behind it have the same fields.
    """
    fields: dict[str, PostFields] = {}
    if not options.engine:
        return fields
    for collection in collections:
        address = collection.engine
        if address is None:
            continue
        fields_of_index = replace(fields_of(options, address), model=collection.name)
        fields[address.index] = fields_of_index
        for index in _indexes_behind(address, collection.name):
            fields[index] = fields_of_index
    return fields


def _indexes_behind(address: EngineAddress, collection: str) -> list[str]:
    """Return the indexes behind an alias.

    If the engine fails, a warning is logged and there are none.
    """
    pool = ThreadPoolExecutor(1, "reload")
    try:
        indexes = list(pool.submit(_aliases, address).result(ENGINE_SECONDS))
    except (DataError, OSError) as error:
        # A TimeoutError, or a missing file with its user or CA
        problem = str(error) or f"no answer within {ENGINE_SECONDS:g} s"
        LOG.warning(
            "%s: its index may be an alias, which is not known: %s",
            collection,
            problem,
        )
        indexes = []
    pool.shutdown(wait=False)
    return indexes


def _aliases(address: EngineAddress) -> Any:
    return Engine(address).request("GET", f"/{address.index}/_alias")
