"""Models of the service: whole lists, by scores, by order, or as sets; several models at once."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Command
from helpers.batch_samples import read_lines, write_lines
from helpers.reranking_samples import POSTS, all_pairs, network, small_model, vocabulary
from helpers.service_samples import QUERY, TEXTS, client_of, models
from starlette.testclient import TestClient

import rerankers
from indexes.posts import Post
from pipeline.collections import named
from pipeline.collections.topics import Topic
from pipeline.ranking.retrievers import Candidates
from pipeline.ranking.tuning import tuning_files, tuning_of
from pipeline.service.models import Models
from rerankers import checkpoint as checkpoints
from rerankers.networks.inputs import TextEncoder
from rerankers.pairs import PRIOR
from rerankers.text.passages import best_passages

LISTED = [(f"{text} {n}", url) for n in range(40) for text, url in POSTS]
SCORES = np.random.default_rng(5).normal(size=len(LISTED)).tolist()


def documents(scores: list[float] | None = None) -> list[dict[str, Any]]:
    posts: list[dict[str, Any]] = [{"text": text, "url": url} for text, url in LISTED]
    for post, score in zip(posts, scores or [], strict=False):
        post["first_stage_score"] = score
    return posts


def scores_by(client: TestClient, body: dict[str, Any], path: str = "/v2/rerank") -> list[float]:
    """Scores in the order of the documents."""
    results = client.post(path, json=body).json()["results"]
    scores = {item["index"]: item["relevance_score"] for item in results}
    return [scores[row] for row in range(len(scores))]


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
    slope, intercept = models("window").default.loaded.calibration
    scores = rerankers.load("window").predict([(body["query"], post) for post in LISTED], **how)
    expected = slope * scores + intercept
    for _ in range(2):
        assert scores_by(client, body) == pytest.approx(expected.tolist(), abs=1e-5)


def test_probabilities_do_not_depend_on_the_scale_of_an_engine(client: TestClient) -> None:
    one, forty = (
        scores_by(client, {"query": QUERY, "documents": documents([s * scale for s in SCORES])})
        for scale in (1.0, 40.0)
    )
    assert one == pytest.approx(forty, abs=1e-6)
    assert all(0 < value < 1 for value in one)


def test_where_requests_do_not_say_the_service_does() -> None:
    """``serve --order unknown``."""
    body = {"query": QUERY, "documents": documents()}
    bodies = [body, body | {"order": "unknown"}, body | {"order": "first_stage"}]
    with client_of(models=models("window"), in_order=False) as client:
        unsaid, unknown, ordered = (scores_by(client, each) for each in bodies)
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


def test_a_weight_tuned_here_is_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWEETRERANK_HOME", str(tmp_path))
    served, shipped = Models(["mp_hcnn"], 1_000_000), checkpoints.find("mp_hcnn")
    tuning, before = tuning_of(shipped), served.default.loaded
    assert tuning and before.weight == tuning.weight
    replace(tuning, weight=0.0).save(tuning_files(shipped)[0])
    served.reload()
    assert served.default.loaded.weight == 0
    assert served.default.loaded.version != before.version


def test_an_exported_model_is_a_folder_of_its_own(tmp_path: Path, command: Command) -> None:
    shared = checkpoints.SHIPPED / "mp_hcnn" / "mb2011"
    for code in (0, 2):
        command("export", shared, "--output", tmp_path / "copy", code=code)
    pairs, scores = [(QUERY, post) for post in POSTS], [*range(len(POSTS))]
    both = [rerankers.load(folder) for folder in (shared, tmp_path / "copy")]
    np.testing.assert_array_equal(*(one.predict(pairs, scores) for one in both))


FILLER = "the minister spoke of other things all day long. " * 30
LONG = FILLER + "bbc world service cuts: 650 jobs go. " + FILLER
"""Its answer stands behind character 1,000."""


@pytest.mark.parametrize("name", ["window", "mp_hcnn"])
def test_an_answer_far_into_a_document_ranks_first(
    name: str, command: Command, tmp_path: Path
) -> None:
    """As its best passage would, also in Python and in ``batch``."""
    texts = ["a storm on the coast", FILLER, LONG]
    body = {"query": QUERY, "documents": texts}
    with client_of(models=models(name)) as client:
        for more in ({}, {"order": "unknown"}, {"top_k": 3}):
            assert np.argmax(scores_by(client, body | more)) == 2
        assert client.post("/rerank", json=body).headers["x-split-documents"] == "2"
    reranker = rerankers.load(name)
    (passage,) = best_passages([QUERY], [LONG])
    assert "650 jobs" in passage and len(passage) <= 1000
    assert f" {passage.strip()} " in f" {LONG} "
    scores = [reranker.predict([(QUERY, text), (QUERY, "a storm")]) for text in (LONG, passage)]
    np.testing.assert_array_equal(*scores)
    posts = [{"doc_id": str(n), "text": text} for n, text in enumerate(texts)]
    rows = write_lines(tmp_path / "in.jsonl", [{"query_id": 1, "query": QUERY, "posts": posts}])
    command("batch", "--input", rows, "--output", tmp_path / "out", "--reranker", name, code=0)
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


def saved(folder: Path, name: str, configuration: str) -> Path:
    """A small untrained checkpoint."""
    encoder = TextEncoder(vocabulary(), checkpoints.idf_from("wordfreq"))
    checkpoints.save(folder, network(small_model(name, configuration), encoder, name))
    return folder


def test_priors_are_of_the_whole_list(tmp_path: Path) -> None:
    """A model that reads a post's rank gets it, or 0 without ranks, as in predict."""
    served = Models([str(saved(tmp_path / "sm", "sm_cnn", "static"))], 10**6)
    assert PRIOR in served.default.loaded.signals
    run = {"q": {str(n): score for n, score in enumerate(SCORES)}}
    posts = {str(n): Post(str(n), *post) for n, post in enumerate(LISTED)}
    ranked = Candidates([Topic("q", QUERY)], run, posts).pairs()
    slope, intercept = served.default.loaded.calibration
    with client_of(models=served) as client:
        for scores, pairs in ((SCORES, ranked), (None, all_pairs([QUERY], LISTED))):
            expected = slope * served.default.checkpoint.score(pairs) + intercept
            body = {"query": QUERY, "mix": "neural", "documents": documents(scores)}
            actual = scores_by(client, body | {"raw_scores": True})
            assert actual == pytest.approx(expected.tolist(), abs=1e-5)


def test_names_of_several_models(tmp_path: Path) -> None:
    served = Models([str(saved(tmp_path / "mine", "sm_cnn", "text")), "mp_hcnn"], 10**6)
    body = {"query": QUERY, "documents": TEXTS}
    with client_of(models=served) as client:
        for name, status in ((None, 422), ("rerank-v3.5", 404), ("", 404)):
            refused = client.post("/v2/rerank", json=body | {"model": name})
            assert refused.status_code == status
            assert "expected one of mine, mp_hcnn" in refused.json()["message"]
        for name in ("mine", "mp_hcnn"):
            response = client.post("/v2/rerank", json=body | {"model": name})
            assert response.json()["model"] == name
        assert client.get("/metrics").text.count("tweetrerank_model_info{") == 2
