"""Each way of ranking that a README shows is better than its first stage, on the sample."""

from collections.abc import Callable
from typing import Any

import pytest

import pipeline
import rerankers
from pipeline.collections.trec import Run
from pipeline.evaluation.measures import evaluate, mean
from pipeline.ranking.ranker import Ranking
from rerankers import adapters

HITS = 100
Way = Callable[[Ranking], Run]
"""First stage -> new run."""


@pytest.fixture(scope="module")
def first_stage(tmp_path_factory: pytest.TempPathFactory) -> Ranking:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TWEETRERANK_HOME", str(tmp_path_factory.mktemp("home")))
        return pipeline.ranker("sample", "none").rank(hits=HITS)


def average_precision(ranking: Ranking, run: Run) -> float:
    assert ranking.collection and ranking.collection.qrels
    return mean(evaluate(ranking.collection.qrels, run, ["AP"])["AP"])


def texts(ranking: Ranking, query_id: str) -> list[tuple[str, str]]:
    posts = ranking.candidates.posts
    return [(posts[doc_id].text, posts[doc_id].url) for doc_id in ranking.run[query_id]]


def by_the_ranker(ranking: Ranking) -> Run:
    return pipeline.ranker("sample").rank(hits=HITS).run


def by_a_fusion_of_the_run(ranking: Ranking) -> Run:
    return pipeline.ranker("sample", "fusion").rerank(ranking.candidates).run


def by_texts_and_scores(ranking: Ranking) -> Run:
    """As behind a search engine."""
    reranker, run = rerankers.load(), {}
    for topic in ranking.candidates.topics:
        doc_ids, scores = [*ranking.run[topic.query_id]], [*ranking.run[topic.query_id].values()]
        best = reranker.rank(topic.text, texts(ranking, topic.query_id), scores=scores)
        run[topic.query_id] = {doc_ids[row]: score for row, score, _ in best}
    return run


def by_pyterrier(ranking: Ranking) -> Run:
    pytest.importorskip("pyterrier", reason="PyTerrier is not installed")
    transformer = adapters.for_pyterrier(rerankers.load())
    run: Run = {}
    rows = transformer.transform(ranking.to_dataframe())
    for query_id, doc_id, score in zip(rows["qid"], rows["docno"], rows["score"], strict=True):
        run.setdefault(query_id, {})[doc_id] = score
    return run


def by_langchain(ranking: Ranking) -> Run:
    documents: Any = pytest.importorskip("langchain_core.documents", reason="no LangChain")
    compressor, run = adapters.for_langchain(rerankers.load()), {}
    for topic in ranking.candidates.topics:
        scores = ranking.run[topic.query_id]
        given = [
            documents.Document(text, id=doc_id, metadata={"url": url, "score": scores[doc_id]})
            for doc_id, (text, url) in zip(scores, texts(ranking, topic.query_id), strict=True)
        ]
        best = compressor.compress_documents(given, topic.text)
        run[topic.query_id] = {one.id: one.metadata["relevance_score"] for one in best}
    return run


@pytest.mark.parametrize(
    "way",
    [by_the_ranker, by_a_fusion_of_the_run, by_texts_and_scores, by_pyterrier, by_langchain],
    ids=lambda way: way.__name__,
)
def test_a_shown_way_helps(way: Way, first_stage: Ranking) -> None:
    before = average_precision(first_stage, first_stage.run)
    assert average_precision(first_stage, way(first_stage)) > before
