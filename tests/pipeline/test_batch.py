"""Batch jobs: scores, formats, rows that cannot be read; one on a Ray cluster."""

import json
import sys
from collections.abc import Iterable, Sequence
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import Command, Patch, Result
from helpers.index_samples import table, write_lines
from helpers.processes import run_python
from helpers.reranking_samples import AWKWARD, POSTS, QUERIES, saved, small_model

from tweetrerank.pipeline.ranking.interpolation import interpolate
from tweetrerank.rerankers import checkpoint, registry

LOAD, close = cache(checkpoint.load), partial(pytest.approx, abs=1e-5)
Row = dict[str, Any]
BAD = dict(table("bad_rows.jsonl"))
BAD["[" * 100_000] = "row: found '[["


def nested(copies: int = 1, first_stage: bool = False) -> list[Row]:
    """A row for each query, with all posts; of several copies each has its own ids."""
    rows = list[Row]()
    for copy, (number, query) in product(range(copies), enumerate(QUERIES)):
        posts = list[Row]()
        for place, (text, url) in enumerate(POSTS):
            posts.append({"doc_id": f"d{place}", "text": text, "likes": place})
            posts[-1] |= {"url": url} if url else {}
            if first_stage:
                posts[-1]["first_stage_score"] = 10.0 - (place * 7 + number) % 11
        rows.append(
            {
                "query_id": f"q{number}-{copy}",
                "query": query,
                "lang": "en",
                "posts": posts,
            }
        )
    return rows


def pairs(rows: Iterable[Row]) -> list[Row]:
    whole = [row | post for row in rows for post in row["posts"]]
    return [
        {name: value for name, value in row.items() if name != "posts"} for row in whole
    ]


def read_lines(path: Path) -> list[Row]:
    """All rows of a file, or of a folder's files in the order of their names."""
    if path.is_dir():
        return [row for part in sorted(path.iterdir()) for row in read_lines(part)]
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pylist()
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def scores(rows: Sequence[Row]) -> list[float]:
    return [post["score"] for row in rows for post in row.get("posts") or [row]]


def without_scores(rows: Sequence[Row]) -> list[Row]:
    def bare(row: Row) -> Row:
        found = {name: value for name, value in row.items() if name != "score"}
        return found | ({"posts": [*map(bare, row["posts"])]} if "posts" in row else {})

    return [*map(bare, rows)]


@pytest.fixture(autouse=True)
def _loaded_once(monkeypatch: Patch) -> None:
    monkeypatch.setattr(checkpoint, "load", LOAD)


@pytest.fixture
def score(command: Command) -> Any:
    """Runs a job of mp_hcnn; it succeeds unless it rejects rows."""

    def call(source: Path, output: Path, *options: object) -> Result:
        model = () if "--reranker" in options else ("--reranker", "mp_hcnn")
        done = command("batch", "--input", source, "--output", output, *model, *options)
        assert done.code == int(rejected_of(output).exists()), done.err
        return done

    return call


def rejected_of(output: Path) -> Path:
    return output.with_name(f"{output.name}.rejected.jsonl")


def predicted(rows: list[Row]) -> list[float]:
    found = [(row["query"], (row["text"], row.get("url") or "")) for row in pairs(rows)]
    return LOAD(checkpoint.find("mp_hcnn")).predict(found).tolist()


@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.gz"])
@pytest.mark.parametrize("as_pairs", [False, True])
def test_every_post_gets_the_model_s_score(
    tmp_path: Path, score: Any, monkeypatch: Patch, ending: str, as_pairs: bool
) -> None:
    """Whatever is scored together; of a folder the files in the order of their names."""
    monkeypatch.setattr("tweetrerank.pipeline.batch.TOGETHER", 1)
    rows = nested(2)
    given = pairs(rows) if as_pairs else rows
    (tmp_path / "in").mkdir()
    write_lines(tmp_path / "in" / f"b{ending}", [*given[3:], "", "  "])
    write_lines(tmp_path / "in" / f"a{ending}", given[:3])
    score(tmp_path / "in", tmp_path / "out.jsonl")
    found = read_lines(tmp_path / "out.jsonl")
    assert without_scores(found) == given and scores(found) == close(predicted(rows))


def test_first_stage_scores_are_mixed_in_for_each_query(
    tmp_path: Path, score: Any
) -> None:
    rows = nested(2, first_stage=True)
    neural = predicted(rows)
    expected: list[float] = []
    for start, row in zip(range(0, 10**6, len(rows[0]["posts"])), rows, strict=False):
        first = {
            str(n): post["first_stage_score"] for n, post in enumerate(row["posts"])
        }
        model = {str(n): neural[start + n] for n in range(len(first))}
        expected += interpolate({"": first}, {"": model}, 0.35)[""].values()
    for name, given in {"rows": rows, "pairs": pairs(rows)}.items():
        output = tmp_path / f"{name}.out"
        done = score(write_lines(tmp_path / f"{name}.jsonl", given), output)
        assert scores(read_lines(output)) == close(expected)
        assert "λ = 0.35 (tuned on" in done.err
    # With λ = 1 a query's pairs may stand apart.
    apart = write_lines(tmp_path / "apart.jsonl", pairs(rows)[::-1])
    score(apart, tmp_path / "alone", "--lambda", 1)
    assert scores(read_lines(tmp_path / "alone"))[::-1] == close(neural)


def test_a_model_with_a_prior_reads_ranks_of_the_first_stage(
    tmp_path: Path, score: Any
) -> None:
    configuration = next(iter(registry.find("sm_cnn").configurations))
    assert small_model("sm_cnn", configuration).reads_prior
    folder, found = saved(tmp_path / "sm_cnn", "sm_cnn", configuration), []
    for name, is_given in (("with", True), ("without", False)):
        source = write_lines(
            tmp_path / f"{name}.jsonl", pairs(nested(first_stage=is_given))
        )
        options = ("--reranker", "sm_cnn", "--checkpoint", folder, "--lambda", 1)
        score(source, tmp_path / name, *options)
        found.append(scores(read_lines(tmp_path / name)))
    assert np.abs(np.subtract(*found)).min() > 1e-4


@pytest.mark.parametrize("as_pairs", [False, True])
def test_parquet_keeps_its_columns(tmp_path: Path, score: Any, as_pairs: bool) -> None:
    rows = nested(3, first_stage=True)
    table = pa.Table.from_pylist(pairs(rows) if as_pairs else rows)
    times = pa.array(
        [np.datetime64("2026-01-01T00:00:00", "us")] * len(table), pa.timestamp("us")
    )
    kinds = pa.array(["a"] * len(table)).dictionary_encode()
    table = table.append_column("time", times).append_column("kind", kinds)
    (tmp_path / "in").mkdir()
    cut = len(rows[0]["posts"]) if as_pairs else 5
    pq.write_table(table.slice(0, cut), tmp_path / "in" / "a.parquet")
    pq.write_table(table.slice(cut), tmp_path / "in" / "b.parquet", row_group_size=4)
    score(tmp_path / "in", tmp_path / "out.parquet")
    score(write_lines(tmp_path / "in.jsonl", rows), tmp_path / "lines")
    found = pq.read_table(tmp_path / "out.parquet")
    assert scores(found.to_pylist()) == scores(read_lines(tmp_path / "lines"))
    assert without_scores(found.to_pylist()) == table.to_pylist()
    assert found.schema.field("time").type == pa.timestamp("us")
    assert pa.types.is_dictionary(found.schema.field("kind").type)


def test_rows_that_cannot_be_read_are_put_aside(
    tmp_path: Path, command: Command
) -> None:
    good = pairs(nested(first_stage=True))
    lines: list[Row | str] = []
    for row, bad in zip(good, BAD, strict=False):
        lines += [bad, "", row]
    source, output = write_lines(tmp_path / "in.jsonl", lines), tmp_path / "out"
    job = ("batch", "--input", source, "--output", output, "--reranker", "mp_hcnn")
    assert f"{len(BAD)} rows cannot be read" in command(*job, code=1).err
    assert without_scores(read_lines(output)) == good[: len(BAD)]
    found = read_lines(rejected_of(output))
    numbers = range(1, 3 * len(BAD), 3)
    assert [(row["file"], row["line"]) for row in found] == [
        (str(source), n) for n in numbers
    ]
    for row, reason in zip(found, BAD.values(), strict=True):
        assert row["reason"].startswith(reason), row["reason"]
    command(*job, "--max-rejected", len(BAD), code=0)


def test_a_nested_row_is_put_aside_as_a_whole(tmp_path: Path, score: Any) -> None:
    rows = nested()
    rows[1]["posts"][3]["text"] = None
    rows[2]["posts"] = None
    rows.append({"query_id": "7", "query": "no results", "posts": []})
    for ending in (".jsonl", ".parquet"):
        output = tmp_path / f"out{ending}"
        score(write_lines(tmp_path / f"in{ending}", rows), output)
        assert [row["query_id"] for row in read_lines(output)] == ["q0-0", "q3-0", "7"]
        assert [
            (row["line"], row["reason"]) for row in read_lines(rejected_of(output))
        ] == [
            (2, "posts[3].text: found nothing, expected a text"),
            (3, "posts: found nothing, expected a list, as in the first row"),
        ]


def test_awkward_texts_come_back_as_they_were(tmp_path: Path, score: Any) -> None:
    texts = [*AWKWARD.values()]
    posts = [{"doc_id": "same", "text": text} for text in texts]
    rows = [
        {"query_id": n, "query": text, "posts": posts} for n, text in enumerate(texts)
    ]
    score(write_lines(tmp_path / "in.jsonl", rows), tmp_path / "out")
    found = read_lines(tmp_path / "out")
    assert without_scores(found) == rows and scores(found) == close(predicted(rows))
    assert np.isfinite(scores(found)).all()


def test_nothing_half_written_is_left(
    tmp_path: Path, command: Command, monkeypatch: Patch
) -> None:
    monkeypatch.setattr("tweetrerank.pipeline.batch.TOGETHER", 1)
    rows, output = pairs(nested(first_stage=True)), tmp_path / "out"
    apart = write_lines(tmp_path / "apart.jsonl", [*rows[::2], *rows[1::2]])
    cut = write_lines(tmp_path / "cut.parquet", rows)
    cut.write_bytes(cut.read_bytes()[:1000])
    done = command("batch", "--input", apart, "--output", output, code=1)
    assert "found the query q0-0 again" in done.err
    to_table = ("batch", "--input", cut, "--output", output.with_suffix(".parquet"))
    broken = "the file is broken or cut off from about here on"
    assert broken in command(*to_table, code=1).err
    names = ["query_id", "query", "doc_id", "text", "twice", "twice"]
    pq.write_table(pa.table([["1"]] * len(names), names), cut)
    assert "expected columns of different names" in command(*to_table, code=1).err
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert "pip install 'tweetrerank[parquet]'" in command(*to_table, code=1).err
    assert {path.name for path in tmp_path.iterdir()} - {"home"} == {
        apart.name,
        cut.name,
    }


def test_rows_before_the_cut_of_a_file_are_scored(
    tmp_path: Path, command: Command
) -> None:
    rows, output = nested(first_stage=True), tmp_path / "out.jsonl"
    packed = write_lines(tmp_path / "cut.jsonl.gz", rows)
    packed.write_bytes(packed.read_bytes()[:-9])
    job = ("batch", "--output", output, "--input")
    assert "1 row cannot be read" in command(*job, packed, code=1).err
    [cut] = read_lines(rejected_of(output))
    assert (cut["file"], cut["line"]) == (str(packed), len(rows) + 1)
    assert "cut off from about here on" in cut["reason"] and len(
        read_lines(output)
    ) == len(rows)


@pytest.mark.parametrize(
    ("has_scores", "as_pairs", "options", "known"),
    [
        (True, False, "", "scores"),
        (True, True, "--order scores", "scores"),
        (True, False, "--lambda 0.25", "scores"),
        (False, False, "", "order"),
        (True, False, "--order order", "order"),
        (False, True, "--order order", "order"),
        (False, True, "", "nothing"),
        (True, False, "--order unknown", "nothing"),
    ],
)
def test_lists_are_ranked_as_a_whole_by_what_is_known_of_them(
    tmp_path: Path,
    score: Any,
    has_scores: bool,
    as_pairs: bool,
    options: str,
    known: str,
) -> None:
    """The posts of a row stand in the order of a first stage, if they have no scores. A weight
    mixes a model that reads scores, too, as in pipeline.rerank and in Python."""
    window = checkpoint.load(checkpoint.find("window"))
    rows, output = nested(2, first_stage=has_scores), tmp_path / "out"
    source = write_lines(tmp_path / "in.jsonl", pairs(rows) if as_pairs else rows)
    done = score(source, output, "--reranker", "window", *options.split())
    how = {
        "weight": 0.25 if "--lambda" in options else None,
        "in_order": known == "order",
    }
    assert ("λ = 0.25 (given)" in done.err) == bool(how["weight"])
    expected: list[float] = []
    for row in rows:
        posts = [(row["query"], (p["text"], p.get("url") or "")) for p in row["posts"]]
        first = (
            [p["first_stage_score"] for p in row["posts"]]
            if known == "scores"
            else None
        )
        expected += window.predict(posts, first, **how).tolist()
    assert scores(read_lines(output)) == close(expected)


CLUSTER = """
import sys, ray
from tweetrerank.pipeline import batch
from tweetrerank.pipeline.command.options import parse_arguments
start, ray.shutdown = ray.init, lambda: None
ray.init = lambda *words, **more: ray.is_initialized() or start(*words, **more)
for line in sys.argv[1:]:
    batch.main(parse_arguments(batch.Options, "", "", line.split()))
"""
"""Jobs on one cluster."""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_cluster_gives_the_same_rows(tmp_path: Path, command: Command) -> None:
    rows, jobs = nested(5, first_stage=True), list[str]()
    rows[3]["posts"][0]["text"] = None
    for number, row in enumerate(rows):
        row["time"] = f"2026-01-01T00:00:{number:02}"
    forms = {".jsonl": "--lambda .25", ".parquet": ""}
    for ending, options in forms.items():
        source = write_lines(tmp_path / f"in{ending}", rows)
        job = f"{options} --input {source} --max-rejected 1 --output {tmp_path}"
        command("batch", *f"{job}/alone{ending}".split(), code=0)
        jobs.append(f"{job}/together{ending} --address local")
    # In a process of its own: Ray takes signals away that Java needs.
    run_python("-c", CLUSTER, *jobs, code=0, RAY_agent_register_timeout_ms="200000")
    for ending in forms:
        together, alone = (
            tmp_path / f"{name}{ending}" for name in ("together", "alone")
        )
        assert read_lines(together) == read_lines(alone)
        (found,) = read_lines(rejected_of(together))
        assert found["reason"] == "posts[0].text: found nothing, expected a text"
    assert pq.read_table(together).schema.equals(pq.read_table(alone).schema)
