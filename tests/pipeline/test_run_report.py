"""The report of ``python -m pipeline.rerank``: changes of measures and of places."""

import csv
from pathlib import Path

import pytest

from pipeline.evaluation.run_report import compare, groups, print_report, write_csv

Values = dict[str, dict[str, float]]


def values(precision: list[float], ap: list[float]) -> Values:
    return {
        "P@30": {str(n): value for n, value in enumerate(precision)},
        "AP": {str(n): value for n, value in enumerate(ap)},
    }


RESULTS = {
    "low": (values([0.1, 0.2, 0.3], [0, 0, 0]), values([0.2, 0.4, 0.6], [0.1, 0.1, 0.4])),
    "high": (values([0.4, 0.5, 0.6], [0.4, 0.4, 0.4]), values([0.2, 0.3, 0.4], [0.4, 0.4, 0.4])),
    "middle": (values([0.3, 0.3, 0.3], [0.2, 0.2, 0.2]), values([0.5, 0.6, 0.7], [0.3, 0.2, 0.1])),
}
"""Means of P@30: low .2 -> .4, high .5 -> .3, middle .3 -> .6."""


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    """Runs are placed among the others as these were: high stays first, low rises to the second."""
    print_report(compare(RESULTS), 30)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:5] == [
        "run               P@30  reranked   change      AP  reranked  change  R  reranked  change",
        "high            0.5000  0.3000▼    -40.0%  0.4000  0.4000     +0.0%  1         1      +0",
        "middle          0.3000  0.6000△   +100.0%  0.2000  0.2000     +0.0%  2         1      +1",
        "low             0.2000  0.4000    +100.0%  0.0000  0.2000         -  3         2      +1",
        "average change                     +53.3%                     +0.0%                 +0.7",
    ]
    assert "p < .05" in lines[5]
    assert "3 runs by P@30" in lines[6]
    assert lines[7] == "-: AP was 0 before; left out of the average: low"


def test_groups_are_the_top_the_middle_and_the_bottom_of_the_runs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    ten = {
        str(n): (values([n / 10], [0.5]), values([n / 10 * (1 + n / 100)], [0.5]))
        for n in range(1, 11)
    }
    rows = compare(ten)
    found = {group: [row.name for row in of_it] for group, of_it in groups(rows, 3).items()}
    assert found == {"top": ["10", "9", "8"], "middle": ["7", "6", "5"], "bottom": ["3", "2", "1"]}
    assert groups(rows, 4) == {}
    print_report(rows, 3)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    averages = [line for line in lines if line[0] == "average"]
    # n runs, the n-th better by n %.
    assert averages == [
        ["average", "of", "top", "3", "+9.0%", "+0.0%", "+0.0"],
        ["average", "of", "middle", "3", "+6.0%", "+0.0%", "+0.0"],
        ["average", "of", "bottom", "3", "+2.0%", "+0.0%", "+0.0"],
        ["average", "change", "+5.5%", "+0.0%", "+0.0"],
    ]
    write_csv(tmp_path / "new" / "report.csv", rows, {"lambda": 1}, 3)
    with (tmp_path / "new" / "report.csv").open(encoding="utf-8") as stream:
        lines_of = {line["run"]: line for line in csv.DictReader(stream)}
    assert [lines_of[name]["group"] for name in "9541"] == ["top", "middle", "", "bottom"]
    two = lines_of["2"]
    assert float(two["P@30 change %"]) == pytest.approx(2) and two["lambda"] == "1"
    assert float(two["P@30 p"]) == rows[-2].changes["P@30"].p
    assert (two["R"], two["R reranked"], two["R change"]) == ("9", "9", "0")
