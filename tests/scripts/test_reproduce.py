"""The script that prints the papers' tables: what it refuses, prints, computes and writes."""

import csv
import re
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


def run(*arguments: str) -> None:
    reproduce.main(parse_arguments(reproduce.Options, "reproduce", "", arguments))


def test_all_mistakes_are_named(monkeypatch: Patch) -> None:
    monkeypatch.setattr("reproduce.provenance", lambda: {"commit": "abc-dirty"})
    for arguments, messages in (
        (
            "tabel3",
            ["table: found 'tabel3', expected one of table2; table3; ", "'table3'"],
        ),
        (
            "table3 --tests mb2011,mb2015 --systems MP-HCN",
            ["found 'mb2015'", "found 'MP-HCN'"],
        ),
        ("all --tests wikiqa", ["--tests: found 'wikiqa'"]),
        (
            f"table3 --output {__file__}",
            ["--output: found the file ", ", expected a folder"],
        ),
        ("", ["table: found None, expected one of "]),
        (
            "table3 --train",
            ["--train: found changes after the commit abc, expected a "],
        ),
    ):
        with pytest.raises(UsageError) as caught:
            run(*arguments.split())
        for message in messages:
            assert message in str(caught.value)


def test_the_readme_of_the_results_is_up_to_date() -> None:
    """``python scripts/reproduce.py --write`` writes it."""
    written = (ROOT / "scripts" / "results" / "README.md").read_text(encoding="utf-8")
    assert written == reproduce.readme()
    assert written.count("\n| QL") >= 2


def test_a_table_is_printed_from_its_csv(capsys: Capture) -> None:
    run("table3", "--tests", "mb2013, mb2012", "--systems", "QL", "--systems", "RM3")
    found = capsys.readouterr()
    header, _, _, ql, rm3, *_ = found.out.splitlines()
    assert not found.err
    run(
        "mp-hcnn-forms",
        "--tests",
        "mb2012",
        "--systems",
        "trained by plain gradient descent",
    )
    assert (
        "1 of 1 cells were not computed; --train computes them"
        in capsys.readouterr().err
    )
    assert (
        header
        == "| system | mb2012 † AP | mb2012 † P@30 | mb2013 AP | mb2013 P@30 | seeds |"
    )
    assert ql.startswith("| QL ¹ | 0.2091 (0.2091) | 0.3311 (0.3311) |")
    assert rm3.startswith("| RM3 ² | 0.2342¹ (0.2342) |")
    # Tables that the README leaves out.
    for table, row in {
        "fusion-ablation": r"\| - links( \| [-+]?0\.\d{4}){4} \| \d+\.\d \|",
        "microblog": r"\| SM-CNN \(ours\) \| \S+ / \S+, interpolated \S+ / \S+ \|",
    }.items():
        run(table)
        assert re.search(row, capsys.readouterr().out)


@pytest.mark.slow
def test_failing_cells_are_named_and_others_are_added_to_the_csv(
    tmp_path: Path, capsys: Capture, monkeypatch: Patch
) -> None:
    failing = Mock(side_effect=RuntimeError("no training today"))
    monkeypatch.setattr("experiments.cells._train", failing)
    monkeypatch.setattr("reproduce.provenance", lambda: {"commit": "abc"})
    data, out = write_microblog(tmp_path / "data"), tmp_path / "out"
    shared = ["--train", "--output", str(out), "--data", str(data), "--tests"]
    with pytest.raises(DataError) as caught:
        run("all", *shared, "mb2012")
    message = str(caught.value)
    assert message.count("MP-HCNN (ours) on mb2012, seed 1: no training today") == 1
    assert "figure4: mb2012: found no finished cell" in message
    assert "QL" not in message.replace("MP-HCNN, expected one to compare with QL", "")
    assert "## Table 3 of Rao et al. (2019): systems\n" in capsys.readouterr().out
    for _ in range(2):  # Again, in place of the same cell.
        run("table3", *shared, "mb2011", "--systems", "QL")
    with (out / "table3.csv").open() as stream:
        rows = [(row["system"], row["collection"]) for row in csv.DictReader(stream)]
    untrained = [(name, "mb2012") for name in ("QL", "RM3", "MP-HCNN (authors' run)")]
    assert rows[::2] == [*untrained, ("QL", "mb2011")]
