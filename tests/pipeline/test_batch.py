"""Batch jobs: scores, formats, rows that cannot be read, and a Ray cluster."""

import json
import sys
from collections.abc import Iterable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import Command, Patch, Result
from helpers.index_samples import write_lines
from helpers.processes import run_python
from helpers.reranking_samples import AWKWARD, POSTS, QUERIES, saved, small_model

from tweetrerank.pipeline.ranking.interpolation import interpolate
from tweetrerank.rerankers import checkpoint, registry
from tweetrerank.rerankers.reranker import Reranker

LOAD = cache(checkpoint.load)
close = partial(pytest.approx, abs=1e-5)
Row = dict[str, Any]


def nested(copies: int = 1, first_stage: bool = False) -> list[Row]:
    """A row for each query, with all posts; the ids of copies differ."""
    rows: list[Row] = []
    for copy in range(copies):
        for number, query in enumerate(QUERIES):
            row = {"query_id": f"q{number}-{copy}", "query": query, "lang": "en"}
            rows.append(row | {"posts": posts_of(number, first_stage)})
    return rows


def posts_of(number: int, first_stage: bool) -> list[Row]:
    posts = []
    for place, (text, url) in enumerate(POSTS):
        post: Row = {"doc_id": f"d{place}", "text": text, "likes": place}
        if url:
            post["url"] = url
        if first_stage:
            post["first_stage_score"] = 10.0 - (place * 7 + number) % 11
        posts.append(post)
    return posts


def pairs(rows: Iterable[Row]) -> list[Row]:
    """A row for each post of rows with several."""
    result = []
    for row in rows:
        query = {name: value for name, value in row.items() if name != "posts"}
        result += [query | post for post in row["posts"]]
    return result


def read_lines(path: Path) -> list[Row]:
    """All rows of a file, or of a folder's files in the order of their names."""
    if path.is_dir():
        rows = []
        for part in sorted(path.iterdir()):
            rows += read_lines(part)
        return rows
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pylist()
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def scores(rows: Sequence[Row]) -> list[float]:
    values = []
    for row in rows:
        values += [post["score"] for post in row.get("posts") or [row]]
    return values


def without_scores(rows: Sequence[Row]) -> list[Row]:
    return list(map(without_score, rows))


def without_score(row: Row) -> Row:
    bare = {name: value for name, value in row.items() if name != "score"}
    if "posts" in row:
        bare["posts"] = without_scores(row["posts"])
    return bare


def texts_of(row: Row) -> tuple[str, str]:
    return row["text"], row.get("url") or ""


@pytest.fixture(autouse=True)
def _loaded_once(monkeypatch: Patch) -> None:
    monkeypatch.setattr(checkpoint, "load", LOAD)


@pytest.fixture
def score(command: Command) -> Any:
    """Runs a job of mp_hcnn; it succeeds unless it rejects rows."""

    def call(source: Path, output: Path, options: str = "") -> Result:
        job = f"batch --input {source} --output {output}"
        if "--reranker" not in options:
            job += " --reranker mp_hcnn"
        result = command(f"{job} {options}")
        assert result.code == int(rejected_of(output).exists()), result.err
        return result

    return call


def rejected_of(output: Path) -> Path:
    return output.with_name(f"{output.name}.rejected.jsonl")


def predicted(rows: list[Row]) -> list[float]:
    examples = [(pair["query"], texts_of(pair)) for pair in pairs(rows)]
    return Reranker(LOAD(checkpoint.find("mp_hcnn"))).predict(examples).tolist()


# Scores


@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.gz"])
@pytest.mark.parametrize("as_pairs", [False, True])
def test_every_post_gets_the_model_s_score(
    tmp_path: Path, score: Any, monkeypatch: Patch, ending: str, as_pairs: bool
) -> None:
    """The chunks do not matter, and files are in the order of their names."""
    monkeypatch.setattr("tweetrerank.pipeline.batch.TOGETHER", 1)
    rows = nested(2)
    lines = pairs(rows) if as_pairs else rows
    (tmp_path / "in").mkdir()
    write_lines(tmp_path / "in" / f"b{ending}", [*lines[3:], "", "  "])
    write_lines(tmp_path / "in" / f"a{ending}", lines[:3])
    score(tmp_path / "in", tmp_path / "out.jsonl")
    scored = read_lines(tmp_path / "out.jsonl")
    assert without_scores(scored) == lines
    assert scores(scored) == close(predicted(rows))


@pytest.mark.parametrize("as_pairs", [False, True])
def test_first_stage_scores_are_mixed_in_for_each_query(
    tmp_path: Path, score: Any, as_pairs: bool
) -> None:
    rows = nested(2, first_stage=True)
    neural = iter(predicted(rows))
    expected: list[float] = []
    for row in rows:
        first = {post["doc_id"]: post["first_stage_score"] for post in row["posts"]}
        model = {doc_id: next(neural) for doc_id in first}
        mixed = interpolate({"": first}, {"": model}, 0.35)
        expected += mixed[""].values()
    source = write_lines(tmp_path / "in.jsonl", pairs(rows) if as_pairs else rows)
    result = score(source, tmp_path / "out")
    assert scores(read_lines(tmp_path / "out")) == close(expected)
    assert "λ = 0.35 (tuned on" in result.err


def test_a_model_alone_scores_pairs_in_any_order(tmp_path: Path, score: Any) -> None:
    rows = nested(2, first_stage=True)
    apart = write_lines(tmp_path / "apart.jsonl", pairs(rows)[::-1])
    score(apart, tmp_path / "alone", "--lambda 1")
    assert scores(read_lines(tmp_path / "alone"))[::-1] == close(predicted(rows))


def test_a_model_with_a_prior_reads_ranks_of_the_first_stage(
    tmp_path: Path, score: Any
) -> None:
    configuration = next(iter(registry.find("sm_cnn").configurations))
    assert small_model("sm_cnn", configuration).reads_prior
    folder = saved(tmp_path / "sm_cnn", "sm_cnn", configuration)
    options = f"--reranker sm_cnn --checkpoint {folder} --lambda 1"

    def scores_of(name: str, first_stage: bool) -> list[float]:
        rows = pairs(nested(first_stage=first_stage))
        source = write_lines(tmp_path / f"{name}.jsonl", rows)
        score(source, tmp_path / name, options)
        return scores(read_lines(tmp_path / name))

    change = np.subtract(scores_of("with", True), scores_of("without", False))
    assert np.abs(change).min() > 1e-4


class Known(NamedTuple):
    """Knowledge of the first stage, from rows and options."""

    has_scores: bool  # In the rows
    as_pairs: bool
    options: str
    used: str  # scores, order or nothing


@pytest.mark.parametrize(
    "known",
    [
        Known(True, False, "", "scores"),
        Known(True, True, "--order scores", "scores"),
        Known(True, False, "--lambda 0.25", "scores"),
        Known(False, False, "", "order"),
        Known(True, False, "--order order", "order"),
        Known(False, True, "--order order", "order"),
        Known(False, True, "", "nothing"),
        Known(True, False, "--order unknown", "nothing"),
    ],
    ids=str,
)
def test_lists_are_ranked_as_a_whole_by_what_is_known_of_them(
    tmp_path: Path, score: Any, known: Known
) -> None:
    """Without scores, the posts of a row are in the order of a first stage.

    A weight also mixes a model that reads scores, as in pipeline.rerank and in Python.
    """
    window = Reranker(checkpoint.load(checkpoint.find("window")))
    rows = nested(2, first_stage=known.has_scores)
    lines = pairs(rows) if known.as_pairs else rows
    source = write_lines(tmp_path / "in.jsonl", lines)
    result = score(source, tmp_path / "out", f"--reranker window {known.options}")
    weight = 0.25 if "--lambda" in known.options else None
    assert ("λ = 0.25 (given)" in result.err) == (weight is not None)
    expected: list[float] = []
    for row in rows:
        first = None
        if known.used == "scores":
            first = [post["first_stage_score"] for post in row["posts"]]
        examples = [(row["query"], texts_of(post)) for post in row["posts"]]
        in_order = known.used == "order"
        values = window.predict(examples, first, weight=weight, in_order=in_order)
        expected += values.tolist()
    assert scores(read_lines(tmp_path / "out")) == close(expected)


# Formats


@pytest.mark.parametrize("as_pairs", [False, True])
def test_parquet_keeps_its_columns(tmp_path: Path, score: Any, as_pairs: bool) -> None:
    rows = nested(3, first_stage=True)
    table = pa.Table.from_pylist(pairs(rows) if as_pairs else rows)
    time = np.datetime64("2026-01-01T00:00:00", "us")
    times = pa.array([time] * len(table), pa.timestamp("us"))
    kinds = pa.array(["a"] * len(table)).dictionary_encode()
    table = table.append_column("time", times).append_column("kind", kinds)
    (tmp_path / "in").mkdir()
    cut = len(rows[0]["posts"]) if as_pairs else 5
    pq.write_table(table.slice(0, cut), tmp_path / "in" / "a.parquet")
    pq.write_table(table.slice(cut), tmp_path / "in" / "b.parquet", row_group_size=4)
    score(tmp_path / "in", tmp_path / "out.parquet")
    score(write_lines(tmp_path / "in.jsonl", rows), tmp_path / "lines")
    scored = pq.read_table(tmp_path / "out.parquet")
    assert scores(scored.to_pylist()) == scores(read_lines(tmp_path / "lines"))
    assert without_scores(scored.to_pylist()) == table.to_pylist()
    assert scored.schema.field("time").type == pa.timestamp("us")
    assert pa.types.is_dictionary(scored.schema.field("kind").type)


def test_awkward_texts_come_back_as_they_were(tmp_path: Path, score: Any) -> None:
    texts = list(AWKWARD.values())
    posts = [{"doc_id": "same", "text": text} for text in texts]
    rows = []
    for number, text in enumerate(texts):
        rows.append({"query_id": number, "query": text, "posts": posts})
    score(write_lines(tmp_path / "in.jsonl", rows), tmp_path / "out")
    scored = read_lines(tmp_path / "out")
    assert without_scores(scored) == rows
    assert scores(scored) == close(predicted(rows))
    assert np.isfinite(scores(scored)).all()


# Rows that cannot be read

PAIR = {"query_id": "q", "query": "a", "doc_id": "d", "text": "a"}


class BadRow(NamedTuple):
    """A line of a file of pairs with scores, and the beginning of its reason."""

    line: str | Row
    reason: str


BAD_ROWS = [
    # No JSON
    BadRow("{", "row: found '{', expected one JSON object a line"),
    # Another JSON value
    BadRow("[1]", "row: found '[1]', expected a JSON object"),
    # No text
    BadRow(
        {"query_id": "q", "query": "a", "doc_id": "d"},
        "text: found nothing, expected a text",
    ),
    # A number as a query
    BadRow(PAIR | {"query": 5}, "query: found '5'"),
    # A Boolean as an id, which Python takes for a whole number
    BadRow(PAIR | {"query_id": True}, "query_id: found 'True'"),
    # A fraction as an id
    BadRow(PAIR | {"doc_id": 1.5}, "doc_id: found '1.5'"),
    # A list as a link
    BadRow(PAIR | {"doc_id": 1, "url": []}, "url: found '[]'"),
    # Posts in a file of pairs
    BadRow(
        {"query_id": "q", "query": "a", "posts": []},
        "posts: found '[]', expected nothing, as in",
    ),
    # No score of the first stage
    BadRow(PAIR | {"query_id": "q0-0"}, "first_stage_score: found n"),
    # A score beyond single precision
    BadRow(PAIR | {"first_stage_score": 1e300}, "first_stage_score: found '1e+300'"),
    # A column of the output's name
    BadRow(
        PAIR | {"first_stage_score": 1, "score": 1},
        "score: found '1', expected no column of this name: rename it",
    ),
    # A byte that is not UTF-8
    BadRow(
        '{"query": "\udcff"}',
        "row: found no UTF-8, expected JSON lines, or *.gz if packed",
    ),
    # Brackets beyond the depth of the JSON parser
    BadRow("[" * 100_000, "row: found '[["),
]


def test_rows_that_cannot_be_read_are_put_aside(
    tmp_path: Path, command: Command
) -> None:
    good = pairs(nested(first_stage=True))[: len(BAD_ROWS)]
    lines: list[Row | str] = []
    for row, bad in zip(good, BAD_ROWS, strict=True):
        lines += [bad.line, "", row]
    source = write_lines(tmp_path / "in.jsonl", lines)
    output = tmp_path / "out"
    job = f"batch --input {source} --output {output} --reranker mp_hcnn"
    assert f"{len(BAD_ROWS)} rows cannot be read" in command(job, code=1).err
    assert without_scores(read_lines(output)) == good
    rejected = read_lines(rejected_of(output))
    assert {row["file"] for row in rejected} == {str(source)}
    assert [row["line"] for row in rejected] == list(range(1, 3 * len(BAD_ROWS), 3))
    starts = []
    for row, bad in zip(rejected, BAD_ROWS, strict=True):
        starts.append(row["reason"][: len(bad.reason)])
    assert starts == [bad.reason for bad in BAD_ROWS]
    command(f"{job} --max-rejected {len(BAD_ROWS)}", code=0)


@pytest.mark.parametrize("ending", [".jsonl", ".parquet"])
def test_a_nested_row_is_put_aside_as_a_whole(
    tmp_path: Path, score: Any, ending: str
) -> None:
    rows = nested()
    rows[1]["posts"][3]["text"] = None
    rows[2]["posts"] = None
    rows.append({"query_id": "7", "query": "no results", "posts": []})
    output = tmp_path / f"out{ending}"
    score(write_lines(tmp_path / f"in{ending}", rows), output)
    assert [row["query_id"] for row in read_lines(output)] == ["q0-0", "q3-0", "7"]
    rejected = read_lines(rejected_of(output))
    assert [(row["line"], row["reason"]) for row in rejected] == [
        (2, "posts[3].text: found nothing, expected a text"),
        (3, "posts: found nothing, expected a list, as in the first row"),
    ]


def test_rows_before_the_cut_of_a_file_are_scored(
    tmp_path: Path, command: Command
) -> None:
    rows = nested(first_stage=True)
    output = tmp_path / "out.jsonl"
    packed = write_lines(tmp_path / "cut.jsonl.gz", rows)
    packed.write_bytes(packed.read_bytes()[:-9])
    result = command(f"batch --output {output} --input {packed}", code=1)
    assert "1 row cannot be read" in result.err
    (cut,) = read_lines(rejected_of(output))
    assert cut["file"] == str(packed)
    assert cut["line"] == len(rows) + 1
    assert "cut off from about here on" in cut["reason"]
    assert len(read_lines(output)) == len(rows)


class TestNothingHalfWritten:
    """Jobs that fail leave no output."""

    @pytest.fixture(autouse=True)
    def _chunks(self, monkeypatch: Patch) -> None:
        monkeypatch.setattr("tweetrerank.pipeline.batch.TOGETHER", 1)

    def fails(self, command: Command, source: Path, message: str) -> None:
        output = source.with_name(f"out{source.suffix}")
        result = command(f"batch --input {source} --output {output}", code=1)
        assert message in result.err
        names = {path.name for path in source.parent.iterdir()} - {"home"}
        assert names == {source.name}

    @pytest.fixture
    def table(self, tmp_path: Path) -> Path:
        rows = pairs(nested(first_stage=True))
        return write_lines(tmp_path / "in.parquet", rows)

    def test_pairs_of_a_query_that_stand_apart(
        self, tmp_path: Path, command: Command
    ) -> None:
        rows = pairs(nested(first_stage=True))
        lines = rows[::2] + rows[1::2]
        source = write_lines(tmp_path / "apart.jsonl", lines)
        self.fails(command, source, "found the query q0-0 again")

    def test_a_table_that_is_cut(self, table: Path, command: Command) -> None:
        table.write_bytes(table.read_bytes()[:1000])
        message = "the file is broken or cut off from about here on"
        self.fails(command, table, message)

    def test_two_columns_of_a_name(self, table: Path, command: Command) -> None:
        names = ["query_id", "query", "doc_id", "text", "twice", "twice"]
        pq.write_table(pa.table([["1"]] * len(names), names), table)
        self.fails(command, table, "expected columns of different names")

    def test_no_pyarrow(
        self, table: Path, command: Command, monkeypatch: Patch
    ) -> None:
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        self.fails(command, table, "pip install 'tweetrerank[parquet]'")


# A cluster

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
    rows = nested(5, first_stage=True)
    rows[3]["posts"][0]["text"] = None
    for number, row in enumerate(rows):
        row["time"] = f"2026-01-01T00:00:{number:02}"
    options_of = {".jsonl": "--lambda .25", ".parquet": ""}
    jobs: list[object] = []
    for ending, options in options_of.items():
        source = write_lines(tmp_path / f"in{ending}", rows)
        job = f"{options} --input {source} --max-rejected 1 --output {tmp_path}"
        command(f"batch {job}/alone{ending}", code=0)
        jobs.append(f"{job}/together{ending} --address local")
    # Ray replaces signal handlers that Java needs, so it runs in another process.
    run_python("-c", CLUSTER, *jobs, code=0, RAY_agent_register_timeout_ms="200000")
    for ending in options_of:
        together = tmp_path / f"together{ending}"
        assert read_lines(together) == read_lines(tmp_path / f"alone{ending}")
        (rejected,) = read_lines(rejected_of(together))
        assert rejected["reason"] == "posts[0].text: found nothing, expected a text"
    schema = pq.read_table(tmp_path / "together.parquet").schema
    assert schema.equals(pq.read_table(tmp_path / "alone.parquet").schema)
