"""Fusions: candidates of several rankers, learning from their scores, trees that extend others."""

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
FOUND: dict[str, Run] = {"ql": {"1": {"a": 3.0, "b": 2.0, "c": 1.0}, "2": {"x": 1.0}}}
FOUND["rm3"] = {"1": {"d": 9.0, "a": 8.0, "b": 5.0}}
KNOWN = {doc_id: Post(doc_id, f"text of {doc_id}") for doc_id in "abcdx"}
SMALL = "signal:rm3,signal:ql,signal:unknown,first_stage,links"
TWO = "lambdarank,binary"
CHANGES: dict[str, Any] = {"trees": 40, "minimum_leaf": 5, "feature_fraction": 0.5}


class Index:
    posts = SimpleNamespace(
        get_many=lambda ids: {i: KNOWN[i] for i in ids if i in KNOWN}
    )

    def search(self, topics: list[Topic], method: Any, hits: int) -> Run:
        found = FOUND[method.name]
        ids = [topic.query_id for topic in topics if topic.query_id in found]
        return {query_id: dict([*found[query_id].items()][:hits]) for query_id in ids}


def source(folder: Path | None = None) -> Any:
    runs = {"rm3": folder / "rm3.run"} if folder else {}
    for path in runs.values():
        write_run(path, {"1": {"z": 2.0, "a": 1.0}, "9": {"q": 1.0}}, "official")
    more = {
        "runs": runs,
        "adapted_space": None,
        "methods": METHODS,
        "skips_own_id": False,
    }
    return SimpleNamespace(name="mb", open_index=Index, topics=TOPICS, **more)


def test_every_ranker_brings_its_best(tmp_path: Path) -> None:
    rankers = ["ql", "rm3", "run_rm3"], ["ql", "run_rm3"]
    found = UnionRetriever(source(tmp_path), *rankers).search(TOPICS, hits=2)
    # d is rm3's alone, which finds nothing here; c and b are beyond the two best of others.
    posts = {q: set(scores) for q, scores in found.run.items()}
    assert posts == {"1": {"a", "b", "z"}, "2": {"x"}}
    # Min-max: ql a 1, b 0; rm3 d 1, a 0; run_rm3 z 1, a 0. All scores of topic 2 are equal.
    assert found.run["1"] == pytest.approx({"a": 1 / 3, "b": 0.0, "z": 1 / 3})
    assert found.signals["rm3"]["1"] == {"a": 8.0}
    assert found.signals["run_rm3"] == {"1": {"z": 2.0, "a": 1.0}, "2": {}}
    # What has no text here is a candidate all the same.
    assert found.posts["z"] == Post("z", "") and found.posts["a"] == KNOWN["a"]


class Lengths:
    """In the place of a checkpoint: a score is the length of a post's text, and what it is told."""

    name, families, unknown_numbers = "lengths", (), staticmethod(lambda _: "")

    def __init__(self, told: float) -> None:
        self.told = told

    def stages(self, pairs: Any, *_: Any) -> Any:
        lengths = np.array([len(text) for text in pairs.texts], dtype=np.float32)
        yield self.name, lengths[pairs.post_index] + np.float32(self.told)


def test_what_is_beyond_the_depth_ranks_below() -> None:
    """Of each candidate ranker's hits the best are scored; no hit is lost."""
    rankers = UnionRetriever(source(), ["ql", "rm3"], ["ql", "rm3"], depth=1)
    found = rankers.search(TOPICS)
    assert {q: set(scores) for q, scores in found.run.items()} == {
        "1": {"a", "d"},
        "2": {"x"},
    }
    # Min-max: ql b .5, c 0; rm3 b 0.
    assert found.rest == {"1": pytest.approx({"b": 0.25, "c": 0.0}), "2": {}}
    assert not {"b", "c"} & found.posts.keys() and found.signals["ql"]["1"] == {
        "a": 3.0
    }
    for told in (0.0, -50.0):
        model: Any = Lengths(told)
        scores = Fusion(rankers, model).rank({t.query_id: t.text for t in TOPICS}).run
        assert sorted(scores["1"], key=lambda d: -scores["1"][d])[2:] == ["b", "c"]
        assert (
            min(scores["1"]["a"], scores["1"]["d"])
            > scores["1"]["b"]
            > scores["1"]["c"]
        )
    # Fewer hits than the depth: nothing is left over.
    found = UnionRetriever(source(), ["ql"], ["ql"], 10).search(TOPICS, hits=2)
    assert found.rest == {"1": {}, "2": {}} and set(found.run["1"]) == {"a", "b"}


def test_a_ranker_that_a_source_lacks(tmp_path: Path, capsys: Capture) -> None:
    rankers = ["ql", "run_ql"], ["ql", "run_ql"]
    found = UnionRetriever(source(tmp_path), *rankers).search(TOPICS)
    assert set(found.signals) == {"ql"}
    assert "warning: mb has no run_ql" in capsys.readouterr().err
    # Nobody misses official runs where there are none, or of a query that is no topic.
    assert UnionRetriever(source(), *rankers).search(TOPICS).signals == found.signals
    of_others = source(tmp_path)
    of_others.topics = [Topic("3", "fire")]
    assert UnionRetriever(of_others, *rankers).search(TOPICS).signals == found.signals
    assert capsys.readouterr().err == ""
    with pytest.raises(DataError, match="mb: found no run of run_rm3"):
        UnionRetriever(source(), ["ql", "run_rm3"], ["run_rm3"]).search(TOPICS)


def test_rankers_are_read_from_the_settings() -> None:
    def rankers(families: str, candidate_rankers: str = "") -> UnionRetriever:
        config = SimpleNamespace(
            families=families, candidate_rankers=candidate_rankers, depth=7
        )
        return UnionRetriever.of(collection, config)

    collection, families = source(), "signal:ql,signal:run_rm3,overlap"
    both = ["ql", "run_rm3"]
    assert rankers(families) == UnionRetriever(collection, both, both, 7)
    assert rankers(families, "run_rm3").sources == ["run_rm3"]
    message = "signal:mp_hcnn: found no ranker(?s:.*)candidate_rankers: found rm3"
    with pytest.raises(UsageError, match=message):
        rankers("signal:ql,signal:mp_hcnn", "rm3")
    with pytest.raises(UsageError, match="these find the candidates"):
        rankers("overlap")


def fitted(families: str, objectives: str, start: Trees | None = None) -> Trees:
    changes = CHANGES | {"families": families, "objectives": objectives}
    config = small_config("fusion", "general", **changes)
    return reranking_samples.fitted(
        "fusion", config, *pairs_that_rm3_orders(), start=start
    )


@pytest.mark.parametrize("name", ["fusion", "lambdamart"])
def test_a_signal_that_orders_posts_is_learnt_for_new_topics(name: str) -> None:
    """Posts without the signal end up below the others; explanations name the signal."""
    [first, *_] = registry.find(name).configurations
    config = small_config(name, first, **{"families": SMALL} | CHANGES)
    pairs, relevant = pairs_that_rm3_orders()
    known, new = (
        np.flatnonzero(mask) for mask in (pairs.query_index < 9, pairs.query_index >= 9)
    )
    trees = reranking_samples.fitted(name, config, pairs.take(known), relevant[known])
    scores, best = (
        rows.reshape(3, -1) for rows in (trees.score(pairs.take(new)), relevant[new])
    )
    lowest = np.where(best, scores, np.inf).min(axis=1)
    assert (lowest > np.where(best, -np.inf, scores).max(axis=1)).all()
    importances = trees.importances()
    assert next(iter(importances)) == "signal:rm3" and importances["signal:rm3"] > 0.9
    assert [*importances.values()] == sorted(importances.values(), reverse=True)
    if name == "fusion":  # LambdaMART's scores are parts of a mixture.
        explained: Any = trees.explain(pairs.take(new[-30:]), range(30))
        for score, post in zip(scores[-1], explained.posts, strict=True):
            families = {row.label: row.cells[0].score for row in post.rows}
            assert [*families] == [*importances] == [*explained.importances]
            assert explained.base + sum(families.values()) == pytest.approx(
                score, abs=1e-4
            )


def test_trees_that_extend_those_of_fewer_features() -> None:
    """Half as many are added; the first ones are those of the start, which reads no RM3."""
    start = fitted("signal:ql,first_stage", TWO)
    model = fitted("signal:ql,first_stage,signal:rm3", TWO, start)
    pairs, _ = pairs_that_rm3_orders()
    values = features.table(pairs, model.families, encoder().idf).values
    for grown, first in zip(model.boosters, start.boosters, strict=True):
        assert (grown.num_trees(), first.num_trees()) == (60, 40)
        scores = grown.predict(values, raw_score=True, num_iteration=40)
        expected = first.predict(values[:, : len(start.names)], raw_score=True)
        np.testing.assert_array_equal(scores, expected)
    for families, objectives in (
        ("signal:rm3,signal:ql,first_stage", TWO),
        (SMALL, "binary"),
    ):
        with pytest.raises(RerankerError, match="other features or objectives"):
            fitted(families, objectives, start)
