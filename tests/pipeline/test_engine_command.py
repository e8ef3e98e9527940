"""Reranking switched on in search engines: a real OpenSearch, a fake Elasticsearch."""

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import requests
import yaml
from conftest import Command
from helpers.engine_servers import Server, running
from helpers.engine_stub import Answer, Request, stub
from helpers.index_samples import POSTS
from helpers.processes import ROOT
from helpers.service_samples import (
    QUERY,
    GatedScorer,
    app_of,
    listening,
    models,
    scored_by,
)

from tweetrerank.indexes.engines.filling import build
from tweetrerank.pipeline import engine as engine_command
from tweetrerank.pipeline import serve
from tweetrerank.pipeline.command.options import parse_arguments
from tweetrerank.pipeline.service import connections

JSON = {"content-type": "application/json"}
PRIVATE = "plugins.ml_commons.connector.private_ip_enabled"


@pytest.fixture(scope="module")
def service() -> Iterator[str]:
    with listening(app_of(models=models("window"))) as url:
        yield url


def output_of(command: Command, line: str, code: int = 0) -> str:
    """Text of the command ``engine`` on both channels."""
    result = command(f"engine {line}", code=code)
    return result.out + result.err


# Elasticsearch


class FakeElasticsearch:
    """Imitates inference endpoints; newer versions put the query between ``quotes``."""

    def __init__(self, quotes: bool) -> None:
        self.quotes = quotes
        self.is_licensed = True
        self.endpoints: dict[str, Any] = {}  # Path -> settings

    def __call__(self, request: Request) -> Answer:
        path = request.path
        if path == "/":
            return 200, {"version": {"number": "9.1.0"}}
        if not self.is_licensed:
            reason = "license is non-compliant"
            return 403, {"error": {"type": "security", "reason": reason}}
        if request.method == "PUT":
            return self._put(path, request.body["service_settings"])
        if path not in self.endpoints:
            kind = "resource_not_found_exception"
            return 404, {"error": {"type": kind, "reason": "missing"}}
        settings = self.endpoints[path]
        if request.method == "DELETE":
            return 200, self.endpoints.pop(path)
        if request.method == "POST":
            return self._rerank(settings, request.body["query"], request.body["input"])
        return 200, {"endpoints": [{"service": "custom", "service_settings": settings}]}

    def _put(self, path: str, settings: Any) -> Answer:
        status, body = self._rerank(settings, "test query", ["how big"])
        if status != 200:
            return 400, body
        self.endpoints[path] = settings
        return 200, {"endpoints": [{"service": "custom", "service_settings": settings}]}

    def _rerank(self, settings: Any, query: str, texts: list[str]) -> Answer:
        text = settings["request"].replace("${input}", json.dumps(texts))
        text = text.replace("${query}", json.dumps(query) if self.quotes else query)
        assert "${" not in text
        key = settings["secret_parameters"]["api_key"]
        headers = {}
        for name, value in settings["headers"].items():
            headers[name] = value.replace("${api_key}", key)
        response = requests.post(
            settings["url"], data=text, headers=headers, timeout=10
        )
        return response.status_code, {"rerank": response.json().get("results")}


@pytest.fixture(params=[True, False], ids=["quotes", "no quotes"])
def elasticsearch(request: pytest.FixtureRequest) -> FakeElasticsearch:
    return FakeElasticsearch(request.param)


def test_elasticsearch(
    command: Command, service: str, elasticsearch: FakeElasticsearch
) -> None:
    with stub(elasticsearch) as engine:
        install = f"install --engine {engine} --service {service}"
        assert "trial: two texts are ranked" in output_of(command, install)
        # A second installation replaces the first one.
        out = output_of(command, install)
        assert "trial: two texts are ranked" in out
        (search,) = re.findall(r"^\{.*^\}", out, re.DOTALL | re.MULTILINE)
        retriever = json.loads(search)["retriever"]["text_similarity_reranker"]
        assert retriever["inference_id"] == "tweetrerank"
        assert retriever["field"] == "contents"
        status = output_of(command, f"status --engine {engine}")
        assert f"tweetrerank to {service}" in status
        (settings,) = elasticsearch.endpoints.values()
        settings["url"] = f"{service}/else"
        output_of(command, f"status --engine {engine}", code=1)
        output_of(command, f"remove --engine {engine}")
        assert elasticsearch.endpoints == {}


def test_no_default_in_elasticsearch(command: Command, service: str) -> None:
    with stub(FakeElasticsearch(quotes=True)) as engine:
        install = f"install --engine {engine} --service {service}"
        out = output_of(command, f"{install} --default-for posts", code=1)
        assert "is for OpenSearch" in out


def test_the_endpoint_of_somebody_else(command: Command, service: str) -> None:
    elasticsearch = FakeElasticsearch(quotes=True)
    elasticsearch.endpoints["/_inference/rerank/tweetrerank"] = {}
    with stub(elasticsearch) as engine:
        install = f"install --engine {engine} --service {service}"
        assert "found another" in output_of(command, install, code=1)


def test_no_licence(command: Command, service: str) -> None:
    elasticsearch = FakeElasticsearch(quotes=True)
    elasticsearch.is_licensed = False
    with stub(elasticsearch) as engine:
        install = f"install --engine {engine} --service {service}"
        out = output_of(command, install, code=1)
        assert "with inference in its licence" in out


# An OpenSearch that lacks its plugins


@pytest.fixture
def bare_opensearch() -> Iterator[str]:
    def answer(request: Request) -> Answer:
        if request.path == "/":
            return 200, {"version": {"number": "3.6.0", "distribution": "opensearch"}}
        return 400, {"error": f"no handler found for uri [{request.path}]"}

    with stub(answer) as url:
        yield url


def test_no_plugins(command: Command, bare_opensearch: str, service: str) -> None:
    line = f"install --engine {bare_opensearch} --service {service}"
    out = output_of(command, line, code=1)
    assert "OpenSearch needs its plugins ML Commons and neural-search" in out


def test_no_service(command: Command, bare_opensearch: str) -> None:
    install = f"install --engine {bare_opensearch}"
    message = "found no models reading the order of hits, expected one"
    assert message in output_of(command, f"{install} --service http://127.0.0.1:9", 1)
    # An engine is no service.
    out = output_of(command, f"{install} --service {bare_opensearch}", code=1)
    assert message in out


def test_no_such_model(command: Command, bare_opensearch: str, service: str) -> None:
    install = f"install --engine {bare_opensearch} --service {service}"
    out = output_of(command, f"{install} --model fusion", code=1)
    assert "found window reading the order of hits, expected fusion" in out


def test_no_model_that_reads_the_order(command: Command, bare_opensearch: str) -> None:
    with listening(app_of()) as alone:
        install = f"install --engine {bare_opensearch} --service {alone}"
        assert "--checkpoint window" in output_of(command, install, code=1)


def test_shifted_scores_begin_at_0(service: str) -> None:
    body = {"query": "storm", "documents": ["storm", "lunch", "a storm"]}

    def results(path: str, option: str) -> Any:
        response = requests.post(service + path, json=body | {option: True})
        return response.json()["results"]

    shifted = results("/v2/rerank", "shift")
    raw = results("/rerank", "raw_scores")
    assert [item["index"] for item in shifted] == [item["index"] for item in raw]
    scores = [item["relevance_score"] for item in shifted]
    lowest = raw[-1]["relevance_score"]
    expected = [item["relevance_score"] - lowest for item in raw]
    assert scores == pytest.approx(expected, abs=1e-5)
    assert scores[-1] == 0


# Files of containers and clusters


def test_commands_of_the_containers_exist() -> None:
    folder = ROOT / "scripts" / "docker"
    compose = (folder / "compose.yaml").read_text().replace("\\\n#", "")
    (line,) = re.findall(r"tweetrerank engine (.*)", compose)
    options = parse_arguments(engine_command.Options, "", "", line.split())
    assert options.action == "install"
    assert options.service == "http://service:8080"
    dockerfile = (folder / "Dockerfile").read_text()
    assert 'ENTRYPOINT ["tweetrerank"]' in dockerfile.splitlines()
    (words,) = re.findall(r"^CMD (.*)$", dockerfile, re.MULTILINE)
    name, *arguments = json.loads(words)
    assert name == "serve"
    assert parse_arguments(serve.Options, "", "", arguments).host == "0.0.0.0"


def test_the_manifest_of_the_cluster_fits_its_schema_and_the_service() -> None:
    path = ROOT / "scripts" / "docker" / "kubernetes.yaml"
    deployment, service = yaml.safe_load_all(path.read_text(encoding="utf-8"))
    for resource in (deployment, service):
        kubernetes_validate.validate(resource, "1.30", strict=True)
    pod = deployment["spec"]["template"]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    (container,) = pod["spec"]["containers"]
    # Keys come with the cluster's secret.
    arguments = container["args"]
    assert arguments[-1].startswith("--api-key-file=")
    options = parse_arguments(serve.Options, "", "", arguments[1:-1])
    assert container["ports"][0]["containerPort"] == options.port
    assert container["resources"]["limits"]["cpu"] == str(options.threads)
    assert list(options.checkpoint) == [serve.DEFAULT_CHECKPOINT]
    probes = {}
    for name in container:
        if "Probe" in name:
            probes[name] = container[name]["httpGet"]["path"]
    assert probes == {
        "startupProbe": "/ready",
        "readinessProbe": "/ready",
        "livenessProbe": "/health",
    }
    assert pod["spec"]["terminationGracePeriodSeconds"] > connections.GRACE


# A real OpenSearch


def put(url: str, body: Any, **params: str) -> requests.Response:
    return requests.put(url, json=body, params=params, timeout=60)


@pytest.fixture
def server() -> Iterator[Server]:
    """An OpenSearch; the settings of its models are restored."""
    with running("opensearch") as server:
        url = f"{server.url}/_cluster/settings"
        params = {"flat_settings": "true"}
        settings = requests.get(url, params=params, timeout=60).json()["persistent"]
        yield server
        names = (engine_command.TRUSTED, PRIVATE)
        old = {name: settings.get(name) for name in names}
        assert put(url, {"persistent": old}).ok


@dataclass
class Installation:
    """The command ``engine`` for an index of a server; its name is the pipeline's."""

    server: Server
    index: str
    command: Command
    options: str

    def run(self, action: str, code: int = 0) -> str:
        return output_of(self.command, f"{action} {self.options}", code)

    def search(self, text: str | None, more: Any = None, **params: Any) -> Any:
        """The response to a search; the query text is that of the pipeline."""
        query = {"match": {"contents": "alpha bravo"}}
        body = {"size": 20, "query": query} | (more or {})
        if text is not None:
            body["ext"] = {"rerank": {"query_context": {"query_text": text}}}
        url = f"{self.server.url}/{self.index}/_search"
        return requests.post(url, json=body, params=params, timeout=60)

    def hits(self, text: str | None, more: Any = None, **params: Any) -> Any:
        return self.search(text, more, **params).json()["hits"].get("hits")


@pytest.mark.opensearch
def test_a_real_opensearch(server: Server, command: Command, tmp_path: Path) -> None:
    """One test: all of it depends on settings of the cluster."""
    address = server.address()
    keys = tmp_path / "keys"
    build(address, POSTS, [], tmp_path / "kept", "make it again")
    keys.write_text("first\nsecond\n")
    options = f"--engine {server.url} --pipeline {address.index} --api-key-file {keys}"
    installation = Installation(server, address.index, command, options)
    with listening(app_of(models=models("window"), keys=["first", "other"])) as service:
        port = int(service.rpartition(":")[2])
        installation.options += f" --service {service}"
        check_refused(installation)
        check_installed(installation, service)
    check_moved_and_slow(installation, port)
    keys.write_text("third")
    with listening(app_of(models=models("window"), keys=["third"]), port):
        status = installation.run("status", code=1)
        assert "the engine has no key, or a wrong one" in status
        assert "removed: " in installation.run("install --text-field url")
        assert "reranks by url, url" in installation.run("status")
    check_removed(installation)


def check_refused(installation: Installation) -> None:
    server = installation.server
    index = installation.index
    install = f"install --default-for {index}"
    (body,) = re.findall("curl .* -d '(.*)'", installation.run(install, code=1))
    url = f"{server.url}/_cluster/settings"
    assert requests.put(url, data=body, headers=JSON, timeout=60).ok
    pipeline = f"{server.url}/_search/pipeline/{index}"
    assert put(pipeline, {"response_processors": []}).ok
    message = "found another, expected what engine install makes"
    for action in ("install", "status", "remove"):
        assert message in installation.run(action, code=1)
    assert requests.delete(pipeline, timeout=60).ok
    settings = f"{server.url}/{index}/_settings"
    message = "found the default pipeline theirs"
    assert put(settings, {engine_command.DEFAULT: "theirs"}).ok
    assert message in installation.run(install, code=1)
    assert put(settings, {engine_command.DEFAULT: "_none"}).ok
    assert message not in installation.run(install)


def check_installed(installation: Installation, service: str) -> None:
    """The scores are the service's, of the hits of a search without the pipeline."""
    index = installation.index
    out = installation.run("install")
    assert f"default of: {index}\n" in out
    assert f"to {service}, timeout 2 s" in out
    assert "trial: a search reranks 10 posts" in out
    assert "first" not in out  # The key
    post = {"contents": "alpha bravo", "url": None}
    url = f"{installation.server.url}/{index}/_doc/bare"
    assert put(url, post, refresh="true").ok
    plain = installation.hits(None, search_pipeline="_none")
    expected = scores_of(service, plain)
    # By name, and by default
    for params in ({"search_pipeline": index}, {}):
        hits = installation.hits("alpha bravo", **params)
        scores = {hit["_id"]: hit["_score"] for hit in hits}
        assert list(scores) == list(expected)
        assert scores == pytest.approx(expected)
    # Without a text, the pipeline fails; the default one passes the hits through.
    assert installation.hits(None) == plain
    assert installation.search(None, search_pipeline=index).status_code == 500
    check_searches_without_texts(installation)


def scores_of(service: str, hits: Any) -> dict[str, float]:
    """The scores of hits by the service, the best first."""
    documents = []
    for hit in hits:
        source = hit["_source"]
        documents.append({"text": source["contents"], "url": source["url"]})
    response = requests.post(
        f"{service}/v2/rerank",
        json={"query": "alpha bravo", "documents": documents},
        headers={"authorization": "Bearer other"},
        timeout=60,
    )
    scores = {}
    for item in response.json()["results"]:
        scores[hits[item["index"]]["_id"]] = item["relevance_score"]
    return scores


def check_searches_without_texts(installation: Installation) -> None:
    """Searches without posts, or without their count, fail; by default they pass."""
    searches: list[dict[str, Any]] = [
        {"_source": False},
        {"size": 0},
        {"track_total_hits": False},
        {"from": 9000},
    ]
    pipeline = installation.index
    for more in searches:
        response = installation.search("alpha bravo", more, search_pipeline=pipeline)
        assert response.status_code >= 400
        assert ("empty texts" in response.text) == ("_source" in more)
        hits = installation.hits(QUERY, more)
        assert hits == installation.search(None, more).json()["hits"]["hits"]


def check_moved_and_slow(installation: Installation, port: int) -> None:
    """Without the service, or with a slow one, the engine's ranking goes out."""
    plain = installation.hits(None)
    assert installation.hits(QUERY) == plain
    assert "no models reading the order" in installation.run("status", code=1)
    scorer = GatedScorer()
    scorer.gate.set()
    with listening(app_of(models=scored_by(scorer, "window"), keys=["first"]), port):
        installation.run("status")
        scorer.gate.clear()
        started = time.monotonic()
        assert installation.hits(QUERY) == plain
        response = installation.search(QUERY, search_pipeline=installation.index)
        assert response.status_code >= 400
        assert time.monotonic() - started < 10
        scorer.gate.set()


def check_removed(installation: Installation) -> None:
    assert installation.run("remove").count("removed: ") == 5
    assert "found nothing" in installation.run("status", code=1)
    assert installation.search(None).status_code == 200
    body = {"query": {"term": {"name.keyword": installation.index}}}
    for kind in ("models", "connectors", "model_groups"):
        url = f"{installation.server.url}/_plugins/_ml/{kind}/_search"
        response = requests.post(url, json=body, timeout=60)
        assert response.json()["hits"]["hits"] == []
