"""Right answers among drawn ones, Okapi BM25, and question retrieval by α."""

from pathlib import Path

import pytest
from experiments.answers import measure_drawn
from experiments.cells import OKAPI, Cell, Setup, run_cell
from experiments.rendering import render
from experiments.tables import read_tables
from helpers.data_samples import write_answers
from helpers.experiment_samples import result, row_of, run_commands_here

pytestmark = pytest.mark.slow  # experiments are no part of the packages

_, TABLES = read_tables()


def test_cells_pick_right_answers_with_and_without_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_commands_here(monkeypatch)
    data = write_answers(tmp_path / "data")
    setup = Setup(tmp_path / "kept", data, "cpu")
    measured = run_cell(Cell("Okapi", OKAPI, (), "wikiqa"), setup)
    assert set(measured.measures) == {"P@1", "RR"}
    # A right answer has all words of its question, and nearly always the most.
    assert 0.5 < measured.measures["P@1"] <= measured.measures["RR"] <= 1
    assert not setup.directory.exists()

    options = "--development drawn --steps 1 --epochs 1 --configuration nbow_mlp --vectors"
    cell = Cell("NBOW", "drawn:cntn", (*options.split(), f"{data}/vectors.txt"), "wikiqa")
    measured = run_cell(cell, setup)
    part = setup.collection("wikiqa")
    assert measured.measures == measure_drawn(part, setup.checkpoint(cell))  # type: ignore[arg-type]


def test_the_table_has_the_papers_figures_for_its_data() -> None:
    table = TABLES["cntn"]
    text = render(table, [result(table.systems[-1], "wikiqa", **{"P@1": 0.5, "RR": 0.6})])
    header = "| system | wikiqa P@1/RR | paper, yahoo-test | paper, yahoo-dev |"
    assert text.splitlines()[0] == header
    assert row_of(text, "CNTN-V (ours)") == "| CNTN-V (ours) | 0.5000 / 0.6000 | 0.707 | 0.758 |"
    assert row_of(text, "Okapi BM25") == "| Okapi BM25 | - | 0.356 | - |"
