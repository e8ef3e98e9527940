"""Cells of experiments: computed once, measured, named when they fail; and their tables."""

import csv
import dataclasses
from pathlib import Path

import pytest
from answer_samples import write_data as write_answers
from microblog_samples import write_data as write_microblog

from pipeline import tables
from pipeline.collections import find_answers
from pipeline.errors import UsageError
from pipeline.evaluation import evaluate, mean
from pipeline.experiments import Cell, Result, read_result, run_cell, run_cells
from pipeline.published import ANSWER_SELECTION, MICROBLOG, SAMPLING, SEEDS, System
from pipeline.tables import Table
from pipeline.trec import read_run

QUICK = ("--steps", "3", "--epochs", "2")
MADE = {"date": "2026-01-01", "commit": "abc", "machine": "two cores"}


def cell(folder: Path, collection: str, *training: str, seed: int = 1) -> Cell:
    vectors = ("--vectors", str(folder / "vectors.txt"))
    return Cell("Bag of words", "bag_of_words", (*QUICK, *vectors, *training), collection, seed)


def result(
    system: str, collection: str, seed: int, ap: float, mixed: float | None = None
) -> Result:
    return Result(
        Cell(system, "model", (), collection, seed), {"AP": ap, "RR": round(ap + 0.1, 4)},
        {} if mixed is None else {"AP": mixed, "RR": mixed}, 0.5, 0.7, 3, 12.5, MADE,
    )  # fmt: skip


def test_an_answer_cell_is_measured_and_computed_once(tmp_path: Path) -> None:
    data = write_answers(tmp_path / "data")
    todo = cell(data, "trecqa-raw")
    first = run_cell(todo, tmp_path / "kept", data, 1, "cpu")
    qrels = find_answers("trecqa-raw", data).qrels()
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


def test_a_microblog_cell_is_mixed_with_a_weight_tuned_on_training_topics(tmp_path: Path) -> None:
    data = write_microblog(tmp_path / "data")
    todo = cell(data, "mb2012")
    found = run_cell(todo, tmp_path / "kept", data, 1, "cpu")
    assert set(found.measures) == set(found.interpolated) == {"AP", "P@30"}
    assert found.weight is not None
    assert 0.0 <= found.weight <= 1.0
    assert (tmp_path / "kept" / "runs" / f"{todo.key}.interpolated.txt").exists()


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


def test_the_table_has_means_spreads_and_the_papers_figures() -> None:
    systems = (
        System("one", "model", (), {"trecqa-raw": (0.762, 0.83)}),
        System("two", "model"),
        System("never run", "model"),
    )
    results = [
        result("one", "trecqa-raw", 1, 0.7), result("one", "trecqa-raw", 2, 0.8),
        result("two", "trecqa-raw", 1, 0.5),
    ]  # fmt: skip
    lines = Table(systems, ("trecqa-raw", "trecqa-clean")).markdown(results).splitlines()
    assert lines[0] == "| system | trecqa-raw AP/RR | paper | training, s |"
    assert lines[2] == "| one | 0.7500 ± 0.071 / 0.8500 ± 0.071 | 0.762 / 0.830 | 12 |"
    assert lines[3] == "| two | 0.5000 / 0.6000 | - | 12 |"
    assert lines[4] == "| never run | - | - | - |"


def test_mixtures_are_shown_beside_neural_figures() -> None:
    table = Table((System("one", "model"),), ("mb2011",))
    row = table.markdown([result("one", "mb2011", 1, 0.2, 0.3)]).splitlines()[2]
    assert row == "| one | 0.2000 / 0.3000, interpolated 0.3000 / 0.3000 | 12 |"


def test_unknown_collections_are_refused() -> None:
    with pytest.raises(UsageError, match=r"mb2015.*expected some of mb2011, mb2012, mb2013"):
        tables.find("microblog").cells(["mb2015"], 1)


def test_csv_has_a_line_for_each_measure(tmp_path: Path) -> None:
    tables.write_csv(tmp_path / "r.csv", [result("one", "trecqa-raw", 2, 0.7)])
    with (tmp_path / "r.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [(row["measure"], float(row["value"])) for row in rows] == [("AP", 0.7), ("RR", 0.8)]
    assert rows[0]["seed"] == "2"
    assert rows[0]["commit"] == "abc"


def test_csv_is_read_back_into_the_same_table(tmp_path: Path) -> None:
    systems = (System("one", "model"), System("two", "model"))
    unjudged = dataclasses.replace(result("two", "trecqa-raw", 1, 0.0), measures={})
    results = [result("one", "trecqa-raw", 1, 0.7, 0.8), unjudged]
    tables.write_csv(tmp_path / "r.csv", results)
    table = Table(systems, ("trecqa-raw",))
    again = tables.read_csv(tmp_path / "r.csv")
    assert table.markdown(again) == table.markdown(results)
    assert "| two | no judgments here; development AP 0.7000 |" in table.markdown(again)


def test_the_figure_of_sampling_is_drawn(tmp_path: Path) -> None:
    found = [result(system.name, "trecqa-raw", 1, 0.7) for system in SAMPLING]
    tables.plot_sampling(tmp_path / "figure.png", found)
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
