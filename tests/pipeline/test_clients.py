"""Clients of other projects, as the README shows them, against the service at an address."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import pytest
from conftest import Patch
from helpers.processes import ROOT
from helpers.service_samples import QUERY, TEXTS, app_of, chance, listening, models

README = ROOT / "pipeline" / "service" / "README.md"
SHOWN = "http://127.0.0.1:8080"
KEY = "correct-horse"
REFUSED = "found no known key"
EMPTY = "found no documents"
CLIENTS = {
    "cohere.ClientV2": (
        f"UnauthorizedError: .*{REFUSED}",
        f"BadRequestError: .*{EMPTY}",
    ),
    "cohere.Client": (f"UnauthorizedError: .*{REFUSED}", f"BadRequestError: .*{EMPTY}"),
    "voyageai.Client": (
        f"AuthenticationError: .*{REFUSED}",
        f"InvalidRequestError: .*{EMPTY}",
    ),
    "TextEmbeddingInference": ("AssertionError", ""),
    "HuggingFaceTEIRanker": (f"RuntimeError: .*{REFUSED}", ""),
    "JinaRerank": (f"RuntimeError: .*{REFUSED}", ""),
}
"""Word of its snippet -> what it raises after a wrong key, and for no posts, where some answer by
themselves, with no posts. LlamaIndex only counts the results."""
_COHERE, _TEI = {"model": "window", "top_n": 2}, {"raw_scores": False}
_LITELLM = _COHERE | {"return_documents": True}
_TRUNCATE = {
    "truncate": False,
    "truncation_direction": "Right",
    "return_text": True,
    "top_n": 2,
}
BODIES = [
    (
        "langchain-cohere",
        "/v2/rerank",
        "results",
        "",
        _COHERE | {"max_tokens_per_doc": None},
    ),
    (
        "infinity_client",
        "/infinity/rerank",
        "results",
        "",
        {"return_documents": False, **_TEI},
    ),
    ("litellm hosted_vllm", "/rerank", "results", "text", _LITELLM),
    (
        "litellm hosted_vllm, by default",
        "/rerank",
        "results",
        "text",
        {"model": "window"},
    ),
    ("litellm jina_ai, cohere", "/v1/rerank", "results", "text", _LITELLM),
    ("litellm infinity", "/infinity/rerank", "results", "plain", _LITELLM),
    (
        "litellm voyage",
        "/v1/rerank",
        "data",
        "plain",
        {"top_k": 2, "return_documents": True},
    ),
    ("litellm huggingface", "/rerank", "texts", "plain", _TEI | _TRUNCATE),
    ("rerankers", "/rerank", "texts", "plain", _COHERE | {"return_text": True}),
]
"""Client that is not installed here, path, key of the results (``texts``: the answer is a list),
form of a text, and the other fields of its requests, as sent by langchain-cohere 0.6, litellm 1.83,
infinity_client 0.0.78, rerankers 0.10."""


def snippets() -> list[str]:
    """The Python that the README shows for clients."""
    blocks = re.findall(
        r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL
    )
    return [block for block in blocks if SHOWN in block]


def snippet(client: str) -> str:
    (actual,) = (
        block for block in snippets() if re.search(rf"\b{re.escape(client)}\(", block)
    )
    return actual


def program(
    client: str, address: str, posts: Sequence[str], key: str = KEY, top: int = 3
) -> str:
    """A client's snippet with these values; what it shows is called ``ranking``."""
    source = re.sub(r"\bKEY\b", key, snippet(client).replace(SHOWN, address))
    source = re.sub(r"\b(top_[nk][=(])3\b", rf"\g<1>{top}", source)
    steps, _, shown = source.rstrip().rpartition("\n")
    return f"query, posts = {QUERY!r}, {posts!r}\n{steps}\nranking = {shown}"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """No client reports its use to its makers."""
    with (
        Patch.context() as patch,
        listening(app_of(keys=[KEY], models=models("window"))) as opened,
    ):
        patch.setenv("HAYSTACK_TELEMETRY_ENABLED", "False")
        yield opened


def ranking_of(source: str) -> list[tuple[str, float]]:
    names: dict[str, Any] = {}
    try:
        exec(compile(source, str(README), "exec"), names)
    except ModuleNotFoundError as error:
        pytest.skip(f"{error.name} is not installed")
    return list(names["ranking"])


def check(ranking: Sequence[tuple[str, float]], top: int) -> None:
    """It is that of the model in this process; clients order equal scores each in their way."""
    expected = models("window").default.checkpoint.rank(
        QUERY, TEXTS, top, in_order=True
    )
    right = {item.text: chance(item.score, "window") for item in expected}
    assert dict(ranking) == pytest.approx(right, abs=1e-6)
    scores = [right[text] for text, _ in ranking]
    assert scores == sorted(scores, reverse=True)


def test_each_snippet_is_that_of_a_client() -> None:
    # The last two need another httpx, or have our name.
    assert sorted(snippets()) == sorted(
        map(snippet, [*CLIENTS, "InfinityRerank", "APIRanker"])
    )


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_ranks_as_the_model(client: str, address: str) -> None:
    for top in (3, len(TEXTS)):
        check(ranking_of(program(client, address, TEXTS, top=top)), top)


@pytest.mark.parametrize("row", BODIES, ids=lambda row: row[0])
def test_the_bodies_of_clients(row: Any, address: str) -> None:
    _, path, key, form, fields = row
    body = {"query": QUERY, "texts" if key == "texts" else "documents": TEXTS, **fields}
    headers = {"authorization": f"Bearer {KEY}"}
    answer = httpx.post(f"{address}{path}", json=body, headers=headers)
    results = answer.json() if key == "texts" else answer.json()[key]
    score = "score" if key == "texts" else "relevance_score"
    for item in results:
        text = TEXTS[item["index"]]
        shown = {"text": {"text": text}, "plain": text, "": None}[form]
        assert item.get("text" if key == "texts" else "document") == shown
    top = fields.get("top_n") or fields.get("top_k") or len(TEXTS)
    check([(TEXTS[item["index"]], item[score]) for item in results], top)


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_raises_its_own_errors(client: str, address: str) -> None:
    for error, posts, key in zip(
        CLIENTS[client], (TEXTS, []), ("wrong", KEY), strict=True
    ):
        source = program(client, address, posts, key)
        if not error:
            assert ranking_of(source) == []
            continue
        with pytest.raises(Exception) as raised:
            ranking_of(source)
        assert re.match(error, f"{raised.type.__name__}: {raised.value}", re.DOTALL)
