"""Numbers beside the text, from a collection to its model, and on each way to its scores."""

import json
from collections.abc import Iterator
from math import isnan
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from conftest import Capture, Command
from helpers.proxy_samples import StubEngine, stub_engine
from helpers.service_samples import client_of
from helpers.signal_samples import PLACES, WORDS, write_collection

import pipeline
import rerankers
from pipeline.collections.memory import collection_of
from pipeline.collections.own import read_collection
from pipeline.errors import DataError
from pipeline.service.models import Models
from pipeline.service.proxy.search import PostFields, SearchDefaults
from pipeline.training import task
from pipeline.training.options import Options
from rerankers.errors import RerankerError
from rerankers.explanation import placed
from rerankers.pairs import number_of
from rerankers.reranker import Model

SIGNALS = '["created", "stats.likes"]'
QUERY = f"{WORDS[0]} {PLACES[0]}"
FIELDS = PostFields(signals=(("stats.likes", "hearts"),))


class Trained(NamedTuple):
    """A collection's file, the home folder, and the model trained on it."""

    file: Path
    home: Path
    model: Model


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trained]:
    folder = tmp_path_factory.mktemp("signals")
    file = write_collection(folder, SIGNALS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TWEETRERANK_HOME", str(folder / "home"))
        settings = ("trees=40", "topics=24")
        options = Options(model="window", collection=str(file), folds=2, threads=1, set=settings)
        yield Trained(
            file, folder / "home", rerankers.load(task.train(options, read_collection(file)))
        )


@pytest.fixture
def documents() -> list[dict[str, Any]]:
    """Posts that differ in their likes alone; every fifth has none, and all have a score."""
    rng = np.random.default_rng(3)
    likes = rng.permutation(60) * 16
    return [
        {
            "text": f"{QUERY} today",
            "url": "",
            "first_stage_score": 9 - row / 20,
            "created": "2026-11-02",
            **({"stats.likes": int(count)} if row % 5 else {}),
        }
        for row, count in enumerate(likes)
    ]


def ranked(trained: Trained, posts: list[dict[str, Any]]) -> list[int]:
    scores = [post["first_stage_score"] for post in posts]
    with pytest.warns(RuntimeWarning, match=r"not known: stats.likes of 12 of 60 posts"):
        return [post.index for post in trained.model.rank(QUERY, posts, scores=scores)]


def test_values_as_numbers() -> None:
    known = {3: 3, True: 1, "2.5": 2.5, "1970-01-02": 86400, "1970-01-01T01:00:00+01:00": 0}
    assert {value: number_of(value) for value in known} == known
    unknown = (None, "", "many", [3], {}, float("inf"), 10**400, "nan")
    assert all(isnan(number_of(value)) for value in unknown)
    shown = {3.0: "3rd of 5", 1: "5th of 5", 7.25: "1st of 5"}
    for value, place in shown.items():
        assert (
            placed("likes", value, [1, 2, 3, 4, 7.25, float("nan")]) == f"likes {value:g}, {place}"
        )
    twelve = placed("likes", 1, [*range(1, 13)])
    assert (twelve, placed("a", float("nan"), [])) == ("likes 1, 12th of 12", "a unknown")


@pytest.mark.parametrize(
    ("signals", "problem"),
    [
        ('["a b"]', "signals: found ['a b'], expected a list of fields"),
        ("[5]", "signals: found [5], expected a list"),
        ('["text"]', "found no number under text in 960 posts, expected numbers, flags or"),
        ('["likes", "created"]', "found no number under likes in 960 posts"),
    ],
)
def test_wrong_signals(tmp_path: Path, signals: str, problem: str) -> None:
    with pytest.raises(DataError) as told:
        [*read_collection(write_collection(tmp_path, signals)).posts()]
    assert problem in str(told.value)


def test_a_collection_of_values_in_memory() -> None:
    rows = [{"id": 1, "text": "storm", "likes": 3}, {"id": 2, "text": "gale", "likes": None}]
    posts = {p.doc_id: p.signals for p in collection_of(rows, signals=["likes"]).posts()}
    assert posts == {"1": {"likes": 3.0}, "2": {}}
    assert all(not post.signals for post in collection_of(rows).posts())


def test_training_finds_an_effect_that_searches_and_explanations_show(
    trained: Trained, command: Command, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("TWEETRERANK_HOME", str(trained.home))
    config = json.loads((trained.model.directory / "config.json").read_text())
    assert {"number:created.z", "number:stats.likes.value"} <= {*config["features"]}
    tuned = json.loads((trained.model.directory / "lambda.json").read_text())
    assert tuned["cross_validated"] > 0.9 > 0.4 > tuned["curve"]["0.0"]
    ranking = pipeline.ranker(trained.file).rank()
    assert pipeline.evaluate(ranking, "AP")["AP"][-1] > 0.9
    assert "stats.likes of 312 of 2,400 posts" in capsys.readouterr().err
    done = command("explain", "--collection", trained.file, "--query-id", 0, "--show", 1, code=0)
    assert "number:stats.likes" in done.out and "th of 350" in done.out
    run = trained.file.with_name("ql.run")
    ql = ["--collection", trained.file, "--reranker", "none", "--output", run]
    command("search", *ql, code=0)
    given = ["--collection", trained.file, run, "--output", run.with_name("out")]
    assert float(command("rerank", *given, code=0).out.split("ql.run")[1].split()[1]) > 0.9


def test_service_and_batch_rank_as_the_library(
    trained: Trained, documents: list[dict[str, Any]], command: Command, tmp_path: Path
) -> None:
    expected = ranked(trained, documents)
    with client_of(models=Models([str(trained.model.directory)], 10**6)) as client:
        for more in ({}, {"rank_fields": ["text"]}):
            body = {"query": QUERY, "documents": documents, **more}
            found = client.post("/rerank", json=body)
            assert [item["index"] for item in found.json()["results"]] == expected
            assert found.headers["x-unknown-signals"] == "12"
        texts = client.post("/rerank", json={"query": QUERY, "documents": ["a", "b"]})
        assert texts.headers["x-unknown-signals"] == "4"
        assert 'tweetrerank_unknown_signals{model="mine"} 28.0' in client.get("/metrics").text
    source, output = tmp_path / "rows.jsonl", tmp_path / "scored.jsonl"
    posts = [{"doc_id": row, **post} for row, post in enumerate(documents)]
    source.write_text(json.dumps({"query_id": 1, "query": QUERY, "posts": posts}))
    files = ["--input", source, "--output", output, "--checkpoint", trained.model.directory]
    assert "stats.likes: unknown of 12 posts" in command("batch", *files, code=0).err
    scores = [post["score"] for post in json.loads(output.read_text())["posts"]]
    assert np.argsort(-np.array(scores), kind="stable").tolist() == expected


@pytest.mark.parametrize("more", [{}, {"_source": False}, {"_source": ["contents"]}])
@pytest.mark.parametrize("told", [{}, ["created"], {"stats.likes": "loves"}])
def test_the_proxy_reads_numbers_of_sources(
    trained: Trained, documents: list[dict[str, Any]], more: dict[str, Any], told: Any
) -> None:
    """Of fields with other names; those that the caller hides are asked for, and stay hidden."""
    expected = ranked(trained, documents)
    defaults = SearchDefaults(fields=FIELDS, window=60, seconds=60)
    served = Models([str(trained.model.directory)], 10**6)
    names = {"text": "contents", "stats.likes": "loves" if "stats.likes" in told else "hearts"}
    engine: StubEngine
    with stub_engine() as (url, engine):
        posts = [{names.get(n, n): value for n, value in post.items()} for post in documents]
        engine.posts = [*posts, *engine.posts[60:]]
        with client_of(models=served, engine=url, defaults=defaults) as client:
            query = {"query": {"match": {"contents": QUERY}}, "size": 60, **more}
            found = client.post(
                "/posts/_search", json={**query, "ext": {"rerank": {"signals": told}}}
            )
            wrong = client.post("/posts/_search", json={**query, "ext": {"rerank": {"signals": 5}}})
        hits = found.json()["hits"]["hits"]
    assert [int(hit["_id"].partition('"')[0]) for hit in hits] == expected
    assert all(hit["fields"].keys() == {"_first_stage_score"} for hit in hits)
    assert wrong.status_code == 400 and "ext.rerank.signals: Expected" in wrong.text


def test_a_family_needs_the_name_of_a_field() -> None:
    with pytest.raises(RerankerError, match="found the feature family number with the name 'a b'"):
        rerankers.features.find("number:a b")  # type: ignore[attr-defined]
