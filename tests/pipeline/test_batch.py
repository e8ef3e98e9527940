"""Batch jobs in one process: scores, formats, rows that cannot be read, interruption."""

import json
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
from conftest import Command, Result
from helpers.batch_samples import Row, nested, pairs, read_lines, scores, write_lines
from helpers.reranking_samples import AWKWARD, encoder, small_model

from pipeline.batches import worker
from pipeline.batches.job import Part
from pipeline.batches.worker import Done, Worker
from pipeline.ranking.interpolation import interpolate
from rerankers import checkpoint, models
from rerankers.reranker import TrainedReranker
from rerankers.text.inputs import TextEncoder


@cache
def shipped() -> TrainedReranker:
    return checkpoint.load(checkpoint.find("mp_hcnn"))


@pytest.fixture(autouse=True)
def _loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    real = worker.load

    def load(folder: Path, name: str, device: str) -> TrainedReranker:
        return shipped() if folder == shipped().directory else real(folder, name, device)

    monkeypatch.setattr(worker, "load", load)


@pytest.fixture
def score(command: Command) -> Any:
    """Runs a job of mp_hcnn with parts of about one row; it succeeds unless it rejects rows."""

    def call(source: Path, output: Path, *options: object) -> Result:
        files = ("--input", source, "--output", output)
        model = () if "--reranker" in options else ("--reranker", "mp_hcnn")
        done = command("batch", *files, "--part-size", 900, *model, *options)
        assert done.code == int(bool(rejected(output))), done.err
        return done

    return call


def predicted(rows: list[Row]) -> list[float]:
    """The model's own scores of all posts."""
    triples = [
        (row["query"], (p["text"], p.get("url") or "")) for row in pairs(rows) for p in [row]
    ]
    return shipped().predict(triples).tolist()


def without_scores(rows: list[Row]) -> list[Row]:
    def bare(row: Row) -> Row:
        found = {name: value for name, value in row.items() if name != "score"}
        return found | ({"posts": [*map(bare, row["posts"])]} if "posts" in row else {})

    return [*map(bare, rows)]


@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.gz"])
@pytest.mark.parametrize("as_pairs", [False, True])
def test_every_post_gets_the_model_s_score(
    tmp_path: Path, score: Any, ending: str, as_pairs: bool
) -> None:
    rows = nested(2)
    given = pairs(rows) if as_pairs else rows
    source, output = write_lines(tmp_path / f"in{ending}", given), tmp_path / "out"
    done = score(source, output)
    found = read_lines(output)
    assert without_scores(found) == given
    np.testing.assert_allclose(scores(found), predicted(rows), atol=1e-5)
    assert len([*output.glob(f"part-*{ending}")]) > 3
    assert not done.out


def test_first_stage_scores_are_mixed_in_for_each_query(tmp_path: Path, score: Any) -> None:
    rows = nested(2, first_stage=True)
    neural = predicted(rows)
    expected = []
    for start, row in zip(range(0, 10**6, len(rows[0]["posts"])), rows, strict=False):
        first = {str(n): post["first_stage_score"] for n, post in enumerate(row["posts"])}
        model = {str(n): neural[start + n] for n in range(len(first))}
        expected += interpolate({"": first}, {"": model}, 0.35)[""].values()
    for name, given in {"rows": rows, "pairs": pairs(rows)}.items():
        output = tmp_path / name
        done = score(write_lines(tmp_path / f"{name}.jsonl", given), output)
        np.testing.assert_allclose(scores(read_lines(output)), expected, atol=1e-5)
        assert "λ = 0.35 (tuned on" in done.err
    alone = tmp_path / "alone"
    score(tmp_path / "rows.jsonl", alone, "--lambda", 1)
    np.testing.assert_allclose(scores(read_lines(alone)), neural, atol=1e-5)


def test_a_model_with_a_prior_reads_the_ranks_of_the_first_stage(
    tmp_path: Path, score: Any
) -> None:
    folder = tmp_path / "sm_cnn"
    model = small_model("sm_cnn", next(iter(models.find("sm_cnn").configurations)))
    assert "prior" in model.feature_families
    reader = TextEncoder(encoder().vocabulary, checkpoint.idf_from("wordfreq"))
    checkpoint.save(folder, "sm_cnn", model, reader, {})
    source = write_lines(tmp_path / "in.jsonl", pairs(nested(first_stage=True)))
    without = write_lines(tmp_path / "without.jsonl", pairs(nested()))
    options = ("--reranker", "sm_cnn", "--checkpoint", folder, "--lambda", 1)
    score(source, tmp_path / "with", *options)
    score(without, tmp_path / "out", *options)
    found, expected = (scores(read_lines(tmp_path / name)) for name in ("with", "out"))
    assert np.abs(np.subtract(found, expected)).min() > 1e-4


def table_of(rows: list[Row]) -> pa.Table:
    """With columns that JSON has no types for."""
    table = pa.Table.from_pylist(rows)
    times = pa.array([np.datetime64("2026-01-01T00:00:00", "us")] * len(rows), pa.timestamp("us"))
    return table.append_column("time", times).append_column(
        "kind", pa.array(["a", "b"] * len(rows))[: len(rows)].dictionary_encode()
    )


@pytest.mark.parametrize("as_pairs", [False, True])
def test_parquet_keeps_its_columns(tmp_path: Path, score: Any, as_pairs: bool) -> None:
    rows = nested(3, first_stage=True)
    table = table_of(pairs(rows) if as_pairs else rows)
    (tmp_path / "in").mkdir()
    cut = len(rows[0]["posts"]) if as_pairs else 5
    pq.write_table(table.slice(0, cut), tmp_path / "in" / "a.parquet")
    pq.write_table(table.slice(cut), tmp_path / "in" / "b.parquet", row_group_size=4)
    score(tmp_path / "in", tmp_path / "out")
    score(write_lines(tmp_path / "in.jsonl", rows), tmp_path / "lines")
    found = pa.dataset.dataset(tmp_path / "out").to_table()  # also: the manifest is no part of it
    bare = found.to_pylist()
    np.testing.assert_allclose(scores(bare), scores(read_lines(tmp_path / "lines")), atol=1e-6)
    assert without_scores(bare) == table.to_pylist()
    assert found.schema.field("time").type == pa.timestamp("us")
    assert pa.types.is_dictionary(found.schema.field("kind").type)
    assert len([*(tmp_path / "out").glob("part-*.parquet")]) > 3


BAD = {
    "{": "found no JSON",
    "[1]": "found a list, expected an object",
    '{"query_id": "q", "query": "a", "doc_id": "d"}': "text: found nothing, expected a text",
    '{"query_id": "q", "query": 5, "doc_id": "d", "text": "a"}': "query: found '5'",
    '{"query_id": true, "query": "a", "doc_id": "d", "text": "a"}': "query_id: found 'True'",
    '{"query_id": "q", "query": "a", "doc_id": 1.5, "text": "a"}': "doc_id: found '1.5'",
    '{"query_id": "q", "query": "a", "doc_id": 1, "text": "a", "url": []}': "url: found a list",
    '{"query_id": "q", "query": "a", "posts": []}': "found posts, expected one post",
    '{"query_id": "q", "query": "a", "doc_id": "d", "text": NaN}': "found no JSON: NaN is no",
    '{"query_id": "q0-0", "query": "a", "doc_id": "d", "text": "a"}': "first_stage_score: found n",
    '{"query_id": "q", "query": "a", "doc_id": "d", "text": "a", "first_stage_score": 1e300}': (
        "first_stage_score: found '1e+300'"
    ),
    "[" * 100_000: "found no JSON",
}


def rejected(output: Path) -> list[Row]:
    paths = sorted((output / "_rejected").glob("*.jsonl"))
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


def test_rows_that_cannot_be_read_are_put_aside(tmp_path: Path, score: Any) -> None:
    good = pairs(nested(first_stage=True))
    lines: list[Row | str] = []
    for number, row in enumerate(good):
        lines += [row, "", [*BAD][number]] if number < len(BAD) else [row]
    source = write_lines(tmp_path / "in.jsonl", lines)
    with source.open("ab") as stream:
        stream.write(b'{"query_id": "q", "query": "caf\xe9"}\n')
    done = score(source, tmp_path / "out", "--part-size", "4KB")
    assert without_scores(read_lines(tmp_path / "out")) == good
    found = rejected(tmp_path / "out")
    numbers = [*range(3, 3 * len(BAD) + 1, 3), len(lines) + 1]
    assert [row["place"] for row in found] == [f"{source}:{number}" for number in numbers]
    reasons = [*BAD.values(), "found the byte 0xe9, expected UTF-8"]
    for row, reason in zip(found, reasons, strict=True):
        assert row["reason"].startswith(reason), row["reason"]
    assert [row["row"] for row in found[:-1]] == [*BAD]
    assert f"{len(BAD) + 1} rows cannot be read" in done.err


def test_a_nested_row_is_put_aside_as_a_whole(tmp_path: Path, score: Any) -> None:
    rows = nested()
    rows[1]["posts"][3]["text"] = None
    rows[2]["posts"] = None
    rows.append({"query_id": 7, "query": "no results", "posts": []})
    for name in ("in.jsonl", "in.parquet"):
        source = tmp_path / name
        if name == "in.jsonl":
            write_lines(source, rows)
        else:
            table = pa.Table.from_pylist([row | {"query_id": str(row["query_id"])} for row in rows])
            pq.write_table(table, source)
        output = tmp_path / f"{name}-out"
        score(source, output, "--part-size", "1MB")
        is_table = name == "in.parquet"
        table = pa.dataset.dataset(output).to_table().to_pylist() if is_table else None
        found = table or read_lines(output)
        assert [row["query_id"] for row in found] == ["q0-0", "q3-0", "7" if is_table else 7]
        assert [(row["place"], row["reason"]) for row in rejected(output)] == [
            (f"{source}:2", "posts[3].text: found nothing, expected a text"),
            (f"{source}:3", "posts: found nothing, expected a list, as in the first row"),
        ]


def test_what_damaged_files_still_hold_is_scored(tmp_path: Path, score: Any) -> None:
    rows = pairs(nested(30))
    whole = write_lines(tmp_path / "whole.jsonl.gz", rows).read_bytes()
    (tmp_path / "cut.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    score(tmp_path / "cut.jsonl.gz", tmp_path / "out", "--part-size", "100KB")
    found, (lost,) = read_lines(tmp_path / "out"), rejected(tmp_path / "out")
    assert len(found) > len(rows) / 3
    assert without_scores(found) == rows[: len(found)]
    assert "broken or cut off" in lost["reason"]
    # A row group of a Parquet file
    table = pa.Table.from_pylist(rows)
    pq.write_table(table, tmp_path / "in.parquet", row_group_size=400, compression="zstd")
    group = pq.ParquetFile(tmp_path / "in.parquet").metadata.row_group(1).column(3)
    content = bytearray((tmp_path / "in.parquet").read_bytes())
    begin = group.dictionary_page_offset or group.data_page_offset
    content[begin + 40 : begin + 200] = b"\xff" * 160
    (tmp_path / "in.parquet").write_bytes(content)
    score(tmp_path / "in.parquet", tmp_path / "table", "--part-size", "10KB")
    found = pa.dataset.dataset(tmp_path / "table").to_table().to_pylist()
    assert len(rows) - 500 < len(found) < len(rows)
    assert {row["doc_id"] for row in found} == {row["doc_id"] for row in rows}
    assert all("damaged" in row["reason"] for row in rejected(tmp_path / "table"))


def test_awkward_texts_come_back_as_they_were(tmp_path: Path, score: Any) -> None:
    texts = [*AWKWARD.values()]
    posts = [{"doc_id": number, "text": text} for number, text in enumerate(texts)]
    rows = [{"query_id": n, "query": text, "posts": posts} for n, text in enumerate(texts)]
    score(write_lines(tmp_path / "in.jsonl", rows), tmp_path / "out")
    found = read_lines(tmp_path / "out")
    assert without_scores(found) == rows
    assert np.isfinite(scores(found)).all()


def test_an_id_may_stand_for_several_posts(tmp_path: Path, score: Any) -> None:
    row = nested(first_stage=True)[0]
    for post in row["posts"]:
        post["doc_id"] = "same"
    row["posts"] += row["posts"]
    score(write_lines(tmp_path / "in.jsonl", [row]), tmp_path / "out", "--lambda", 1)
    found = scores(read_lines(tmp_path / "out"))
    np.testing.assert_allclose(found, predicted([row]), atol=1e-5)
    assert found[: len(found) // 2] == found[len(found) // 2 :]


class Interrupted:
    """Stops a job by Ctrl-C before its part ``number``, and counts the posts that are scored."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
        self.number, self.posts, self._run = number, 0, Worker.run
        monkeypatch.setattr(Worker, "run", lambda *arguments: self.run(*arguments))

    def run(self, one: Worker, part: Part) -> Done:
        if part.number == self.number:
            raise KeyboardInterrupt
        done = self._run(one, part)
        self.posts += done.posts
        return done


@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.gz", ".parquet"])
def test_an_interrupted_job_goes_on_and_scores_no_row_twice(
    tmp_path: Path, score: Any, command: Command, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    rows = pairs(nested(3, first_stage=True))
    source, output = tmp_path / f"in{ending}", tmp_path / "out"
    if ending == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), source)
    else:
        write_lines(source, [*rows, "{"])
    size = ("--part-size", "2KB")
    score(source, tmp_path / "whole", *size)
    job = ("batch", "--input", source, "--output", output, "--reranker", "mp_hcnn", *size)
    interrupted = Interrupted(monkeypatch, 3)
    assert command(*job).code == 130
    assert 0 < interrupted.posts < len(rows)
    names = {path.name: path.stat().st_mtime_ns for path in output.glob("part-*")}
    assert len(names) == 3
    refused = command(*job)
    assert (refused.code, "--resume goes on" in refused.err) == (2, True)
    interrupted.number = -1
    resumed = command(*job, "--resume")
    code = int(bool(rejected(output)))
    assert resumed.code == code, resumed.err
    assert "3 of them done before" in resumed.err
    assert interrupted.posts == len(rows)
    for path in (tmp_path / "whole").glob("part-*"):
        assert (output / path.name).read_bytes() == path.read_bytes()
    assert len([*output.glob("part-*")]) == len([*(tmp_path / "whole").glob("part-*")])
    assert {name: (output / name).stat().st_mtime_ns for name in names} == names
    assert rejected(output) == rejected(tmp_path / "whole")
    again = command(*job, "--resume")
    assert (again.code, interrupted.posts) == (code, len(rows))


def test_only_the_same_job_is_resumed(
    tmp_path: Path, score: Any, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out"
    write_lines(source, nested(first_stage=True))
    job = ("--input", source, "--output", output, "--resume", "--reranker", "mp_hcnn")
    score(source, output)
    changes = {
        "the weight 0.35, found 0.5": ("--lambda", 0.5),
        "the precision fp32, found bf16": ("--precision", "bf16"),
    }
    for problem, options in changes.items():
        refused = command("batch", *job, *options)
        assert (refused.code, problem in refused.err) == (1, True), refused.err
    os.utime(source)  # The content is what counts
    assert command("batch", *job).code == 0
    write_lines(source, nested(first_stage=True)[::-1])
    refused = command("batch", *job)
    assert (refused.code, "whose content is another now" in refused.err) == (1, True)
    (output / "_manifest.json").write_text("{}")
    refused = command("batch", *job)
    assert (refused.code, "found no manifest of a job" in refused.err) == (1, True)


def test_all_bad_arguments_are_reported_at_once(tmp_path: Path, command: Command) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").touch()
    options = ("--input", tmp_path / "in", "--output", tmp_path, "--reranker", "bm42")
    done = command("batch", *options, "--workers", 2, "--checkpoint", tmp_path / "none")
    assert done.code == 2
    for name in ("input", "output", "reranker", "workers", "checkpoint"):
        assert f"\n  --{name}: " in done.err, done.err
    done = command("batch", *options[:4], "--resume", "--reranker", "mphcnn", "--input", "none")
    assert "there is no file or folder none" in done.err
    assert "--resume: found no job" in done.err
    assert "--reranker: found 'mphcnn'" in done.err


@pytest.mark.parametrize(
    "content", ["", "\n\n", "{}\n", '{"query_id": 1, "query": "a", "posts": []}']
)
def test_an_input_without_a_readable_row_is_an_error(
    tmp_path: Path, command: Command, content: str
) -> None:
    (tmp_path / "in.jsonl").write_text(content)
    done = command("batch", "--input", tmp_path / "in.jsonl", "--output", tmp_path / "out")
    assert (done.code, not (tmp_path / "out").exists()) == (1, True)
    assert "found" in done.err


def test_pairs_of_a_query_must_stand_together_to_be_mixed(
    tmp_path: Path, score: Any, command: Command
) -> None:
    rows = pairs(nested(first_stage=True))
    source = write_lines(tmp_path / "in.jsonl", [*rows[::2], *rows[1::2]])
    job = ("batch", "--input", source, "--output", tmp_path / "out")
    done = command(*job)
    assert (done.code, "found the query q0-0 again" in done.err) == (1, True), done.err
    score(source, tmp_path / "alone", "--lambda", 1)


@pytest.mark.slow
def test_ray_is_needed_for_an_address_alone(
    tmp_path: Path, score: Any, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_lines(tmp_path / "in.jsonl", nested())
    job = ("batch", "--input", source, "--output", tmp_path / "out", "--address", "local")
    monkeypatch.delenv("RAY_USAGE_STATS_ENABLED", raising=False)
    monkeypatch.setenv("RAY_BACKEND_LOG_LEVEL", "error")

    def refuse(*arguments: object, **options: object) -> None:
        assert options["include_dashboard"] is False
        raise ConnectionError("nobody answers")

    monkeypatch.setattr("ray.init", refuse)
    done = command(*job)
    assert (done.code, "--address local: found no Ray cluster: nobody" in done.err) == (1, True)
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
    assert os.environ["RAY_BACKEND_LOG_LEVEL"] == "error"
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    score(source, tmp_path / "alone")
    done = command(*job, "--resume")
    assert (done.code, "pip install 'tweetrerank[ray]'" in done.err) == (1, True)


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
    tmp_path: Path, score: Any, has_scores: bool, as_pairs: bool, options: str, known: str
) -> None:
    """The posts of a row stand in the order of a first stage, if they have no scores.

    A given weight mixes a model that reads scores, too, as in pipeline.rerank and in Python.
    """
    window = checkpoint.load(checkpoint.find("window"))
    rows, output = nested(2, first_stage=has_scores), tmp_path / "out"
    source = write_lines(tmp_path / "in.jsonl", pairs(rows) if as_pairs else rows)
    job = ("--reranker", "window", "--part-size", "1MB", *options.split())
    done = score(source, output, *job)
    weight = 0.25 if "--lambda" in options else None
    assert ("λ = 0.25 (given)" in done.err) == (weight is not None)
    expected: list[float] = []
    for row in rows:
        posts = [(row["query"], (p["text"], p.get("url") or "")) for p in row["posts"]]
        first = [p["first_stage_score"] for p in row["posts"]] if known == "scores" else None
        in_order = known == "order"
        expected += window.predict(posts, first, weight=weight, in_order=in_order).tolist()
    np.testing.assert_allclose(scores(read_lines(output)), expected, atol=1e-5)


def test_scores_that_are_missing_are_an_error(tmp_path: Path, command: Command) -> None:
    source = write_lines(tmp_path / "in.jsonl", nested())
    job = ("batch", "--input", source, "--output", tmp_path / "out")
    done = command(*job, "--order", "scores")
    assert (done.code, "no first_stage_score in the first row" in done.err) == (1, True)
    # Rows of both forms: those of the second are put aside, with a reason.
    write_lines(source, [*nested(), *pairs(nested())])
    most = str(len(pairs(nested())))
    assert command(*job, "--max-rejected", "1").code == 1
    assert "expected a list, as in the first row" in rejected(tmp_path / "out")[0]["reason"]
    assert command(*job, "--resume", "--max-rejected", most).code == 0
