"""The formats of the service: requests, answers, scores."""

import re
from collections.abc import Iterator

import numpy as np
import pytest
from reranking_samples import POSTS
from service_samples import DOCUMENTS, QUERY, TEXTS, WIRES, Wire, client_of, models
from starlette.testclient import TestClient


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with client_of() as found:
        yield found


@pytest.fixture(params=WIRES)
def wire(request: pytest.FixtureRequest) -> Wire:
    return WIRES[request.param]


def logits(documents: list[tuple[str, str]]) -> np.ndarray:
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
        score = result[wire.score]
        if not wire.raw:
            score = np.log(score / (1 - score))
        assert score == pytest.approx(expected[result["index"]], abs=1e-6 if wire.raw else 1e-4)


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
    assert best == every[:3]
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
