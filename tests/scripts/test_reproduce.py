"""The script that prints the papers' tables: refused options, prints and files."""

import csv
import re
import shlex
from pathlib import Path
from unittest.mock import Mock

import pytest
import reproduce
from conftest import Capture, Patch
from helpers.data_samples import write_microblog
from helpers.processes import ROOT

from tweetrerank.indexes.data_error import DataError
from tweetrerank.pipeline.command.options import parse_arguments
from tweetrerank.pipeline.usage_error import UsageError


def run(arguments: str) -> None:
    words = shlex.split(arguments)
    options = parse_arguments(reproduce.Options, "reproduce", "", words)
    reproduce.main(options)


MISTAKES = {
    "tabel3": ["table: found 'tabel3', expected one of table2; table3; ", "'table3'"],
    "table3 --tests mb2011,mb2015 --systems MP-HCN": [
        "found 'mb2015'",
        "found 'MP-HCN'",
    ],
    "all --tests wikiqa": ["--tests: found 'wikiqa'"],
    f"table3 --output {__file__}": [
        "--output: found the file ",
        ", expected a folder",
    ],
    "": ["table: found None, expected one of "],
    "table3 --train": [
        "--train: found changes after the commit abc, expected none",
    ],
}
"""Arguments -> parts of the message."""


@pytest.mark.parametrize("arguments", MISTAKES)
def test_all_mistakes_are_named(arguments: str, monkeypatch: Patch) -> None:
    monkeypatch.setattr("reproduce.provenance", lambda: {"commit": "abc-dirty"})
    with pytest.raises(UsageError) as caught:
        run(arguments)
    message = str(caught.value)
    assert [part for part in MISTAKES[arguments] if part not in message] == []


def test_the_readme_of_the_results_is_up_to_date() -> None:
    """``python scripts/reproduce.py --write`` writes it."""
    written = (ROOT / "scripts" / "results" / "README.md").read_text(encoding="utf-8")
    assert written == reproduce.readme()
    assert written.count("\n| QL") >= 2


def test_a_table_is_printed_from_its_csv(capsys: Capture) -> None:
    run("table3 --tests 'mb2013, mb2012' --systems QL --systems RM3")
    printed = capsys.readouterr()
    assert not printed.err
    header, _, _, ql, rm3 = printed.out.splitlines()[:5]
    columns = "mb2012 † AP | mb2012 † P@30 | mb2013 AP | mb2013 P@30"
    assert header == f"| system | {columns} | seeds |"
    assert ql.startswith("| QL ¹ | 0.2091 (0.2091) | 0.3311 (0.3311) |")
    assert rm3.startswith("| RM3 ² | 0.2342¹ (0.2342) |")


def test_missing_cells_are_counted(capsys: Capture) -> None:
    system = "trained by plain gradient descent"
    run(f"mp-hcnn-forms --tests mb2012 --systems '{system}'")
    message = "1 of 1 cells were not computed; --train computes them"
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("table", "row"),
    [
        ("fusion-ablation", r"\| - links( \| [-+]?0\.\d{4}){4} \| \d+\.\d \|"),
        ("microblog", r"\| SM-CNN \(ours\) \| \S+ / \S+, interpolated \S+ / \S+ \|"),
    ],
)
def test_tables_outside_the_readme_are_printed(
    table: str,
    row: str,
    capsys: Capture,
) -> None:
    run(table)
    assert re.search(row, capsys.readouterr().out)


@pytest.mark.slow
def test_failing_cells_are_named_and_others_are_added_to_the_csv(
    tmp_path: Path,
    capsys: Capture,
    monkeypatch: Patch,
) -> None:
    failing = Mock(side_effect=RuntimeError("no training today"))
    monkeypatch.setattr("experiments.cell_runs._train", failing)
    monkeypatch.setattr("reproduce.provenance", lambda: {"commit": "abc"})
    data = write_microblog(tmp_path / "data")
    folder = tmp_path / "out"
    shared = f"--train --output {folder} --data {data}"
    with pytest.raises(DataError) as caught:
        run(f"all {shared} --tests mb2012")
    message = str(caught.value)
    assert message.count("MP-HCNN (ours) on mb2012, seed 1: no training today") == 1
    assert "figure4: mb2012: found no finished cell" in message
    assert "QL" not in message.replace("MP-HCNN, expected one to compare with QL", "")
    assert "## Table 3 of Rao et al. (2019): systems\n" in capsys.readouterr().out
    ql_of_2011 = f"table3 {shared} --tests mb2011 --systems QL"
    run(ql_of_2011)
    run(ql_of_2011)  # The second result takes the place of the first one.
    with (folder / "table3.csv").open() as stream:
        rows = [(row["system"], row["collection"]) for row in csv.DictReader(stream)]
    assert rows[::2] == [
        ("QL", "mb2012"),
        ("RM3", "mb2012"),
        ("MP-HCNN (authors' run)", "mb2012"),
        ("QL", "mb2011"),
    ]
