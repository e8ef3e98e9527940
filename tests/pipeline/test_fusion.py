"""Fusions: candidates of several rankers, learning from their scores, trees that extend others."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers import reranking_samples
from helpers.fusion_samples import pairs_that_rm3_orders, require_new_topics_ordered
from helpers.reranking_samples import encoder, small_config

from indexes.methods import METHODS
from indexes.posts import Post
from pipeline.collections.topics import Topic
from pipeline.collections.trec import Run, write_run
from pipeline.errors import DataError, UsageError
from pipeline.ranking.fusion import Fusion, Rankers, UnionRetriever
from rerankers import checkpoint, features, models
from rerankers.errors import RerankerError
from rerankers.trees.boosting import Trees

TOPICS = [Topic("1", "storm"), Topic("2", "quake")]
FOUND: dict[str, Run] = {
    "ql": {"1": {"a": 3.0, "b": 2.0, "c": 1.0}, "2": {"x": 1.0}},
    "rm3": {"1": {"d": 9.0, "a": 8.0, "b": 5.0}},
}
KNOWN = {doc_id: Post(doc_id, f"text of {doc_id}") for doc_id in "abcdx"}


class Index:
    posts = SimpleNamespace(get_many=lambda ids: {i: KNOWN[i] for i in ids if i in KNOWN})

    def search(self, topics: list[Topic], method: Any, hits: int) -> Run:
        found = FOUND[method.name]
        return {
            topic.query_id: dict(list(found[topic.query_id].items())[:hits])
            for topic in topics
            if topic.query_id in found
        }


def source(folder: Path | None = None) -> Any:
    runs = {}
    if folder:
        runs["rm3"] = folder / "rm3.run"
        write_run(runs["rm3"], {"1": {"z": 2.0, "a": 1.0}, "9": {"q": 1.0}}, "official")
    more = {"topics": TOPICS, "runs": runs, "adapted_space": None, "methods": METHODS}
    more["skips_own_id"] = False
    return SimpleNamespace(name="mb", open_index=Index, **more)


def test_every_ranker_brings_its_best(tmp_path: Path) -> None:
    rankers = Rankers(["ql", "rm3", "run_rm3"], ["ql", "run_rm3"])
    found = UnionRetriever(source(tmp_path), rankers).search(TOPICS, hits=2)
    # d is rm3's alone, which finds nothing here; c and b are beyond the two best of others.
    posts = {q: set(scores) for q, scores in found.run.items()}
    assert posts == {"1": {"a", "b", "z"}, "2": {"x"}}
    # Min-max: ql a 1, b 0; rm3 d 1, a 0; run_rm3 z 1, a 0. All scores of topic 2 are equal.
    assert found.run["1"] == pytest.approx({"a": 1 / 3, "b": 0.0, "z": 1 / 3})
    assert found.signals["rm3"]["1"] == {"a": 8.0}
    assert found.signals["run_rm3"] == {"1": {"z": 2.0, "a": 1.0}, "2": {}}
    # What has no text here is a candidate all the same.
    assert found.posts["z"] == Post("z", "") and found.posts["a"] == KNOWN["a"]


def test_what_is_beyond_the_depth_ranks_below() -> None:
    """Of each candidate ranker's hits the best are scored; no hit is lost."""
    rankers = Rankers(["ql", "rm3"], ["ql", "rm3"], depth=1)
    found = UnionRetriever(source(), rankers).search(TOPICS)
    assert {q: set(scores) for q, scores in found.run.items()} == {"1": {"a", "d"}, "2": {"x"}}
    # Min-max: ql b .5, c 0; rm3 b 0.
    assert found.rest == {"1": pytest.approx({"b": 0.25, "c": 0.0}), "2": {}}
    assert not {"b", "c"} & found.posts.keys() and found.signals["ql"]["1"] == {"a": 3.0}
    for told in (0.0, -50.0):
        model: Any = Lengths(told)
        fusion = Fusion(UnionRetriever(source(), rankers), model)
        scores = fusion.rank({t.query_id: t.text for t in TOPICS}).run
        assert sorted(scores["1"], key=lambda d: -scores["1"][d])[2:] == ["b", "c"]
        assert min(scores["1"]["a"], scores["1"]["d"]) > scores["1"]["b"] > scores["1"]["c"]
    # Fewer hits than the depth: nothing is left over.
    found = UnionRetriever(source(), Rankers(["ql"], ["ql"], 10)).search(TOPICS, hits=2)
    assert found.rest == {"1": {}, "2": {}} and set(found.run["1"]) == {"a", "b"}


def test_a_ranker_that_a_source_lacks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rankers = Rankers(["ql", "run_ql"], ["ql", "run_ql"])
    found = UnionRetriever(source(tmp_path), rankers).search(TOPICS)
    assert set(found.signals) == {"ql"}
    assert "warning: mb has no run_ql" in capsys.readouterr().err
    # Nobody misses official runs where there are none, or of a query that is no topic.
    assert UnionRetriever(source(), rankers).search(TOPICS).signals == found.signals
    of_others = source(tmp_path)
    of_others.topics = [Topic("3", "fire")]
    assert UnionRetriever(of_others, rankers).search(TOPICS).signals == found.signals
    assert capsys.readouterr().err == ""
    with pytest.raises(DataError, match="mb: found no run of run_rm3"):
        UnionRetriever(source(), Rankers(["ql", "run_rm3"], ["run_rm3"])).search(TOPICS)


class Lengths:
    """In the place of a checkpoint: a score is the length of a post's text, and what it is told."""

    def __init__(self, told: float = 0.0) -> None:
        self.told = told

    name, families = "lengths", ()

    def stages(self, pairs: Any, *_: Any) -> Any:
        lengths = np.array([len(text) for text in pairs.texts], dtype=np.float32)
        yield self.name, lengths[pairs.post_index] + np.float32(self.told)


def test_rankers_are_read_from_the_settings() -> None:
    families = "signal:ql,signal:run_rm3,overlap"

    def rankers(families: str, candidate_rankers: str = "") -> Rankers:
        config = SimpleNamespace(families=families, candidate_rankers=candidate_rankers, depth=7)
        return Rankers.from_config(config)

    assert rankers(families) == Rankers(["ql", "run_rm3"], ["ql", "run_rm3"], 7)
    assert rankers(families, "run_rm3").candidate_rankers == ["run_rm3"]
    with pytest.raises(UsageError) as problems:
        rankers("signal:ql,signal:mp_hcnn", "rm3")
    first, second = problems.value.problems
    assert "signal:mp_hcnn: found no ranker" in first and "candidate_rankers: found rm3" in second
    with pytest.raises(UsageError, match="these find the candidates"):
        rankers("overlap")


# Trees over the scores

NAME = "fusion"
SMALL = "signal:rm3,signal:ql,signal:unknown,first_stage,links"
TWO = "lambdarank,binary"
CHANGES: dict[str, Any] = {"trees": 40, "minimum_leaf": 5, "feature_fraction": 0.5}


def fitted(families: str, objectives: str, start: Trees | None = None) -> Trees:
    changes = CHANGES | {"families": families, "objectives": objectives}
    config = small_config(NAME, "general", **changes)
    return reranking_samples.fitted(NAME, config, *pairs_that_rm3_orders(), start)


@pytest.mark.parametrize("name", ["fusion", "lambdamart"])
def test_a_signal_that_orders_posts_is_learnt_for_new_topics(name: str) -> None:
    """Posts without the signal end up below the others."""
    [first, *_] = models.find(name).configurations
    config = small_config(name, first, **{"families": SMALL} | CHANGES)
    shares = require_new_topics_ordered(name, config).importances()
    of_signal = [shares[feature] for feature in features.names_of(["signal:rm3"])]
    assert sum(of_signal) > 0.9 * sum(shares.values())


def test_trees_that_extend_those_of_fewer_features(tmp_path: Path) -> None:
    """Half as many are added; the first ones are those of the start, which reads no RM3."""
    start = fitted("signal:ql,first_stage", TWO)
    model = fitted("signal:ql,first_stage,signal:rm3", TWO, start)
    pairs, _ = pairs_that_rm3_orders()
    values = features.table(pairs, model.families, encoder().idf).values
    for grown, first in zip(model.boosters, start.boosters, strict=True):
        assert (grown.num_trees(), first.num_trees()) == (60, 40)
        np.testing.assert_array_equal(
            grown.predict(values, raw_score=True, num_iteration=40),
            first.predict(values[:, : len(start.names)], raw_score=True),
        )
    idf = tmp_path / "idf.tsv"
    idf.write_text("1000\nthe\t900\nin\t800\nworld\t90\nwater\t40\nservice\t30\nbbc\t20\n")
    model = dataclasses.replace(model, idf=checkpoint.idf_from(str(idf)))
    checkpoint.save(tmp_path / "saved", model)
    loaded = checkpoint.load(tmp_path / "saved", NAME)
    np.testing.assert_array_equal(loaded.score(pairs), model.score(pairs))
    for families, objectives in (("signal:rm3,signal:ql,first_stage", TWO), (SMALL, "binary")):
        with pytest.raises(RerankerError, match="other features or objectives"):
            fitted(families, objectives, start)
