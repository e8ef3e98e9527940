"""The planning script: its arithmetic, and its own numbers in place of the measured ones."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from plan import MEASURED, Options, plan, rows_of

from pipeline.command.options import parse_arguments

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "plan.py"


def options(*arguments: Any) -> Options:
    return parse_arguments(Options, "plan", "", [*map(str, arguments)])


ROUND = ("--index-bytes", 100, "--store-bytes", 200, "--search-ms", 10, "--search-posts", 1e6)


def test_a_plan_follows_from_the_figures() -> None:
    costs = ("--rerank-us", 200, "--cross-encoder-us", 11_300)
    found = plan(options(*ROUND, "--search-exponent", 0.5, *costs, "--busy", 0.5), 1e9)
    assert found.index_gb == 300
    # Of 300 GB in shards of 30; 100 ms are those of 10⁸ posts.
    assert (found.shards, found.search_ms) == (10, pytest.approx(100))
    assert found.search_cores == pytest.approx(100 * 10 * 0.1)
    # 600 GB in halves of 64 GB, or 100 busy cores in halves of 16.
    assert (found.memory_machines, found.search_machines, found.copies) == (19, 19, 2)
    assert (found.rerank_ms, found.rerank_cores, found.rerank_machines) == (20, 2, 1)
    # 152 usable cores for 1 core-second a query; 8 for 0.02.
    assert found.bottleneck == "search, at 152 queries/s"
    assert found.hour(found.rerank_cores) == pytest.approx(204)
    assert found.encoder_cores == pytest.approx(100 * 100 * 11_300e-6)


def test_more_queries_need_copies_and_a_goal_needs_shards() -> None:
    base = (*ROUND, "--search-exponent", 1, "--busy", 1)
    few, many = (plan(options(*base, "--queries", n), 1e7) for n in (1, 2000))
    assert (few.shards, few.copies, few.search_machines) == (1, 2, 2)
    assert many.search_machines == 2000 * 0.1 // 16 + 1
    assert many.copies == many.search_machines
    quick = plan(options(*base, "--latency-ms", 10), 1e7)
    assert (quick.shards, quick.search_ms) == (10, pytest.approx(10))
    slow = plan(options(*base, "--candidates", 10_000), 1e6)
    assert slow.bottleneck.startswith("reranking")


def test_the_table_has_a_column_for_each_number_of_posts() -> None:
    done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines[2] == "| posts | 1e7 | 1e8 | 1e9 |"
    assert {line.count("|") for line in lines[2:]} == {5}
    priced = rows_of([plan(options("--price", 0.04), 1e8)])
    assert [name for name, *_ in priced[-2:]] == ["price of an hour", "– with the cross-encoder"]
    assert float(priced[-2][1]) < float(priced[-1][1])


def test_every_default_says_where_it_is_from() -> None:
    done = subprocess.run(
        [sys.executable, SCRIPT, "--help"], capture_output=True, text=True, check=True
    )
    shown = " ".join(done.stdout.split())
    for figure in MEASURED.values():
        assert " ".join(figure.source.split()) in shown
