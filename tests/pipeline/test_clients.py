"""Clients of other projects, as the README shows them, against a running service."""

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import httpx
import pytest
from conftest import Patch
from helpers.processes import ROOT
from helpers.service_samples import QUERY, TEXTS, app_of, chance, listening, models

from tweetrerank.rerankers.reranker import Reranker

README = ROOT / "pipeline" / "service" / "README.md"
SHOWN = "http://127.0.0.1:8080"
KEY = "correct-horse"
REFUSED = "found no known key"
EMPTY = "found no documents"


class Client(NamedTuple):
    """Errors of a client, as regular expressions of their type and message."""

    of_key: str  # Error for a wrong key
    of_no_posts: str  # Error for no posts; "" for a client that answers by itself


CLIENTS = {
    "cohere.ClientV2": Client(
        f"UnauthorizedError: .*{REFUSED}",
        f"BadRequestError: .*{EMPTY}",
    ),
    "cohere.Client": Client(
        f"UnauthorizedError: .*{REFUSED}",
        f"BadRequestError: .*{EMPTY}",
    ),
    "voyageai.Client": Client(
        f"AuthenticationError: .*{REFUSED}",
        f"InvalidRequestError: .*{EMPTY}",
    ),
    # LlamaIndex only counts the results.
    "TextEmbeddingInference": Client("AssertionError", ""),
    "HuggingFaceTEIRanker": Client(f"RuntimeError: .*{REFUSED}", ""),
    "JinaRerank": Client(f"RuntimeError: .*{REFUSED}", ""),
}
"""Word of a client's snippet in the README -> its errors."""


class Body(NamedTuple):
    """A request as a client sends it, and the form of its answer."""

    path: str
    fields: dict[str, Any]  # Further fields; query and documents are the same
    results: str = "results"  # Key of the results; "texts" if the answer is their list
    form: str = ""  # Form of a text in a result: "text" or "plain"; "" without texts


LITELLM = {"model": "window", "top_n": 2, "return_documents": True}
BODIES = {
    "langchain-cohere": Body(
        "/v2/rerank",
        {"model": "window", "top_n": 2, "max_tokens_per_doc": None},
    ),
    "infinity_client": Body(
        "/infinity/rerank",
        {"return_documents": False, "raw_scores": False},
    ),
    "litellm hosted_vllm": Body("/rerank", LITELLM, form="text"),
    "litellm hosted_vllm, by default": Body(
        "/rerank",
        {"model": "window"},
        form="text",
    ),
    "litellm jina_ai, cohere": Body("/v1/rerank", LITELLM, form="text"),
    "litellm infinity": Body("/infinity/rerank", LITELLM, form="plain"),
    "litellm voyage": Body(
        "/v1/rerank",
        {"top_k": 2, "return_documents": True},
        results="data",
        form="plain",
    ),
    "litellm huggingface": Body(
        "/rerank",
        {
            "raw_scores": False,
            "truncate": False,
            "truncation_direction": "Right",
            "return_text": True,
            "top_n": 2,
        },
        results="texts",
        form="plain",
    ),
    "rerankers": Body(
        "/rerank",
        {"model": "window", "top_n": 2, "return_text": True},
        results="texts",
        form="plain",
    ),
}
"""Client that is not installed here -> its requests.

They are those of langchain-cohere 0.6, litellm 1.83, infinity_client 0.0.78 and
rerankers 0.10.
"""


def snippets() -> list[str]:
    """The Python that the README shows for clients."""
    text = README.read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    return [block for block in blocks if SHOWN in block]


def snippet(client: str) -> str:
    pattern = rf"\b{re.escape(client)}\("
    [block] = [block for block in snippets() if re.search(pattern, block)]
    return block


def program(
    client: str,
    address: str,
    posts: Sequence[str],
    key: str = KEY,
    top: int = 3,
) -> str:
    """A client's snippet with these values; its last line is called ``ranking``."""
    source = snippet(client).replace(SHOWN, address)
    source = re.sub(r"\bKEY\b", key, source)
    source = re.sub(r"\b(top_[nk][=(])3\b", rf"\g<1>{top}", source)
    steps, _, ranking = source.rstrip().rpartition("\n")
    return f"query, posts = {QUERY!r}, {posts!r}\n{steps}\nranking = {ranking}"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Address of a service; no client reports its use to its makers."""
    app = app_of(keys=[KEY], models=models("window"))
    with Patch.context() as patch, listening(app) as url:
        patch.setenv("HAYSTACK_TELEMETRY_ENABLED", "False")
        yield url


def ranking_of(source: str) -> list[tuple[str, float]]:
    names: dict[str, Any] = {}
    try:
        exec(compile(source, str(README), "exec"), names)
    except ModuleNotFoundError as error:
        pytest.skip(f"{error.name} is not installed")
    return list(names["ranking"])


def check(ranking: Sequence[tuple[str, float]], top: int) -> None:
    """The ranking is the model's; clients order equal scores each in their way."""
    reranker = Reranker(models("window").default.checkpoint)
    expected = reranker.rank(QUERY, TEXTS, top, in_order=True)
    score_of_text = {item.text: chance(item.score, "window") for item in expected}
    assert dict(ranking) == pytest.approx(score_of_text, abs=1e-6)
    scores = [score_of_text[text] for text, _ in ranking]
    assert scores == sorted(scores, reverse=True)


def test_each_snippet_is_that_of_a_client() -> None:
    # The last two need another httpx, or have our name.
    clients = [*CLIENTS, "InfinityRerank", "APIRanker"]
    assert sorted(snippets()) == sorted(map(snippet, clients))


@pytest.mark.parametrize("top", [3, len(TEXTS)])
@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_ranks_as_the_model(client: str, address: str, top: int) -> None:
    check(ranking_of(program(client, address, TEXTS, top=top)), top)


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_the_bodies_of_clients(body: Body, address: str) -> None:
    is_list = body.results == "texts"
    documents = "texts" if is_list else "documents"
    content = {"query": QUERY, documents: TEXTS} | body.fields
    headers = {"authorization": f"Bearer {KEY}"}
    answer = httpx.post(f"{address}{body.path}", json=content, headers=headers)
    results = answer.json()
    key_of_score = "score"
    key_of_text = "text"
    if not is_list:
        results = results[body.results]
        key_of_score = "relevance_score"
        key_of_text = "document"
    ranking: list[tuple[str, float]] = []
    for item in results:
        text = TEXTS[item["index"]]
        forms = {"text": {"text": text}, "plain": text, "": None}
        assert item.get(key_of_text) == forms[body.form]
        ranking.append((text, item[key_of_score]))
    top = body.fields.get("top_n") or body.fields.get("top_k") or len(TEXTS)
    check(ranking, top)


def check_error(source: str, error: str) -> None:
    with pytest.raises(Exception) as raised:
        ranking_of(source)
    message = f"{raised.type.__name__}: {raised.value}"
    assert re.match(error, message, re.DOTALL)


@pytest.mark.parametrize("client", CLIENTS)
def test_a_wrong_key_is_a_clients_own_error(client: str, address: str) -> None:
    source = program(client, address, TEXTS, "wrong")
    check_error(source, CLIENTS[client].of_key)


@pytest.mark.parametrize("client", CLIENTS)
def test_no_posts_are_a_clients_own_error(client: str, address: str) -> None:
    source = program(client, address, [])
    error = CLIENTS[client].of_no_posts
    if error:
        check_error(source, error)
    else:
        assert ranking_of(source) == []
