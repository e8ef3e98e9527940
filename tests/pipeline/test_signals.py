"""Numbers beside the text, from a collection to its model, and on each way to its scores."""

import json
import re
from collections.abc import Iterator
from math import isnan
from pathlib import Path
from typing import Any

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
from tweetrerank.pipeline.service.proxy.page_search import PostFields, SearchDefaults
from tweetrerank.pipeline.service.served_models import Models
from tweetrerank.pipeline.training import task
from tweetrerank.pipeline.training.training_options import Options
from tweetrerank.rerankers.explanation import placed
from tweetrerank.rerankers.pairs import number_of
from tweetrerank.rerankers.reranker import Model

QUERY = f"{SUBJECTS[0]} {PLACES[0]}"
LIKES = "stats.likes"
Documents = tuple[list[dict[str, Any]], list[int]]  # And their ranking


def collection(signals: list[Any]) -> Collection:
    """24 topics, each with 40 posts that say the same, of which the ten with the most likes are
    relevant. Every seventh has none."""
    rng, posts, topics, qrels = (
        np.random.default_rng(1),
        [],
        {},
        dict[str, dict[str, int]](),
    )
    for topic in range(24):
        query_id, likes = str(topic), rng.permutation(1000)[:40].tolist()
        topics[query_id] = f"{SUBJECTS[topic % 8]} {PLACES[topic // 8]}"
        for row, count in enumerate(likes):
            doc_id, text = (
                str(100 * topic + row + 1),
                f"{topics[query_id]} {'lol ' * (row % 3)}",
            )
            post = {
                "id": doc_id,
                "text": text,
                "created": f"2026-11-{row % 28 + 1:02d}",
            }
            posts.append(post | {"stats": {"likes": count} if row % 7 < 6 else None})
            is_good = row % 7 < 6 and count >= sorted(likes)[30]
            qrels.setdefault(query_id, {})[doc_id] = int(is_good)
    return collection_of(posts, topics, qrels, "mine", signals)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    with Patch.context() as patch:
        patch.setenv("TWEETRERANK_HOME", str(tmp_path_factory.mktemp("signals")))
        options = Options(model="window", folds=2, threads=1, set=("trees=40",))
        yield tweetrerank.load(task.train(options, collection(["created", LIKES])))


@pytest.fixture(scope="module")
def served(model: Model) -> Models:
    return Models([str(model.directory)], 10**6)


@pytest.fixture
def documents(model: Model) -> Documents:
    """Posts that differ in likes, which every fifth lacks, and in scores; and their ranking."""
    likes = (np.random.default_rng(3).permutation(60) * 16).tolist()
    same: dict[str, Any] = {"text": QUERY, "url": "", "created": "2026-11-02"}
    known = [{LIKES: count} if row % 5 else {} for row, count in enumerate(likes)]
    posts = [
        same | {"first_stage_score": 9 - row / 20} | each
        for row, each in enumerate(known)
    ]
    scores = [post["first_stage_score"] for post in posts]
    with pytest.warns(
        RuntimeWarning, match=r"not known: stats.likes of 12 of 60 posts"
    ):
        return posts, [post.index for post in model.rank(QUERY, posts, scores=scores)]


def test_values_as_numbers() -> None:
    known = {
        3: 3,
        True: 1,
        "2.5": 2.5,
        "1970-01-02": 86400,
        "1970-01-01T01:00:00+01:00": 0,
    }
    assert {value: number_of(value) for value in known} == known
    assert all(
        isnan(number_of(v)) for v in (None, "", "many", [3], {}, np.inf, 10**400, "nan")
    )
    others = [*range(1, 24), np.nan]
    assert placed("likes", np.nan, others) == "likes unknown"
    for value, shown in (
        (23, "23, 1st"),
        (3, "3, 21st"),
        (12, "12, 12th"),
        (21, "21, 3rd"),
    ):
        assert placed("likes", value, others) == f"likes {shown} of 23"


def test_wrong_signals() -> None:
    with pytest.raises(
        DataError, match=r"signals: found \['a b'\], expected a list of fields"
    ):
        [*collection(["a b"]).posts()]
    with pytest.raises(
        DataError, match="found no number under text in 960 posts, expected num"
    ):
        [*collection(["text"]).posts()]


def test_an_effect_is_found_and_shown(
    model: Model, command: Command, monkeypatch: Patch
) -> None:
    home = model.directory.parents[3]
    monkeypatch.setenv("TWEETRERANK_HOME", str(home))
    mine = ["--collection", (file := collection(["created", LIKES]).file)]
    assert {"number:created", f"number:{LIKES}"} <= {*model.families}
    # The folder has the frequencies of its posts, wherever it is served.
    assert model.idf.source == f"posts:en:{model.directory / 'frequencies.tsv'}"
    assert {"lol", *QUERY.lower().split()} <= {*model.idf.known()}
    tuned = json.loads((model.directory / "lambda.json").read_text())
    assert tuned["cross_validated"] > 0.9 and tuned["curve"]["0"] < 0.5
    command("search", *mine, "--reranker", "none", "--output", home / "ql", code=0)
    rerank = command(
        "rerank", *mine, home / "ql", "--output", home / "reranked", code=0
    )
    assert "stats.likes of 1,200 of 9,600 posts" in rerank.err
    assert (
        tweetrerank.evaluate(tweetrerank.ranker(str(file)).rank(), "AP")["window"]["AP"]
        > 0.9
    )
    explained = command("explain", *mine, "--query-id", 0, "--show", 1, code=0)
    assert f"number:{LIKES}" in explained.out
    assert re.search(r"stats\.likes \d+, \d+(st|nd|rd|th) of 350\n", explained.out)


def test_service_and_batch(
    served: Models, documents: Documents, command: Command, tmp_path: Path
) -> None:
    posts, expected = documents
    with client_of(models=served) as client:
        for more in ({}, {"rank_fields": ["text"]}):
            found = client.post(
                "/rerank", json={"query": QUERY, "documents": posts, **more}
            )
            assert [item["index"] for item in found.json()["results"]] == expected
            assert found.headers["x-unknown-signals"] == "12"
        assert (
            'tweetrerank_unknown_signals{model="mine"} 24.0'
            in client.get("/metrics").text
        )
    rows, output = tmp_path / "rows.jsonl", tmp_path / "scored.jsonl"
    listed = [{"doc_id": row, **post} for row, post in enumerate(posts)]
    rows.write_text(json.dumps({"query_id": 1, "query": QUERY, "posts": listed}))
    files = [
        "--input",
        rows,
        "--output",
        output,
        "--checkpoint",
        served.default.source.folder,
    ]
    assert "stats.likes: unknown of 12 posts" in command("batch", *files, code=0).err
    scores = [-post["score"] for post in json.loads(output.read_text())["posts"]]
    assert np.argsort(scores, kind="stable").tolist() == expected


@pytest.mark.parametrize("more", [{}, {"_source": False}])
@pytest.mark.parametrize("told", [{}, ["created"], {LIKES: "loves"}])
def test_proxy(
    served: Models, documents: Documents, more: dict[str, Any], told: Any
) -> None:
    """Fields have other names; those that a search hides are asked for, and stay hidden."""
    fields = PostFields(signals=((LIKES, "hearts"),))
    names = {"text": "contents", LIKES: "loves" if LIKES in told else "hearts"}
    search = {"query": {"match": {"contents": QUERY}}, "size": 60, **more}
    defaults = SearchDefaults(fields=fields, window=60, seconds=60)
    with stub_engine() as (url, engine):
        engine.posts[:60] = [
            {names.get(n, n): v for n, v in p.items()} for p in documents[0]
        ]
        with client_of(models=served, engine=url, defaults=defaults) as client:
            found, wrong = (
                client.post(
                    "/posts/_search",
                    json=search | {"ext": {"rerank": {"signals": each}}},
                )
                for each in (told, 5)
            )
    hits = found.json()["hits"]["hits"]
    assert [int(hit["_id"].partition('"')[0]) for hit in hits] == documents[1]
    assert all(hit["fields"].keys() == {"_first_stage_score"} for hit in hits)
    assert wrong.status_code == 400 and "ext.rerank.signals: Expected" in wrong.text
