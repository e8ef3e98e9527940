"""The papers' tables and figures, from made-up results and small runs."""

import csv
import dataclasses
from pathlib import Path

import pytest
from experiments.cells import Cell, Result
from experiments.published.answer_selection import SAMPLING
from experiments.published.system import System
from experiments.tables import TABLES
from experiments.tables.contract import Workshop
from experiments.tables.means import Means
from experiments.tables.results import read_csv, write_csv

from pipeline.command.errors import UsageError

MADE = {"date": "2026-01-01", "commit": "abc", "machine": "two cores"}


def result(
    system: str, collection: str, seed: int, ap: float, mixed: float | None = None
) -> Result:
    return Result(
        Cell(system, "model", (), collection, seed), {"AP": ap, "RR": round(ap + 0.1, 4)},
        {} if mixed is None else {"AP": mixed, "RR": mixed}, 0.5, 0.7, 3, 12.5, MADE,
    )  # fmt: skip


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
    lines = Means(systems, ("trecqa-raw", "trecqa-clean")).markdown(results).splitlines()
    assert lines[0] == "| system | trecqa-raw AP/RR | paper | training, s |"
    assert lines[2] == "| one | 0.7500 ± 0.071 / 0.8500 ± 0.071 | 0.762 / 0.830 | 12 |"
    assert lines[3] == "| two | 0.5000 / 0.6000 | - | 12 |"
    assert lines[4] == "| never run | - | - | - |"


def test_mixtures_are_shown_beside_neural_figures() -> None:
    table = Means((System("one", "model"),), ("mb2011",))
    row = table.markdown([result("one", "mb2011", 1, 0.2, 0.3)]).splitlines()[2]
    assert row == "| one | 0.2000 / 0.3000, interpolated 0.3000 / 0.3000 | 12 |"


def test_unknown_collections_are_refused() -> None:
    with pytest.raises(UsageError, match=r"mb2015.*expected some of mb2011, mb2012, mb2013"):
        TABLES["microblog"].chosen(["mb2015"], None)


def test_csv_has_a_line_for_each_measure(tmp_path: Path) -> None:
    write_csv(tmp_path / "r.csv", [result("one", "trecqa-raw", 2, 0.7)])
    with (tmp_path / "r.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [(row["measure"], float(row["value"])) for row in rows] == [("AP", 0.7), ("RR", 0.8)]
    assert rows[0]["seed"] == "2"
    assert rows[0]["commit"] == "abc"


def test_csv_is_read_back_into_the_same_table(tmp_path: Path) -> None:
    systems = (System("one", "model"), System("two", "model"))
    unjudged = dataclasses.replace(result("two", "trecqa-raw", 1, 0.0), measures={})
    results = [result("one", "trecqa-raw", 1, 0.7, 0.8), unjudged]
    write_csv(tmp_path / "r.csv", results)
    table = Means(systems, ("trecqa-raw",))
    again = read_csv(tmp_path / "r.csv")
    assert table.markdown(again) == table.markdown(results)
    assert "| two | no judgments here; development AP 0.7000 |" in table.markdown(again)


def test_the_figure_of_sampling_is_drawn(tmp_path: Path) -> None:
    found = [result(system.name, "trecqa-raw", 1, 0.7) for system in SAMPLING]
    TABLES["sampling"].draw(tmp_path / "figure.png", found, Workshop(tmp_path, None))
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
