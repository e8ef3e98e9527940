"""Numbers that complement texts: in collections, models, and on all ways to scores."""

import json
import re
from collections.abc import Iterator
from functools import partial
from math import isnan
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from conftest import Command, Patch
from helpers.data_samples import PLACES, SUBJECTS
from helpers.proxy_samples import stub_engine
from helpers.service_samples import client_of

import tweetrerank
from tweetrerank.indexes.data_error import DataError
from tweetrerank.pipeline.collections.collection import Collection
from tweetrerank.pipeline.collections.in_memory import collection_of
from tweetrerank.pipeline.service.proxy.ask import PostFields, SearchDefaults
from tweetrerank.pipeline.service.served_models import Models
from tweetrerank.pipeline.training import task
from tweetrerank.pipeline.training.training_options import Options
from tweetrerank.rerankers.explanation import placed
from tweetrerank.rerankers.pairs import number_of
from tweetrerank.rerankers.reranker import Reranker

QUERY = f"{SUBJECTS[0]} {PLACES[0]}"
LIKES = "stats.likes"


class Documents(NamedTuple):
    """Posts, and the rows of their ranking."""

    posts: list[dict[str, Any]]
    ranking: list[int]


def collection(signals: list[Any]) -> Collection:
    """24 topics, each with 40 posts that say the same.

    The ten posts with the most likes are relevant. Every seventh has no likes.
    """
    rng = np.random.default_rng(1)
    posts = []
    topics = {}
    qrels: dict[str, dict[str, int]] = {}
    for topic in range(24):
        query_id = str(topic)
        query = f"{SUBJECTS[topic % 8]} {PLACES[topic // 8]}"
        topics[query_id] = query
        qrels[query_id] = {}
        likes = rng.permutation(1000)[:40].tolist()
        threshold = sorted(likes)[30]
        for row, count in enumerate(likes):
            doc_id = str(100 * topic + row + 1)
            post = {
                "id": doc_id,
                "text": f"{query} {'lol ' * (row % 3)}",
                "created": f"2026-11-{row % 28 + 1:02d}",
                "stats": None,
            }
            has_likes = row % 7 < 6
            if has_likes:
                post["stats"] = {"likes": count}
            posts.append(post)
            qrels[query_id][doc_id] = int(has_likes and count >= threshold)
    return collection_of(posts, topics, qrels, "mine", signals)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reranker]:
    with Patch.context() as patch:
        patch.setenv("TWEETRERANK_HOME", str(tmp_path_factory.mktemp("signals")))
        options = Options(model="window", folds=2, threads=1, set=("trees=40",))
        yield tweetrerank.load(task.train(options, collection(["created", LIKES])))


@pytest.fixture(scope="module")
def served(model: Reranker) -> Models:
    return Models([str(model.directory)], 10**6)


@pytest.fixture
def documents(model: Reranker) -> Documents:
    """Posts that differ in likes, which every fifth lacks, and in scores."""
    likes = (np.random.default_rng(3).permutation(60) * 16).tolist()
    scores = [9 - row / 20 for row in range(len(likes))]
    posts = []
    for row, count in enumerate(likes):
        post = {
            "text": QUERY,
            "url": "",
            "created": "2026-11-02",
            "first_stage_score": scores[row],
        }
        if row % 5:
            post[LIKES] = count
        posts.append(post)
    message = r"not known: stats.likes of 12 of 60 posts"
    with pytest.warns(RuntimeWarning, match=message):
        ranking = model.rank(QUERY, posts, scores=scores)
    return Documents(posts, [post.index for post in ranking])


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (3, 3),
        (True, 1),
        ("2.5", 2.5),
        ("1970-01-02", 86400),
        ("1970-01-01T01:00:00+01:00", 0),
    ],
)
def test_values_as_numbers(value: object, number: float) -> None:
    assert number_of(value) == number


@pytest.mark.parametrize(
    "value", [None, "", "many", [3], {}, np.inf, 10**400, "nan"], ids=repr
)
def test_values_that_are_no_numbers(value: object) -> None:
    assert isnan(number_of(value))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.nan, "likes unknown"),
        (23, "likes 23, 1st of 23"),
        (3, "likes 3, 21st of 23"),
        (12, "likes 12, 12th of 23"),
        (21, "likes 21, 3rd of 23"),
    ],
)
def test_place_of_a_number_among_others(value: float, text: str) -> None:
    others = [*range(1, 24), np.nan]
    assert placed("likes", value, others) == text


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a b", r"signals: found \['a b'\], expected a list of fields"),
        ("text", "found no number under text in 960 posts, expected num"),
    ],
)
def test_wrong_signals(name: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        list(collection([name]).posts())


@pytest.fixture
def home(model: Reranker, monkeypatch: Patch) -> Path:
    """The home folder of the model."""
    folder = model.directory.parents[3]
    monkeypatch.setenv("TWEETRERANK_HOME", str(folder))
    return folder


@pytest.fixture
def mine(home: Path) -> Path:
    """The file of the collection."""
    file = collection(["created", LIKES]).file
    assert file
    return file


def test_a_model_reads_numbers_and_frequencies(model: Reranker) -> None:
    """The folder has the frequencies of its posts, for services elsewhere."""
    assert {"number:created", f"number:{LIKES}"} <= set(model.model.families)
    assert model.model.idf.source == f"posts:en:{model.directory / 'frequencies.tsv'}"
    assert {"lol"} | set(QUERY.lower().split()) <= set(model.model.idf.known())
    tuned = json.loads((model.directory / "lambda.json").read_text())
    assert tuned["cross_validated"] > 0.9
    assert tuned["curve"]["0"] < 0.5


def test_a_search_ranks_by_numbers(mine: Path) -> None:
    ranking = tweetrerank.ranker(str(mine)).rank()
    assert tweetrerank.evaluate(ranking, "AP")["window"]["AP"] > 0.9


def test_reranking_reports_missing_numbers(
    mine: Path, home: Path, command: Command
) -> None:
    run = home / "ql"
    search = partial(command, "search", "--collection", mine, code=0)
    search("--reranker", "none", "--output", run)
    rerank = partial(command, "rerank", "--collection", mine, code=0)
    result = rerank(run, "--output", home / "reranked")
    assert "stats.likes of 1,200 of 9,600 posts" in result.err


def test_an_explanation_shows_the_effect(mine: Path, command: Command) -> None:
    explain = partial(command, "explain", "--collection", mine, code=0)
    printed = explain("--query-id", 0, "--show", 1).out
    assert f"number:{LIKES}" in printed
    assert re.search(r"stats\.likes \d+, \d+(st|nd|rd|th) of 350\n", printed)


def test_service(served: Models, documents: Documents) -> None:
    request = {"query": QUERY, "documents": documents.posts}
    with client_of(models=served) as client:
        for fields in ({}, {"rank_fields": ["text"]}):
            response = client.post("/rerank", json=request | fields)
            rows = [item["index"] for item in response.json()["results"]]
            assert rows == documents.ranking
            assert response.headers["x-unknown-signals"] == "12"
        metrics = client.get("/metrics").text
    assert 'tweetrerank_unknown_signals{model="mine"} 24.0' in metrics


def test_batch(
    served: Models, documents: Documents, command: Command, tmp_path: Path
) -> None:
    posts = [{"doc_id": row} | post for row, post in enumerate(documents.posts)]
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"query_id": 1, "query": QUERY, "posts": posts}))
    output = tmp_path / "scored.jsonl"
    batch = partial(command, "batch", "--input", rows, "--output", output, code=0)
    result = batch("--checkpoint", served.default.source.folder)
    assert "stats.likes: unknown of 12 posts" in result.err
    scored = json.loads(output.read_text())["posts"]
    scores = [-post["score"] for post in scored]
    assert np.argsort(scores, kind="stable").tolist() == documents.ranking


def proxied(
    served: Models,
    documents: Documents,
    signals: Any,
    likes: str = "hearts",
    **options: Any,
) -> Any:
    """Response of the proxy to a search with ``signals``.

    The engine has other names of fields, for likes ``likes``. The proxy's default is
    ``hearts``.
    """
    names = {"text": "contents", LIKES: likes}
    fields = PostFields(signals=((LIKES, "hearts"),))
    defaults = SearchDefaults(fields=fields, candidates=60, seconds=60)
    search = {
        "query": {"match": {"contents": QUERY}},
        "size": 60,
        "ext": {"rerank": {"signals": signals}},
    }
    with stub_engine() as (url, engine):
        for row, post in enumerate(documents.posts):
            engine.posts[row] = {
                names.get(name, name): value for name, value in post.items()
            }
        with client_of(models=served, engine=url, defaults=defaults) as client:
            return client.post("/posts/_search", json=search | options)


@pytest.mark.parametrize("options", [{}, {"_source": False}])
@pytest.mark.parametrize(
    ("signals", "likes"),
    [({}, "hearts"), (["created"], "hearts"), ({LIKES: "loves"}, "loves")],
)
def test_proxy(
    served: Models,
    documents: Documents,
    options: dict[str, Any],
    signals: Any,
    likes: str,
) -> None:
    """Fields that a search hides are requested, and stay hidden."""
    response = proxied(served, documents, signals, likes, **options)
    hits = response.json()["hits"]["hits"]
    rows = [int(hit["_id"].partition('"')[0]) for hit in hits]
    assert rows == documents.ranking
    assert all(hit["fields"].keys() == {"_first_stage_score"} for hit in hits)


def test_proxy_refuses_wrong_signals(served: Models, documents: Documents) -> None:
    response = proxied(served, documents, 5)
    assert response.status_code == 400
    assert "ext.rerank.signals: Expected" in response.text
