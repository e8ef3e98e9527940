"""Mutated requests: each is answered or refused with a reason, none is a mistake of ours.

``TWEETRERANK_REQUESTS=100000 pytest tests/pipeline/test_service_mutations.py`` sends more.
"""

import json
import math
import os
import re
from collections.abc import Iterator
from typing import Any

import pytest
from helpers.service_samples import DOCUMENTS, QUERY, TEXTS, WIRES, client_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from pipeline.service.errors import STATUS
from pipeline.service.formats import PATHS
from pipeline.service.http.requests import Limits

REQUESTS = int(os.environ.get("TWEETRERANK_REQUESTS", "100"))

ANSWERS = {200, *STATUS.values()} - {500, 503, 504}

KEYS = sorted(
    {
        *(
            name
            for formats in PATHS.values()
            for item in formats
            for name in item.request.model_fields
        ),
        *("items", "priority"),
        *("url", "text", "first_stage_score", ""),
    }
)

texts = st.text(max_size=30) | st.text(
    st.characters(categories=("Cs", "Cc", "Mn", "So", "Lo", "Nd")), max_size=20
)
"""Also with halves of surrogate pairs."""
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-3, 60)
    | st.integers()
    | st.floats()
    | texts
    | st.sampled_from(TEXTS)
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=6)
        | st.dictionaries(st.sampled_from(KEYS) | texts, inner, max_size=4)
    ),
    max_leaves=12,
)
documents = st.lists(
    texts
    | st.sampled_from([*TEXTS, *DOCUMENTS])
    | st.builds(lambda text, score: {"text": text, "first_stage_score": score}, texts, scalars),
    max_size=60,
)


@st.composite
def bodies(draw: st.DrawFn) -> tuple[str, bytes]:
    """The path and the body of a request: a good one with changed fields, or with changed bytes."""
    wire = draw(st.sampled_from(sorted(WIRES.items())))[1]
    content: Any = wire.body(draw(documents))
    if draw(st.booleans()):
        changed = st.dictionaries(st.sampled_from(KEYS), values, max_size=3)
        content |= draw(changed)
    if draw(st.integers(0, 9)) == 0:
        content.pop(draw(st.sampled_from(sorted(content))))
    body = json.dumps(content, ensure_ascii=draw(st.booleans())).encode(errors="surrogatepass")
    if draw(st.integers(0, 3)) == 0:
        start = draw(st.integers(0, len(body)))
        stop = start + draw(st.integers(0, 4))
        body = body[:start] + draw(st.binary(max_size=4)) + body[stop:]
    path = draw(st.sampled_from([wire.path, wire.path, *PATHS]))
    return path, body


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with client_of(Limits.of(50, 20_000)) as opened:
        yield opened


@settings(
    max_examples=REQUESTS,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(request=bodies())
def test_no_mutation_is_a_mistake_of_ours(client: TestClient, request: tuple[str, bytes]) -> None:
    path, body = request
    answer = client.post(path, content=body, headers={"content-type": "application/json"})
    assert answer.status_code in ANSWERS, answer.text

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    content = json.loads(answer.content, parse_constant=refuse)
    if answer.status_code == 200:
        actual = re.findall(rb'"(?:relevance_)?score":([^,}\]]+)', answer.content)
        assert all(math.isfinite(float(score)) and b"." in score for score in actual)
        assert answer.headers["x-mix"] in ("neural", "interpolated")
    else:
        assert content
        assert QUERY not in answer.text
