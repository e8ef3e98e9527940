"""Switch reranking on inside OpenSearch or Elasticsearch, look after it, or switch it off.

python -m pipeline.engine install --engine http://localhost:9200 --service http://localhost:8080
python -m pipeline.engine status --engine http://localhost:9200
python -m pipeline.engine remove --engine http://localhost:9200

The service is that of pipeline.serve, at an address that the engine reaches. In OpenSearch, install
makes a search pipeline with the processor rerank and all that it needs; in Elasticsearch (8.19, or
9.1 and newer) an inference endpoint, and it prints a search that uses it. Run twice it changes
nothing; with other options it changes what differs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.command.errors import DataError, UsageError
from pipeline.command.main import run
from pipeline.command.options import argument, existing_file, option

if TYPE_CHECKING:
    from pipeline.installation.parts import Installer, RerankService

ACTIONS = ("install", "status", "remove")


def action(text: str) -> str:
    """What to do."""
    if text not in ACTIONS:
        raise ValueError(f"found {text!r}, expected one of {', '.join(ACTIONS)}")
    return text


def pipeline_name(text: str) -> str:
    """A name that both engines take."""
    good = text[:1].isalpha() and all(c.isalnum() or c in "-_" for c in text) and text.isascii()
    if not good or text != text.lower():
        raise ValueError(f"found {text!r}, expected small letters, digits, - and _")
    return text


def fields(text: str) -> tuple[str, ...]:
    """The field of the texts, and perhaps that of their links."""
    names = tuple(name.strip() for name in text.split(","))
    if not 1 <= len(names) <= 2 or not all(names):
        raise ValueError(
            f"found {text!r}, expected the field of the texts, or this and the field of their "
            "links, such as contents,url; engines join more fields without a blank, so index one "
            "field that holds their texts"
        )
    return names


@dataclass(frozen=True)
class Options:
    """What to do, and where."""

    action: str = argument("install, status or remove", parse=action)
    engine: str = option("address of the search engine", required=True, metavar="URL")
    service: str | None = option(
        "address of the service, as the engine reaches it (for install)", metavar="URL"
    )
    pipeline: str = option(
        "name of the search pipeline (Elasticsearch: of the inference endpoint)",
        default="tweetrerank",
        parse=pipeline_name,
    )
    model: str | None = option("model of the service (default: its first)", metavar="NAME")
    fields: tuple[str, ...] | None = option(
        "field of the texts, and that of their links (default: contents,url; Elasticsearch: "
        "contents, as it sends one field)",
        parse=fields,
        metavar="FIELD[,FIELD]",
    )
    default_for: str | None = option(
        "index whose searches all go through a pipeline of its own, which lets those pass unranked "
        "that it cannot rerank (OpenSearch)",
        metavar="INDEX",
    )
    api_key_file: Path | None = option(
        "file of the service's keys, of which the first is used (default: it needs none)",
        parse=existing_file,
        metavar="FILE",
    )
    engine_auth: Path | None = option(
        'file of user and password, or api_key, and ca, as lines such as user = "admin" (default: '
        "$TWEETRERANK_ENGINE_USER, _PASSWORD, _API_KEY, _CA)",
        parse=existing_file,
        metavar="FILE",
    )
    texts_alone: bool = option(
        "install also a model that reads neither the order of the engine's hits nor statistics",
        flag=True,
    )
    yes: bool = option("change cluster settings without asking", flag=True)


def main(options: Options) -> None:
    """Install, print the state, or remove."""
    if options.action == "install" and not options.service:
        raise UsageError(["--service is missing: the address of the service, for install"])
    installer = open_installer(options)
    if options.action == "install":
        from pipeline.installation.parts import Installation, report

        service = connect(options, (options.service or "").rstrip("/"), options.model)
        report("service", str(service))
        if not (service.reads_first_stage or options.texts_alone):
            raise DataError(
                f"{service.model} would rank by the texts alone, which is worse than the engine on "
                "many collections; serve window, or start the service with --statistics, or "
                "install it nevertheless by --texts-alone"
            )
        fields = options.fields or installer.fields
        installer.install(
            Installation(service, fields, options.default_for), confirmation(options.yes)
        )
    elif options.action == "remove":
        installer.remove()
    else:
        installer.status(lambda url, model: connect(options, url, model))


def open_installer(options: Options) -> Installer:
    """The installer for the engine of the options."""
    from indexes.engines.address import EngineAddress
    from indexes.engines.client import Engine
    from pipeline.installation.elasticsearch import Elasticsearch
    from pipeline.installation.opensearch import OpenSearch

    engine = Engine.connect(EngineAddress(options.engine, "_all", options.engine_auth))
    kind = OpenSearch if engine.kind == "opensearch" else Elasticsearch
    return kind(engine, options.pipeline)


def connect(options: Options, url: str, model: str | None) -> RerankService:
    """The service at an address, with the key of the options."""
    from pipeline.installation.parts import RerankService
    from pipeline.serve import read_keys

    if not url.startswith(("http://", "https://")):
        raise UsageError([f"--service: found {url!r}, expected one such as http://localhost:8080"])
    key = read_keys(options.api_key_file)[0] if options.api_key_file else None
    return RerankService.connect(url, model, key)


def confirmation(yes: bool) -> Callable[[str], None]:
    """Prints changes of cluster settings; raises DataError if they are declined."""

    def confirm(changes: str) -> None:
        print(f"cluster settings to be changed:\n{changes}", file=sys.stderr, flush=True)
        if yes:
            return
        if not sys.stdin.isatty():
            raise DataError("nothing was changed, as there is nobody to ask; allow it by --yes")
        if input("change them? [y/N] ").strip().lower() not in ("y", "yes"):
            raise DataError("nothing was changed")

    return confirm


if __name__ == "__main__":
    run("engine")
