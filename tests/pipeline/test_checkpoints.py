"""Checkpoints of searches, mixtures with the first stage, and calibration."""

import json
import math
import random
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from conftest import Patch
from helpers.reranking_samples import small

from tweetrerank.indexes.data_error import DataError
from tweetrerank.indexes.posts import Post
from tweetrerank.pipeline.collections.named import find
from tweetrerank.pipeline.collections.topics import Topic
from tweetrerank.pipeline.collections.trec import Qrels, Run
from tweetrerank.pipeline.evaluation.measures import evaluate, mean
from tweetrerank.pipeline.ranking.build import default_reranker
from tweetrerank.pipeline.ranking.checkpoints import default_directory, directory_for
from tweetrerank.pipeline.ranking.interpolation import (
    Tuning,
    interpolate,
    normalize,
    tuning_of,
)
from tweetrerank.pipeline.ranking.retrievers import Candidates
from tweetrerank.pipeline.training.cross_validation import HeldOut, calibrate
from tweetrerank.pipeline.usage_error import UsageError
from tweetrerank.rerankers import checkpoint
from tweetrerank.rerankers.checkpoint import SHIPPED
from tweetrerank.rerankers.mixed import Mixed, with_weight
from tweetrerank.rerankers.reranker_error import RerankerError


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: Patch) -> Path:
    """A folder of shipped models in place of ours.

    Fusions named ``all`` have seen mb2012 and stackfaq.
    """
    folder = tmp_path / "shipped"
    monkeypatch.setattr(checkpoint, "SHIPPED", folder)
    add(folder / "fusion" / "all", "mb2012", "stackfaq-train")
    add(folder / "fusion" / "all-adapted", "mb2012", "stackfaq-train")
    add(folder / "mp_hcnn" / "all", "mb2012")
    return folder


def add(folder: Path, *trained_on: str) -> Path:
    """Write the metrics of a model, trained without the collection of its name."""
    folder.mkdir(parents=True)
    left_out = None
    if not folder.name.startswith("all"):
        left_out = folder.name.removesuffix("-adapted")
    metrics = {"trained_on": trained_on, "left_out": left_out}
    (folder / "metrics.json").write_text(json.dumps(metrics))
    return folder


@pytest.mark.parametrize(
    ("has_vectors", "name"),
    [(False, "all"), (True, "all-adapted")],
)
def test_adapted_fusions_are_preferred_with_adapted_vectors(
    has_vectors: bool, name: str, shipped: Path
) -> None:
    vectors = shipped if has_vectors else None  # Any file will do.
    collection: Any = SimpleNamespace(key="mine", file=None, adapted_file=vectors)
    assert directory_for("fusion", collection) == shipped / "fusion" / name
    # Other models do not read the vectors.
    assert directory_for("mp_hcnn", collection) == shipped / "mp_hcnn" / "all"


def test_a_fusion_without_vectors_replaces_an_adapted_one(shipped: Path) -> None:
    shutil.rmtree(shipped / "fusion" / "all-adapted")
    assert default_directory("fusion", "mine", is_adapted=True).name == "all"


@pytest.mark.parametrize("is_adapted", [False, True])
@pytest.mark.parametrize("name", ["mb2012", "stackfaq-train"])
def test_a_fusion_that_has_seen_the_collection_is_passed_over(
    name: str, is_adapted: bool, shipped: Path
) -> None:
    with pytest.raises(DataError, match=f"no fusion trained for {name}"):
        default_directory("fusion", name, is_adapted=is_adapted)


def test_a_model_for_one_collection_was_trained_without_it(shipped: Path) -> None:
    plain = add(shipped / "fusion" / "mb2012", "mb2011", "mb2013")
    assert default_directory("fusion", "mb2012", is_adapted=True) == plain
    assert default_directory("fusion", "mb2012") == plain
    adapted = add(shipped / "fusion" / "mb2012-adapted", "mb2011", "mb2013")
    assert default_directory("fusion", "mb2012", is_adapted=True) == adapted
    assert default_directory("fusion", "mb2012") == plain


class TestDamagedModel:
    """A damaged or foreign model is refused, not replaced by a shipped one."""

    @pytest.fixture
    def folder(self, shipped: Path, tmp_path: Path) -> Path:
        """A model of the collection ``own/mine``, trained on another collection."""
        folder = tmp_path / "home" / "checkpoints" / "fusion" / "own" / "mine"
        folder.mkdir(parents=True)
        metrics = {"trained_on": ["other"], "collection_file": "other.toml"}
        (folder / "metrics.json").write_text(json.dumps(metrics))
        return folder

    def check(self, message: str) -> None:
        with pytest.raises(RerankerError, match=message):
            default_directory("fusion", "own/mine")

    def test_without_a_configuration(self, folder: Path) -> None:
        self.check(r"config\.json: found no readable JSON")

    def test_of_another_collection(self, folder: Path) -> None:
        checkpoint.write_config(folder, {"model": "fusion"})
        self.check("mine: found a model trained for other, expected one for mine")

    def test_without_its_vectors(self, folder: Path) -> None:
        folder.rename(f"{folder}-adapted")
        self.check("mine-adapted: found no word vectors adapted to own/mine")


def test_a_weight_of_another_collection_is_refused(
    shipped: Path, tmp_path: Path
) -> None:
    path = tmp_path / "home" / "lambda" / "fusion" / "all" / "own" / "mine.json"
    replace(TUNING, checkpoint="fusion/all", collections=("other",)).save(path)
    message = r"λ of fusion/all tuned on other, expected .* mine"
    with pytest.raises(DataError, match=message):
        tuning_of(shipped / "fusion" / "all", "own/mine")


@pytest.mark.parametrize(
    ("name", "is_mixed", "model"),
    [
        ("sample", False, "fusion"),
        ("mb2013", False, "fusion"),
        pytest.param("mb2012", False, "mp_hcnn", id="the fusion has seen it"),
        pytest.param("mb2013", True, "mp_hcnn", id="a fusion has no λ"),
        pytest.param("wikiqa", False, "mp_hcnn", id="its candidates are given"),
    ],
)
def test_default_model_of_a_search(
    name: str, is_mixed: bool, model: str, shipped: Path, data_dir: Path
) -> None:
    assert default_reranker(find(name, data_dir), is_mixed) == model


LEXICAL: Run = {
    "1": {"a": 10.0, "b": 5.0, "c": 0.0},
    "2": {"x": 3.0},
    "3": {},
}
NEURAL: Run = {
    "1": {"c": 0.9, "b": 0.6, "a": -0.1, "other": 99.0},
    "2": {"x": -1.0},
    "4": {},
}


def test_mixing_by_hand() -> None:
    run = interpolate(LEXICAL, NEURAL, 0.25)
    # c 1, b 0.7, a 0 from the neural side; what is no candidate does not count.
    expected = {"a": 0.75 * 1, "b": 0.25 * 0.7 + 0.75 * 0.5, "c": 0.25}
    assert run == {"1": pytest.approx(expected), "2": {"x": 0.5}, "3": {}}


# The widest range, and the smallest numbers
@pytest.mark.parametrize(
    "scores",
    [
        {"a": -3.4e38, "b": 0.0, "c": 3.4e38},
        {"a": 0.0, "b": 5e-324, "c": 1e-323},
    ],
)
def test_normalized_scores_are_finite(scores: dict[str, float]) -> None:
    assert all(map(math.isfinite, normalize(scores).values()))


@pytest.mark.parametrize(
    ("neural", "weight", "message"),
    [
        (NEURAL, -0.1, r"λ: found .*, expected a number from"),
        (NEURAL, math.nan, r"λ: found .*, expected a number from"),
        ({"1": {"a": 1.0}}, 0.0, "topic 1: found no neural score for 2 .*first is b"),
        ({"1": NEURAL["1"]}, 0.5, "topic 2: found no neural score for 1 of its 1"),
    ],
)
def test_what_cannot_be_mixed(neural: Run, weight: float, message: str) -> None:
    with pytest.raises((DataError, UsageError), match=message):
        interpolate(LEXICAL, neural, weight)


def with_score(run: Run, score: float) -> Run:
    """The run with another score of b."""
    return run | {"1": run["1"] | {"b": score}}


# Single precision does not hold the last one.
@pytest.mark.parametrize("score", [math.nan, math.inf, -1e39])
@pytest.mark.parametrize("is_neural", [False, True])
def test_scores_that_are_not_finite(is_neural: bool, score: float) -> None:
    lexical = LEXICAL if is_neural else with_score(LEXICAL, score)
    neural = with_score(NEURAL, score) if is_neural else NEURAL
    with pytest.raises(DataError, match="topic 1, document b: found the score"):
        interpolate(lexical, neural, 0.5)


FIRST: Run = {
    "1": {"a": 1 / 3, "b": 0.1, "c": 0.0},
    "2": {"x": 3.0, "a": 1.0},
}


@pytest.fixture(scope="module")
def candidates() -> Candidates:
    posts = {doc_id: Post(doc_id, f"storm {doc_id}") for doc_id in "abcx"}
    return Candidates([Topic("1", "storm"), Topic("2", "bbc cuts")], FIRST, posts)


def test_a_network_with_its_weight_is_a_model_of_lists(candidates: Candidates) -> None:
    model = small("mp_hcnn", "robust")
    mixed = Mixed.of(model, 0.25, "tuned")
    assert mixed.name == "mp_hcnn"
    assert mixed.reads == "lists"
    assert str(mixed.description) == "λ = 0.25 (tuned)"
    neural = candidates.scored_by(model)
    assert candidates.scored_by(mixed) == interpolate(FIRST, neural, 0.25)
    stages = [name for name, _ in mixed.stages(candidates.pairs(), first_stage="ql")]
    assert stages == ["mp_hcnn", "mp_hcnn + ql (λ = 0.25)"]
    assert with_weight(model, 0.5).weight == 0.5


def test_nothing_is_mixed_without_scores_or_with_all_weight(
    candidates: Candidates,
) -> None:
    model = small("mp_hcnn", "robust")
    neural = candidates.scored_by(model)
    in_order = replace(candidates, forms=dict.fromkeys(FIRST, "order"))
    run = in_order.scored_by(Mixed.of(model, 0.25, "tuned"))
    for query_id, scores in neural.items():
        order = sorted(scores, key=lambda doc_id: -scores[doc_id])
        mixture = run[query_id]
        assert sorted(mixture, key=lambda doc_id: -mixture[doc_id]) == order
    assert candidates.scored_by(Mixed.of(model, 1.0)) == neural


def test_trees_are_not_mixed() -> None:
    trees = small("window", "general")
    assert with_weight(trees, 0.5) is trees


class Draws(NamedTuple):
    """Random scores and judgments, related to each other."""

    lexical: Run
    neural: Run
    qrels: Qrels


@pytest.fixture(scope="module")
def draws() -> Draws:
    """Eight topics, and one without results."""
    rng = random.Random(2)
    doc_ids = [str(number) for number in range(30)]
    drawn = Draws({}, {}, {})
    for query_id in map(str, range(8)):
        grades = {doc_id: rng.choice([-1, 0, 0, 1, 2]) for doc_id in doc_ids}
        drawn.qrels[query_id] = grades
        signal = {doc_id: max(0, grade) for doc_id, grade in grades.items()}
        drawn.lexical[query_id] = {
            doc_id: 3 * signal[doc_id] + rng.gauss(9, 9) for doc_id in doc_ids
        }
        drawn.neural[query_id] = {
            doc_id: 0.3 * signal[doc_id] + rng.gauss(0, 1) for doc_id in doc_ids
        }
    drawn.qrels["without results"] = {"a": 1}
    return drawn


def test_tuning_equals_a_naive_search(draws: Draws) -> None:
    """With a topic a fold, the split is known and the estimate can be made naively."""
    judged = HeldOut(
        draws.lexical | {"not judged": {"a": 1.0}}, draws.neural, draws.qrels
    )
    tuning = judged.tune(folds=9)
    values = {}  # λ -> query_id -> AP
    for step in range(21):
        weight = step / 20
        run = interpolate(draws.lexical, draws.neural, weight)
        values[weight] = evaluate(draws.qrels, run, ["AP"])["AP"]
    curve = {weight: mean(by_topic.values()) for weight, by_topic in values.items()}
    assert tuning.curve == pytest.approx(curve, abs=1e-12)
    highest = max(tuning.curve.values())
    assert tuning.curve[tuning.weight] == highest

    def mean_without(query_id: str, weight: float) -> float:
        others = [value for q, value in values[weight].items() if q != query_id]
        return mean(others)

    held_out = []
    chosen = []
    for query_id in draws.qrels:
        best = max(values, key=lambda weight: mean_without(query_id, weight))
        chosen.append(best)
        held_out.append(values[best][query_id])
    assert len(set(chosen)) > 1
    assert highest > tuning.cross_validated == pytest.approx(mean(held_out))
    assert sorted(tuning.fold_weights) == sorted(chosen)
    assert tuning.topics == tuple(draws.qrels)


def test_arguments_of_a_tuning(draws: Draws) -> None:
    judged = HeldOut(*draws)
    assert judged.tune("P@5").measure == "P@5"
    with pytest.raises(UsageError, match="found 10 folds, expected 2 to 9"):
        judged.tune(folds=10)
    with pytest.raises(UsageError, match="did you mean 'AP'"):
        judged.tune("map")


TUNING = Tuning(
    weight=0.45,
    curve={0.0: 0.2, 0.45: 0.31, 1.0: 1 / 3},
    cross_validated=0.305,
    fold_weights=(0.4, 0.5),
    measure="AP",
    normalization="minmax",
    folds=2,
    seed=1,
    topics=("1", "2"),
    collections=("mb2011", "mb2013"),
    first_stage="official runs",
    checkpoint="mp_hcnn/mb2012",
    date="2026-11-21",
)


@pytest.fixture
def tuning_file(tmp_path: Path) -> Path:
    path = tmp_path / "lambda.json"
    TUNING.save(path)
    return path


def test_a_tuning_is_read_with_and_without_its_hash(tuning_file: Path) -> None:
    assert Tuning.load(tuning_file) == TUNING
    content = json.loads(tuning_file.read_text())
    del content["sha256"]
    tuning_file.write_text(json.dumps(content))
    assert Tuning.load(tuning_file) == TUNING


NO_HASH = {"sha256": None}


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"weight": 0.5}, id="changed without its hash"),
        NO_HASH | {"weight": 1.5},
        NO_HASH | {"weight": math.nan},
        NO_HASH | {"curve": {"x": 1}},
        NO_HASH | {"unknown": 1},
        NO_HASH | {"topics": None},
        pytest.param(None, id="no JSON"),
    ],
)
def test_damaged_tuning(change: dict[str, Any] | None, tuning_file: Path) -> None:
    text = "{"
    if change:
        text = json.dumps(json.loads(tuning_file.read_text()) | change)
    tuning_file.write_text(text)
    message = r"lambda.json: found no tuned λ .*tweetrerank tune"
    with pytest.raises(DataError, match=message):
        Tuning.load(tuning_file)


def test_a_tuning_without_a_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read: No such file"):
        Tuning.load(tmp_path / "lambda.json")


def test_calibration_gives_the_share_of_relevant_posts() -> None:
    """Scores are log-odds, shifted and stretched: the fit recovers both."""
    rng = random.Random(5)
    scores: Run = {}
    qrels: Qrels = {}
    for query_id in map(str, range(60)):
        odds = {str(number): rng.gauss(-1, 2) for number in range(200)}
        qrels[query_id] = {}
        for doc_id, value in odds.items():
            if rng.random() < 1 / (1 + math.exp(-value)):
                qrels[query_id][doc_id] = 1
        scores[query_id] = {doc_id: (value + 1) * 4 for doc_id, value in odds.items()}
    assert calibrate(scores, qrels) == pytest.approx((0.25, -1.0), abs=0.06)


@pytest.mark.parametrize("relevant", [{}, {"worst": 1}])
def test_scores_that_do_not_grow_with_relevance(relevant: dict[str, int]) -> None:
    assert calibrate({"1": {"best": 2.0, "worst": 1.0}}, {"1": relevant}) is None


@pytest.mark.parametrize("model", ["mp_hcnn", "sm_cnn"])
def test_shipped_checkpoints_are_calibrated(model: str) -> None:
    folders = [path.parent for path in (SHIPPED / model).glob("*/config.json")]
    assert len(folders) == 5
    for folder in folders:
        tuning = tuning_of(folder)
        assert tuning
        assert tuning.calibration
        assert tuning.calibration.slope > 0
