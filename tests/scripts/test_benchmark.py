"""The benchmark: its parts run on the sample, and what they print."""

import re

import benchmark
import pytest
from benchmarks import PARTS, Options, parts
from conftest import Capture, Patch

from tweetrerank.pipeline.command.options import parse_arguments
from tweetrerank.pipeline.usage_error import UsageError

pytestmark = pytest.mark.slow  # benchmarks are no part of the packages

TINY = ["--collection", "sample", "--rounds", "1", "--pairs", "24", "--device", "cpu"]
LOAD = {
    "SINGLE": 2,
    "SECONDS": 0.2,
    "MINUTE": 0.2,
    "CLIENTS": 2,
    "OVERLOAD": 3,
    "LOAD": 20,
}
ROWS = {
    "MP-HCNN, fast": r".*\(.* ×\)",
    "`pipeline.search --topics sample --reranker none`": r".* s, [1-9][\d,]{2,} MiB at most",
    "service, 2 clients at once, 20 posts each": ".* of in-process; .* MiB",
    "service, 3 clients at once, 20 posts each": ".* of in-process; .* MiB",
    r"window, \d+ known posts, all stages": r"[\d.]+ ms",
}
"""Row, as a pattern -> its figures."""


def run(*arguments: str) -> None:
    benchmark.main(parse_arguments(Options, "benchmark", "", [*TINY, *arguments]))


def test_the_parts_run_on_the_sample(monkeypatch: Patch, capsys: Capture) -> None:
    with pytest.raises(
        UsageError, match=r"--parts: found 'scorin', .*; did you mean 'scoring'"
    ):
        run("--parts", "search", "scorin")
    monkeypatch.setattr(parts, "SEARCHES", (" --reranker none",))
    for name, value in (LOAD | {"CACHE": 50_000_000}).items():
        monkeypatch.setattr(parts, name, value)
    run("--parts", *PARTS)
    text = capsys.readouterr().out
    assert text.startswith("machine: ")
    titles = [line for line in text.splitlines() if line.startswith("==")]
    assert titles == [f"== {part}" for part in PARTS]
    # All ways give the same scores.
    differences = re.findall(
        r"^.*: scores differ by at most (\S+)$", text, re.MULTILINE
    )
    assert {float(difference) < 1e-5 for difference in differences} == {True}
    for row, figures in ROWS.items():
        assert re.search(rf"^\| {row} \| {figures} \|$", text, re.MULTILINE), row
