"""Rows of a batch job, a query with its posts or one pair: checks, scores, Ray's way to them."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from indexes.lines import short
from indexes.posts import Post
from pipeline.collections.topics import Topic
from pipeline.collections.trec import Run
from pipeline.errors import DataError
from pipeline.ranking.checkpoints import check_reads_given
from pipeline.ranking.ranker import Mixing, Mixture, ModelScorer
from pipeline.ranking.retrievers import Candidates
from pipeline.runtime import ALLOCATOR, choose_device
from rerankers import checkpoint as checkpoints
from rerankers import models
from rerankers.reranker import Model
from rerankers.text.passages import best_passages

Row = dict[str, Any]
POSTS, FIRST_STAGE, SCORE = "posts", "first_stage_score", "score"
LONGEST = 2**26  # Bytes of a line on a cluster
LARGEST_SCORE = 3.4e38  # Of a first stage: scores are mixed in single precision
KINDS = {
    **dict.fromkeys(("query_id", "doc_id"), (str | int, "a text or a whole number")),
    **dict.fromkeys(("query", "text"), (str, "a text")),
    "url": (str | None, "a text"),
    FIRST_STAGE: (int | float, "a number, as the first row has one"),
}


class Form(NamedTuple):
    """What all rows of a job have in common."""

    is_nested: bool  # A row is a query with its posts, else one pair
    has_first_stage: bool = False  # Every post has a score of the first stage that is used
    is_ordered: bool = False  # Without scores a query's posts stand in the order of a first stage

    @classmethod
    def of(cls, raw: bytes | Row | ValueError) -> tuple[Form, Sequence[Row]]:
        """The form of a row, and its posts; raises ValueError if it cannot be read."""
        is_nested = _parsed(raw).get(POSTS) is not None
        form = cls(is_nested, is_ordered=is_nested)
        return form, form.posts(form.read(raw))

    def posts(self, row: Row) -> Sequence[Row]:
        """The posts of a row."""
        return row[POSTS] if self.is_nested else [row]

    def read(self, raw: bytes | Row | ValueError) -> Row:
        """The row of a line, or the row itself, checked; raises ValueError with the reason."""
        row = _parsed(raw)
        kind, expected = (list, "a list") if self.is_nested else (type(None), "nothing")
        if not isinstance(posts := row.get(POSTS), kind):
            raise _problem(POSTS, posts, f"{expected}, as in the first row")
        _check(row, "", "query_id", "query")
        names = ["doc_id", "text", "url", *([FIRST_STAGE] if self.has_first_stage else [])]
        for place, post in enumerate(self.posts(row)):
            where = f"{POSTS}[{place}]." if self.is_nested else ""
            if not isinstance(post, dict):
                raise _problem(where[:-1], post, "an object")
            _check(post, where, *names)
            if SCORE in post:
                raise _problem(where + SCORE, post[SCORE], "no column of this name: rename it")
        return row


def _parsed(raw: bytes | Row | ValueError) -> Row:
    if isinstance(raw, ValueError):
        raise raw
    try:
        row = raw if isinstance(raw, dict) else json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"found no JSON: {error}") from None
    if not isinstance(row, dict):
        raise _problem("row", row, "an object")
    return row


def _check(record: Row, where: str, *names: str) -> None:
    for name in names:
        kind, expected = KINDS[name]
        value: Any = record.get(name)
        is_kind = isinstance(value, kind) and not isinstance(value, bool)
        # Whole numbers may be too large for a float.
        if not is_kind or (name == FIRST_STAGE and not -LARGEST_SCORE <= value <= LARGEST_SCORE):
            raise _problem(where + name, value, expected)


def _problem(name: str, found: object, expected: str) -> ValueError:
    text = "nothing" if found is None else short(str(found))
    return ValueError(f"{name}: found {text}, expected {expected}")


def line_of(row: Row) -> bytes:
    """A row as JSON, in which halves of surrogate pairs are escaped."""
    return f"{json.dumps(row, ensure_ascii=False)}\n".encode(errors="backslashreplace")


def with_score(schemas: Sequence[Any], form: Form) -> Any:
    """The schema of Parquet rows with scores, from those of all files."""
    import pyarrow as pa

    score = pa.schema([(SCORE, pa.float64())])
    if form.is_nested:
        score = pa.schema([(POSTS, pa.list_(pa.struct(score)))])
    return pa.unify_schemas([*schemas, score], promote_options="permissive")


def load(
    name: str, folder: Path | None, batch_size: int, device: str, threads: int | None
) -> Model:
    """A model, by default the shipped one; raises RerankerError if it needs more than rows have."""
    device = choose_device(device, threads, models.is_network(name))
    folder = folder or checkpoints.find(name)
    trained = checkpoints.load(folder, name, device, batch_size=batch_size)
    check_reads_given(trained)
    return trained


def add_scores(rows: Sequence[Row], form: Form, scorer: ModelScorer, weight: float) -> None:
    """Add the score of each post, with as many digits as the service gives; ``weight`` is λ."""
    lists = [(row["query"], row[POSTS]) for row in rows if form.is_nested]
    if not form.is_nested:
        groups = groupby(rows, itemgetter("query_id", "query"))
        lists = [(query, list(pairs)) for (_, query), pairs in groups]
    candidates, keys = _candidates_of(lists, form)
    if not keys:
        return
    run = Mixture(None, scorer, Mixing(weight)).rerank(candidates).run
    scores = np.array([run[query_id][key] for query_id, key in keys])
    posts = (post for _, given in lists for post in given)
    for post, score in zip(posts, scores.round(7 if weight == 1 else 12).tolist(), strict=True):
        post[SCORE] = score


def _candidates_of(
    lists: Sequence[tuple[str, Sequence[Row]]], form: Form
) -> tuple[Candidates, list[tuple[str, str]]]:
    """The posts to rank, and (query_id, doc_id) in them for each post of the lists, in order.

    Texts decide which posts are the same: an id may stand for several.
    """
    topics = [Topic(str(number), query) for number, (query, _) in enumerate(lists)]
    run: Run = {topic.query_id: {} for topic in topics}
    posts: dict[str, Post] = {}
    keys: list[tuple[str, str]] = []
    for topic, (query, given) in zip(topics, lists, strict=True):
        scores = run[topic.query_id]
        texts = best_passages([query] * len(given), [one["text"] for one in given])
        for place, (one, text) in enumerate(zip(given, texts, strict=True)):
            key = str(one["doc_id"])
            post = Post(key, text, one.get("url") or "")
            first = float(one[FIRST_STAGE]) if form.has_first_stage else -float(place)
            is_other = posts.setdefault(key, post) != post
            if is_other or (form.has_first_stage and scores.get(key, first) != first):
                key = f"{key}\0{len(keys)}"
                posts[key] = post
            scores.setdefault(key, first)
            keys.append((topic.query_id, key))
    if form.has_first_stage:
        return Candidates(topics, run, posts), keys
    forms = dict.fromkeys(run, "order" if form.is_ordered else "nothing")
    # Without scores there are no ranks to make priors of.
    return Candidates(topics, run, posts, {}, forms=forms), keys


def score_on_cluster(
    address: str, files: Sequence[Path], output: Path, form: Form, weight: float, *model: Any
) -> list[Row]:
    """Score files into a folder by Ray Data, in their order; returns rows that cannot be read.

    ``weight`` is λ, ``model`` the arguments of :func:`load`.
    """
    import pyarrow as pa
    import ray
    import ray.data
    from pyarrow import csv
    from ray.data.datasource import BlockBasedFileDatasink
    from ray.util.queue import Queue

    *_, device, threads = model
    is_parquet, line = files[0].suffix.lower() == ".parquet", "line"  # Column of JSON lines
    light = {"num_cpus": 0}  # Beside scoring, which has all cores

    class Lines(BlockBasedFileDatasink):
        def write_block_to_file(self, block: Any, file: Any) -> None:
            for one in block.to_arrow()[line]:
                file.write(one.as_py())

    class Scorer:
        def __init__(self, rejected: Queue) -> None:
            self.rejected, self.scorer = rejected, ModelScorer(load(*model))

        def __call__(self, table: pa.Table) -> pa.Table:
            rows: list[Row] = []
            for raw in table.to_pylist() if is_parquet else table[line].to_pylist():
                try:
                    rows.append(form.read(raw))
                except ValueError as error:
                    self.rejected.put({"reason": str(error), "row": str(raw)})
            add_scores(rows, form, self.scorer, weight)
            if is_parquet:
                return pa.Table.from_pylist(rows, with_score([table.schema], form))
            return pa.table({line: pa.array(map(line_of, rows), pa.binary())})

    def run() -> Any:
        context = ray.data.DataContext.get_current()
        context.execution_options.preserve_order = True
        context.enable_progress_bars = False
        # Read as columns, JSON would change. JSON has the separator only escaped.
        reading: dict[str, Any] = (
            {}
            if is_parquet
            else {
                "read_options": csv.ReadOptions(
                    use_threads=False, block_size=LONGEST, column_names=[line]
                ),
                "parse_options": csv.ParseOptions(delimiter="\x1f", quote_char=False),
                "convert_options": csv.ConvertOptions(column_types={line: pa.binary()}),
            }
        )
        read = ray.data.read_parquet if is_parquet else ray.data.read_csv
        room, gpus, rejected = ray.cluster_resources(), int(device == "cuda"), Queue(0, light)
        # One core stays for Ray's own reader of Parquet, which waits for one.
        cores = int(room.get("CPU", 0)) - 1
        size = int(room.get("GPU", 0)) if gpus else cores // threads
        if size < 1:
            expected = "a GPU" if gpus else f"{threads + 1} cores or more, one of them for reading"
            raise ValueError(f"found {room.get('CPU', 0):g} cores, expected {expected}")
        pool = {"compute": ray.data.ActorPoolStrategy(size=size), "num_cpus": threads}
        batches = {"batch_size": 20 if form.is_nested else 2000, "batch_format": "pyarrow"}
        rows = read([*map(str, files)], ray_remote_args=light, **reading)
        scored = rows.map_batches(
            Scorer, fn_constructor_args=(rejected,), num_gpus=gpus, **batches, **pool
        )
        if is_parquet:
            scored.write_parquet(str(output), ray_remote_args=light)
        else:
            scored.write_datasink(Lines(str(output), file_format="jsonl"), ray_remote_args=light)
        return rejected.get_nowait_batch(rejected.size())

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    how_to: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address == "local":
        how_to |= {"include_dashboard": False, "object_store_memory": 200_000_000}
    try:
        ray.init(address, runtime_env={"env_vars": ALLOCATOR}, **how_to)
        # There, as Ray Data does not work through a client's connection.
        return ray.get(ray.remote(**light)(run).remote())
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        last = str(error).strip().splitlines()[-1:]
        raise DataError(f"--address {address}: {' '.join(last)}") from error
    finally:
        ray.shutdown()
