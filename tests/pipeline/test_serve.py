"""The formats of the service: requests, answers, scores."""

import gzip
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from conftest import Command
from helpers.index_samples import write_lines
from helpers.processes import ROOT
from helpers.reranking_samples import POSTS, all_pairs, saved
from helpers.service_samples import (
    DOCUMENTS,
    QUERY,
    TEXTS,
    WIRES,
    Wire,
    client_of,
    models,
)
from httpx import Response
from starlette.testclient import TestClient

import tweetrerank
from tweetrerank.indexes.posts import Post
from tweetrerank.pipeline.collections import named
from tweetrerank.pipeline.collections.topics import Topic
from tweetrerank.pipeline.ranking.interpolation import (
    interpolate,
    tuning_files,
    tuning_of,
)
from tweetrerank.pipeline.ranking.retrievers import Candidates
from tweetrerank.pipeline.service.score_request import (
    Document,
    RankFieldsRequest,
    Request,
    between_links,
)
from tweetrerank.pipeline.service.served_models import Models
from tweetrerank.rerankers import checkpoint as checkpoints
from tweetrerank.rerankers.pairs import PRIOR
from tweetrerank.rerankers.reranker import Reranker
from tweetrerank.rerankers.text.passages import best_passages

TOLERANCE = 5e-6
"""Tolerance of logits: a service and ``predict`` multiply matrices of other sizes."""
NUMBER = re.compile(r"-?\d+\.\d+(e[+-]\d+)?")
"""A score as OpenSearch reads it."""
SCORED = [
    {**document, "first_stage_score": n % 5 - 1.5}
    for n, document in enumerate(DOCUMENTS)
]
LISTED = [(f"{text} {n}", url) for n in range(40) for text, url in POSTS]
SCORES = np.random.default_rng(5).normal(size=len(LISTED)).tolist()
LARGE = [40 * score for score in SCORES]
FILLER = "the minister spoke of other things all day long. " * 30
LONG = FILLER + "bbc world service cuts: 650 jobs go. " + FILLER
"""A text whose answer stands behind character 1,000."""
TOO_LONG = "cuts " * 300
README = ROOT / "pipeline" / "service" / "README.md"
EXAMPLE = re.compile(
    r"^curl localhost:8080(/(?!posts/|events)\S+) .*?-d '(.*)'\n(.*)$", re.M
)
EXAMPLES = EXAMPLE.findall(README.read_text("utf-8"))


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with client_of() as client:
        yield client


@pytest.fixture(scope="module")
def window() -> Iterator[TestClient]:
    """A service for all tests, in which kept scores must not answer other requests."""
    with client_of(models=models("window")) as client:
        yield client


@pytest.fixture(params=WIRES)
def wire(request: pytest.FixtureRequest, client: TestClient) -> Wire:
    return WIRES[request.param]._replace(client=client)


def logits(documents: list[tuple[str, str]]) -> npt.NDArray[np.float32]:
    reranker = Reranker(models().default.checkpoint)
    return reranker.predict([(QUERY, post) for post in documents])


# --- Answers of all wire formats ------------------------------------------------------


def test_the_answer_has_the_format(wire: Wire) -> None:
    response = wire.post()
    assert response.status_code == 200, response.text
    headers = response.headers
    assert headers["content-type"] == "application/json"
    assert headers["x-mix"] == "neural"
    assert headers["x-compute-type"] == "cpu"
    characters = len(QUERY) + sum(map(len, TEXTS))
    assert int(headers["x-compute-characters"]) == characters
    names = ("total", "queue", "inference", "compute")
    milliseconds = [int(headers[f"x-{name}-time"]) for name in names]
    assert 0 <= min(milliseconds) <= max(milliseconds) < 60_000


def test_the_answer_has_the_fields(wire: Wire) -> None:
    content = wire.post().json()
    assert isinstance(content, dict) is bool(wire.fields)
    assert not wire.fields or set(content) == wire.fields
    results = wire.results_of(content)
    assert all(set(result) == wire.result for result in results)
    assert sorted(result["index"] for result in results) == list(range(len(TEXTS)))
    scores = [result[wire.score] for result in results]
    assert scores == sorted(scores, reverse=True)


def test_scores_are_those_of_the_model(wire: Wire) -> None:
    slope, intercept = models().default.calibration
    expected = slope * logits(POSTS) + intercept
    raw_scores = wire.scores_of(wire.ranked(DOCUMENTS, **wire.raw))
    assert raw_scores == pytest.approx(expected.tolist(), abs=TOLERANCE)
    probabilities = 1 / (1 + np.exp(-expected))
    scores = wire.scores_of(wire.ranked(DOCUMENTS))
    assert scores == pytest.approx(probabilities.tolist(), abs=1e-6)


def test_probabilities_and_logits_have_one_order(wire: Wire) -> None:
    probabilities = wire.ranked(DOCUMENTS)
    raw_scores = wire.ranked(DOCUMENTS, **wire.raw)
    order = [result["index"] for result in probabilities]
    assert [result["index"] for result in raw_scores] == order


@pytest.mark.parametrize("is_raw", [False, True], ids=["probabilities", "logits"])
def test_scores_have_a_point_and_at_most_18_characters(
    wire: Wire, is_raw: bool
) -> None:
    fields = wire.raw if is_raw else {}
    response = wire.post(DOCUMENTS, **fields)
    scores = re.findall(rf'"{wire.score}":([^,}}\]]+)', response.text)
    lists = 2 if "data" in wire.fields else 1
    assert len(scores) == lists * len(POSTS)
    assert all(NUMBER.fullmatch(score) for score in scores)
    assert max(map(len, scores)) <= 18


def test_equal_scores_keep_the_order_of_the_request(wire: Wire) -> None:
    """In Text Embeddings Inference, the later document comes first."""
    results = wire.ranked(["same"] * 400)
    assert len({result[wire.score] for result in results}) == 1
    expected = list(range(400))
    if wire.is_tei:
        expected.reverse()
    assert [result["index"] for result in results] == expected


# --- Laxness of vendors' servers ------------------------------------------------------

FLAGS = {"raw_scores": "false", "truncate": "true"}
LAX_FIELDS = [
    pytest.param({"TOP": "3"} | FLAGS, 3, id="numbers and flags as texts"),
    pytest.param({"TOP": 3.0} | FLAGS, 3, id="a whole number with a point"),
    pytest.param({"TOP": 0} | FLAGS, len(TEXTS), id="0 results are all"),
    pytest.param({"TOP": "0"} | FLAGS, len(TEXTS), id="0 as a text"),
    pytest.param({"TOP": 999}, len(TEXTS), id="more results than documents"),
    pytest.param(
        {"priority": 0, "max_chunks_per_doc": 10, "x": {"y": [1]}},
        len(TEXTS),
        id="unknown fields",
    ),
]
"""Fields, the number of results, and a reason. TOP is the format's own name."""


@pytest.mark.parametrize(("fields", "count"), LAX_FIELDS)
def test_laxness_of_servers(wire: Wire, fields: dict[str, Any], count: int) -> None:
    own_fields = dict(fields)
    if "TOP" in own_fields:
        own_fields[wire.top] = own_fields.pop("TOP")
    all_results = wire.ranked()
    results = wire.ranked(**own_fields)
    assert results == all_results[:count]


def test_null_counts_as_absent(client: TestClient, wire: Wire) -> None:
    required = {"query", "documents", "texts"} | set(wire.extra)
    optional = set(Request.__struct_fields__) - required
    other_field = "documents" if wire.documents == "texts" else "texts"
    nulls = dict.fromkeys(optional) | {other_field: None}
    content = client.post(wire.path, json=wire.body() | nulls).json()
    assert wire.results_of(content) == wire.ranked()


def test_null_counts_as_absent_in_documents(wire: Wire) -> None:
    nulls = {"url": None, "first_stage_score": None}
    documents = [{"text": text} | nulls for text in TEXTS]
    assert len(wire.ranked(documents)) == len(TEXTS)


def test_the_only_model_answers_to_vendors_names(wire: Wire) -> None:
    response = wire.post(model="gpt-17")
    assert response.headers["x-model"] == "mp_hcnn"


# --- One response for several vendors -------------------------------------------------


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_one_answer_for_all_vendors(client: TestClient, path: str) -> None:
    body = WIRES["cohere"].body(return_documents=True)
    expected = client.post("/invocations", json=body).json()
    content = client.post(path, json=body).json()
    assert content["results"] == expected["results"]
    plain_results = [
        result | {"document": result["document"]["text"]}
        for result in content["results"]
    ]
    assert content["data"] == plain_results


@pytest.mark.parametrize("path", ["/", "/rerank"])
def test_texts_are_in_tei_format_on_every_path(client: TestClient, path: str) -> None:
    body = WIRES["tei"].body()
    expected = client.post("/invocations", json=body).json()
    assert client.post(path, json=body).json() == expected


# --- First-stage scores ---------------------------------------------------------------


def test_a_mixture_with_the_first_stage(wire: Wire) -> None:
    response = wire.post(SCORED)
    content = response.json()
    assert response.headers["x-mix"] == "interpolated"
    assert not wire.fields or content["mix"] == "interpolated"
    weight = tuning_of(models().default.checkpoint.directory).weight
    neural = {str(n): float(score) for n, score in enumerate(logits(POSTS))}
    first = {str(n): float(post["first_stage_score"]) for n, post in enumerate(SCORED)}
    mixture = interpolate({"q": first}, {"q": neural}, weight)["q"]
    expected = [mixture[str(row)] for row in range(len(SCORED))]
    scores = wire.scores_of(wire.results_of(content))
    assert scores == pytest.approx(expected, abs=1e-6)


def test_first_stage_scores_may_be_ignored(wire: Wire) -> None:
    response = wire.post(SCORED, mix="neural")
    assert response.headers["x-mix"] == "neural"
    results = wire.results_of(response.json())
    assert results == wire.ranked(DOCUMENTS)


def with_unscored(row: int) -> list[Any]:
    """Documents of which one has no first-stage score."""
    documents: list[Any] = list(SCORED)
    documents.insert(row, "none")
    return documents


NO_SCORE = "first_stage_score: found none"
INCOMPLETE_MIXTURES = [
    pytest.param(with_unscored(3), {}, f"DOCUMENTS[3].{NO_SCORE}"),
    pytest.param(with_unscored(0), {}, f"DOCUMENTS[0].{NO_SCORE}"),
    pytest.param(DOCUMENTS, {"mix": "interpolated"}, f"DOCUMENTS[0].{NO_SCORE}"),
    pytest.param(TEXTS, {"mix": "lexical"}, "mix: Invalid enum value 'lexical'"),
]


@pytest.mark.parametrize(("documents", "fields", "problem"), INCOMPLETE_MIXTURES)
def test_a_mixture_needs_all_scores(
    wire: Wire, documents: Any, fields: Any, problem: str
) -> None:
    response = wire.post(documents, **fields)
    assert response.status_code in (400, 422)
    assert problem.replace("DOCUMENTS", wire.documents) in response.text


@pytest.mark.parametrize("score", [3.4e38, -3.4e38, 5e-324, 0, 7])
def test_extreme_first_stage_scores(client: TestClient, score: float) -> None:
    documents = list(SCORED)
    documents.append({"text": "a", "first_stage_score": score})
    response = client.post("/v2/rerank", json=WIRES["cohere"].body(documents))
    assert response.status_code == 200
    scores = [result["relevance_score"] for result in response.json()["results"]]
    assert 0 <= min(scores) <= max(scores) <= 1


# --- Fields of documents --------------------------------------------------------------

RANK_FIELDS = {
    "query": QUERY,
    "documents": [
        {"head": "bbc", "body": "cuts", "url": ""},
        {"head": "lunch", "n": 5, "text": ["not read"], "list": [1]},
        "bbc cuts",
    ],
    "rank_fields": ["head", "body", "n"],
}


def test_rank_fields_of_cohere_1(client: TestClient) -> None:
    joined = {"query": QUERY, "documents": ["bbc cuts", "lunch 5", "bbc cuts"]}
    expected = scores_by(client, joined, "/v1/rerank")
    scores = scores_by(client, RANK_FIELDS, "/v1/rerank")
    assert scores == pytest.approx(expected, abs=TOLERANCE)


@pytest.mark.parametrize("names", [["n"], [], None])
def test_rank_fields_leave_first_stage_scores(client: TestClient, names: Any) -> None:
    documents = [{"text": "bbc", "n": n, "first_stage_score": n} for n in range(2)]
    body = {"query": QUERY, "documents": documents, "rank_fields": names}
    response = client.post("/v1/rerank", json=body)
    assert response.headers["x-mix"] == "interpolated"


def test_rank_fields_may_be_lists(client: TestClient) -> None:
    body = RANK_FIELDS | {"rank_fields": ["list"]}
    assert client.post("/v1/rerank", json=body).status_code == 200


@pytest.mark.parametrize("names", [[[]], [None], "head", [{}, "head"]], ids=str)
def test_wrong_rank_fields(client: TestClient, names: Any) -> None:
    response = client.post("/v1/rerank", json=RANK_FIELDS | {"rank_fields": names})
    assert response.status_code in (400, 422)
    assert "rank_fields" in response.text


# --- Packed bodies --------------------------------------------------------------------


def post_packed(wire: Wire, content: bytes, encoding: str = "gzip") -> Response:
    headers = {"content-encoding": encoding, "content-type": "application/json"}
    return wire.client.post(wire.path, content=content, headers=headers)


def test_packed_bodies(wire: Wire) -> None:
    packed = gzip.compress(json.dumps(wire.body()).encode())
    content = post_packed(wire, packed).json()
    assert wire.results_of(content) == wire.ranked()


@pytest.mark.parametrize(
    ("content", "encoding", "status"),
    [
        pytest.param(
            gzip.compress(b" " * 20_000_000), "gzip", 413, id="large unpacked"
        ),
        pytest.param(
            gzip.compress(b'{"query": 1}')[:20] + b"no", "gzip", 400, id="cut"
        ),
        pytest.param(b"{}", "br", 415, id="another encoding"),
    ],
)
def test_wrong_packed_bodies(
    wire: Wire, content: bytes, encoding: str, status: int
) -> None:
    assert post_packed(wire, content, encoding).status_code == status


# --- Links around texts ---------------------------------------------------------------

LINKS = [
    "http://a.b/c",
    "https://x",
    "//x/y",
    "www.x",
    "a.eu/x",
    "http://a b//c",
    "",
]


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize(
    "text", ["", "storm", "http://a.b/c storm", "storm http://a.b/c", "x www.x"]
)
def test_links_around_texts(text: str, link: str) -> None:
    assert between_links(link + text + link) == (text, link)
    long_link = link and link + "x" * 3000
    assert between_links(long_link + text + long_link) == (text, long_link)


@pytest.mark.parametrize("null", ["null", "[]", "[null]"])
@pytest.mark.parametrize("text", ["", "storm", "http://a.b/c storm", "x www.x"])
def test_no_links_in_the_notation_of_opensearch(text: str, null: str) -> None:
    assert between_links(null + text + null) == (text, "")


def test_a_list_of_links_around_a_text() -> None:
    links = "[http://a.b/c, http://d.e/f]"
    expected = ("storm", "http://a.b/c http://d.e/f")
    assert between_links(f"{links}storm{links}") == expected


@pytest.mark.parametrize(
    "document", ["null", "[]", "nullnullnull", "null[]null", "//x/ynull//x/y"]
)
def test_links_around_no_text(document: str) -> None:
    text, _ = between_links(document)
    assert text == ""


def test_documents_with_links_around(client: TestClient) -> None:
    link = "http://met.example/gale"
    text = "gale warning"
    body = {"query": "gale", "links": "around"}
    joined = scores_by(client, body | {"documents": [f"{link}{text}{link}", text]})
    apart = [{"text": text, "url": link}, text]
    expected = scores_by(client, body | {"documents": apart})
    assert joined == pytest.approx(expected, abs=1e-6)


PAGE = {"query": "gale", "links": "around", "needs_text": True}


@pytest.mark.parametrize("documents", [["", ""], ["//x/y" * 2, "nullnull"]])
def test_pages_without_texts_are_refused(
    client: TestClient, documents: list[str]
) -> None:
    response = client.post("/v2/rerank", json=PAGE | {"documents": documents})
    assert response.status_code == 422
    assert "found 2 empty texts" in response.json()["message"]


@pytest.mark.parametrize("documents", [["", "gale"], [""]])
def test_pages_with_some_text_are_accepted(
    client: TestClient, documents: list[str]
) -> None:
    body = PAGE | {"documents": documents}
    assert client.post("/v2/rerank", json=body).status_code == 200


# --- Information ----------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/health", "/ping"])
def test_probes(client: TestClient, path: str) -> None:
    assert client.get(path).json().keys() == {"status", "unix"}


def test_information(client: TestClient) -> None:
    info = client.get("/info").json()
    assert info["model_id"] == "mp_hcnn"
    assert "reranker" in info["model_type"]
    assert info["max_client_batch_size"] == 2000


@pytest.mark.parametrize("path", ["/models", "/v1/models"])
def test_lists_of_models(client: TestClient, path: str) -> None:
    (model,) = client.get(path).json()["data"]
    assert (model["id"], model["model_type"]) == ("mp_hcnn", "rerank")
    assert client.get("/v1/models/mp_hcnn").json() == model
    assert client.get("/v1/models/other").status_code == 404


@pytest.mark.parametrize("kind", [Document, Request, RankFieldsRequest])
def test_schemas_have_the_fields(client: TestClient, kind: Any) -> None:
    schemas = client.get("/openapi.json").json()["components"]["schemas"]
    assert set(schemas[kind.__name__]["properties"]) == set(kind.__struct_fields__)


@pytest.fixture(scope="module")
def metrics() -> list[str]:
    """Lines of metrics after two answers and a refusal."""
    with client_of() as client:
        for _ in range(2):
            client.post("/rerank", json=WIRES["tei"].body())
        client.post("/rerank", json={"texts": []})
        return client.get("/metrics").text.splitlines()


@pytest.mark.parametrize(
    "line",
    [
        'te_request_count{method="batch"} 3.0',
        'te_request_success{method="batch"} 2.0',
        'te_request_failure{err="validation"} 1.0',
        "te_request_duration_count 2.0",
        "te_queue_size 0.0",
        f"te_batch_next_size_sum {2 * len(TEXTS)}.0",
        'tweetrerank_seconds_count{index="",model="",outcome="value",stage="total"} '
        "1.0",
    ],
)
def test_metrics(metrics: list[str], line: str) -> None:
    assert line in metrics


@pytest.mark.parametrize("stage", ["queue", "inference", "total"])
def test_metrics_of_stages(metrics: list[str], stage: str) -> None:
    labels = f'index="",model="mp_hcnn",outcome="ok",stage="{stage}"'
    assert f"tweetrerank_seconds_count{{{labels}}} 2.0" in metrics


@pytest.mark.parametrize("name", ["model_info", "cache_hits", "cache_bytes"])
def test_metrics_of_models(metrics: list[str], name: str) -> None:
    names = {line.split("{")[0] for line in metrics if not line.startswith("#")}
    assert f"tweetrerank_{name}" in names


def shortened(answer: str) -> Any:
    """An answer without its id and its time, with five digits of its scores."""

    def stable(fields: dict[str, Any]) -> dict[str, Any]:
        return {name: fields[name] for name in fields.keys() - {"id", "created"}}

    def rounded(number: str) -> float:
        return round(float(number), 5)

    return json.loads(answer, parse_float=rounded, object_hook=stable)


@pytest.mark.parametrize(("path", "body", "answer"), EXAMPLES)
def test_the_examples_of_the_readme(
    window: TestClient, path: str, body: str, answer: str
) -> None:
    headers = {"content-type": "application/json"}
    response = window.post(path, content=body, headers=headers)
    assert shortened(response.text) == shortened(answer)


def test_the_readme_has_examples() -> None:
    assert len(EXAMPLES) == 5


# --- Lists ----------------------------------------------------------------------------


def listed_documents(scores: list[float] | None = None) -> list[dict[str, Any]]:
    documents: list[dict[str, Any]] = [
        {"text": text, "url": url} for text, url in LISTED
    ]
    for document, score in zip(documents, scores or [], strict=False):
        document["first_stage_score"] = score
    return documents


def scores_by(
    client: TestClient, body: dict[str, Any], path: str = "/v2/rerank"
) -> list[float]:
    """Scores of the documents, in their own order."""
    results = client.post(path, json=body).json()["results"]
    return WIRES["cohere"].scores_of(results)


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        pytest.param({}, {"in_order": True}, id="in order by default"),
        pytest.param({"order": "first_stage"}, {"in_order": True}, id="in order"),
        pytest.param({"order": "unknown"}, {}, id="in no order"),
        pytest.param(
            {"documents": listed_documents(SCORES)}, {"scores": SCORES}, id="scores"
        ),
        pytest.param(
            {"documents": listed_documents(LARGE)},
            {"scores": SCORES},
            id="scores in another unit",
        ),
        pytest.param(
            {"documents": listed_documents(SCORES), "mix": "neural"},
            {"in_order": True},
            id="ignored scores",
        ),
        pytest.param({"query": f"{QUERY} 2"}, {"in_order": True}, id="another query"),
    ],
)
def test_a_request_is_ranked_as_in_python(
    window: TestClient, fields: Any, options: Any
) -> None:
    body = {"query": QUERY, "raw_scores": True, "documents": listed_documents()}
    body |= fields
    slope, intercept = models("window").default.calibration
    pairs = [(body["query"], post) for post in LISTED]
    expected = slope * tweetrerank.load("window").predict(pairs, **options) + intercept
    new_scores = scores_by(window, body)
    assert new_scores == pytest.approx(expected.tolist(), abs=1e-5)
    kept_scores = scores_by(window, body)
    assert kept_scores == new_scores


def test_serve_order_unknown() -> None:
    body = {"query": QUERY, "documents": listed_documents()}
    with client_of(models=models("window"), in_order=False) as client:
        by_default = scores_by(client, body)
        unordered = scores_by(client, body | {"order": "unknown"})
        ordered = scores_by(client, body | {"order": "first_stage"})
    assert by_default == unordered != ordered


def test_the_scores_of_a_list_are_kept_for_its_caller(window: TestClient) -> None:
    """Response times do not reveal the searches of others."""
    body = {"query": f"{QUERY} 3", "documents": listed_documents()}
    key = {"authorization": "Bearer x"}
    scored = []
    for headers in ({}, {}, key, key):
        window.post("/v2/rerank", json=body, headers=headers).raise_for_status()
        metrics = window.get("/metrics").text
        (count,) = re.findall(r"te_batch_next_size_count (\d+)", metrics)
        scored.append(int(count))
    assert np.diff(scored).tolist() == [0, 1, 0]


# --- Models ---------------------------------------------------------------------------


def test_a_collection_is_served_by_what_is_best_for_it(tmp_path: Path) -> None:
    served = Models([], 1_000_000, collections=[named.find("sample")])
    assert list(served.served) == ["sample"]
    assert served.default.source.folder == checkpoints.SHIPPED / "window" / "all"
    # A model trained on the collection since then replaces it.
    trained = tmp_path / "home" / "checkpoints" / "window" / "sample"
    shipped = checkpoints.SHIPPED / "window" / "mb2012"
    metrics = checkpoints.read_json(shipped / "metrics.json") | {"left_out": "sample"}
    changes = {"metrics.json": json.dumps(metrics).encode()}
    checkpoints.copy_whole(shipped, trained, changes)
    served.reload()
    assert served.default.source.folder == trained


def test_a_weight_tuned_here_is_taken_over() -> None:
    served = Models(["mp_hcnn"], 1_000_000)
    shipped = checkpoints.find("mp_hcnn")
    before = served.default
    tuning = tuning_of(shipped)
    assert tuning and before.weight == tuning.weight
    replace(tuning, weight=0.0).save(tuning_files(shipped)[0])
    served.reload()
    assert served.default.weight == 0
    assert served.default.version != before.version


def test_an_exported_model_is_a_folder_of_its_own(
    tmp_path: Path, command: Command
) -> None:
    shared = checkpoints.SHIPPED / "mp_hcnn" / "mb2011"
    copy = tmp_path / "copy"
    command("export", shared, "--output", copy, code=0)
    command("export", shared, "--output", copy, code=2)  # The folder exists.
    pairs = [(QUERY, post) for post in POSTS]
    order = range(len(POSTS))
    expected = tweetrerank.load(shared).predict(pairs, order)
    np.testing.assert_array_equal(
        tweetrerank.load(copy).predict(pairs, order), expected
    )


# --- Long documents -------------------------------------------------------------------

LONG_TEXTS = ["a storm on the coast", FILLER, LONG]


@pytest.mark.parametrize("name", ["window", "mp_hcnn"])
def test_answers_far_into_a_document(name: str) -> None:
    body = {"query": QUERY, "documents": LONG_TEXTS}
    with client_of(models=models(name)) as client:
        assert np.argmax(scores_by(client, body)) == 2
        assert np.argmax(scores_by(client, body | {"order": "unknown"})) == 2
        assert np.argmax(scores_by(client, body | {"top_k": 3})) == 2
        headers = client.post("/rerank", json=body).headers
    assert headers["x-split-documents"] == "2"


def test_the_best_passage_has_the_answer() -> None:
    (passage,) = best_passages([QUERY], [LONG])
    assert "650 jobs" in passage
    assert len(passage) <= 1000
    assert f" {passage.strip()} " in f" {LONG} "


@pytest.mark.parametrize("name", ["window", "mp_hcnn"])
def test_a_long_document_has_the_score_of_its_best_passage(name: str) -> None:
    (passage,) = best_passages([QUERY], [LONG])
    predict = tweetrerank.load(name).predict
    scores = predict([(QUERY, LONG), (QUERY, "a storm")])
    expected = predict([(QUERY, passage), (QUERY, "a storm")])
    np.testing.assert_array_equal(scores, expected)


@pytest.mark.parametrize("name", ["window", "mp_hcnn"])
def test_a_batch_reads_long_documents(
    name: str, command: Command, tmp_path: Path
) -> None:
    posts = [{"doc_id": str(n), "text": text} for n, text in enumerate(LONG_TEXTS)]
    row = {"query_id": 1, "query": QUERY, "posts": posts}
    rows = write_lines(tmp_path / "in.jsonl", [row])
    output = tmp_path / "out"
    files = ("--input", rows, "--output", output)
    command("batch", *files, "--reranker", name, code=0)
    ranked_posts = json.loads(output.read_text())["posts"]
    assert max(ranked_posts, key=lambda post: post["score"])["doc_id"] == "2"


def test_a_client_may_bound_long_documents(window: TestClient) -> None:
    body = {"query": QUERY, "documents": ["bbc", TOO_LONG], "max_tokens_per_doc": 200}
    headers = window.post("/v2/rerank", json=body).headers
    assert headers["x-truncated-documents"] == "1"
    assert headers["x-split-documents"] == "0"


@pytest.mark.parametrize(
    ("path", "flag"), [("/v2/rerank", "truncate"), ("/rerank", "truncation")]
)
@pytest.mark.parametrize(
    ("query", "place"), [(QUERY, "documents[1]"), (TOO_LONG, "query")]
)
def test_a_client_may_refuse_long_texts(
    window: TestClient, path: str, flag: str, query: str, place: str
) -> None:
    body = {"query": query, "documents": ["bbc", TOO_LONG], flag: False}
    response = window.post(path, json=body)
    assert response.status_code in (400, 422)
    problem = f"{place}: found 1500 characters, expected at most 1000"
    assert problem in response.text


# --- Signals and names ----------------------------------------------------------------


def test_priors_are_of_the_whole_list(tmp_path: Path) -> None:
    """A model that reads a post's rank gets it, or 0 without ranks, as in predict."""
    served = Models([str(saved(tmp_path / "sm", "sm_cnn", "static"))], 10**6)
    assert PRIOR in served.default.signals
    run = {"q": {str(n): score for n, score in enumerate(SCORES)}}
    posts = {str(n): Post(str(n), text, url) for n, (text, url) in enumerate(LISTED)}
    ranked_pairs = Candidates([Topic("q", QUERY)], run, posts).pairs()
    slope, intercept = served.default.calibration

    def expected(pairs: Any) -> Any:
        scores = slope * served.default.checkpoint.score(pairs) + intercept
        return pytest.approx(scores.tolist(), abs=1e-5)

    body = {"query": QUERY, "mix": "neural", "raw_scores": True}
    with client_of(models=served) as client:
        documents = listed_documents(SCORES)
        scores = scores_by(client, body | {"documents": documents})
        assert scores == expected(ranked_pairs)
        documents = listed_documents()
        scores = scores_by(client, body | {"documents": documents})
        assert scores == expected(all_pairs([QUERY], LISTED))


@pytest.fixture
def two_models(tmp_path: Path) -> Iterator[TestClient]:
    folder = saved(tmp_path / "mine", "sm_cnn", "text")
    with client_of(models=Models([str(folder), "mp_hcnn"], 10**6)) as client:
        yield client


@pytest.mark.parametrize(
    ("name", "status"), [(None, 422), ("rerank-v3.5", 404), ("", 404)]
)
def test_several_models_need_a_name(
    two_models: TestClient, name: str | None, status: int
) -> None:
    body = {"query": QUERY, "documents": TEXTS, "model": name}
    response = two_models.post("/v2/rerank", json=body)
    assert response.status_code == status
    assert "expected one of mine, mp_hcnn" in response.json()["message"]


def test_names_of_several_models(two_models: TestClient) -> None:
    body = {"query": QUERY, "documents": TEXTS}
    mine = two_models.post("/v2/rerank", json=body | {"model": "mine"}).json()
    shipped = two_models.post("/v2/rerank", json=body | {"model": "mp_hcnn"}).json()
    assert (mine["model"], shipped["model"]) == ("mine", "mp_hcnn")
    metrics = two_models.get("/metrics").text
    assert metrics.count("tweetrerank_model_info{") == 2
