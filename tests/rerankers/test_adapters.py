"""Rerankers in PyTerrier and LangChain."""

import re
from pathlib import Path
from typing import Any

import pandas as pd
import pyterrier as pt
import pytest
from helpers.reranking_samples import POSTS, QUERIES
from helpers.service_samples import run_apart
from langchain_core.documents import Document

import rerankers
from rerankers import adapters
from rerankers.errors import RerankerError
from rerankers.reranker import Model

FIRST = [float(row * 7 % 5) for row in range(len(POSTS))]  # Scores of a first stage

README = Path(rerankers.__file__).with_name("README.md")


@pytest.fixture(scope="module")
def reranker() -> Model:
    return rerankers.load("mp_hcnn")


def results() -> pd.DataFrame:
    """Every post for every query, as a first stage of PyTerrier gives them."""
    rows = [
        {"qid": str(qid), "query": query, "docno": f"d{row}", "text": text, "url": url or None}
        for qid, query in enumerate(QUERIES)
        for row, (text, url) in enumerate(POSTS)
    ]
    return pt.model.add_ranks(pd.DataFrame(rows).assign(score=[*FIRST] * len(QUERIES)))


@pytest.mark.parametrize("weight", [None, 1.0])
def test_a_transformer_of_pyterrier(reranker: Model, weight: float | None) -> None:
    steps = pt.Transformer.from_df(results()) >> adapters.for_pyterrier(reranker, weight)
    found = steps.transform(results()[["qid", "query"]].drop_duplicates())
    for qid, query in enumerate(QUERIES):
        expected = reranker.rank(query, POSTS, None, FIRST, weight)
        ranked = found[found["qid"] == str(qid)].sort_values("rank")
        assert ranked["rank"].tolist() == list(range(len(POSTS)))
        assert ranked["score"].tolist() == pytest.approx([one.score for one in expected], abs=1e-5)
        assert ranked["docno"].iloc[0] == f"d{expected[0].index}"


def test_topics_of_one_text_are_apart() -> None:
    ranker = adapters.for_pyterrier(rerankers.load())
    one = results()[results()["qid"] == "0"]
    both = pd.concat([one, one.assign(qid="x", text=one["text"] + " storm")]).sample(frac=1)
    alone, beside = ranker.transform(one), ranker.transform(both)
    beside = beside[beside["qid"] == "0"].sort_values("rank")
    assert beside["docno"].tolist() == alone.sort_values("rank")["docno"].tolist()
    assert beside["score"].tolist() == pytest.approx(alone.sort_values("rank")["score"].tolist())


def test_pyterrier_without_urls_or_results(reranker: Model) -> None:
    ranker = adapters.for_pyterrier(reranker)
    empty = ranker.transform(results().iloc[:0])
    assert len(empty) == 0
    assert {"qid", "docno", "text", "score", "rank"} <= set(empty.columns)
    assert pt.inspect.transformer_inputs(ranker) == [["qid", "docno", "query", "text"]]
    one = ranker.transform(results().drop(columns=["url", "score"]).iloc[:1])["score"].item()
    assert one == pytest.approx(reranker.predict([(QUERIES[0], POSTS[0][0])]).item(), abs=1e-5)
    with pytest.raises(pt.validate.InputValidationError, match="text"):
        ranker.transform(results().drop(columns="text"))


def test_a_compressor_of_langchain(reranker: Model) -> None:
    documents = [
        Document(text, id=str(row), metadata={"url": url}) for row, (text, url) in enumerate(POSTS)
    ]
    expected = reranker.rank(QUERIES[0], POSTS, 3)
    compressor = adapters.for_langchain(reranker, top_n=3)
    for found in (
        compressor.compress_documents(documents, QUERIES[0]),
        run_apart(lambda: compressor.acompress_documents(documents, QUERIES[0])),
    ):
        for one, other in zip(found, expected, strict=True):
            assert (one.id, one.page_content) == (str(other.index), other.text)
            scored = {"url": POSTS[other.index][1], "relevance_score": other.score}
            assert one.metadata == scored
    assert not any("relevance_score" in one.metadata for one in documents)
    for document, score in zip(documents, FIRST, strict=True):
        document.metadata["score"] = score
    mixed = compressor.compress_documents(documents, QUERIES[0])
    expected = reranker.rank(QUERIES[0], POSTS, 3, FIRST)
    assert [one.id for one in mixed] == [str(one.index) for one in expected]
    whole = adapters.for_langchain(reranker)
    plain = [Document(text) for text, _ in POSTS]
    assert len(whole.compress_documents(plain, "cuts")) == len(POSTS)
    assert whole.compress_documents([], "cuts") == []
    with pytest.raises(RerankerError, match="found the post"):
        whole.compress_documents([Document("a", metadata={"url": 5})], "a")


def test_what_the_readme_shows() -> None:
    text = README.read_text(encoding="utf-8")
    blocks = [b for b in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "adapters" in b]
    first = results()[lambda frame: frame["query"] == QUERIES[0]].assign(qid="1")
    documents = [Document(text, metadata={"url": url}) for text, url in POSTS]
    names = {"first_stage": pt.Transformer.from_df(first), "documents": documents}
    frame, compressed = (eval_last(block, names) for block in blocks)
    assert QUERIES[0] in blocks[0] and QUERIES[0] in blocks[1]
    ranked, reranker = frame.sort_values("rank")["text"].tolist(), rerankers.load()
    assert ranked[:3] == [one.text for one in reranker.rank(QUERIES[0], POSTS, 3, FIRST)]
    best = [one.text for one in reranker.rank(QUERIES[0], POSTS, 3)]
    assert [one.page_content for one in compressed] == best


def eval_last(source: str, names: dict[str, Any]) -> Any:
    """Run a block of Python; the value of its last line."""
    steps, _, shown = source.rstrip().rpartition("\n")
    exec(steps, names)
    return eval(shown, names)
