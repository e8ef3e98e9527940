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
from tweetrerank.rerankers.text.passages import best_passages


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with client_of() as client:
        yield client


@pytest.fixture(params=WIRES)
def wire(request: pytest.FixtureRequest) -> Wire:
    return WIRES[request.param]


TOLERANCE = 5e-6
"""Of logits: a service and ``predict`` multiply matrices of other sizes."""
SCORED = [
    {**document, "first_stage_score": n % 5 - 1.5}
    for n, document in enumerate(DOCUMENTS)
]
LISTED = [(f"{text} {n}", url) for n in range(40) for text, url in POSTS]
SCORES = np.random.default_rng(5).normal(size=len(LISTED)).tolist()
LARGE = [40 * score for score in SCORES]
FILLER = "the minister spoke of other things all day long. " * 30
LONG = FILLER + "bbc world service cuts: 650 jobs go. " + FILLER
"""Its answer stands behind character 1,000."""
README = ROOT / "pipeline" / "service" / "README.md"
EXAMPLE = re.compile(
    r"^curl localhost:8080(/(?!posts/|events)\S+) .*?-d '(.*)'\n(.*)$", re.M
)
EXAMPLES = EXAMPLE.findall(README.read_text("utf-8"))


def logits(documents: list[tuple[str, str]]) -> npt.NDArray[np.float32]:
    return models().default.checkpoint.predict([(QUERY, post) for post in documents])


def test_the_answer_has_the_format(client: TestClient, wire: Wire) -> None:
    answer = client.post(wire.path, json=wire.body())
    assert answer.status_code == 200, answer.text
    expected = {
        "content-type": "application/json",
        "x-mix": "neural",
        "x-compute-type": "cpu",
    }
    assert expected.items() <= {**(headers := answer.headers)}.items()
    assert int(headers["x-compute-characters"]) == sum(map(len, [QUERY, *TEXTS]))
    for name in ("total", "queue", "inference", "compute"):
        assert 0 <= int(headers[f"x-{name}-time"]) < 60_000
    content = answer.json()
    assert isinstance(content, dict) is bool(wire.fields)
    assert not wire.fields or set(content) == wire.fields
    results = wire.results_of(content)
    assert all(set(result) == wire.result for result in results)
    assert sorted(result["index"] for result in results) == list(range(len(TEXTS)))
    scores = [result[wire.score] for result in results]
    assert scores == sorted(scores, reverse=True)


def test_scores_are_those_of_the_model(client: TestClient, wire: Wire) -> None:
    """Probabilities and logits, in one order, with a decimal point and at most 18 characters."""
    slope, intercept = models().default.calibration
    expected = slope * logits(POSTS) + intercept
    orders = []
    for is_raw in (False, bool(wire.raw)):
        response = client.post(
            wire.path, json=wire.body(DOCUMENTS, **(wire.raw if is_raw else {}))
        )
        results = wire.results_of(response.json())
        orders.append([result["index"] for result in results])
        for result in results:
            logit = float(expected[result["index"]])
            right, tolerance = (
                (logit, TOLERANCE) if is_raw else (1 / (1 + np.exp(-logit)), 1e-6)
            )
            assert result[wire.score] == pytest.approx(right, abs=tolerance)
        # OpenSearch needs them so.
        scores = re.findall(rf'"{wire.score}":([^,}}\]]+)', response.text)
        assert len(scores) == len(POSTS) * (1 + ("data" in wire.fields))
        assert all(re.fullmatch(r"-?\d+\.\d+(e[+-]\d+)?", score) for score in scores)
        assert max(map(len, scores)) <= 18
    assert orders[0] == orders[1]


def test_equal_scores_keep_the_order_of_the_request(
    client: TestClient, wire: Wire
) -> None:
    """Except in Text Embeddings Inference, where the later comes first."""
    results = wire.results_of(
        client.post(wire.path, json=wire.body(["same"] * 400)).json()
    )
    assert len({result[wire.score] for result in results}) == 1
    expected = [*range(400)][:: -1 if wire is WIRES["tei"] else 1]
    assert [result["index"] for result in results] == expected


def test_laxness_of_servers(client: TestClient, wire: Wire) -> None:
    """Numbers and flags as texts, whole numbers with a point, 0 results for all; null is no value,
    unknown fields are ignored, and vendors' names of models where there is one."""
    every = wire.results_of(client.post(wire.path, json=wire.body()).json())
    flags: dict[str, Any] = {"raw_scores": "false", "truncate": "true"}
    optional = {*Request.__struct_fields__} - {
        "query",
        "documents",
        "texts",
        *wire.extra,
    }
    cases: list[tuple[dict[str, Any], int]] = [
        *(({wire.top: top, **flags}, 3) for top in ("3", 3.0)),
        *(({wire.top: top, **flags}, len(TEXTS)) for top in (0, "0")),
        ({wire.top: 999}, len(TEXTS)),
        (dict.fromkeys(optional), len(TEXTS)),
        ({"priority": 0, "max_chunks_per_doc": 10, "x": {"y": [1]}}, len(TEXTS)),
        ({"documents" if wire.documents == "texts" else "texts": None}, len(TEXTS)),
    ]
    for fields, count in cases:
        answer = client.post(wire.path, json=wire.body() | fields)
        assert wire.results_of(answer.json()) == every[:count]
    answer = client.post(wire.path, json=wire.body() | {"model": "gpt-17"})
    assert answer.headers["x-model"] == "mp_hcnn"
    documents = [
        {"text": text, "url": None, "first_stage_score": None} for text in TEXTS
    ]
    answer = client.post(wire.path, json=wire.body(documents))
    assert len(wire.results_of(answer.json())) == len(TEXTS)


def test_one_answer_for_all_vendors(client: TestClient) -> None:
    body = WIRES["cohere"].body(return_documents=True)
    paths: tuple[str, ...] = ("/rerank", "/v1/rerank", "/v2/rerank", "/invocations")
    answers = [client.post(path, json=body).json() for path in paths]
    for answer in answers:
        assert answer["results"] == answers[0]["results"]
        plain = [
            {**item, "document": item["document"]["text"]} for item in answer["results"]
        ]
        assert answer["data"] == plain
    body, paths = WIRES["tei"].body(), ("/", "/rerank", "/invocations")
    first, *others = (client.post(path, json=body).json() for path in paths)
    assert others == [first, first]


def test_a_mixture_with_the_first_stage(client: TestClient, wire: Wire) -> None:
    answer = client.post(wire.path, json=wire.body(SCORED))
    content = answer.json()
    assert answer.headers["x-mix"] == "interpolated"
    assert not wire.fields or content["mix"] == "interpolated"
    weight = tuning_of(models().default.checkpoint.directory).weight
    neural = {str(n): float(score) for n, score in enumerate(logits(POSTS))}
    first = {str(n): float(post["first_stage_score"]) for n, post in enumerate(SCORED)}
    expected = interpolate({"q": first}, {"q": neural}, weight)["q"]
    results = wire.results_of(content)
    assert len(results) == len(SCORED)
    for result in results:
        assert result[wire.score] == pytest.approx(
            expected[str(result["index"])], abs=1e-6
        )
    alone = client.post(wire.path, json=wire.body(SCORED, mix="neural"))
    assert alone.headers["x-mix"] == "neural"
    plain = client.post(wire.path, json=wire.body(DOCUMENTS))
    assert wire.results_of(alone.json()) == wire.results_of(plain.json())


def test_a_mixture_needs_all_scores(client: TestClient, wire: Wire) -> None:
    none = "first_stage_score: found none"
    for documents, more, problem in (
        ([*SCORED[:3], "none", *SCORED[3:]], {}, f"{wire.documents}[3].{none}"),
        (["none", *SCORED], {}, f"{wire.documents}[0].{none}"),
        (DOCUMENTS, {"mix": "interpolated"}, f"{wire.documents}[0].{none}"),
        (TEXTS, {"mix": "lexical"}, "mix: Invalid enum value 'lexical'"),
    ):
        answer = client.post(wire.path, json=wire.body(documents, **more))
        assert answer.status_code in (400, 422) and problem in answer.text


@pytest.mark.parametrize("score", [3.4e38, -3.4e38, 5e-324, 0, 7])
def test_extreme_first_stage_scores(client: TestClient, score: float) -> None:
    documents = [*SCORED, {"text": "a", "first_stage_score": score}]
    answer = client.post("/v2/rerank", json=WIRES["cohere"].body(documents))
    assert answer.status_code == 200
    assert all(
        0 <= result["relevance_score"] <= 1 for result in answer.json()["results"]
    )


def test_rank_fields_of_cohere_1(client: TestClient) -> None:
    parts = [
        {"head": "bbc", "body": "cuts", "url": ""},
        {"head": "lunch", "n": 5},
        "bbc cuts",
    ]
    request = {"query": QUERY, "documents": parts, "rank_fields": ["head", "body", "n"]}
    parts[1] |= {"text": ["not read"], "list": [1]}
    joined = request | {
        "documents": ["bbc cuts", "lunch 5", "bbc cuts"],
        "rank_fields": None,
    }
    both = [
        client.post("/v1/rerank", json=body).json()["results"]
        for body in (request, joined)
    ]
    made, expected = (
        {result["index"]: result["relevance_score"] for result in r} for r in both
    )
    assert made == pytest.approx(expected, abs=TOLERANCE)
    scored = [{"text": "bbc", "n": n, "first_stage_score": n} for n in range(2)]
    for names in (["n"], [], None):
        body = request | {"documents": scored, "rank_fields": names}
        assert client.post("/v1/rerank", json=body).headers["x-mix"] == "interpolated"
    assert (
        client.post("/v1/rerank", json=request | {"rank_fields": ["list"]}).status_code
        == 200
    )
    for wrong in ([[]], [None], "head", [{}, "head"]):
        answer = client.post("/v1/rerank", json=request | {"rank_fields": wrong})
        assert answer.status_code in (400, 422) and "rank_fields" in answer.text


def test_packed_bodies(client: TestClient, wire: Wire) -> None:
    headers = {"content-encoding": "gzip", "content-type": "application/json"}
    packed = gzip.compress(json.dumps(wire.body()).encode())
    plain = client.post(wire.path, json=wire.body()).json()
    answer = client.post(wire.path, content=packed, headers=headers).json()
    assert wire.results_of(answer) == wire.results_of(plain)
    for content, coding, status in (
        (gzip.compress(b" " * 20_000_000), "gzip", 413),
        (packed[:20] + b"no", "gzip", 400),
        (packed, "br", 415),
    ):
        headers["content-encoding"] = coding
        assert (
            client.post(wire.path, content=content, headers=headers).status_code
            == status
        )


def test_links_around_texts() -> None:
    for text in ("", "storm", "http://a.b/c storm", "storm http://a.b/c", "x www.x"):
        for link in (
            "http://a.b/c",
            "https://x",
            "//x/y",
            "www.x",
            "a.eu/x",
            "http://a b//c",
            "",
        ):
            for around in (link, link and link + "x" * 3000):
                assert between_links(around + text + around) == (text, around)
        for none in ("null", "[]", "[null]"):  # As OpenSearch writes them.
            assert between_links(none + text + none) == (text, "")
    links = "[http://a.b/c, http://d.e/f]"
    assert between_links(f"{links}storm{links}") == (
        "storm",
        "http://a.b/c http://d.e/f",
    )
    for empty in ("null", "[]", "nullnullnull", "null[]null", "//x/ynull//x/y"):
        assert between_links(empty)[0] == ""


def test_documents_with_links_around(client: TestClient) -> None:
    link, text = "http://met.example/gale", "gale warning"
    body = {
        "query": "gale",
        "documents": [f"{link}{text}{link}", text],
        "links": "around",
    }
    apart = {
        "query": "gale",
        "documents": [{"text": text, "url": link}, text],
        "links": "around",
    }
    results = (
        client.post("/v2/rerank", json=one).json()["results"] for one in (body, apart)
    )
    found, expected = ([[*one.values()] for one in each] for each in results)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_pages_without_texts_are_refused(client: TestClient) -> None:
    body = {"query": "gale", "links": "around", "needs_text": True}
    for documents in (["", ""], ["//x/y" * 2, "nullnull"]):
        refused = client.post("/v2/rerank", json=body | {"documents": documents})
        assert (
            refused.status_code == 422
            and "found 2 empty texts" in refused.json()["message"]
        )
    for documents in (["", "gale"], [""]):
        assert (
            client.post("/v2/rerank", json=body | {"documents": documents}).status_code
            == 200
        )


def test_information(client: TestClient) -> None:
    for path in ("/health", "/ping"):
        assert client.get(path).json().keys() == {"status", "unix"}
    info = client.get("/info").json()
    assert info["model_id"] == "mp_hcnn" and "reranker" in info["model_type"]
    assert info["max_client_batch_size"] == 2000
    for path in ("/models", "/v1/models"):
        (model,) = client.get(path).json()["data"]
        assert (model["id"], model["model_type"]) == ("mp_hcnn", "rerank")
    assert client.get("/v1/models/mp_hcnn").json() == model
    assert client.get("/v1/models/other").status_code == 404
    schemas = client.get("/openapi.json").json()["components"]["schemas"]
    for kind in (Document, Request, RankFieldsRequest):
        assert {*schemas[kind.__name__]["properties"]} == {*kind.__struct_fields__}


def test_metrics() -> None:
    with client_of() as client:
        for _ in range(2):
            client.post("/rerank", json=WIRES["tei"].body())
        client.post("/rerank", json={"texts": []})
        lines = client.get("/metrics").text.splitlines()
    assert 'te_request_count{method="batch"} 3.0' in lines
    assert 'te_request_success{method="batch"} 2.0' in lines
    assert 'te_request_failure{err="validation"} 1.0' in lines
    assert "te_request_duration_count 2.0" in lines and "te_queue_size 0.0" in lines
    assert f"te_batch_next_size_sum {2 * len(TEXTS)}.0" in lines
    for stage in ("queue", "inference", "total"):
        labels = f'index="",model="mp_hcnn",outcome="ok",stage="{stage}"'
        assert f"tweetrerank_seconds_count{{{labels}}} 2.0" in lines
    assert (
        'tweetrerank_seconds_count{index="",model="",outcome="value",stage="total"} 1.0'
        in lines
    )
    names = {line.split("{")[0] for line in lines if not line.startswith("#")}
    assert {
        "tweetrerank_model_info",
        "tweetrerank_cache_hits",
        "tweetrerank_cache_bytes",
    } <= names


def shortened(answer: str) -> Any:
    """An answer without its id and its time, with five digits of its scores."""

    def kept(fields: dict[str, Any]) -> dict[str, Any]:
        return {name: fields[name] for name in fields.keys() - {"id", "created"}}

    return json.loads(
        answer, parse_float=lambda text: round(float(text), 5), object_hook=kept
    )


@pytest.mark.parametrize(("path", "body", "shown"), EXAMPLES)
def test_the_examples_of_the_readme(
    window: TestClient, path: str, body: str, shown: str
) -> None:
    headers = {"content-type": "application/json"}
    assert shortened(
        window.post(path, content=body, headers=headers).text
    ) == shortened(shown)
    assert len(EXAMPLES) == 5


def documents(scores: list[float] | None = None) -> list[dict[str, Any]]:
    posts: list[dict[str, Any]] = [{"text": text, "url": url} for text, url in LISTED]
    for post, score in zip(posts, scores or [], strict=False):
        post["first_stage_score"] = score
    return posts


def scores_by(
    client: TestClient, body: dict[str, Any], path: str = "/v2/rerank"
) -> list[float]:
    results = client.post(path, json=body).json()["results"]
    scores = {item["index"]: item["relevance_score"] for item in results}
    return [scores[row] for row in range(len(scores))]


@pytest.fixture(scope="module")
def window() -> Iterator[TestClient]:
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
        ({"documents": documents(LARGE)}, {"scores": SCORES}),  # Of another engine
        ({"documents": documents(SCORES), "mix": "neural"}, {"in_order": True}),
        ({"query": f"{QUERY} 2"}, {"in_order": True}),
    ],
)
def test_a_request_is_ranked_as_in_python(
    window: TestClient, fields: Any, how: Any
) -> None:
    body = {"query": QUERY, "raw_scores": True, "documents": documents(), **fields}
    slope, intercept = models("window").default.calibration
    scores = tweetrerank.load("window").predict(
        [(body["query"], post) for post in LISTED], **how
    )
    expected = slope * scores + intercept
    for _ in range(2):
        assert scores_by(window, body) == pytest.approx(expected.tolist(), abs=1e-5)


def test_serve_order_unknown() -> None:
    body = {"query": QUERY, "documents": documents()}
    bodies = [body, body | {"order": "unknown"}, body | {"order": "first_stage"}]
    with client_of(models=models("window"), in_order=False) as client:
        unsaid, unknown, ordered = (scores_by(client, each) for each in bodies)
    assert unsaid == unknown != ordered


def test_the_scores_of_a_list_are_kept_for_its_caller(window: TestClient) -> None:
    """Times tell nobody what others have searched."""
    body, key = (
        {"query": f"{QUERY} 3", "documents": documents()},
        {"authorization": "Bearer x"},
    )
    scored = []
    for headers in ({}, {}, key, key):
        assert window.post("/v2/rerank", json=body, headers=headers).status_code == 200
        (line,) = re.findall(
            r"te_batch_next_size_count (\d+)", window.get("/metrics").text
        )
        scored.append(int(line))
    assert np.diff(scored).tolist() == [0, 1, 0]


def test_a_collection_is_served_by_what_is_best_for_it(tmp_path: Path) -> None:
    served = Models([], 1_000_000, collections=[named.find("sample")])
    assert [*served.served] == ["sample"]
    assert served.default.source.folder == checkpoints.SHIPPED / "window" / "all"
    # A model trained on it since then is taken over.
    trained = tmp_path / "home" / "checkpoints" / "window" / "sample"
    shipped = checkpoints.SHIPPED / "window" / "mb2012"
    metrics = checkpoints.read_json(shipped / "metrics.json") | {"left_out": "sample"}
    checkpoints.copy_whole(
        shipped, trained, {"metrics.json": json.dumps(metrics).encode()}
    )
    served.reload()
    assert served.default.source.folder == trained


def test_a_weight_tuned_here_is_taken_over() -> None:
    served, shipped = Models(["mp_hcnn"], 1_000_000), checkpoints.find("mp_hcnn")
    tuning, before = tuning_of(shipped), served.default
    assert tuning and before.weight == tuning.weight
    replace(tuning, weight=0.0).save(tuning_files(shipped)[0])
    served.reload()
    assert served.default.weight == 0 and served.default.version != before.version


def test_an_exported_model_is_a_folder_of_its_own(
    tmp_path: Path, command: Command
) -> None:
    shared = checkpoints.SHIPPED / "mp_hcnn" / "mb2011"
    for code in (0, 2):
        command("export", shared, "--output", tmp_path / "copy", code=code)
    both = [tweetrerank.load(folder) for folder in (shared, tmp_path / "copy")]
    pairs = [(QUERY, post) for post in POSTS]
    np.testing.assert_array_equal(
        *(one.predict(pairs, range(len(POSTS))) for one in both)
    )


@pytest.mark.parametrize("name", ["window", "mp_hcnn"])
def test_answers_far_into_a_document(
    name: str, command: Command, tmp_path: Path
) -> None:
    """As its best passage would, also in Python and in ``batch``."""
    texts = ["a storm on the coast", FILLER, LONG]
    body = {"query": QUERY, "documents": texts}
    with client_of(models=models(name)) as client:
        for more in ({}, {"order": "unknown"}, {"top_k": 3}):
            assert np.argmax(scores_by(client, body | more)) == 2
        assert client.post("/rerank", json=body).headers["x-split-documents"] == "2"
    (passage,) = best_passages([QUERY], [LONG])
    assert (
        "650 jobs" in passage
        and len(passage) <= 1000
        and f" {passage.strip()} " in f" {LONG} "
    )
    pairs = [[(QUERY, text), (QUERY, "a storm")] for text in (LONG, passage)]
    np.testing.assert_array_equal(*map(tweetrerank.load(name).predict, pairs))
    posts = [{"doc_id": str(n), "text": text} for n, text in enumerate(texts)]
    rows = write_lines(
        tmp_path / "in.jsonl", [{"query_id": 1, "query": QUERY, "posts": posts}]
    )
    command(
        "batch",
        "--input",
        rows,
        "--output",
        tmp_path / "out",
        "--reranker",
        name,
        code=0,
    )
    row = json.loads((tmp_path / "out").read_text())
    assert max(row["posts"], key=lambda post: post["score"])["doc_id"] == "2"


def test_a_client_may_refuse_or_bound_long_documents(window: TestClient) -> None:
    body = {"query": QUERY, "documents": ["bbc", "cuts " * 300]}
    cut = window.post("/v2/rerank", json={**body, "max_tokens_per_doc": 200}).headers
    assert (cut["x-truncated-documents"], cut["x-split-documents"]) == ("1", "0")
    for path, field in (("/v2/rerank", "truncate"), ("/rerank", "truncation")):
        for more, place in (({}, "documents[1]"), ({"query": "cuts " * 300}, "query")):
            refused = window.post(path, json={**body, **more, field: False})
            assert refused.status_code in (400, 422)
            assert (
                f"{place}: found 1500 characters, expected at most 1000" in refused.text
            )


def test_priors_are_of_the_whole_list(tmp_path: Path) -> None:
    """A model that reads a post's rank gets it, or 0 without ranks, as in predict."""
    served = Models([str(saved(tmp_path / "sm", "sm_cnn", "static"))], 10**6)
    assert PRIOR in served.default.signals
    run = {"q": {str(n): score for n, score in enumerate(SCORES)}}
    posts = {str(n): Post(str(n), *post) for n, post in enumerate(LISTED)}
    ranked = Candidates([Topic("q", QUERY)], run, posts).pairs()
    slope, intercept = served.default.calibration
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
            assert (
                client.post("/v2/rerank", json=body | {"model": name}).json()["model"]
                == name
            )
        assert client.get("/metrics").text.count("tweetrerank_model_info{") == 2
