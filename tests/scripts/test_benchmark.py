"""The benchmark: its parts run on the sample, and what they print."""

import re

import benchmark
import pytest
from benchmarks import Options, service

from pipeline.command.options import parse_arguments
from pipeline.errors import UsageError

pytestmark = pytest.mark.slow  # benchmarks are no part of the packages

TINY = ["--collection", "sample", "--rounds", "1", "--pairs", "24", "--device", "cpu"]


def run(*arguments: str) -> None:
    benchmark.main(parse_arguments(Options, "benchmark", "", [*TINY, *arguments]))


def test_the_parts_run_on_the_sample(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match=r"--parts: found 'scorin', .*; did you mean 'scoring'"):
        run("--parts", "search,scorin")
    run("--parts", "scoring, search,scoring")
    text = capsys.readouterr().out
    assert text.startswith("machine: ")
    parts = [line for line in text.splitlines() if line.startswith("==")]
    assert parts == ["== scoring", "== search"]
    # All ways give the same scores.
    differences = re.findall(r"^.*: scores differ by at most (\S+)$", text, re.MULTILINE)
    assert {float(difference) < 1e-5 for difference in differences} == {True}
    rows = dict(re.findall(r"^\| (.*) \| (.*) \|$", text, re.MULTILINE))
    assert rows["MP-HCNN, fast"].endswith(" ×)")
    peak = re.search(r"([\d,]+) MiB", rows["`pipeline.search --topics sample`"])
    assert peak and int(peak[1].replace(",", "")) > 100


def test_service_and_stages_print_their_rows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a small load."""
    load = {"SINGLE": 2, "SECONDS": 0.2, "MINUTE": 0.2, "CLIENTS": 2, "OVERLOAD": 3, "LOAD": 20}
    for name, value in (load | {"CACHE": 50_000_000}).items():
        monkeypatch.setattr(service, name, value)
    run("--parts", "service,stages")
    printed = capsys.readouterr().out
    for clients in (2, 3):
        row = rf"service, {clients} clients at once, 20 posts each \| .* of in-process; .* MiB \|"
        assert re.search(row, printed)
    assert re.search(r"window, \d+ known posts, all stages \| [\d.]+ ms", printed)
