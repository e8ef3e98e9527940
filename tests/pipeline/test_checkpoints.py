"""Which checkpoint a collection's searches take; mixtures with the first stage, λ, calibration."""

import json
import math
import random
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import Patch
from helpers.reranking_samples import small

from tweetrerank.indexes.data_error import DataError
from tweetrerank.indexes.posts import Post
from tweetrerank.pipeline.collections.named import find
from tweetrerank.pipeline.collections.topics import Topic
from tweetrerank.pipeline.collections.trec import Run
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
from tweetrerank.rerankers.mixed import Mixed
from tweetrerank.rerankers.reranker_error import RerankerError


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: Patch) -> Path:
    """A folder of shipped fusions in the place of ours: ``all`` has seen mb2012 and stackfaq."""
    folder = tmp_path / "shipped"
    monkeypatch.setattr(checkpoint, "SHIPPED", folder)
    for ending in ("", "-adapted"):
        add(folder / "fusion" / f"all{ending}", "mb2012", "stackfaq-train")
    add(folder / "mp_hcnn" / "all", "mb2012")
    return folder


def add(folder: Path, *trained_on: str) -> Path:
    folder.mkdir(parents=True)
    left_out = (
        None if folder.name.startswith("all") else folder.name.removesuffix("-adapted")
    )
    metrics = {"trained_on": trained_on, "left_out": left_out}
    (folder / "metrics.json").write_text(json.dumps(metrics))
    return folder


def test_adapted_fusions_are_preferred_where_there_is_a_table(shipped: Path) -> None:
    for adapted, name in (
        (None, "all"),
        (shipped, "all-adapted"),
    ):  # Any file that there is
        collection: Any = SimpleNamespace(key="mine", file=None, adapted_file=adapted)
        assert directory_for("fusion", collection) == shipped / "fusion" / name
        # Other models read no table.
        assert directory_for("mp_hcnn", collection) == shipped / "mp_hcnn" / "all"
    shutil.rmtree(shipped / "fusion" / "all-adapted")
    assert default_directory("fusion", "mine", is_adapted=True).name == "all"


def test_no_fusion_is_taken_that_has_seen_the_collection(shipped: Path) -> None:
    for name in ("mb2012", "stackfaq-train"):
        for is_adapted in (False, True):
            with pytest.raises(DataError, match=f"no fusion trained for {name}"):
                default_directory("fusion", name, is_adapted=is_adapted)
    # A model for one collection was trained without it.
    for adapted in ("mb2012", "mb2012-adapted"):
        made = add(shipped / "fusion" / adapted, "mb2011", "mb2013")
        assert default_directory("fusion", "mb2012", is_adapted=True) == made
        assert default_directory("fusion", "mb2012") == shipped / "fusion" / "mb2012"


def test_what_is_lost_or_of_another_collection_is_refused(
    shipped: Path, tmp_path: Path
) -> None:
    """It is never passed over for a shipped model."""
    mine = tmp_path / "home" / "checkpoints" / "fusion" / "own" / "mine"
    mine.mkdir(parents=True)
    metrics = {"trained_on": ["other"], "collection_file": "other.toml"}
    (mine / "metrics.json").write_text(json.dumps(metrics))

    def refused(message: str) -> None:
        with pytest.raises(RerankerError, match=message):
            default_directory("fusion", "own/mine")

    refused(r"config\.json: found no readable JSON")
    checkpoint.write_config(mine, {"model": "fusion"})
    refused("mine: found a model trained for other, expected one for mine")
    mine.rename(f"{mine}-adapted")
    refused("mine-adapted: found no word vectors adapted to own/mine")
    of_another = tmp_path / "home" / "lambda" / "fusion" / "all" / "own" / "mine.json"
    tuning = Tuning(0.5, {0.0: 0.1}, 0.1, (), "AP", "minmax", 2, 1, (), ("other",))
    replace(tuning, checkpoint="fusion/all").save(of_another)
    with pytest.raises(
        DataError, match=r"λ of fusion/all tuned on other, expected .* mine"
    ):
        tuning_of(shipped / "fusion" / "all", "own/mine")


def test_searches_take_a_fusion_that_fits(shipped: Path, data_dir: Path) -> None:
    def taken(name: str, fits: bool = True) -> str:
        return default_reranker(find(name, data_dir), not fits)

    assert taken("sample") == taken("mb2013") == "fusion"
    assert taken("mb2012") == "mp_hcnn"  # which the fusion has seen
    assert taken("mb2013", fits=False) == "mp_hcnn"
    assert taken("wikiqa") == "mp_hcnn"  # whose candidates are given


LEXICAL: Run = {"1": {"a": 10.0, "b": 5.0, "c": 0.0}, "2": {"x": 3.0}, "3": {}}
NEURAL: Run = {
    "1": {"c": 0.9, "b": 0.6, "a": -0.1, "other": 99.0},
    "2": {"x": -1.0},
    "4": {},
}


def test_mixing_by_hand() -> None:
    run = interpolate(LEXICAL, NEURAL, 0.25)
    # c 1, b 0.7, a 0 from the neural side: what is no candidate does not stretch the scale.
    expected = {"a": 0.75 * 1, "b": 0.25 * 0.7 + 0.75 * 0.5, "c": 0.25}
    assert run == {"1": pytest.approx(expected), "2": {"x": 0.5}, "3": {}}
    for widest in (
        {"a": -3.4e38, "b": 0.0, "c": 3.4e38},
        {"a": 0.0, "b": 5e-324, "c": 1e-323},
    ):
        assert all(map(math.isfinite, normalize(widest).values()))


def scored(run: Run, score: float) -> Run:
    return {**run, "1": {**run["1"], "b": score}}


@pytest.mark.parametrize(
    ("lexical", "neural", "weight", "message"),
    [
        (LEXICAL, NEURAL, -0.1, r"λ: found .*, expected a number from"),
        (LEXICAL, NEURAL, math.nan, r"λ: found .*, expected a number from"),
        (
            LEXICAL,
            {"1": {"a": 1.0}},
            0.0,
            "topic 1: found no neural score for 2 .*first is b",
        ),
        (
            LEXICAL,
            {"1": NEURAL["1"]},
            0.5,
            "topic 2: found no neural score for 1 of its 1",
        ),
        *(
            (*pair, 0.5, "topic 1, document b: found the score")
            for score in (
                math.nan,
                math.inf,
                -1e39,
            )  # Single precision does not hold the last.
            for pair in (
                (LEXICAL, scored(NEURAL, score)),
                (scored(LEXICAL, score), NEURAL),
            )
        ),
    ],
)
def test_what_cannot_be_mixed(
    lexical: Run, neural: Run, weight: float, message: str
) -> None:
    with pytest.raises((DataError, UsageError), match=message):
        interpolate(lexical, neural, weight)


def test_a_network_with_its_weight_is_a_model_of_lists() -> None:
    model = small("mp_hcnn", "robust")
    posts = {doc_id: Post(doc_id, f"storm {doc_id}") for doc_id in "abcx"}
    first: Run = {"1": {"a": 1 / 3, "b": 0.1, "c": 0.0}, "2": {"x": 3.0, "a": 1.0}}
    found = Candidates([Topic("1", "storm"), Topic("2", "bbc cuts")], first, posts)
    mixed, own = Mixed.of(model, 0.25, "tuned"), found.scored_by(model)
    assert (mixed.name, mixed.reads) == ("mp_hcnn", "lists")
    assert str(mixed.description) == "λ = 0.25 (tuned)"
    assert found.scored_by(mixed) == interpolate(first, own, 0.25)
    stages = [name for name, _ in mixed.stages(found.pairs(), first_stage="ql")]
    assert stages == ["mp_hcnn", "mp_hcnn + ql (λ = 0.25)"]
    # Nothing is mixed without scores, and with λ = 1.
    unknown = replace(found, forms=dict.fromkeys(first, "order"))
    ranked = [
        sorted(of, key=lambda d: -of[d]) for of in unknown.scored_by(mixed).values()
    ]
    assert ranked == [sorted(of, key=lambda d: -of[d]) for of in own.values()]
    assert found.scored_by(Mixed.of(model, 1.0)) == own
    assert with_weight(model, 0.5).weight == 0.5
    trees = small("window", "general")
    assert with_weight(trees, 0.5) is trees


def test_tuning_equals_a_naive_search() -> None:
    """With a topic a fold, the split is known and the estimate can be made naively."""
    drawn, docs = random.Random(2), [str(n) for n in range(30)]
    lexical, neural, qrels = {}, {}, {}
    # Each ranking knows something about what is relevant.
    for query_id in map(str, range(8)):
        qrels[query_id] = {doc_id: drawn.choice([-1, 0, 0, 1, 2]) for doc_id in docs}
        signal = {doc_id: max(0, grade) for doc_id, grade in qrels[query_id].items()}
        lexical[query_id] = {
            doc_id: 3 * signal[doc_id] + drawn.gauss(9, 9) for doc_id in docs
        }
        neural[query_id] = {
            doc_id: 0.3 * signal[doc_id] + drawn.gauss(0, 1) for doc_id in docs
        }
    qrels["without results"] = {"a": 1}
    known = HeldOut(lexical | {"not judged": {"a": 1.0}}, neural, qrels)
    tuning = known.tune(folds=9)
    mixed = {step / 20: interpolate(lexical, neural, step / 20) for step in range(21)}
    values = {
        weight: evaluate(qrels, run, ["AP"])["AP"] for weight, run in mixed.items()
    }
    curve = {weight: mean(of.values()) for weight, of in values.items()}
    assert tuning.curve == pytest.approx(curve, abs=1e-12)
    assert tuning.curve[tuning.weight] == max(tuning.curve.values())
    held_out, chosen = [], []
    for query_id in qrels:
        best = max(
            values, key=lambda w: mean([values[w][q] for q in qrels if q != query_id])
        )
        chosen.append(best)
        held_out.append(values[best][query_id])
    assert len(set(chosen)) > 1
    assert (
        max(tuning.curve.values())
        > tuning.cross_validated
        == pytest.approx(mean(held_out))
    )
    assert sorted(tuning.fold_weights) == sorted(chosen)
    assert (tuning.topics, known.tune("P@5").measure) == (tuple(qrels), "P@5")
    with pytest.raises(UsageError, match="found 10 folds, expected 2 to 9"):
        known.tune(folds=10)
    with pytest.raises(UsageError, match="did you mean 'AP'"):
        known.tune("map")


TUNING = Tuning(
    *(
        0.45,
        {0.0: 0.2, 0.45: 0.31, 1.0: 1 / 3},
        0.305,
        (0.4, 0.5),
        "AP",
        "minmax",
        2,
        1,
    ),
    *(
        ("1", "2"),
        ("mb2011", "mb2013"),
        "official runs",
        "mp_hcnn/mb2012",
        "2026-11-21",
    ),
)
CHANGES = [{"weight": 1.5}, {"weight": math.nan}, {"curve": {"x": 1}}, {"unknown": 1}]


@pytest.mark.parametrize("change", [*CHANGES, {"topics": None}])
def test_damaged_file(tmp_path: Path, change: dict[str, Any]) -> None:
    path = tmp_path / "lambda.json"
    TUNING.save(path)
    assert Tuning.load(path) == TUNING
    content = json.loads(path.read_text())
    unchecked = {key: value for key, value in content.items() if key != "sha256"}
    for damaged in (
        json.dumps(unchecked | change),
        json.dumps(content | {"weight": 0.5}),
        "{",
    ):
        path.write_text(damaged)
        with pytest.raises(
            DataError, match=r"lambda.json: found no tuned λ .*tweetrerank tune"
        ):
            Tuning.load(path)
    path.write_text(json.dumps(unchecked))
    assert Tuning.load(path) == TUNING
    path.unlink()
    with pytest.raises(DataError, match="cannot be read: No such file"):
        Tuning.load(path)


def test_calibration_gives_the_share_of_relevant_posts() -> None:
    """Scores are log-odds, shifted and stretched: the fit finds both again."""
    drawn, scores, qrels = random.Random(5), {}, {}
    for query_id in map(str, range(60)):
        odds = {str(n): drawn.gauss(-1, 2) for n in range(200)}
        qrels[query_id] = {
            d: 1 for d, o in odds.items() if drawn.random() < 1 / (1 + math.exp(-o))
        }
        scores[query_id] = {doc_id: (value + 1) * 4 for doc_id, value in odds.items()}
    assert calibrate(scores, qrels) == pytest.approx((0.25, -1.0), abs=0.06)
    # Scores that do not grow with relevance have no calibration.
    for relevant in ({}, {"worst": 1}):
        assert calibrate({"1": {"best": 2.0, "worst": 1.0}}, {"1": relevant}) is None


def test_shipped_checkpoints_are_calibrated() -> None:
    for model in ("mp_hcnn", "sm_cnn"):
        folders = [path.parent for path in (SHIPPED / model).glob("*/config.json")]
        assert [tuning_of(folder).calibration.slope > 0 for folder in folders] == [
            True
        ] * 5
