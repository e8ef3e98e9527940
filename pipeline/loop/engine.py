"""The log in an engine's indexes, in the form of OpenSearch's User Behavior Insights.

https://docs.opensearch.org/latest/search-plugins/ubi/schemas/
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from indexes.engines.address import EngineAddress
from indexes.engines.client import Engine, EngineError, encoded
from pipeline.command.errors import DataError
from pipeline.loop.log import EVENTS, SEARCHES

PAGE = 1000  # Documents of a request


def events_index(queries: str) -> str:
    """``ubi_events`` for ``ubi_queries``."""
    return queries.replace("queries", "events") if "queries" in queries else f"{queries}-events"


class EngineStore:
    """Keeps a log in two indexes of an engine; see :class:`pipeline.loop.log.Store`."""

    def __init__(self, address: EngineAddress) -> None:
        self._address = address
        self._engine: Engine | None = None

    def append(self, kind: str, records: Sequence[tuple[Mapping[str, Any], bytes]]) -> None:
        """Index records."""
        if not records:
            return
        engine = self._engine = self._engine or Engine.connect(self._address)
        index = self._address.index
        if kind == EVENTS:
            index = events_index(index)
        action = encoded({"index": {}})
        documents = (encoded(_ubi(kind, *record)) for record in records)
        lines = [line for document in documents for line in (action, document)]
        answer = engine.request("POST", f"/{index}/_bulk", b"\n".join([*lines, b""]))
        if answer.get("errors"):
            raise EngineError(f"{index}: documents of the log were refused")

    def close(self) -> None:
        """Nothing waits here."""


def _ubi(kind: str, record: Mapping[str, Any], line: bytes) -> dict[str, Any]:
    """A record of the log, whose line is given, too, in UBI's form."""
    moment = datetime.fromtimestamp(record["time"], UTC).isoformat(timespec="milliseconds")
    shared = {
        "application": "tweetrerank",
        "query_id": record["search_id"],
        "client_id": record["client_id"],
        "timestamp": moment.replace("+00:00", "Z"),
    }
    if kind == SEARCHES:
        names = ("index", "model", "version", "start", "challenger", "teams")
        shown = dict(zip(record["ids"], record["objects"] or record["ids"], strict=True))
        attributes = {name: record[name] for name in names if record[name] is not None}
        # Those of the record may be JSON already.
        scores = dict(zip(record["ids"], json.loads(line)["scores"], strict=True))
        attributes["scores"] = [scores[doc_id] for doc_id in record["shown"]]
        return {
            **shared,
            "query_response_id": record["search_id"],
            "user_query": record["query"],
            "query_response_hit_ids": [shown[doc_id] for doc_id in record["shown"]],
            "query_attributes": attributes,
        }
    attributes = {"object": {"object_id": record["object_id"]}}
    if record["position"] is not None:
        attributes["position"] = {"ordinal": record["position"]}
    return {**shared, "action_name": record["action"], "event_attributes": attributes}


def read(address: EngineAddress, kind: str) -> Iterator[dict[str, Any]]:
    """The records of an engine's log, also of UBI's own, as far as UBI has their fields.

    ``address``: of the index of queries.
    """
    engine, index = Engine.connect(address), address.index
    if kind == EVENTS:
        index = events_index(index)
    order = {"timestamp": {"order": "asc", "unmapped_type": "date"}}
    body: dict[str, Any] = {"size": PAGE, "sort": [order]}
    answer = engine.patiently("POST", f"/{index}/_search", body, {"scroll": "2m"})
    while hits := answer["hits"]["hits"]:
        for hit in hits:
            yield _record(kind, hit["_source"])
        body = {"scroll": "2m", "scroll_id": answer["_scroll_id"]}
        answer = engine.request("POST", "/_search/scroll", body)


def _record(kind: str, source: Mapping[str, Any]) -> dict[str, Any]:
    search_id = source.get("query_id")
    if not isinstance(search_id, str):
        raise DataError(f"found a document without query_id, expected those of UBI's {kind}")
    moment = source.get("timestamp")
    if isinstance(moment, str):
        moment = datetime.fromisoformat(moment).timestamp()
    elif moment is not None:
        moment /= 1000
    record = {"search_id": search_id, "time": moment, "client_id": source.get("client_id")}
    if kind == SEARCHES:
        shown = [str(doc_id) for doc_id in source.get("query_response_hit_ids") or ()]
        attributes = source.get("query_attributes") or {}
        names = ("version", "challenger", "teams", "scores")
        more = {name: attributes.get(name) for name in names}
        start = int(attributes.get("start") or 0)
        record |= {"query": source.get("user_query"), "shown": shown, "start": start, **more}
        return record
    attributes = source.get("event_attributes") or {}
    object_id = (attributes.get("object") or {}).get("object_id")
    record |= {"action": source.get("action_name")}
    return record | {"object_id": None if object_id is None else str(object_id)}
