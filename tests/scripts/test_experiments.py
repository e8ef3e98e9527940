"""Cells of experiments: computed once, measured, named when they fail."""

from pathlib import Path

import numpy as np
import pytest
from experiments import answers
from experiments.answers import measure_drawn
from experiments.cells import OKAPI, Cell, Setup, is_finished, run_cell, run_cells
from helpers.data_samples import write_answers, write_microblog
from helpers.experiment_samples import run_commands_here
from helpers.reranking_samples import network, small_model

from pipeline.collections.trec import read_run
from pipeline.evaluation.measures import evaluate, mean

pytestmark = pytest.mark.slow  # experiments are no part of the packages


@pytest.fixture(autouse=True)
def _commands_here(monkeypatch: pytest.MonkeyPatch) -> None:
    run_commands_here(monkeypatch)


def mean_of_run(setup: Setup, cell: Cell, measure: str) -> object:
    qrels = setup.collection(cell.collection).qrels or {}
    values = evaluate(qrels, read_run(setup.run_file(cell)), [measure])
    return pytest.approx(mean(values[measure]), abs=1e-4)


def test_an_answer_cell_is_measured_and_computed_once(tmp_path: Path) -> None:
    setup = Setup(tmp_path / "kept", write_answers(tmp_path / "data"), "cpu")
    quick = ("training.steps=3", "training.epochs=2", "--vectors", f"{setup.data}/vectors.txt")
    # The same work under two names is done once.
    cell, twin = (Cell(name, "bag_of_words", quick, "trecqa-raw") for name in ("one", "another"))
    assert not is_finished(cell, setup)
    results, failures = run_cells([cell, twin], setup)
    assert failures == []
    assert [result.cell for result in results] == [cell, twin]
    assert results[0].measures == results[1].measures
    assert is_finished(twin, setup)
    assert results[0].measures["RR"] == mean_of_run(setup, cell, "RR")
    assert (results[0].interpolated, results[0].weight) == ({}, None)
    written = setup.result_file(cell).stat().st_mtime_ns
    assert run_cell(cell, setup) == results[0]
    assert setup.result_file(cell).stat().st_mtime_ns == written


def test_official_runs_and_shipped_weights_are_only_measured(tmp_path: Path) -> None:
    setup = Setup(tmp_path / "kept", write_microblog(tmp_path / "data"), "cpu")
    cell = Cell("QL", "run:ql", (), "mb2012")
    assert run_cell(cell, setup).measures["AP"] == mean_of_run(setup, cell, "AP")
    assert not setup.directory.exists()
    cell = Cell("shipped", "shipped:mp_hcnn", (), "mb2012")
    result = run_cell(cell, setup)
    assert result.measures["AP"] == mean_of_run(setup, cell, "AP")
    assert (result.interpolated, result.weight) == ({}, None) and result.seconds < 5
    # A mixture of two scores scaled to [0, 1].
    scores = [s for of_topic in read_run(setup.run_file(cell)).values() for s in of_topic.values()]
    assert 0 <= min(scores) <= max(scores) <= 1
    assert not (setup.directory / "checkpoints").exists()


def test_cells_pick_right_answers_with_and_without_training(tmp_path: Path) -> None:
    setup = Setup(tmp_path / "kept", write_answers(tmp_path / "data"), "cpu")
    measured = run_cell(Cell("Okapi", OKAPI, (), "wikiqa"), setup)
    assert set(measured.measures) == {"P@1", "RR"}
    # A right answer has all words of its question, and nearly always the most.
    assert 0.5 < measured.measures["P@1"] <= measured.measures["RR"] <= 1
    assert not setup.directory.exists()

    options = "--development drawn training.steps=1 training.epochs=1 --configuration nbow_mlp"
    options += f" --vectors {setup.data}/vectors.txt"
    cell = Cell("NBOW", "drawn:cntn", tuple(options.split()), "wikiqa")
    measured = run_cell(cell, setup)
    part = setup.collection("wikiqa")
    assert measured.measures == measure_drawn(part, setup.checkpoint(cell))  # type: ignore[arg-type]


def test_vectors_of_questions_have_length_1_in_any_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = network(small_model("cntn", "cntn_v"), name="cntn")
    questions = ["where is the water", "who", "is it", "where is the water"]
    vectors = answers.question_vectors(trained, questions)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-6)
    np.testing.assert_array_equal(vectors[0], vectors[3])
    monkeypatch.setattr(answers, "BATCH_SIZE", 1)
    np.testing.assert_allclose(answers.question_vectors(trained, questions), vectors, atol=1e-6)
