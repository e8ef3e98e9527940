"""A server that imitates the inference endpoints of an Elasticsearch."""

from __future__ import annotations

import json
from typing import Any

import requests

from helpers.engine_stub import Answer, Request


class FakeElasticsearch:
    """An instance answers requests.

    Attributes:
        quotes: whether it puts the query between quotes, as newer versions do.
        endpoints: path -> settings.
    """

    def __init__(self, quotes: bool) -> None:
        self.quotes, self.is_licensed = quotes, True
        self.endpoints: dict[str, Any] = {}

    def __call__(self, request: Request) -> Answer:
        path, body = request.path, request.body
        if path == "/":
            return 200, {"version": {"number": "9.1.0"}}
        if not self.is_licensed:
            return 403, {"error": {"type": "security", "reason": "license is non-compliant"}}
        if request.method == "PUT":
            answer = self._rerank(body["service_settings"], "test query", ["how big"])
            if answer[0] != 200:
                return 400, answer[1]
            self.endpoints[path] = body["service_settings"]
        if path not in self.endpoints:
            return 404, {"error": {"type": "resource_not_found_exception", "reason": "missing"}}
        if request.method == "DELETE":
            return 200, self.endpoints.pop(path)
        settings = self.endpoints[path]
        if request.method == "POST":
            return self._rerank(settings, body["query"], body["input"])
        return 200, {"endpoints": [{"service": "custom", "service_settings": settings}]}

    def _rerank(self, settings: Any, query: str, texts: list[str]) -> Answer:
        text = settings["request"].replace("${input}", json.dumps(texts))
        text = text.replace("${query}", json.dumps(query) if self.quotes else query)
        assert "${" not in text
        key = settings["secret_parameters"]["api_key"]
        headers = {k: v.replace("${api_key}", key) for k, v in settings["headers"].items()}
        answer = requests.post(settings["url"], data=text, headers=headers, timeout=10)
        return answer.status_code, {"rerank": answer.json().get("results")}
