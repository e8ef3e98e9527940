"""Reranking switched on inside search engines: a real OpenSearch, and an imitated Elasticsearch."""

import json
import re
import time
from collections.abc import Iterator
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


def done(command: Command, code: int, *arguments: str) -> str:
    """What a command prints on both channels."""
    found = command("engine", *arguments, code=code)
    return found.out + found.err


class FakeElasticsearch:
    """Imitates inference endpoints; newer versions put the query between ``quotes``."""

    def __init__(self, quotes: bool) -> None:
        self.quotes, self.is_licensed = quotes, True
        self.endpoints: dict[str, Any] = {}  # Path -> settings

    def __call__(self, request: Request) -> Answer:
        path, body = request.path, request.body
        if path == "/":
            return 200, {"version": {"number": "9.1.0"}}
        if not self.is_licensed:
            return 403, {
                "error": {"type": "security", "reason": "license is non-compliant"}
            }
        if request.method == "PUT":
            answer = self._rerank(body["service_settings"], "test query", ["how big"])
            if answer[0] != 200:
                return 400, answer[1]
            self.endpoints[path] = body["service_settings"]
        if path not in self.endpoints:
            return 404, {
                "error": {"type": "resource_not_found_exception", "reason": "missing"}
            }
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
        headers = {
            k: v.replace("${api_key}", key) for k, v in settings["headers"].items()
        }
        answer = requests.post(settings["url"], data=text, headers=headers, timeout=10)
        return answer.status_code, {"rerank": answer.json().get("results")}


def test_what_no_engine_installs(command: Command, service: str) -> None:
    def answer(request: Request) -> Answer:
        if request.path == "/":
            return 200, {"version": {"number": "3.6.0", "distribution": "opensearch"}}
        return 400, {"error": f"no handler found for uri [{request.path}]"}

    with stub(answer) as engine:
        job = ("install", "--engine", engine)
        order = "reading the order of hits, expected"
        for nothing in ("http://127.0.0.1:9", engine):
            assert f"found no models {order} one" in done(
                command, 1, *job, "--service", nothing
            )
        other = done(command, 1, *job, "--service", service, "--model", "fusion")
        assert f"found window {order} fusion" in other
        with listening(app_of()) as alone:
            assert "--checkpoint window" in done(command, 1, *job, "--service", alone)
        out = done(command, 1, *job, "--service", service)
        assert "OpenSearch needs its plugins ML Commons and neural-search" in out


@pytest.mark.parametrize("quotes", [True, False])
def test_elasticsearch(command: Command, service: str, quotes: bool) -> None:
    fake = FakeElasticsearch(quotes)
    with stub(fake) as engine:
        job = ("install", "--engine", engine, "--service", service)
        assert "is for OpenSearch" in done(command, 1, *job, "--default-for", "posts")
        for _ in range(2):
            out = done(command, 0, *job)
            assert "trial: two texts are ranked" in out
            search = json.loads(
                re.findall(r"^\{.*^\}", out, re.DOTALL | re.MULTILINE)[0]
            )
        retriever = search["retriever"]["text_similarity_reranker"]
        assert (retriever["inference_id"], retriever["field"]) == (
            "tweetrerank",
            "contents",
        )
        assert f"tweetrerank to {service}" in done(
            command, 0, "status", "--engine", engine
        )
        (settings,) = fake.endpoints.values()
        settings["url"] = service + "/else"
        done(command, 1, "status", "--engine", engine)
        done(command, 0, "remove", "--engine", engine)
        assert fake.endpoints == {}
        fake.endpoints["/_inference/rerank/tweetrerank"] = {}
        assert "found another" in done(command, 1, *job)
        fake.is_licensed = False
        assert "with inference in its licence" in done(command, 1, *job)


def test_shifted_scores_begin_at_0(service: str) -> None:
    body = {"query": "storm", "documents": ["storm", "lunch", "a storm"]}
    shifted, raw = (
        requests.post(service + path, json=body | {option: True}).json()["results"]
        for path, option in (("/v2/rerank", "shift"), ("/rerank", "raw_scores"))
    )
    assert [item["index"] for item in shifted] == [item["index"] for item in raw]
    scores = [item["relevance_score"] for item in shifted]
    expected = [item["relevance_score"] - raw[-1]["relevance_score"] for item in raw]
    assert scores == pytest.approx(expected, abs=1e-5) and scores[-1] == 0


def test_commands_of_the_containers_exist() -> None:
    folder = ROOT / "scripts" / "docker"
    compose = (folder / "compose.yaml").read_text().replace("\\\n#", "")
    (arguments,) = re.findall(r"tweetrerank engine (.*)", compose)
    options = parse_arguments(engine_command.Options, "", "", arguments.split())
    assert (options.action, options.service) == ("install", "http://service:8080")
    lines = (folder / "Dockerfile").read_text().splitlines()
    (start,) = [
        json.loads(line.removeprefix("CMD "))
        for line in lines
        if line.startswith("CMD ")
    ]
    assert start[0] == "serve"
    assert parse_arguments(serve.Options, "", "", start[1:]).host == "0.0.0.0"
    assert 'ENTRYPOINT ["tweetrerank"]' in lines


def test_the_manifest_of_the_cluster_fits_its_schema_and_the_service() -> None:
    manifest = (ROOT / "scripts" / "docker" / "kubernetes.yaml").read_text(
        encoding="utf-8"
    )
    deployment, service = yaml.safe_load_all(manifest)
    for resource in (deployment, service):
        kubernetes_validate.validate(resource, "1.30", strict=True)
    pod = deployment["spec"]["template"]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    (container,) = pod["spec"]["containers"]
    # Keys come with the cluster's secret.
    *arguments, keys = container["args"]
    assert keys.startswith("--api-key-file=")
    options = parse_arguments(serve.Options, "", "", arguments[1:])
    assert container["ports"][0]["containerPort"] == options.port
    assert container["resources"]["limits"]["cpu"] == str(options.threads)
    assert [*options.checkpoint] == [serve.DEFAULT_CHECKPOINT]
    probes = {
        name: container[name]["httpGet"]["path"]
        for name in container
        if "Probe" in name
    }
    ready = dict.fromkeys(("startupProbe", "readinessProbe"), "/ready")
    assert probes == ready | {"livenessProbe": "/health"}
    assert pod["spec"]["terminationGracePeriodSeconds"] > connections.GRACE


@pytest.fixture
def server() -> Iterator[Server]:
    """An OpenSearch; settings of its models are restored."""
    with running("opensearch") as opened:
        path = f"{opened.url}/_cluster/settings"
        before = requests.get(path, params={"flat_settings": "true"}, timeout=60).json()
        yield opened
        old = {
            name: before["persistent"].get(name)
            for name in (engine_command.TRUSTED, PRIVATE)
        }
        assert requests.put(path, json={"persistent": old}, timeout=60).ok


def searched(
    server: Server, index: str, text: str | None, more: Any = None, **params: Any
) -> Any:
    body = {"size": 20, "query": {"match": {"contents": "alpha bravo"}}, **(more or {})}
    if text is not None:
        body["ext"] = {"rerank": {"query_context": {"query_text": text}}}
    return requests.post(
        f"{server.url}/{index}/_search", json=body, params=params, timeout=60
    )


@pytest.mark.opensearch
def test_a_real_opensearch(server: Server, command: Command, tmp_path: Path) -> None:
    """One test: all of it depends on settings of the cluster."""
    address, keys, port = server.address(), tmp_path / "keys", 0
    build(address, POSTS, [], tmp_path / "kept", "make it again")
    keys.write_text("first\nsecond\n")
    job = [
        "--engine",
        server.url,
        "--pipeline",
        address.index,
        "--api-key-file",
        str(keys),
    ]
    with listening(app_of(models=models("window"), keys=["first", "other"])) as service:
        port = int(service.rpartition(":")[2])
        job += ["--service", service]
        refused(server, address.index, job, command)
        installed(server, address.index, job, command)
    moved_and_slow(server, address.index, job, command, port)
    keys.write_text("third")
    with listening(app_of(models=models("window"), keys=["third"]), port):
        assert "the engine has no key, or a wrong one" in done(
            command, 1, "status", *job
        )
        assert "removed: " in done(command, 0, "install", *job, "--text-field", "url")
        assert "reranks by url, url" in done(command, 0, "status", *job)
    assert done(command, 0, "remove", *job).count("removed: ") == 5
    assert "found nothing" in done(command, 1, "status", *job)
    assert searched(server, address.index, None).status_code == 200
    for kind in ("models", "connectors", "model_groups"):
        body = {"query": {"term": {"name.keyword": address.index}}}
        left = requests.post(
            f"{server.url}/_plugins/_ml/{kind}/_search", json=body, timeout=60
        )
        assert left.json()["hits"]["hits"] == []


def refused(server: Server, index: str, job: list[str], command: Command) -> None:
    install = ("install", *job, "--default-for", index)
    (body,) = re.findall("curl .* -d '(.*)'", done(command, 1, *install))
    assert requests.put(
        f"{server.url}/_cluster/settings", data=body, headers=JSON, timeout=60
    ).ok
    theirs = {"response_processors": []}
    pipeline, settings = (
        f"{server.url}/_search/pipeline/{index}",
        f"{server.url}/{index}/_settings",
    )
    assert requests.put(pipeline, json=theirs, timeout=60).ok
    for action in ("install", "status", "remove"):
        assert "found another, expected what engine install makes" in done(
            command, 1, action, *job
        )
    assert requests.delete(pipeline, timeout=60).ok
    for default, code in (("theirs", 1), ("_none", 0)):
        body = {engine_command.DEFAULT: default}
        assert requests.put(settings, json=body, timeout=60).ok
        found = done(command, code, *install)
        assert ("found the default pipeline theirs" in found) == code


def installed(server: Server, index: str, job: list[str], command: Command) -> None:
    """The scores are those of the service for what a search without the pipeline finds."""
    out = done(command, 0, "install", *job)
    assert f"default of: {index}\n" in out and f"to {job[-1]}, timeout 2 s" in out
    assert "trial: a search reranks 10 posts" in out and "first" not in out
    bare, path = (
        {"contents": "alpha bravo", "url": None},
        f"{server.url}/{index}/_doc/bare",
    )
    assert requests.put(path, json=bare, params={"refresh": "true"}, timeout=60).ok
    plain = searched(server, index, None, search_pipeline="_none").json()["hits"][
        "hits"
    ]
    documents = [
        {"text": h["_source"]["contents"], "url": h["_source"]["url"]} for h in plain
    ]
    body, key = (
        {"query": "alpha bravo", "documents": documents},
        {"authorization": "Bearer other"},
    )
    answer = requests.post(
        f"{job[-1]}/v2/rerank", json=body, headers=key, timeout=60
    ).json()
    expected = [
        (plain[row["index"]]["_id"], row["relevance_score"])
        for row in answer["results"]
    ]
    for params in ({"search_pipeline": index}, {}):
        hits = searched(server, index, "alpha bravo", **params).json()["hits"]["hits"]
        assert [hit["_id"] for hit in hits] == [name for name, _ in expected]
        assert [hit["_score"] for hit in hits] == pytest.approx(
            [score for _, score in expected]
        )
    # By default also without a text, without posts, without their count.
    assert searched(server, index, None).json()["hits"]["hits"] == plain
    assert searched(server, index, None, search_pipeline=index).status_code == 500
    for more in (
        {"_source": False},
        {"size": 0},
        {"track_total_hits": False},
        {"from": 9000},
    ):
        answer = searched(
            server, index, "alpha bravo", more=more, search_pipeline=index
        )
        assert answer.status_code >= 400 and ("empty texts" in answer.text) == (
            "_source" in more
        )
        passed, usual = (
            searched(server, index, text, more=more) for text in (QUERY, None)
        )
        assert passed.json()["hits"].get("hits") == usual.json()["hits"]["hits"]


def moved_and_slow(
    server: Server, index: str, job: list[str], command: Command, port: int
) -> None:
    """Without the service, and with one that is too slow, the engine's ranking goes out."""
    plain = searched(server, index, None).json()["hits"]["hits"]
    assert searched(server, index, QUERY).json()["hits"]["hits"] == plain
    assert "no models reading the order" in done(command, 1, "status", *job)
    scorer = GatedScorer()
    scorer.gate.set()
    with listening(app_of(models=scored_by(scorer, "window"), keys=["first"]), port):
        done(command, 0, "status", *job)
        scorer.gate.clear()
        started = time.monotonic()
        assert searched(server, index, QUERY).json()["hits"]["hits"] == plain
        assert searched(server, index, QUERY, search_pipeline=index).status_code >= 400
        assert time.monotonic() - started < 10
        scorer.gate.set()
