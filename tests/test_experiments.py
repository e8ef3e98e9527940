"""Cells of experiments: computed once, measured, named when they fail."""

from pathlib import Path

import pytest
from answer_samples import write_data as write_answers
from experiments.cells import (
    Cell,
    checkpoint_of,
    find_runs,
    is_finished,
    read_result,
    run_cell,
    run_cells,
)
from experiments.published import mp_hcnn
from experiments.published.answer_selection import ANSWER_SELECTION, MICROBLOG, SEEDS
from microblog_samples import write_data as write_microblog

from pipeline.collections.named import find, find_answers
from pipeline.collections.trec import read_run
from pipeline.evaluation.measures import evaluate, mean

QUICK = ("--steps", "3", "--epochs", "2")


def cell(folder: Path, collection: str, *training: str, seed: int = 1) -> Cell:
    vectors = ("--vectors", str(folder / "vectors.txt"))
    return Cell("Bag of words", "bag_of_words", (*QUICK, *vectors, *training), collection, seed)


@pytest.mark.slow
def test_an_answer_cell_is_measured_and_computed_once(tmp_path: Path) -> None:
    data = write_answers(tmp_path / "data")
    todo = cell(data, "trecqa-raw")
    first = run_cell(todo, tmp_path / "kept", data, 1, "cpu")
    qrels = find_answers("trecqa-raw", data).qrels
    assert qrels is not None
    run = read_run(tmp_path / "kept" / "runs" / f"{todo.key}.txt")
    expected = mean(evaluate(qrels, run, ["RR"])["RR"])
    assert first.measures["RR"] == pytest.approx(expected, abs=1e-4)
    assert first.interpolated == {}
    assert first.weight is None
    kept = tmp_path / "kept" / "results" / f"{todo.key}.json"
    written = kept.stat().st_mtime_ns
    again = run_cell(todo, tmp_path / "kept", data, 1, "cpu")
    assert again == first == read_result(kept)
    assert kept.stat().st_mtime_ns == written


@pytest.mark.slow
def test_a_microblog_cell_is_mixed_with_a_weight_tuned_on_training_topics(tmp_path: Path) -> None:
    data = write_microblog(tmp_path / "data")
    todo = cell(data, "mb2012")
    found = run_cell(todo, tmp_path / "kept", data, 1, "cpu")
    assert set(found.measures) == set(found.interpolated) == {"AP", "P@30"}
    assert found.weight is not None
    assert 0.0 <= found.weight <= 1.0
    assert (tmp_path / "kept" / "runs" / f"{todo.key}.interpolated.txt").exists()


@pytest.mark.slow
def test_a_cell_that_fails_names_itself_and_loses_no_other(tmp_path: Path) -> None:
    data = write_answers(tmp_path / "data")
    good, bad = cell(data, "trecqa-raw"), cell(data, "trecqa-raw", "--optimizer", "nonsense")
    results, failures = run_cells([bad, good], tmp_path / "kept", data, 2, "cpu")
    assert [found.cell for found in results] == [good]
    (message,) = failures
    assert message.startswith("Bag of words on trecqa-raw, seed 1: ")
    assert "nonsense" in message


def test_keys_tell_cells_apart() -> None:
    cells = [
        c
        for systems, names in ((ANSWER_SELECTION, ("trecqa-raw",)), (MICROBLOG, ("mb2011",)))
        for system in systems
        for c in system.cells(names, SEEDS)
    ]
    assert len({c.key for c in cells}) == len(cells)
    # The same work is done once whatever it is called.
    assert Cell("a", "m", ("x",), "wikiqa").key == Cell("b", "m", ("x",), "wikiqa").key


@pytest.mark.slow
def test_the_same_work_by_two_names_is_done_once(tmp_path: Path) -> None:
    data = write_answers(tmp_path / "data")
    todo = cell(data, "trecqa-raw")
    twin = Cell("another name", todo.model, todo.training, todo.collection, todo.seed)
    assert not is_finished(todo, tmp_path / "kept")
    told = []
    results, failures = run_cells(
        [todo, twin], tmp_path / "kept", data, 1, "cpu", lambda cell, line: told.append(line)
    )
    assert failures == []
    assert [found.cell for found in results] == [todo, twin]
    assert results[0].measures == results[1].measures
    assert len(told) == 1
    assert is_finished(twin, tmp_path / "kept")


def test_an_official_run_is_only_measured(tmp_path: Path) -> None:
    data = write_microblog(tmp_path / "data")
    (todo,) = mp_hcnn.QL.cells(["mb2012"], [1])
    found = run_cell(todo, tmp_path / "kept", data, 1, "cpu")
    path, mixture = find_runs(todo, tmp_path / "kept", data)
    assert mixture is None
    qrels = find("mb2012", data).qrels
    assert qrels is not None
    expected = mean(evaluate(qrels, read_run(path), ["AP"])["AP"])
    assert found.measures["AP"] == pytest.approx(expected, abs=1e-4)
    assert not (tmp_path / "kept").exists()


@pytest.mark.parametrize(
    ("model", "training", "trained", "searched"),
    [
        ("sm_cnn", (), ["--folds", "1"], ["--reranker", "sm_cnn", "--candidates", "ql",
                                          "--lambda", "1"]),
        ("sm_cnn", ("--folds", "5"), ["--folds", "5"], ["--reranker", "sm_cnn", "--candidates",
                                                        "ql", "--lambda", "1"]),
        ("fusion", ("--set", "trees=3"), ["--set", "trees=3"], ["--fusion", "learned"]),
        ("linear_fusion", (), [], ["--fusion", "linear"]),
        ("held-out:fusion", (), [], None),
        ("shipped:mp_hcnn", (), None, ["--reranker", "mp_hcnn", "--candidates", "ql"]),
    ],
)  # fmt: skip
def test_the_commands_of_each_kind_of_cell(
    model: str, training: tuple[str, ...], trained: list[str] | None, searched: list[str] | None,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    said = {}

    def command(module: str, *arguments: str) -> None:
        said[module] = list(arguments)

    def measure(*arguments: object) -> tuple[dict[str, float], dict[str, float], None]:
        return {"AP": 0.5}, {}, None

    monkeypatch.setattr("experiments.cells._command", command)
    monkeypatch.setattr("experiments.cells._measure", measure)
    todo = Cell("a system", model, training, "mb2012")
    checkpoint = checkpoint_of(todo, tmp_path)
    if trained is not None:
        checkpoint.mkdir(parents=True)
        (checkpoint / "metrics.json").write_text('{"validation": {"AP": 0.25}, "epochs": 7}')
    assert run_cell(todo, tmp_path, None, 1, "cpu").measures == {"AP": 0.5}
    name = model.rpartition(":")[2]
    common = ["--threads", "1", "--device", "cpu"]
    assert said.get("pipeline.train") == (
        None if trained is None else
        [name, "--test", "mb2012", *trained, "--seed", "1", "--output", str(checkpoint), "--resume",
         *common]
    )  # fmt: skip
    assert said.get("pipeline.search") == (
        None if searched is None else
        ["--topics", "mb2012", *searched, "--checkpoint", str(checkpoint), "--output",
         str(tmp_path / "runs" / f"{todo.key}.txt"), *common]
    )  # fmt: skip


def test_weights_that_ship_are_not_trained_and_their_mixture_is_what_is_measured(
    tmp_path: Path,
) -> None:
    data = write_microblog(tmp_path / "data")
    todo = Cell("shipped", "shipped:mp_hcnn", (), "mb2012")
    found = run_cell(todo, tmp_path / "kept", data, 1, "cpu")
    path, mixture = find_runs(todo, tmp_path / "kept", data)
    assert mixture is None
    collection = find("mb2012", data)
    qrels = collection.qrels
    assert qrels is not None
    run = read_run(path)
    assert found.measures["AP"] == pytest.approx(mean(evaluate(qrels, run, ["AP"])["AP"]), abs=1e-4)
    assert (found.interpolated, found.weight, found.seconds) == ({}, None, 0.0)
    # A mixture of two scores that are scaled to [0, 1] is between 0 and 1.
    assert all(0 <= score <= 1 for scores in run.values() for score in scores.values())
    assert not (tmp_path / "kept" / "checkpoints").exists()


def test_the_depth_that_is_usual_is_the_model_itself() -> None:
    years = ["mb2011"]
    (whole,) = mp_hcnn.MP_HCNN.cells(years, [1])
    assert [s.name for s in mp_hcnn.DEPTHS if s.cells(years, [1])[0].key == whole.key] == [
        "depth 2"
    ]
