"""The benchmark: its parts run on the sample and print their tables."""

import re
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO

import benchmark
import pytest
from benchmarks import PARTS, Options, measure_search, measure_service, workload

from tweetrerank.pipeline.command.options import parse_arguments
from tweetrerank.pipeline.usage_error import UsageError

pytestmark = pytest.mark.slow  # Benchmarks are no part of the packages.

TINY = "--collection sample --rounds 1 --pairs 24 --device cpu"

ROWS = {
    "MP-HCNN, fast": r".*\(.* ×\)",
    "`pipeline.search --topics sample --reranker none`": (
        r".* s, [1-9][\d,]{2,} MiB at most"
    ),
    "service, 2 clients at once, 20 posts each": ".* of in-process; .* MiB",
    "service, 3 clients at once, 20 posts each": ".* of in-process; .* MiB",
    r"window, \d+ known posts, all stages": r"[\d.]+ ms",
}
"""Row, as a pattern -> its figures."""


def run(arguments: str) -> None:
    words = f"{TINY} {arguments}".split()
    options = parse_arguments(Options, "benchmark", "", words)
    benchmark.main(options)


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Output of all parts, with a small workload."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TWEETRERANK_HOME", str(home))
        patch.setattr(measure_search, "SEARCHES", (" --reranker none",))
        patch.setattr(measure_service, "SECONDS", 0.2)
        patch.setattr(measure_service, "MINUTE", 0.2)
        patch.setattr(measure_service, "CLIENTS", 2)
        patch.setattr(measure_service, "OVERLOAD", 3)
        patch.setattr(workload, "SINGLE", 2)
        patch.setattr(workload, "LOAD", 20)
        patch.setattr(workload, "CACHE", 50_000_000)
        with redirect_stdout(StringIO()) as printed:
            run(f"--parts {' '.join(PARTS)}")
        yield printed.getvalue()


def test_an_unknown_part_is_refused() -> None:
    message = r"--parts: found 'scorin', .*; did you mean 'scoring'"
    with pytest.raises(UsageError, match=message):
        run("--parts search scorin")


def test_every_part_has_a_table(output: str) -> None:
    assert output.startswith("machine: ")
    titles = [line for line in output.splitlines() if line.startswith("==")]
    assert titles == [f"== {part}" for part in PARTS]


def test_all_ways_give_the_same_scores(output: str) -> None:
    pattern = r"^.*: scores differ by at most (\S+)$"
    differences = re.findall(pattern, output, re.MULTILINE)
    assert differences
    assert max(map(float, differences)) < 1e-5


@pytest.mark.parametrize("row", ROWS)
def test_a_row_has_its_figures(output: str, row: str) -> None:
    pattern = rf"^\| {row} \| {ROWS[row]} \|$"
    assert re.search(pattern, output, re.MULTILINE)
