"""The formats of the service: requests, answers, scores."""

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pytest
from helpers.reranking_samples import POSTS
from helpers.service_samples import DOCUMENTS, QUERY, TEXTS, WIRES, Wire, chance, client_of, models
from starlette.testclient import TestClient

from pipeline.ranking.checkpoints import Calibration, tuned_weight
from pipeline.ranking.interpolation import interpolate
from pipeline.service.formats.base import ScoreRequest


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with client_of() as found:
        yield found


@pytest.fixture(params=WIRES)
def wire(request: pytest.FixtureRequest) -> Wire:
    return WIRES[request.param]


TOLERANCE = 5e-6
"""Of logits: a service and ``predict`` multiply matrices of other sizes."""


def logits(documents: list[tuple[str, str]]) -> npt.NDArray[np.float32]:
    return models().default.checkpoint.predict([(QUERY, one) for one in documents])


def test_the_answer_has_the_format(client: TestClient, wire: Wire) -> None:
    answer = client.post(wire.path, json=wire.body())
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-mix"] == "neural"
    content = answer.json()
    assert isinstance(content, dict) is bool(wire.fields)
    assert not wire.fields or set(content) == wire.fields
    results = wire.found(content)
    assert all(set(result) == wire.result for result in results)
    assert sorted(result["index"] for result in results) == list(range(len(TEXTS)))
    if wire.top:
        scores = [result[wire.score] for result in results]
        assert scores == sorted(scores, reverse=True)
    else:
        assert [result["index"] for result in results] == list(range(len(TEXTS)))


def test_scores_are_those_of_the_model(client: TestClient, wire: Wire) -> None:
    expected = logits(POSTS)
    raw = client.post(wire.path, json=wire.body(DOCUMENTS, **wire.raw))
    for result in wire.found(raw.json()):
        logit = float(expected[result["index"]])
        right, tolerance = (logit, TOLERANCE) if wire.raw else (chance(logit), 1e-6)
        assert result[wire.score] == pytest.approx(right, abs=tolerance)
    for result in wire.found(client.post(wire.path, json=wire.body(DOCUMENTS)).json()):
        right = chance(float(expected[result["index"]]))
        assert result[wire.score] == pytest.approx(right, abs=1e-6)


def test_scores_are_safe_to_read(client: TestClient, wire: Wire) -> None:
    """With a decimal point and at most 18 characters, as OpenSearch needs them."""
    for more in ({}, wire.raw):
        text = client.post(wire.path, json=wire.body(DOCUMENTS, **more)).text
        found = re.findall(rf'"{wire.score}":([^,}}\]]+)', text)
        assert len(found) == len(POSTS)
        assert all(re.fullmatch(r"-?\d+\.\d+(e[+-]\d+)?", score) for score in found)
        assert max(map(len, found)) <= 18


def test_logits_and_probabilities_have_one_order(client: TestClient, wire: Wire) -> None:
    texts = [f"{text} {'cuts ' * n}" for n in range(8) for text in TEXTS]
    plain, raw = (
        wire.found(client.post(wire.path, json=wire.body(texts, **more)).json())
        for more in ({}, wire.raw)
    )
    assert [one["index"] for one in plain] == [one["index"] for one in raw]
    order = [one[wire.score] for one in plain]
    assert all(0 <= score <= 1 for score in order)
    if wire.top:
        assert order == sorted(order, reverse=True)


def test_the_best_alone(client: TestClient, wire: Wire) -> None:
    if not wire.top:
        return
    best = wire.found(client.post(wire.path, json=wire.body(**{wire.top: 3})).json())
    every = wire.found(client.post(wire.path, json=wire.body(**{wire.top: 999})).json())
    assert [one["index"] for one in best] == [one["index"] for one in every[:3]]
    scores = [one[wire.score] for one in every[:3]]
    assert [one[wire.score] for one in best] == pytest.approx(scores, abs=1e-6)
    assert len(every) == len(TEXTS)


def test_texts_come_back_if_wanted(client: TestClient) -> None:
    key = {"tei": "text", "cohere": "", "score": ""}
    for name, wire in WIRES.items():
        field = key.get(name, "document")
        if not field:
            continue
        for result in wire.found(client.post(wire.path, json=wire.body(**wire.echo)).json()):
            text = TEXTS[result["index"]]
            shapes = {"jina": {"text": text}, "vllm": {"text": text, "multi_modal": None}}
            assert result[field] == shapes.get(name, text)


def test_equal_scores_keep_the_order_of_the_request(client: TestClient, wire: Wire) -> None:
    """Except in Text Embeddings Inference, where the later comes first."""
    results = wire.found(client.post(wire.path, json=wire.body(["same"] * 400)).json())
    expected = list(range(400))
    assert len({result[wire.score] for result in results}) == 1
    is_tei = wire is WIRES["tei"]
    assert [result["index"] for result in results] == (expected[::-1] if is_tei else expected)


def test_null_is_no_value(client: TestClient, wire: Wire) -> None:
    optional = ["model", "top_n", "top_k", "raw_scores", "return_documents", "return_text"]
    optional += ["use_activation", "truncate", "mix", "rank_fields", "truncation"]
    more = dict.fromkeys(set(optional) - set(wire.extra))
    plain = wire.found(client.post(wire.path, json=wire.body()).json())
    assert wire.found(client.post(wire.path, json=wire.body(**more)).json()) == plain
    documents = [{"text": text, "url": None, "first_stage_score": None} for text in TEXTS]
    assert len(wire.found(client.post(wire.path, json=wire.body(documents)).json())) == len(TEXTS)


def test_unknown_fields_are_ignored(client: TestClient, wire: Wire) -> None:
    body = wire.body(priority=0, max_chunks_per_doc=10, truncation_direction="Right", x={"y": [1]})
    assert client.post(wire.path, json=body).status_code == 200


def test_the_page_that_names_no_collection(client: TestClient) -> None:
    assert client.get("/").status_code == 200


def test_health(client: TestClient) -> None:
    for path in ("/health", "/ping"):
        assert client.get(path).json().keys() == {"status", "unix"}


def test_many_clients_at_once(client: TestClient) -> None:
    """Whatever is scored together, scores are those of the model."""
    generator = np.random.default_rng(1)
    vocabulary = " ".join(TEXTS).split()
    lists = [
        [" ".join(generator.choice(vocabulary, 12)) for _ in range(int(generator.integers(1, 120)))]
        for _ in range(32)
    ]
    wires = [wire for wire in WIRES.values() if wire.raw]

    def ask(number: int) -> float:
        wire = wires[number % len(wires)]
        query = " ".join(vocabulary[number : number + 3])
        body = wire.body(lists[number], **wire.raw)
        body["text_1" if "text_1" in body else "query"] = query
        found = {
            one["index"]: one[wire.score]
            for one in wire.found(client.post(wire.path, json=body).json())
        }
        predict = models().default.checkpoint.predict
        expected = predict([(query, text) for text in lists[number]])
        return float(np.abs([found[n] for n in range(len(found))] - expected).max())

    with ThreadPoolExecutor(16) as pool:
        assert max(pool.map(ask, range(len(lists)))) < TOLERANCE


SCORED = [{**document, "first_stage_score": n % 5 - 1.5} for n, document in enumerate(DOCUMENTS)]


def test_a_mixture_with_the_first_stage(client: TestClient, wire: Wire) -> None:
    answer = client.post(wire.path, json=wire.body(SCORED))
    content = answer.json()
    if wire is WIRES["score"]:
        assert answer.headers["x-mix"] == "neural"
        return
    assert answer.headers["x-mix"] == "interpolated"
    assert not wire.fields or content["mix"] == "interpolated"
    weight, _ = tuned_weight(models().default.checkpoint.directory, "minmax") or (0, "")
    assert 0 < weight < 1
    neural = {str(n): float(score) for n, score in enumerate(logits(POSTS))}
    first = {str(n): float(one["first_stage_score"]) for n, one in enumerate(SCORED)}
    expected = interpolate({"q": first}, {"q": neural}, weight)["q"]
    results = wire.found(content)
    assert len(results) == len(SCORED)
    for result in results:
        assert result[wire.score] == pytest.approx(expected[str(result["index"])], abs=1e-6)
    scores = [result[wire.score] for result in results]
    assert scores == sorted(scores, reverse=True)
    alone = client.post(wire.path, json=wire.body(SCORED, mix="neural"))
    assert alone.headers["x-mix"] == "neural"
    plain = client.post(wire.path, json=wire.body(DOCUMENTS))
    assert wire.found(alone.json()) == wire.found(plain.json())


def test_a_mixture_needs_all_scores(client: TestClient, wire: Wire) -> None:
    if wire is WIRES["score"]:
        return
    for documents, more, row in (
        ([*SCORED[:3], "none", *SCORED[3:]], {}, 3),
        (["none", *SCORED], {}, 0),
        (DOCUMENTS, {"mix": "interpolated"}, 0),
    ):
        answer = client.post(wire.path, json=wire.body(documents, **more))
        assert answer.status_code in (400, 422)
        assert f"{wire.documents}[{row}].first_stage_score: found none" in answer.text


@pytest.mark.parametrize("score", [3.4e38, -3.4e38, 5e-324, 0, 7])
def test_extreme_first_stage_scores(client: TestClient, score: float) -> None:
    documents = [*SCORED, {"text": "a", "first_stage_score": score}]
    answer = client.post("/v2/rerank", json=WIRES["cohere"].body(documents))
    assert answer.status_code == 200
    assert all(0 <= one["relevance_score"] <= 1 for one in answer.json()["results"])


def test_calibrated_probabilities() -> None:
    """P(relevant) = 1 / (1 + exp(−(slope · score + intercept))), in the order of the logits."""
    plain = models().default
    model = replace(plain, calibration=Calibration(0.5, -3.0))
    ask = ScoreRequest([QUERY], TEXTS, [""] * 4)
    found = np.array([-40.0, -900.0, 2.0, 900.0], dtype=np.float32)
    finished = model.respond(ask, found)
    scores = json.loads(orjson.dumps(list(finished.scores)))
    expected = 1 / (1 + np.exp(-(0.5 * found.astype(float) - 3)))
    assert scores == pytest.approx(expected.tolist(), rel=1e-8, abs=1e-300)
    assert finished.order == [3, 2, 0, 1]


def test_two_queries_and_documents(client: TestClient) -> None:
    body = {
        "queries": [QUERY, "lunch"],
        "documents": ["bbc cuts", "lunch"],
        "use_activation": False,
    }
    for path in ("/score", "/v1/score"):
        found = [one["score"] for one in client.post(path, json=body).json()["data"]]
        expected = models().default.checkpoint.predict([(QUERY, "bbc cuts"), ("lunch", "lunch")])
        assert found == pytest.approx(expected.tolist(), abs=TOLERANCE)
    one = client.post("/score", json={"data_1": QUERY, "data_2": "bbc cuts"}).json()["data"]
    assert len(one) == 1


def test_the_description_lists_every_path(client: TestClient) -> None:
    description = client.get("/openapi.json").json()
    schemas = description["components"]["schemas"]
    for wire in WIRES.values():
        operation = description["paths"][wire.path]["post"]
        assert operation["requestBody"]["content"]
        assert operation["responses"]["200"]["content"]
    references = re.findall(r'"#/components/schemas/(\w+)"', json.dumps(description))
    assert set(references) <= set(schemas)
    page = client.get("/docs").text
    anchors = set(re.findall(r'id="(\w+)"', page))
    for path in re.findall(r'(?:href|src)="([^"]+)"', page):
        assert path == "data:," or path[1:] in anchors or client.get(path).status_code == 200


def test_information(client: TestClient) -> None:
    info = client.get("/info").json()
    assert info["model_id"] == "mp_hcnn"
    assert "reranker" in info["model_type"]
    assert info["max_client_batch_size"] == 2000
    for path in ("/models", "/v1/models"):
        assert [one["id"] for one in client.get(path).json()["data"]] == ["mp_hcnn"]


def test_metrics() -> None:
    with client_of() as client:
        for _ in range(2):
            client.post("/rerank", json=WIRES["tei"].body())
        client.post("/rerank", json={"texts": []})
        lines = client.get("/metrics").text.splitlines()
    assert 'te_request_count{method="batch"} 3.0' in lines
    assert 'te_request_success{method="batch"} 2.0' in lines
    assert 'te_request_failure{err="validation"} 1.0' in lines
    assert "te_request_duration_count 2.0" in lines
    assert "te_queue_size 0.0" in lines
    assert f"te_batch_next_size_sum {2 * len(TEXTS)}.0" in lines
    names = {line.split("{")[0] for line in lines if not line.startswith("#")}
    assert {"tweetrerank_model_info", "tweetrerank_cache_hits", "tweetrerank_cache_bytes"} <= names


def test_headers_of_times(client: TestClient, wire: Wire) -> None:
    headers = client.post(wire.path, json=wire.body()).headers
    assert int(headers["x-compute-characters"]) == sum(map(len, [QUERY, *TEXTS]))
    assert headers["x-compute-type"] == "cpu"
    for name in ("total", "queue", "inference", "compute"):
        assert 0 <= int(headers[f"x-{name}-time"]) < 60_000


README = Path(__file__).parents[2] / "pipeline" / "service" / "README.md"
EXAMPLES = re.findall(
    r"^curl localhost:8080(/(?!posts/)\S+) .*?-d '(.*)'\n(.*)$",
    README.read_text("utf-8"),
    re.MULTILINE,
)


def without_numbers(content: Any) -> Any:
    """An answer without its scores, its id and its time."""
    if isinstance(content, list):
        return [without_numbers(one) for one in content]
    if isinstance(content, dict):
        return {
            key: None if key in ("id", "created") else without_numbers(value)
            for key, value in content.items()
        }
    return None if isinstance(content, float) else content


@pytest.mark.parametrize(("path", "body", "shown"), EXAMPLES)
def test_the_examples_of_the_readme(client: TestClient, path: str, body: str, shown: str) -> None:
    headers = {"content-type": "application/json"}
    found = client.post(path, content=body, headers=headers).json()
    assert without_numbers(found) == without_numbers(json.loads(shown))
    assert len(EXAMPLES) == 9
