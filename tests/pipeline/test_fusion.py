"""Fusions: candidates of several rankers, models of their scores, extended trees."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import Capture
from helpers import reranking_samples
from helpers.reranking_samples import encoder, pairs_that_rm3_orders, small_config

from tweetrerank.indexes.data_error import DataError
from tweetrerank.indexes.methods import METHODS
from tweetrerank.indexes.posts import Post
from tweetrerank.pipeline.collections.topics import Topic
from tweetrerank.pipeline.collections.trec import Run, write_run
from tweetrerank.pipeline.ranking.fusion_ranker import Fusion, UnionRetriever
from tweetrerank.pipeline.usage_error import UsageError
from tweetrerank.rerankers import features, registry
from tweetrerank.rerankers.reranker_error import RerankerError
from tweetrerank.rerankers.trees.boosting import Trees

TOPICS = [Topic("1", "storm"), Topic("2", "quake")]
RESULTS: dict[str, Run] = {
    "ql": {"1": {"a": 3.0, "b": 2.0, "c": 1.0}, "2": {"x": 1.0}},
    "rm3": {"1": {"d": 9.0, "a": 8.0, "b": 5.0}},
}
POSTS = {doc_id: Post(doc_id, f"text of {doc_id}") for doc_id in "abcdx"}
SMALL = "signal:rm3,signal:ql,signal:unknown,first_stage,links"
TWO = "lambdarank,binary"
CHANGES: dict[str, Any] = {
    "trees": 40,
    "minimum_leaf": 5,
    "feature_fraction": 0.5,
}


class Posts:
    def get_many(self, doc_ids: list[str]) -> dict[str, Post]:
        return {doc_id: POSTS[doc_id] for doc_id in doc_ids if doc_id in POSTS}


class Index:
    posts = Posts()

    def search(self, topics: list[Topic], method: Any, hits: int) -> Run:
        run: Run = {}
        for topic in topics:
            scores = RESULTS[method.name].get(topic.query_id)
            if scores:
                run[topic.query_id] = dict(list(scores.items())[:hits])
        return run


def source(folder: Path | None = None, topics: list[Topic] = TOPICS) -> Any:
    """A collection, with an official run of RM3 in a folder."""
    runs = {}
    if folder:
        runs["rm3"] = folder / "rm3.run"
        official = {"1": {"z": 2.0, "a": 1.0}, "9": {"q": 1.0}}
        write_run(runs["rm3"], official, "official")
    return SimpleNamespace(
        name="mb",
        open_index=Index,
        topics=topics,
        runs=runs,
        adapted_space=None,
        methods=METHODS,
        skips_own_id=False,
    )


def doc_ids(run: Run) -> dict[str, set[str]]:
    return {query_id: set(scores) for query_id, scores in run.items()}


def test_every_ranker_contributes_its_best(tmp_path: Path) -> None:
    retriever = UnionRetriever(
        source(tmp_path), ["ql", "rm3", "run_rm3"], ["ql", "run_rm3"]
    )
    candidates = retriever.search(TOPICS, hits=2)
    # Only rm3 has d, and is no source; c and b are beyond the sources' two best.
    assert doc_ids(candidates.run) == {"1": {"a", "b", "z"}, "2": {"x"}}
    # Min-max: ql a 1, b 0. rm3 d 1, a 0. run_rm3 z 1, a 0. Topic 2 has equal scores.
    expected = {"a": 1 / 3, "b": 0.0, "z": 1 / 3}
    assert candidates.run["1"] == pytest.approx(expected)
    assert candidates.signals["rm3"]["1"] == {"a": 8.0}
    assert candidates.signals["run_rm3"] == {"1": {"z": 2.0, "a": 1.0}, "2": {}}
    assert candidates.posts["a"] == POSTS["a"]
    # A post without a text is a candidate, too.
    assert candidates.posts["z"] == Post("z", "")


@pytest.fixture
def shallow() -> UnionRetriever:
    return UnionRetriever(source(), ["ql", "rm3"], ["ql", "rm3"], depth=1)


def test_posts_beyond_the_depth_are_the_rest(shallow: UnionRetriever) -> None:
    candidates = shallow.search(TOPICS)
    assert doc_ids(candidates.run) == {"1": {"a", "d"}, "2": {"x"}}
    # Min-max: ql b .5, c 0; rm3 b 0.
    expected = {"1": pytest.approx({"b": 0.25, "c": 0.0}), "2": {}}
    assert candidates.rest == expected
    assert not {"b", "c"} & candidates.posts.keys()
    assert candidates.signals["ql"]["1"] == {"a": 3.0}


def test_fewer_hits_than_the_depth_leave_no_rest() -> None:
    candidates = UnionRetriever(source(), ["ql"], ["ql"], 10).search(TOPICS, hits=2)
    assert candidates.rest == {"1": {}, "2": {}}
    assert set(candidates.run["1"]) == {"a", "b"}


class Lengths:
    """A model whose scores are the lengths of texts, and a constant."""

    name = "lengths"
    families = ()

    def __init__(self, constant: float) -> None:
        self.constant = np.float32(constant)

    def unknown_numbers(self, pairs: Any) -> str:
        return ""

    def stages(self, pairs: Any, *_: Any) -> Any:
        lengths = np.array([len(text) for text in pairs.texts], dtype=np.float32)
        yield self.name, lengths[pairs.post_index] + self.constant


@pytest.mark.parametrize("constant", [0.0, -50.0])
def test_the_rest_ranks_below_all_scores(
    constant: float, shallow: UnionRetriever
) -> None:
    model: Any = Lengths(constant)
    topics = {topic.query_id: topic.text for topic in TOPICS}
    scores = Fusion(shallow, model).rank(topics).run["1"]
    assert scores.keys() == {"a", "b", "c", "d"}
    assert min(scores["a"], scores["d"]) > scores["b"] > scores["c"]


WITH_OFFICIAL = ["ql", "run_ql"]  # No collection here has this official run.


def test_a_missing_ranker_is_reported(tmp_path: Path, capsys: Capture) -> None:
    retriever = UnionRetriever(source(tmp_path), WITH_OFFICIAL, WITH_OFFICIAL)
    candidates = retriever.search(TOPICS)
    assert set(candidates.signals) == {"ql"}
    assert "warning: mb has no run_ql" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("has_runs", "topics"),
    [
        pytest.param(False, TOPICS, id="no official runs"),
        pytest.param(True, [Topic("3", "fire")], id="queries that are no topics"),
    ],
)
def test_official_runs_are_not_missed_elsewhere(
    has_runs: bool, topics: list[Topic], tmp_path: Path, capsys: Capture
) -> None:
    collection = source(tmp_path if has_runs else None, topics)
    retriever = UnionRetriever(collection, WITH_OFFICIAL, WITH_OFFICIAL)
    candidates = retriever.search(TOPICS)
    assert candidates.signals == {"ql": RESULTS["ql"]}
    assert capsys.readouterr().err == ""


def test_a_union_without_sources_is_refused() -> None:
    retriever = UnionRetriever(source(), ["ql", "run_rm3"], ["run_rm3"])
    with pytest.raises(DataError, match="mb: found no run of run_rm3"):
        retriever.search(TOPICS)


def union_of(families: str, candidate_rankers: str = "") -> UnionRetriever:
    config = SimpleNamespace(
        families=families, candidate_rankers=candidate_rankers, depth=7
    )
    return UnionRetriever.of(SimpleNamespace(), config)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("candidate_rankers", "sources"),
    [
        ("", ["ql", "run_rm3"]),
        ("run_rm3", ["run_rm3"]),
    ],
)
def test_rankers_are_read_from_the_settings(
    candidate_rankers: str, sources: list[str]
) -> None:
    union = union_of("signal:ql,signal:run_rm3,overlap", candidate_rankers)
    assert union.rankers == ["ql", "run_rm3"]
    assert union.sources == sources
    assert union.depth == 7


@pytest.mark.parametrize(
    ("families", "candidate_rankers", "message"),
    [
        pytest.param(
            "signal:ql,signal:mp_hcnn",
            "rm3",
            "signal:mp_hcnn: found no ranker(?s:.*)candidate_rankers: found rm3",
            id="all wrong names are reported",
        ),
        pytest.param("overlap", "", "these find the candidates", id="no ranker"),
    ],
)
def test_wrong_rankers(families: str, candidate_rankers: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        union_of(families, candidate_rankers)


@pytest.mark.parametrize("name", ["fusion", "lambdamart"])
def test_a_signal_that_orders_posts_is_learnt_for_new_topics(name: str) -> None:
    """Posts without the signal end up last; explanations name the signal."""
    first = next(iter(registry.find(name).configurations))
    config = small_config(name, first, families=SMALL, **CHANGES)
    pairs, relevant = pairs_that_rm3_orders()
    training_rows = np.flatnonzero(pairs.query_index < 9)
    new = np.flatnonzero(pairs.query_index >= 9)
    trees = reranking_samples.fitted(
        name, config, pairs.take(training_rows), relevant[training_rows]
    )
    scores = trees.score(pairs.take(new)).reshape(3, -1)  # [topics, posts]
    is_relevant = relevant[new].reshape(3, -1)
    lowest = np.where(is_relevant, scores, np.inf).min(axis=1)
    highest = np.where(is_relevant, -np.inf, scores).max(axis=1)
    assert (lowest > highest).all()
    importances = trees.importances()
    assert next(iter(importances)) == "signal:rm3"
    assert importances["signal:rm3"] > 0.9
    values = list(importances.values())
    assert values == sorted(values, reverse=True)
    if name == "fusion":  # LambdaMART's scores are parts of a mixture.
        explanation: Any = trees.explain(pairs.take(new[-30:]), range(30))
        assert list(explanation.importances) == list(importances)
        for score, post in zip(scores[-1], explanation.posts, strict=True):
            families = {row.label: row.cells[0].score for row in post.rows}
            assert list(families) == list(importances)
            total = explanation.base + sum(families.values())
            assert total == pytest.approx(score, abs=1e-4)


def fitted(families: str, objectives: str, start: Trees | None = None) -> Trees:
    config = small_config(
        "fusion", "general", families=families, objectives=objectives, **CHANGES
    )
    pairs, relevant = pairs_that_rm3_orders()
    return reranking_samples.fitted("fusion", config, pairs, relevant, start=start)


@pytest.fixture(scope="module")
def start() -> Trees:
    """Trees that do not read RM3."""
    return fitted("signal:ql,first_stage", TWO)


def test_trees_that_extend_those_of_fewer_features(start: Trees) -> None:
    """Half as many trees are added; the first ones are those of the start."""
    model = fitted("signal:ql,first_stage,signal:rm3", TWO, start)
    pairs, _ = pairs_that_rm3_orders()
    values = features.table(pairs, model.families, encoder().idf).values
    for grown, first in zip(model.boosters, start.boosters, strict=True):
        assert first.num_trees() == 40
        assert grown.num_trees() == 60
        scores = grown.predict(values, raw_score=True, num_iteration=40)
        expected = first.predict(values[:, : len(start.names)], raw_score=True)
        np.testing.assert_array_equal(scores, expected)


@pytest.mark.parametrize(
    ("families", "objectives"),
    [
        pytest.param("signal:rm3,signal:ql,first_stage", TWO, id="features"),
        pytest.param(SMALL, "binary", id="objectives"),
    ],
)
def test_trees_that_cannot_be_extended(
    families: str, objectives: str, start: Trees
) -> None:
    with pytest.raises(RerankerError, match="other features or objectives"):
        fitted(families, objectives, start)
