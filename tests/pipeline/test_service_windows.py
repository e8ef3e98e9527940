"""The service with the model ``window``: whole lists, by scores, by order, or as sets."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Command
from helpers.batch_samples import read_lines, write_lines
from helpers.reranking_samples import POSTS
from helpers.service_samples import QUERY, client_of, models
from starlette.testclient import TestClient

import rerankers
from pipeline.collections import named
from pipeline.service.app import Service, build
from pipeline.service.models import Models
from pipeline.service.requests import Limits
from rerankers import checkpoint as checkpoints
from rerankers.text.passages import best_passages

LISTED = [(f"{text} {n}", url) for n in range(40) for text, url in POSTS]
SCORES = np.random.default_rng(5).normal(size=len(LISTED)).tolist()


def documents(scores: list[float] | None = None) -> list[dict[str, Any]]:
    posts: list[dict[str, Any]] = [{"text": text, "url": url} for text, url in LISTED]
    for post, score in zip(posts, scores or [], strict=False):
        post["first_stage_score"] = score
    return posts


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    """Of one service for all tests: what it remembers of one request must not answer another."""
    with client_of(models=models("window")) as opened:
        yield opened


@pytest.mark.parametrize(
    ("fields", "how"),
    [
        ({}, {"in_order": True}),
        ({"order": "first_stage"}, {"in_order": True}),
        ({"order": "unknown"}, {}),
        ({"documents": documents(SCORES)}, {"scores": SCORES}),
        ({"documents": documents(SCORES), "mix": "neural"}, {"in_order": True}),
        ({"query": f"{QUERY} 2"}, {"in_order": True}),
    ],
)
def test_a_request_is_ranked_as_in_python(
    client: TestClient, fields: dict[str, Any], how: dict[str, Any]
) -> None:
    body = {"query": QUERY, "raw_scores": True, "documents": documents(), **fields}
    slope, intercept = models("window").default.calibration
    scores = rerankers.load("window").predict([(body["query"], post) for post in LISTED], **how)
    expected = slope * scores + intercept
    for _ in range(2):
        results = client.post("/rerank", json=body).json()["results"]
        found = {item["index"]: item["relevance_score"] for item in results}
        assert [found[row] for row in range(len(found))] == pytest.approx(
            expected.tolist(), abs=1e-5
        )


def test_probabilities_do_not_depend_on_the_scale_of_an_engine(client: TestClient) -> None:
    found = []
    for scale in (1.0, 40.0):
        scores = [score * scale for score in SCORES]
        body = {"query": QUERY, "documents": documents(scores)}
        results = client.post("/v2/rerank", json=body).json()["results"]
        found.append({item["index"]: item["relevance_score"] for item in results})
    first, again = found
    assert first == pytest.approx(again, abs=1e-6)
    assert all(0 < value < 1 for value in first.values())


def test_where_requests_do_not_say_the_service_does() -> None:
    """``serve --order unknown``."""
    body = {"query": QUERY, "documents": documents()}
    bodies = [body, body | {"order": "unknown"}, body | {"order": "first_stage"}]
    app = build(Service(models("window"), Limits(), 1, in_order=False))
    with TestClient(app) as client:
        unsaid, unknown, ordered = (
            client.post("/v2/rerank", json=each).json()["results"] for each in bodies
        )
    assert unsaid == unknown != ordered


def test_the_scores_of_a_list_are_kept_for_its_caller(client: TestClient) -> None:
    """Times tell nobody what others have searched."""
    body, key = {"query": f"{QUERY} 3", "documents": documents()}, {"authorization": "Bearer x"}
    scored = []
    for headers in ({}, {}, key, key):
        assert client.post("/v2/rerank", json=body, headers=headers).status_code == 200
        (line,) = re.findall(r"te_batch_next_size_count (\d+)", client.get("/metrics").text)
        scored.append(int(line))
    assert np.diff(scored).tolist() == [0, 1, 0]


def test_a_collection_is_served_by_what_is_best_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TWEETRERANK_HOME", str(tmp_path))
    served = Models([], 1_000_000, collections=[named.find("sample")])
    assert [*served.served] == ["sample"]
    assert served.default.loaded.directory == checkpoints.SHIPPED / "window" / "all"
    # A model trained on it since then is taken over.
    trained = tmp_path / "checkpoints" / "window" / "sample"
    shipped = checkpoints.SHIPPED / "window" / "mb2012"
    metrics = checkpoints.read_json(shipped / "metrics.json") | {"left_out": "sample"}
    checkpoints.copy_whole(shipped, trained, {"metrics.json": json.dumps(metrics).encode()})
    served.reload()
    assert served.default.loaded.directory == trained


def test_an_exported_model_is_a_folder_of_its_own(tmp_path: Path, command: Command) -> None:
    shared = checkpoints.SHIPPED / "mp_hcnn" / "mb2011"
    done = command("export", shared, "--output", tmp_path / "copy")
    assert done.code == 0, done.err
    assert command("export", shared, "--output", tmp_path / "copy").code == 2
    pairs = [(QUERY, post) for post in POSTS]
    first, again = (rerankers.load(folder) for folder in (shared, tmp_path / "copy"))
    np.testing.assert_array_equal(first.predict(pairs), again.predict(pairs))
    scores = [*range(len(POSTS))]
    np.testing.assert_array_equal(first.predict(pairs, scores), again.predict(pairs, scores))


FILLER = "the minister spoke of other things all day long. " * 30
LONG = FILLER + "bbc world service cuts: 650 jobs go. " + FILLER
"""Its answer stands behind character 1,000."""


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v2/rerank", {}),
        ("/v2/rerank", {"order": "unknown"}),
        ("/rerank", {"top_k": 3}),
    ],
)
@pytest.mark.parametrize("name", ["window", "mp_hcnn"])
def test_an_answer_far_into_a_document_ranks_first(
    path: str, fields: dict[str, Any], name: str
) -> None:
    body = {"query": QUERY, "documents": ["a storm on the coast", FILLER, LONG]}
    with client_of(models=Models([name], 1_000_000)) as client:
        response = client.post(path, json={**body, **fields})
    assert response.headers["x-split-documents"] == "2"
    found = {item["index"]: item["relevance_score"] for item in response.json()["results"]}
    assert max(found, key=lambda row: found[row]) == 2


def test_a_long_text_has_the_score_of_its_best_passage(command: Command, tmp_path: Path) -> None:
    reranker = rerankers.load("window")
    assert reranker.rank(QUERY, ["a storm", FILLER, LONG])[0].index == 2
    (passage,) = best_passages([QUERY], [LONG])
    assert "650 jobs" in passage and len(passage) <= 1000
    assert f" {passage.strip()} " in f" {LONG} "
    scores = [reranker.predict([(QUERY, text), (QUERY, "a storm")]) for text in (LONG, passage)]
    np.testing.assert_array_equal(*scores)
    posts = [{"doc_id": str(n), "text": text} for n, text in enumerate(["a storm", FILLER, LONG])]
    rows = write_lines(tmp_path / "in.jsonl", [{"query_id": 1, "query": QUERY, "posts": posts}])
    assert command("batch", "--input", rows, "--output", tmp_path / "out").code == 0
    (row,) = read_lines(tmp_path / "out")
    assert max(row["posts"], key=lambda post: post["score"])["doc_id"] == "2"


def test_a_client_may_refuse_or_bound_long_documents(client: TestClient) -> None:
    body = {"query": QUERY, "documents": ["bbc", "cuts " * 300]}
    cut = client.post("/v2/rerank", json={**body, "max_tokens_per_doc": 200})
    assert cut.headers["x-truncated-documents"] == "1"
    assert cut.headers["x-split-documents"] == "0"
    for path, field in (("/v2/rerank", "truncate"), ("/rerank", "truncation")):
        refused = client.post(path, json={**body, field: False})
        assert refused.status_code in (400, 422)
        assert "documents[1]: found 1500 characters, expected at most 1000" in refused.text
        refused = client.post(path, json={"query": "cuts " * 300, "documents": ["a"], field: False})
        assert "query: found 1500 characters, expected at most 1000" in refused.text
