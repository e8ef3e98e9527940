"""Reranking switched on inside search engines: by imitations of both, and on a real OpenSearch."""

from __future__ import annotations

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
from helpers.engine_stub import Proxy, stub
from helpers.index_samples import POSTS
from helpers.mlcommons_stub import FakeElasticsearch, FakeOpenSearch
from helpers.service_samples import QUERY, GatedScorer, app_of, listening, models, scored_by

from indexes.engines.building import build
from pipeline import engine as engine_command
from pipeline import serve
from pipeline.collections.named import open_collection
from pipeline.collections.trec import read_run
from pipeline.command.options import parse_arguments
from pipeline.installation import opensearch
from pipeline.service.http import connections
from rerankers.checkpoint import SHIPPED


@pytest.fixture(scope="module")
def service() -> Iterator[str]:
    with listening(app_of()) as url:
        yield url


@pytest.fixture
def fake() -> FakeOpenSearch:
    return FakeOpenSearch()


@pytest.fixture
def engine(fake: FakeOpenSearch) -> Iterator[str]:
    with stub(fake) as url:
        yield url


def install(command: Command, engine: str, service: str, *more: str) -> str:
    job = ("engine", "install", "--engine", engine, "--service", service, "--yes", *more)
    done = command(*job, "--texts-alone")
    assert done.code == 0, done.err
    return done.out


def test_what_would_rank_by_texts_alone_is_not_installed(
    command: Command, fake: FakeOpenSearch, engine: str, service: str
) -> None:
    done = command("engine", "install", "--engine", engine, "--service", service, "--yes")
    assert (done.code, "by the texts alone" in done.err) == (1, True)
    assert fake.changes == []


def test_an_index_is_deleted_before_its_trial(
    command: Command, fake: FakeOpenSearch, engine: str, service: str
) -> None:
    fake.deleting = True
    assert "trial                     two texts have" in install(command, engine, service)


def test_install_twice_then_remove(
    command: Command, fake: FakeOpenSearch, engine: str, service: str
) -> None:
    out = install(command, engine, service)
    assert "settings                  changed\n" in out
    assert "trial                     a search in posts reranks 1 posts" in out
    trusted = fake.persistent["plugins.ml_commons.trusted_connector_endpoints_regex"]
    assert trusted[0] == "^https://api\\.other/.*$"
    assert trusted[1].endswith("/.*$")
    assert fake.persistent["plugins.ml_commons.connector.private_ip_enabled"] is True
    assert fake.persistent["plugins.ml_commons.only_run_on_ml_node"] is False
    (connector,) = fake.made["connectors"].values()
    assert connector["credential"] == {"key": "none"}
    assert connector["client_config"]["read_timeout"] == 30
    rerank = fake.pipelines["tweetrerank"]["response_processors"][0]["rerank"]
    assert rerank["context"]["document_fields"] == ["url", "contents", "url"]
    assert rerank["ignore_failure"] is False
    fake.changes.clear()
    again = install(command, engine, service)
    assert fake.changes == []
    assert again.count("unchanged") == 4
    done = command("engine", "status", "--engine", engine)
    assert done.code == 0, done.out + done.err
    assert done.out.count("ok ") == len(done.out.splitlines()) == 7
    assert command("engine", "remove", "--engine", engine).code == 0
    assert fake.persistent == fake.pipelines == {}
    assert not any(fake.made.values())
    gone = command("engine", "status", "--engine", engine)
    assert gone.code == 1
    assert gone.out.count("BROKEN") == 3
    fake.changes.clear()
    assert command("engine", "remove", "--engine", engine).code == 0
    assert fake.changes == []


def test_an_engine_that_lags_behind(
    command: Command, fake: FakeOpenSearch, engine: str, service: str
) -> None:
    """It does not show a new model, or keeps an old connector until the last model is gone."""
    fake.is_slow = True
    for expected in ("the old one removed", "is left"):
        install(command, engine, service)
        (connector, *_) = fake.made["connectors"]
        fake.made["connectors"][connector]["version"] = "0"
        out = install(command, engine, service)
        assert "connector                 made anew" in out
        assert expected in out
        (model,) = fake.made["models"].values()
        assert model["connector_id"] != connector
        fake.confused = True
    assert command("engine", "status", "--engine", engine).code == 0
    assert command("engine", "remove", "--engine", engine).code == 0
    assert not any(fake.made.values())


def test_what_differs_is_changed(
    command: Command, fake: FakeOpenSearch, engine: str, service: str
) -> None:
    install(command, engine, service)
    (old,) = fake.made["models"]
    out = install(command, engine, service, "--fields", "contents")
    assert "pipeline tweetrerank      changed" in out
    assert "model                     the old one removed" in out
    assert len(fake.made["models"]) == len(fake.made["connectors"]) == 1
    (new,) = fake.made["models"]
    assert new != old
    rerank = fake.pipelines["tweetrerank"]["response_processors"][0]["rerank"]
    assert rerank["ml_opensearch"] == {"model_id": new}
    assert rerank["context"]["document_fields"] == ["contents"]
    fake.made["models"][new]["model_state"] = "UNDEPLOYED"
    assert "deployed (it was UNDEPLOYED)" not in command("engine", "status", "--engine", engine).out
    assert "model                     unchanged" in install(
        command, engine, service, "--fields", "contents"
    )
    assert fake.made["models"][new]["model_state"] == "DEPLOYED"


def test_a_default_pipeline_passes_other_searches(
    command: Command, fake: FakeOpenSearch, engine: str, service: str
) -> None:
    install(command, engine, service, "--default-for", "posts")
    assert fake.default_pipelines == {"posts": "tweetrerank-default"}
    lenient = fake.pipelines["tweetrerank-default"]["response_processors"][0]["rerank"]
    assert lenient["ignore_failure"] is True
    fake.changes.clear()
    install(command, engine, service, "--default-for", "posts")
    assert fake.changes == []
    assert "tweetrerank-default passes" in command("engine", "status", "--engine", engine).out
    fake.default_pipelines["posts"] = "tweetrerank"
    done = command("engine", "status", "--engine", engine)
    assert (done.code, "search without ext.rerank fail" in done.out) == (1, True)
    command("engine", "remove", "--engine", engine)
    assert fake.default_pipelines == fake.pipelines == {}


def refused(command: Command, engine: str, service: str, *more: str) -> str:
    done = command(
        "engine", "install", "--engine", engine, "--service", service, "--texts-alone", *more
    )
    assert done.code in (1, 2)
    return done.err


def test_what_stands_in_the_way(
    command: Command, fake: FakeOpenSearch, engine: str, service: str
) -> None:
    assert "nobody to ask; allow it by --yes" in refused(command, engine, service)
    assert "private_ip_enabled: true in place of false" in refused(command, engine, service)
    nowhere = "http://127.0.0.1:9"
    assert "the service does not answer" in refused(command, engine, nowhere, "--yes")
    assert "found no service of tweetrerank" in refused(command, engine, engine, "--yes")
    problem = refused(command, engine, service, "--yes", "--model", "sm_cnn")
    assert "found the models mp_hcnn, expected sm_cnn" in problem
    assert "found 'a,b,c', expected the field" in refused(
        command, engine, service, "--yes", "--fields", "a,b,c"
    )
    fake.default_pipelines["posts"] = "theirs"
    yes = ("--yes", "--default-for", "posts")
    assert "default pipeline theirs" in refused(command, engine, service, *yes)
    fake.default_pipelines.clear()
    assert "no field body, expected one of contents, url" in refused(
        command, engine, service, *yes, "--fields", "body"
    )
    fake.indexes["posts"]["_source"] = {"enabled": False}
    assert "_source switched off" in refused(command, engine, service, *yes)
    for part in ({"excludes": ["url*"]}, {"includes": ["contents"]}):
        fake.indexes["posts"]["_source"] = part
        assert "found url left out of _source" in refused(command, engine, service, *yes)
    fake.pipelines["tweetrerank"] = {"response_processors": []}
    assert "has not made; choose another name" in refused(command, engine, service, "--yes")
    assert fake.changes == []
    assert "--service is missing" in command("engine", "install", "--engine", engine).err
    assert "expected one of install" in command("engine", "instal", "--engine", engine).err


def test_settings_of_others_are_left(
    command: Command, fake: FakeOpenSearch, engine: str, service: str
) -> None:
    private = "plugins.ml_commons.connector.private_ip_enabled"
    fake.persistent[private] = True
    install(command, engine, service)
    install(command, engine, service, "--pipeline", "second")
    out = command("engine", "remove", "--engine", engine).out
    assert "left: other search pipelines" in out
    fake.persistent["plugins.ml_commons.only_run_on_ml_node"] = True
    out = command("engine", "remove", "--engine", engine, "--pipeline", "second").out
    assert "only_run_on_ml_node: left" in out
    assert fake.persistent == {private: True, "plugins.ml_commons.only_run_on_ml_node": True}


def test_a_service_with_keys(
    command: Command, fake: FakeOpenSearch, engine: str, tmp_path: Path
) -> None:
    (tmp_path / "keys").write_text("first\nsecond\n")
    keys = ("--api-key-file", str(tmp_path / "keys"))
    with listening(app_of(keys=["first", "second"])) as service:
        problem = refused(command, engine, service, "--yes")
        assert "does not accept the key" in problem
        install(command, engine, service, *keys)
        (connector,) = fake.made["connectors"].values()
        assert connector["credential"] == {"key": "first"}
        connector["credential"] = {"key": "old"}
        done = command("engine", "status", "--engine", engine, *keys)
        assert done.code == 1
        assert "BROKEN  trial             the trial failed: the service does not accept" in done.out
        assert "connector                 made anew" in install(command, engine, service, *keys)
        assert command("engine", "status", "--engine", engine, *keys).code == 0
        assert "BROKEN  service" in command("engine", "status", "--engine", engine).out


def test_an_opensearch_without_the_plugins(command: Command, service: str) -> None:
    def answer(request: Any) -> Any:
        if request.path == "/":
            return 200, {"version": {"number": "3.6.0", "distribution": "opensearch"}}
        return 400, {"error": f"no handler found for uri [{request.path}]"}

    with stub(answer) as engine:
        assert "lacks ML Commons" in refused(command, engine, service, "--yes")


# --- Elasticsearch, imitated: the endpoints are the documented ones -------------------------------


@pytest.mark.parametrize("quotes", [True, False])
def test_elasticsearch(command: Command, service: str, quotes: bool) -> None:
    fake = FakeElasticsearch(quotes=quotes)
    with stub(fake) as engine:
        done = command(
            "engine", "install", "--engine", engine, "--service", service, "--texts-alone"
        )
        assert done.code == 0, done.err
        assert ("does not escape queries" in done.out) == (not quotes)
        retriever = json.loads(done.out[done.out.index("{") :])["retriever"]["linear"]
        reranked, first = retriever["retrievers"]
        assert (reranked["weight"], first["weight"]) == (0.35, 0.65)
        assert {item["normalizer"] for item in (reranked, first)} == {"minmax"}
        inner = reranked["retriever"]["text_similarity_reranker"]
        assert (inner["inference_id"], inner["field"]) == ("tweetrerank", "contents")
        assert inner["retriever"] == first["retriever"]
        fake.changes.clear()
        assert "endpoint                  unchanged" in install(command, engine, service)
        assert fake.changes == []
        status = command("engine", "status", "--engine", engine)
        assert status.code == 0, status.out
        fake.endpoints["tweetrerank"]["service_settings"]["url"] = service + "/else"
        assert command("engine", "status", "--engine", engine).code == 1
        assert "endpoint                  changed" in install(command, engine, service)
        assert command("engine", "remove", "--engine", engine).code == 0
        assert fake.endpoints == {}


def test_elasticsearch_that_refuses(command: Command, service: str) -> None:
    fake = FakeElasticsearch()
    with stub(fake) as engine:
        problem = refused(command, engine, service, "--fields", "contents,url")
        assert "Elasticsearch sends one" in problem
        assert "is for OpenSearch" in refused(command, engine, service, "--default-for", "posts")
        fake.endpoints["tweetrerank"] = {"service_settings": {}}
        assert "has not made; choose another" in refused(command, engine, service)
        fake.licensed = False
        assert "has a licence without inference endpoints" in refused(command, engine, service)
    with stub(FakeElasticsearch("9.0.4")) as engine:
        assert "expected 8.19, or 9.1 or newer" in refused(command, engine, service)


def test_shifted_scores_begin_at_0(service: str) -> None:
    body = {"query": "storm", "documents": ["storm", "lunch", "a storm"], "shift": True}
    shifted = requests.post(f"{service}/v2/rerank", json=body).json()["results"]
    body = {"query": "storm", "documents": body["documents"], "raw_scores": True}
    raw = requests.post(f"{service}/rerank", json=body).json()["results"]
    lowest = raw[-1]["relevance_score"]
    assert [item["index"] for item in shifted] == [item["index"] for item in raw]
    assert shifted[-1]["relevance_score"] == 0
    for item, other in zip(shifted, raw, strict=True):
        expected = other["relevance_score"] - lowest
        assert item["relevance_score"] == pytest.approx(expected, abs=1e-5)


def test_commands_of_the_containers_exist() -> None:
    folder = Path(__file__).parents[2] / "scripts" / "docker"
    compose = (folder / "compose.yaml").read_text().replace("\\\n#", "")
    (arguments,) = re.findall(r"tweetrerank engine (.*)", compose)
    options = parse_arguments(engine_command.Options, "", "", arguments.split())
    assert (options.action, options.service) == ("install", "http://service:8080")
    lines = (folder / "Dockerfile").read_text().splitlines()
    (start,) = [json.loads(line.removeprefix("CMD ")) for line in lines if line.startswith("CMD ")]
    assert start[0] == "serve"
    assert parse_arguments(serve.Options, "", "", start[1:]).host == "0.0.0.0"
    assert 'ENTRYPOINT ["tweetrerank"]' in lines


def test_the_manifest_of_the_cluster_fits_its_schema_and_the_service() -> None:
    path = Path(__file__).parents[2] / "scripts" / "docker" / "kubernetes.yaml"
    deployment, service = yaml.safe_load_all(path.read_text(encoding="utf-8"))
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
    probes = {name: container[name]["httpGet"]["path"] for name in container if "Probe" in name}
    assert probes == {
        "startupProbe": "/ready",
        "readinessProbe": "/ready",
        "livenessProbe": "/health",
    }
    assert pod["spec"]["terminationGracePeriodSeconds"] > connections.GRACE


# --- a real OpenSearch ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running("opensearch") as opened:
        yield opened


@pytest.fixture(scope="module")
def index(server: Server, tmp_path_factory: pytest.TempPathFactory) -> str:
    address = server.address()
    build(address, POSTS, [], tmp_path_factory.mktemp("kept"), "make it again")
    return address.index


@pytest.fixture
def name(server: Server, index: str, command: Command) -> Iterator[str]:
    """Of a search pipeline that nobody else uses."""
    actual = index[-12:].translate(str.maketrans("0123456789", "ghijklmnop"))
    yield actual
    assert command("engine", "remove", "--engine", server.url, "--pipeline", actual).code == 0


def searched(
    server: Server, index: str, text: str | None, more: dict[str, Any] | None = None, **params: str
) -> Any:
    body: dict[str, Any] = {"size": 20, "query": {"match": {"contents": "alpha bravo"}}}
    body |= more or {}
    if text is not None:
        body["ext"] = {"rerank": {"query_context": {"query_text": text}}}
    return requests.post(f"{server.url}/{index}/_search", json=body, params=params, timeout=60)


@pytest.mark.opensearch
def test_a_real_opensearch(
    server: Server, index: str, name: str, command: Command, tmp_path: Path
) -> None:
    # One test: both parts change the cluster's settings.
    installed_and_removed(server, index, name, command)
    moved_to_a_service_with_keys(server, index, name, command, tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(opensearch, "READING", 1)
        slow_or_stopped_in_the_middle(server, index, name, command)


def slow_or_stopped_in_the_middle(server: Server, index: str, name: str, command: Command) -> None:
    """The first stage's ranking goes out by the default pipeline, an error by the other."""
    scorer = GatedScorer()
    plain = searched(server, index, None, search_pipeline="_none").json()["hits"]["hits"]
    with listening(app_of(models=scored_by(scorer))) as service:
        scorer.gate.set()
        install(command, server.url, service, "--pipeline", name, "--default-for", index)
        assert searched(server, index, QUERY).json()["hits"]["hits"] != plain
        scorer.gate.clear()
        started = time.monotonic()
        late = searched(server, index, QUERY)
        assert (late.status_code, late.json()["hits"]["hits"]) == (200, plain)
        assert searched(server, index, QUERY, search_pipeline=name).status_code >= 400
        assert time.monotonic() - started < 20
        scorer.gate.set()
        way = Proxy(service)
        with way:
            install(command, server.url, way.url, "--pipeline", name, "--default-for", index)
            assert searched(server, index, QUERY).json()["hits"]["hits"] != plain
            way.broken = lambda size, part: part[: len(part) // 2]
            cut = searched(server, index, QUERY)
            assert (cut.status_code, cut.json()["hits"]["hits"]) == (200, plain)
            # OpenSearch 2.19 passes the status on that the answer began with: 200. What it says
            # of the model depends on how much of the answer it had read.
            failed = searched(server, index, QUERY, search_pipeline=name).json()
            assert "hits" not in failed and " model" in str(failed["error"])
            way.broken = lambda size, part: part
            assert searched(server, index, QUERY).json()["hits"]["hits"] != plain


def installed_and_removed(server: Server, index: str, name: str, command: Command) -> None:
    options = ("--engine", server.url, "--pipeline", name)
    before = requests.get(f"{server.url}/_cluster/settings", timeout=60).json()
    with listening(app_of(models=models("window"))) as service:
        out = install(command, server.url, service, *options[2:], "--default-for", index)
        assert f"a search in {index} reranks 10 posts" in out
        again = install(command, server.url, service, *options[2:], "--default-for", index)
        assert again.count("unchanged") == 6
        status = command("engine", "status", *options)
        assert (status.code, "BROKEN" in status.out) == (0, False), status.out
        mixed = searched(server, index, "alpha bravo", search_pipeline=name).json()["hits"]["hits"]
        scores = [hit["_score"] for hit in mixed]
        assert scores == sorted(scores, reverse=True)
        assert 0 <= scores[-1] < scores[0] <= 1
        # The scores are those of the service for what a search without the pipeline finds.
        plain = searched(server, index, None, search_pipeline="_none").json()["hits"]["hits"]
        documents = [{"text": h["_source"]["contents"], "url": h["_source"]["url"]} for h in plain]
        body = {"query": "alpha bravo", "documents": documents}
        answer = requests.post(f"{service}/v2/rerank", json=body, timeout=60).json()["results"]
        expected = {plain[item["index"]]["_id"]: item["relevance_score"] for item in answer}
        assert {hit["_id"]: hit["_score"] for hit in mixed} == pytest.approx(expected, abs=1e-6)
        # By default: with a text, without one, without posts, without their count.
        hits = searched(server, index, "alpha bravo").json()["hits"]["hits"]
        assert {hit["_id"]: hit["_score"] for hit in hits} == pytest.approx(expected, abs=1e-6)
        assert searched(server, index, None).json()["hits"]["hits"] == plain
        assert searched(server, index, None, search_pipeline=name).status_code == 500
        for more in ({"_source": False}, {"size": 0}, {"track_total_hits": False}, {"from": 9000}):
            answer = searched(server, index, "alpha bravo", more, search_pipeline=name)
            assert answer.status_code >= 400
            assert ("empty texts" in answer.text) == ("_source" in more)
            passed = searched(server, index, "alpha bravo", more).json()
            assert (
                passed["hits"].get("hits")
                == searched(server, index, None, more).json()["hits"]["hits"]
            )
    # Without the service.
    assert searched(server, index, "alpha bravo").json()["hits"]["hits"] == plain
    assert searched(server, index, "alpha bravo", search_pipeline=name).status_code >= 400
    broken = command("engine", "status", *options)
    assert broken.code == 1
    assert {line.split()[1] for line in broken.out.splitlines() if line.startswith("BROKEN")} == {
        "service",
        "trial",
    }
    # It comes back, and nothing is to be installed again.
    with listening(app_of(models=models("window")), int(service.rpartition(":")[2])):
        hits = searched(server, index, "alpha bravo", search_pipeline=name).json()["hits"]["hits"]
        assert {hit["_id"]: hit["_score"] for hit in hits} == pytest.approx(expected, abs=1e-6)
    done = command("engine", "remove", *options)
    assert f"default of {index}" in done.out
    if "left: other search pipelines" not in done.out:
        assert requests.get(f"{server.url}/_cluster/settings", timeout=60).json() == before
    assert requests.get(f"{server.url}/_search/pipeline/{name}", timeout=60).json() in ({}, None)
    assert searched(server, index, None).status_code == 200
    assert command("engine", "status", *options).code == 1


def moved_to_a_service_with_keys(
    server: Server, index: str, name: str, command: Command, tmp_path: Path
) -> None:
    options = ("--pipeline", name, "--fields", "contents", "--api-key-file", str(tmp_path / "key"))
    (tmp_path / "key").write_text("first")
    with listening(app_of(keys=["first", "second"])) as service:
        install(command, server.url, service, *options)
        (tmp_path / "key").write_text("second")
        assert "connector                 unchanged" in install(
            command, server.url, service, *options
        )
        answer = searched(server, index, QUERY, search_pipeline=name)
        assert len(answer.json()["hits"]["hits"]) == 20
    # The service has moved, and its keys are others.
    with listening(app_of(keys=["second"])) as service:
        out = install(command, server.url, service, *options)
        assert "connector                 made anew" in out
        assert searched(server, index, QUERY, search_pipeline=name).status_code == 200


@pytest.mark.slow
@pytest.mark.opensearch
def test_pages_are_ranked_as_by_a_search(
    server: Server, index: str, name: str, command: Command, data_dir: Path, tmp_path: Path
) -> None:
    posts = f"{index}-mb2012"
    engine = ("--engine", server.url, "--engine-index", posts)
    assert command("index", "--collection", "mb2012", *engine).code == 0
    run_file = tmp_path / "run.txt"
    checkpoint = ("--reranker", "mp_hcnn", "--checkpoint", SHIPPED / "mp_hcnn" / "all")
    options = ("--hits", 100, "--output", run_file, "--show", "none")
    done = command("search", "--topics", "mb2012", *engine, *checkpoint, *options)
    assert done.code == 0, done.err
    run = read_run(run_file)
    with listening(app_of(models=models("window"))) as service:
        install(command, server.url, service, "--pipeline", name)
        for topic in open_collection("mb2012").topics:
            limit = {"range": {"number": {"lte": int(topic.max_doc_id or 0)}}}
            must = {"match": {"contents": topic.text}}
            body = {
                "size": 100,
                "query": {"bool": {"must": must, "filter": limit}},
                "sort": [{"_score": "desc"}, {"number": "desc"}],
                "ext": {"rerank": {"query_context": {"query_text": topic.text}}},
            }
            path = f"{server.url}/{posts}/_search?search_pipeline={name}"
            answer = requests.post(path, json=body, timeout=60)
            assert answer.status_code == 200, answer.text
            hits = answer.json()["hits"]["hits"]
            expected = run[topic.query_id]
            actual = {hit["_id"]: hit["_score"] for hit in hits}
            assert actual == pytest.approx(expected, abs=5e-7)
            assert list(actual) == list(expected)
