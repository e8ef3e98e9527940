"""A server that imitates what pipeline.engine uses of OpenSearch, and of Elasticsearch."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from itertools import count
from typing import Any

import requests

from helpers.engine_stub import Answer, Request

MISSING: Answer = (404, {"error": {"type": "resource_not_found_exception", "reason": "missing"}})


class FakeOpenSearch:
    """The state of an OpenSearch with ML Commons; an instance answers requests.

    Attributes:
        changes: requests that changed something.
        hidden: models that searches do not show yet.
        is_slow: whether the next search after a model was made does not show it.
        confused: whether it takes all connectors for used as long as there is a model.
        deleting: whether somebody deletes each index before it is searched.
    """

    def __init__(self) -> None:
        self.hidden: set[str] = set()
        self.is_slow, self.confused, self.deleting = False, False, False
        self.persistent: dict[str, Any] = {}
        self.defaults = {
            "plugins.ml_commons.trusted_connector_endpoints_regex": ["^https://api\\.other/.*$"],
            "plugins.ml_commons.connector.private_ip_enabled": "false",
            "plugins.ml_commons.only_run_on_ml_node": "true",
        }
        self.made: dict[str, dict[str, Any]] = {
            kind: {} for kind in ("connectors", "models", "model_groups")
        }
        self.pipelines: dict[str, Any] = {}
        self.indexes: dict[str, Any] = {
            "posts": {"properties": {"contents": {"type": "text"}, "url": {"type": "keyword"}}}
        }
        self.default_pipelines: dict[str, str] = {}
        self.changes: list[str] = []
        self._ids = count(1)

    def __call__(self, request: Request) -> Answer:
        method, body = request.method, copy.deepcopy(request.body)
        head, *rest = request.path.strip("/").split("/")
        changing = method in ("PUT", "DELETE") or request.path.endswith(
            ("_create", "_register", "_deploy", "_undeploy")
        )
        if changing:
            self.changes.append(f"{method} {request.path}")
        if not head:
            return 200, {"version": {"number": "2.19.1", "distribution": "opensearch"}}
        if head == "_plugins":
            return self._ml(method, rest[1:], body)
        calls: dict[tuple[str, str], Callable[[], Answer]] = {
            ("_cluster", "GET"): self._settings,
            ("_cluster", "PUT"): lambda: self._set(body["persistent"]),
            ("_nodes", "GET"): lambda: (200, {"nodes": {"a": {"roles": ["data"]}}}),
            ("_mapping", "GET"): self._mappings,
        }
        if (head, method) in calls:
            return calls[head, method]()
        if head == "_search":
            return self._pipeline(method, rest[1], body)
        return self._index(method, head, rest[0], body)

    def _settings(self) -> Answer:
        shown = {
            k: str(v).lower() if isinstance(v, bool) else v for k, v in self.persistent.items()
        }
        return 200, {"defaults": self.defaults, "persistent": shown, "transient": {}}

    def _set(self, values: dict[str, Any]) -> Answer:
        self.persistent |= values
        self.persistent = {k: v for k, v in self.persistent.items() if v is not None}
        return 200, {"acknowledged": True}

    def _mappings(self) -> Answer:
        return 200, {name: {"mappings": one} for name, one in self.indexes.items()}

    def _pipeline(self, method: str, name: str, body: Any) -> Answer:
        if method == "PUT":
            self.pipelines[name] = body
        elif name not in self.pipelines:
            return (200, {}) if method == "GET" else MISSING
        elif method == "DELETE":
            del self.pipelines[name]
        return 200, {name: self.pipelines[name]} if method == "GET" else {"acknowledged": True}

    def _index(self, method: str, index: str, what: str, body: Any) -> Answer:
        names = list(self.indexes) if index == "_all" else [index]
        if what == "_mapping":
            return 200, {name: {"mappings": self.indexes[name]} for name in names}
        if what == "_settings":
            key = "index.search.default_pipeline"
            if method == "GET":
                found = self.default_pipelines
                return 200, {n: {"settings": {key: found[n]} if n in found else {}} for n in names}
            self.default_pipelines |= dict.fromkeys(names, body[key])
            self.default_pipelines = {k: v for k, v in self.default_pipelines.items() if v}
            return 200, {"acknowledged": True}
        if self.deleting:
            error = {"type": "index_not_found_exception", "reason": f"no such index [{index}]"}
            return 404, {"error": error}
        hits = [{"_id": "1", "_score": 1.0, "_source": {}}]
        return 200, {"hits": {"hits": hits}}

    def _ml(self, method: str, path: list[str], body: Any) -> Answer:
        kind, *rest = path
        if kind == "_predict":
            return self._predict(rest[1], body)
        kept = self.made[kind]
        if rest == ["_search"]:
            query = body["query"]
            name = query["bool"]["filter"][0]["term"]["name.keyword"] if "bool" in query else None
            hits = [
                {"_id": i, "_source": {k: v for k, v in one.items() if k != "credential"}}
                for i, one in kept.items()
                if name in (None, one["name"]) and i not in self.hidden
            ]
            self.hidden.clear()
            return 200, {"hits": {"hits": hits}}
        if rest in (["_create"], ["_register"]):
            made = f"{kind}-{next(self._ids)}"
            kept[made] = body
            if kind == "models":
                body["model_state"] = "REGISTERED"
                self.hidden |= {made} if self.is_slow else set()
                self.made["model_groups"]["group"] = {k: body[k] for k in ("name", "description")}
                return 200, {"task_id": "t", "model_id": made}
            return 200, {"connector_id": made}
        name, *rest = rest
        if name not in kept:
            return MISSING
        if rest:
            kept[name]["model_state"] = "DEPLOYED" if rest == ["_deploy"] else "UNDEPLOYED"
        elif method == "DELETE":
            if kept[name].get("model_state") == "DEPLOYED":
                return 400, {"error": {"type": "status_exception", "reason": "undeploy it first"}}
            used = [one.get("connector_id") for one in self.made["models"].values()]
            if kind == "connectors" and (name in used or (used and self.confused)):
                return 409, {"error": {"type": "status_exception", "reason": "a model uses it"}}
            del kept[name]
        return 200, {
            k: v for k, v in kept[name].items() if k != "credential"
        } if name in kept else {}

    def _predict(self, model: str, body: Any) -> Answer:
        """Ask the service as the connector says."""
        connector = self.made["connectors"][self.made["models"][model]["connector_id"]]
        action = connector["actions"][0]
        text = action["request_body"]
        for name, value in {
            "documents": json.dumps(body["text_docs"]),
            "query": body["query_text"],
            "model": connector["parameters"]["model"],
            "top_n": str(len(body["text_docs"])),
        }.items():
            text = text.replace(f"${{parameters.{name}}}", value)
        key = connector["credential"]["key"]
        headers = {k: v.replace("${credential.key}", key) for k, v in action["headers"].items()}
        try:
            answer = requests.post(action["url"], data=text, headers=headers, timeout=10)
        except requests.RequestException as error:
            return 500, {"error": {"type": "exception", "reason": str(error)}}
        if not answer.ok:
            reason = f"Error from remote service: {answer.text}"
            return answer.status_code, {"error": {"type": "status_exception", "reason": reason}}
        scores = {one["index"]: one["relevance_score"] for one in answer.json()["results"]}
        output = [{"data": [scores[row]]} for row in range(len(scores))]
        return 200, {"inference_results": [{"output": output}]}


class FakeElasticsearch:
    """The inference endpoints of an Elasticsearch; an instance answers requests.

    Attributes:
        quotes: whether it puts the query between quotes, as newer versions do.
    """

    def __init__(self, version: str = "9.1.0", quotes: bool = True) -> None:
        self.version, self.quotes = version, quotes
        self.endpoints: dict[str, Any] = {}
        self.licensed = True
        self.changes: list[str] = []

    def __call__(self, request: Request) -> Answer:
        if request.path == "/":
            return 200, {"version": {"number": self.version}}
        _, _, kind, name = request.path.split("/")
        assert kind == "rerank"
        if not self.licensed:
            reason = "current license is non-compliant for [inference]"
            return 403, {"error": {"type": "security_exception", "reason": reason}}
        if request.method != "GET" and request.method != "POST":
            self.changes.append(f"{request.method} {request.path}")
        if request.method == "PUT":
            status, found = self._rerank(request.body, "test query", ["how big"])
            if status == 200:
                settings = dict(request.body["service_settings"])
                self.secret = settings.pop("secret_parameters")
                self.endpoints[name] = {"service": "custom", "service_settings": settings}
            return (status, found) if status == 200 else (400, found)
        if name not in self.endpoints:
            return MISSING
        if request.method == "DELETE":
            del self.endpoints[name]
            return 200, {"acknowledged": True}
        if request.method == "GET":
            return 200, {"endpoints": [self.endpoints[name]]}
        kept = self.endpoints[name]["service_settings"] | {"secret_parameters": self.secret}
        asked = request.body
        return self._rerank({"service_settings": kept}, asked["query"], asked["input"])

    def _rerank(self, body: Any, query: str, texts: list[str]) -> Answer:
        settings = body["service_settings"]
        text = settings["request"].replace("${input}", json.dumps(texts))
        text = text.replace("${query}", json.dumps(query) if self.quotes else query)
        assert "${" not in text
        key = settings["secret_parameters"]["api_key"]
        headers = {k: v.replace("${api_key}", key) for k, v in settings["headers"].items()}
        answer = requests.post(settings["url"], data=text, headers=headers, timeout=10)
        if not answer.ok:
            return answer.status_code, {"error": {"type": "exception", "reason": answer.text}}
        found = answer.json()["results"]
        return 200, {"rerank": [{k: one[k] for k in ("index", "relevance_score")} for one in found]}
