"""Cluster settings of OpenSearch without which it reaches no service."""

from __future__ import annotations

import ipaddress
import json
import re
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from indexes.engines.client import Engine
from pipeline.command.errors import DataError
from pipeline.installation.parts import spelled

TRUSTED = "plugins.ml_commons.trusted_connector_endpoints_regex"
PRIVATE = "plugins.ml_commons.connector.private_ip_enabled"
ONLY_ML_NODES = "plugins.ml_commons.only_run_on_ml_node"

RECORD = "cluster.metadata.tweetrerank"
"""Setting that holds what was changed: name -> value before and after, as JSON."""


def missing(engine: Engine, url: str) -> dict[str, tuple[Any, Any]]:
    """Settings that have to be changed for a service: name -> value in effect, and to be."""
    present = _flat(engine, defaults=True)
    effective = {**present["defaults"], **present["persistent"], **present["transient"]}
    changes: dict[str, tuple[Any, Any]] = {}
    patterns = effective.get(TRUSTED) or []
    if not any(_matches(pattern, f"{url}/v2/rerank") for pattern in patterns):
        changes[TRUSTED] = patterns, [*patterns, f"^{re.escape(url)}/.*$"]
    if _is_private(urlsplit(url).hostname or "") and spelled(effective.get(PRIVATE)) != "true":
        changes[PRIVATE] = effective.get(PRIVATE), True
    if spelled(effective.get(ONLY_ML_NODES)) == "true" and not _has_ml_nodes(engine):
        changes[ONLY_ML_NODES] = True, False
    return changes


def shown(changes: Mapping[str, tuple[Any, Any]]) -> str:
    """Changes, a line each; of a list only what is added."""
    lines = []
    for name, (old, new) in changes.items():
        if isinstance(new, list):
            added = [entry for entry in new if entry not in old]
            lines.append(f"  {name}: {', '.join(added)} beside the {len(old)} that are there")
        else:
            lines.append(f"  {name}: {spelled(new)} in place of {spelled(old)}")
    return "\n".join(lines)


def change(engine: Engine, changes: Mapping[str, tuple[Any, Any]]) -> None:
    """Change settings, and record it; raises DataError if others override them."""
    present = _flat(engine)
    record = _record(present)
    for name, (_, new) in changes.items():
        before = record[name]["before"] if name in record else present["persistent"].get(name)
        record[name] = {"before": before, "after": spelled(new)}
    persistent = {name: new for name, (_, new) in changes.items()}
    _put(engine, {**persistent, RECORD: json.dumps(record)})
    if overridden := [name for name in changes if name in present["transient"]]:
        raise DataError(
            f"{engine.address.urls[0]}: found transient cluster settings {', '.join(overridden)}, "
            "which override those that are kept; remove them and run this command again"
        )


def restore(engine: Engine) -> list[str]:
    """Give settings their values of before; a line for each."""
    present = _flat(engine)
    record, lines, values = _record(present), [], dict[str, Any]()
    for name, changed in record.items():
        if spelled(present["persistent"].get(name)) == changed["after"]:
            values[name] = changed["before"]
            lines.append(f"{name}: as before")
        else:
            lines.append(f"{name}: left, as somebody has changed it since")
    if record:
        _put(engine, {**values, RECORD: None})
    return lines


def _flat(engine: Engine, defaults: bool = False) -> dict[str, Any]:
    params = {"flat_settings": True, "include_defaults": defaults}
    return {"defaults": {}, **engine.request("GET", "/_cluster/settings", params=params)}


def _record(present: Mapping[str, Any]) -> dict[str, Any]:
    return dict(json.loads(present["persistent"].get(RECORD, "{}")))


def _put(engine: Engine, values: Mapping[str, Any]) -> None:
    engine.request("PUT", "/_cluster/settings", {"persistent": values})


def _matches(pattern: str, url: str) -> bool:
    with suppress(re.error):
        return re.fullmatch(pattern, url) is not None
    return False


def _is_private(host: str) -> bool:
    try:
        addresses = {str(info[4][0]) for info in socket.getaddrinfo(host, None)}
    except OSError:
        return False
    return any(not ipaddress.ip_address(a.partition("%")[0]).is_global for a in addresses)


def _has_ml_nodes(engine: Engine) -> bool:
    nodes = engine.request("GET", "/_nodes/http")["nodes"].values()
    return any("ml" in node.get("roles", ()) for node in nodes)
