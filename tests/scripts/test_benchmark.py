"""The benchmark: its parts run on the sample, and what they print."""

import re

import benchmark
import pytest
import torch
from benchmarks import engines, gpu, service
from helpers.engine_servers import running
from helpers.reranking_samples import encoder, small_model

from pipeline.command.errors import UsageError
from pipeline.command.options import parse_arguments

pytestmark = pytest.mark.slow  # benchmarks are no part of the packages

TINY = ["--collection", "sample", "--rounds", "1", "--pairs", "24", "--device", "cpu"]


def run(*arguments: str) -> None:
    benchmark.main(parse_arguments(benchmark.Options, "benchmark", "", [*TINY, *arguments]))


def test_the_parts_run_on_the_sample(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match=r"--parts: found 'scorin', .*; did you mean 'scoring'"):
        run("--parts", "search,scorin")
    run("--parts", "scoring, search,scoring")
    text, _, table = capsys.readouterr().out.partition("| what | measured |\n|---|---|\n")
    assert text.startswith("machine: ")
    parts = [line for line in text.splitlines() if line.startswith("==")]
    assert parts == ["== scoring", "== search"]
    # All ways give the same scores.
    differences = dict(re.findall(r"^(.*): scores differ by at most (\S+)$", text, re.MULTILINE))
    assert {float(d) < 1e-5 for name, d in differences.items() if "bf16" not in name} == {True}
    rows = dict(line.strip("| ").split(" | ") for line in table.splitlines())
    assert rows["MP-HCNN, fast"].endswith(" ×)")
    peak = re.search(r"([\d,]+) MiB", rows["`pipeline.search --topics sample`, 20 topics"])
    assert peak and int(peak[1].replace(",", "")) > 100


@pytest.mark.parametrize(
    ("words", "rows"),
    [
        ("service", ["2 clients at once, 20 posts each", "memory with 2 processes that score"]),
        ("gpu", ["MP-HCNN at the paper's size, cpu, bf16", "training, cpu"]),
        ("growth --sizes 40,80", ["query likelihood, 1000 hits, ms"]),
    ],
)
def test_a_part_prints_its_rows(
    words: str, rows: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a small load; the CPU is in the place of a GPU."""
    load = {"SINGLE": 2, "SECONDS": 0.2, "MINUTE": 0.2, "RESTARTS": 1, "CLIENTS": 2, "LOAD": 20}
    for name, value in (load | {"CACHE": 50_000_000}).items():
        monkeypatch.setattr(service, name, value)
    small = (small_model("mp_hcnn", "paper").eval(), encoder())
    monkeypatch.setattr(gpu, "paper_model", lambda workload: small)
    run("--parts", *words.split())
    printed = capsys.readouterr().out
    for row in rows:
        assert f"{row} | " in printed


def test_without_a_gpu_nothing_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    run("--parts", "gpu", "--device", "auto")
    assert "found no GPU, so nothing is measured" in capsys.readouterr().out


@pytest.mark.opensearch
def test_an_engine_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(engines, "SEARCHES", 8)
    monkeypatch.setattr(service, "CACHE", 50_000_000)
    with running("opensearch") as server:
        run("--parts", "engines", "--engine", server.url)
        assert engines.NAME not in server.engine(server.address()).request("GET", "/_all")
    printed = capsys.readouterr().out
    assert re.search(r"posts/s, \d+% of the next row's", printed)
    assert re.search(r"proxy, beside the engine and the scoring \| [\d.]+ ms", printed)
