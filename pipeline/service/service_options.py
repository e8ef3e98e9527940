"""Options of the service, and the defaults that its collections give them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

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
from tweetrerank.pipeline.usage_error import UsageError
from tweetrerank.rerankers.devices import device_name

if TYPE_CHECKING:
    from tweetrerank.indexes.engines.address import EngineAddress
    from tweetrerank.pipeline.collections.collection import Collection

DEFAULT_CHECKPOINT = "window"
# Addresses that only programs on this machine can reach
LOOPBACK = ("127.0.0.1", "::1", "localhost")


# Parsers of values


def renamed(text: str) -> tuple[tuple[str, str], ...]:
    """Parse ``NAME=FIELD,…`` into (name, field) pairs.

    A NAME without a FIELD stands for the field of the same name.
    """
    pairs = []
    for item in text.split(","):
        name, _, field = item.strip().partition("=")
        if not name:
            raise ValueError(
                f"found {text!r}, expected NAME=FIELD, several separated by commas"
            )
        pairs.append((name, field or name))
    return tuple(pairs)


def port(text: str) -> int:
    """Parse the number of a port. 0 stands for any free port."""
    if not text.isascii() or not text.isdigit() or int(text) > 65535:
        raise ValueError(
            f"found {text!r}, expected a port from 0 (any free one) to 65535"
        )
    return int(text)


def index_pattern(text: str) -> str:
    """Parse the name of an index, or a pattern of such names."""
    is_reserved = text[:1] in ("", ".", "_", "-", "+", "<")
    if is_reserved or any(character in text for character in " ,/?#"):
        raise ValueError(
            f"found {text!r}, expected the name of an index, or a pattern such as "
            "'posts-*'; several are given by several options"
        )
    return text


def host_name(text: str) -> str:
    """Parse a name as in the header Host but without a port, or ``*.example.com``."""
    name = text.lower()
    if not re.fullmatch(r"(\*\.)?[^*\s/:\[\]]+|\[[0-9a-f:.]+\]", name):
        raise ValueError(
            f"found {text!r}, expected a name without scheme and port: example.com"
        )
    return name


def origin(text: str) -> str:
    """Parse ``*`` or an origin, which has no path.

    The result is in lower case, as browsers send it.
    """
    name = text.lower()
    if not re.fullmatch(r"\*|null|[a-z][a-z0-9+.-]*://[^\s/?#*]+", name):
        raise ValueError(
            f"found {text!r}, expected * or an address such as https://example.com"
        )
    return name


FILE: Any = {"parse": existing_file, "metavar": "FILE"}
SIZE: Any = {"parse": size, "metavar": "SIZE"}


@dataclass(frozen=True)
class Options:
    """Models, collections, engine, address and limits."""

    checkpoint: tuple[str, ...] = option(
        "model to serve, by its name or its folder (default: "
        f"{DEFAULT_CHECKPOINT}); may be given several times, then requests choose by "
        "`model`",
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
        "name in the header Host of requests, or *.example.com; may be given several "
        "times (default: those of this machine where --host is one; else any)",
        parse=host_name,
        many=True,
        metavar="NAME",
    )
    cors_origin: tuple[str, ...] = option(
        "address of pages that may call this service from a browser, such as "
        "https://example.com, or *; may be given several times (default: none)",
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
        "where networks score, and the page's models: auto, cpu, cuda or cuda:N; trees "
        "are always on the CPU, encodings of posts are not kept on a GPU",
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
        "bytes for the posts that were read last, or 64MB, 1GB, …; all processes "
        "together",
        default=128_000_000,
        **SIZE,
    )
    order: str = option(
        "order of the documents of requests that do not say: first_stage is best "
        "first, unknown for clients that send them in no order, or in parts of up to "
        "32, whose scores compare if all are in one language",
        default="first_stage",
        choices=("first_stage", "unknown"),
    )
    log_texts: bool = option("write queries and documents into the log", flag=True)
    engine_auth: Path | None = option(
        "file of ca for --engine, whose callers name themselves (default: "
        "$TWEETRERANK_ENGINE_CA)",
        **FILE,
    )
    index: Path | None = option(
        "index that the page searches", parse=Path, metavar="DIR"
    )
    collection: tuple[str, ...] = option(
        "collection whose best model is served, under its name, and that the page "
        "searches; the proxy takes it for the collection's index. May be given several "
        "times: the page has the first",
        many=True,
        metavar="NAME|FILE",
    )
    grades: Path | None = option(
        "file of judgments in TREC's form, into which the page writes grades given by "
        "hand, with their topics in .topics.jsonl beside it (default: the page takes "
        "none)",
        parse=output_file,
        metavar="FILE",
    )
    data: Path | None = option("data folder (default: $TWEETRERANK_DATA)", parse=Path)
    engine: str | None = option(
        "answer the searches of OpenSearch or Elasticsearch at this address, reranked; "
        "several nodes are separated by commas (default: that of --collection)",
        parse=addresses,
        metavar="URL",
    )
    engine_index: tuple[str, ...] = option(
        "index that may be searched, by its name or a pattern such as 'posts-*'; may "
        "be given several times (default: that of --collection)",
        parse=index_pattern,
        many=True,
        metavar="PATTERN",
    )
    text_field: str | None = option(
        "field of the texts in the engine's indexes (default: that of --collection; "
        "else contents, and url of the links)",
        metavar="FIELD",
    )
    url_field: str | None = option("its field of links", metavar="FIELD")
    signals: tuple[tuple[str, str], ...] = option(
        "its fields of the numbers that the model was trained with, where they have "
        "other names there: likes=favorite_count,created=date",
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
        "share of the model beside the engine's score, both from 0 to 1 in each "
        "search; for queries whose own scores say more than their words (default: the "
        "model alone)",
        parse=fraction,
    )
    log: Path | None = option(
        "folder for a log of the reranked searches of --engine, and of their events "
        "(POST /events)",
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
        "model to compare with the served one by clicks, by its name or its folder: "
        "some searches of --engine show an interleaving of both; needs --log",
        metavar="NAME|DIR",
    )
    share: float = option("share of these searches", default=0.2, parse=fraction)


# Defaults from collections


class _Need(NamedTuple):
    """Options that have no effect without another option."""

    names: Sequence[str]
    needed: Any  # The other option, or the collections; empty if it is missing
    missing: str  # End of the message


def with_engine_of(options: Options, collections: Sequence[Collection]) -> Options:
    """Return the options, completed with the engine and indexes of the collections.

    Options that already name an engine or indexes stay as they are. Raises UsageError
    if the collections have different engines, if an option lacks another one that it
    needs, or if no index is known for an engine.
    """
    engines = [collection.engine for collection in collections if collection.engine]
    if options.engine is None and engines:
        _check_same(engines)
        auth = options.engine_auth or engines[0].auth
        options = replace(options, engine=engines[0].url, engine_auth=auth)
    problems = _missing_needs(options, collections)
    if problems:
        raise UsageError(problems)
    if options.engine and not options.engine_index:
        return _with_indexes_of(options, engines)
    return options


def _with_indexes_of(options: Options, engines: Sequence[EngineAddress]) -> Options:
    if not engines:
        raise UsageError(
            "--engine: found no --engine-index, expected the indexes that may be "
            "searched, such as --engine-index posts or --engine-index 'posts-*'"
        )
    indexes = tuple(address.index for address in engines)
    return replace(options, engine_index=indexes)


def _check_same(engines: Sequence[EngineAddress]) -> None:
    """Raise UsageError if collections are in different engines."""
    for name in ("url", "auth"):
        values = dict.fromkeys(str(getattr(address, name)) for address in engines)
        if len(values) > 1:
            problem = f"found {name} {' and '.join(values)}, expected the same"
            raise UsageError(f"--collection: {problem}; serve each of them by itself")


def _missing_needs(options: Options, collections: Sequence[Collection]) -> list[str]:
    needs = [
        _Need(
            ["grades"], collections, "--collection or --index, expected one to search"
        ),
        _Need(
            ["ssl_keyfile", "ssl_ca_certs"],
            options.ssl_certfile,
            "--ssl-certfile, expected one",
        ),
        _Need(["log"], options.engine, "--engine, whose reranked searches are logged"),
        _Need(["challenger"], options.log, "--log, expected the folder of one"),
        _Need(
            ["engine_index", "text_field", "url_field", "signals"],
            options.engine,
            "--engine, expected the address of one",
        ),
    ]
    problems = []
    for need in needs:
        names = [name for name in need.names if getattr(options, name)]
        if names and not need.needed:
            flags = [f"--{name.replace('_', '-')}" for name in names]
            problems.append(f"{' and '.join(flags)}: found no {need.missing}")
    return problems
