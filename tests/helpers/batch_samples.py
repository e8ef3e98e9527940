"""Rows of batch jobs, shared by their tests."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from helpers import index_samples
from helpers.reranking_samples import POSTS, QUERIES

Row = dict[str, Any]


def nested(copies: int = 1, first_stage: bool = False) -> list[Row]:
    """A row for each query, with all posts; of several copies each has its own ids."""
    return [
        {
            "query_id": f"q{number}-{copy}",
            "query": query,
            "lang": "en",
            "posts": [_post(place, number, first_stage) for place in range(len(POSTS))],
        }
        for copy in range(copies)
        for number, query in enumerate(QUERIES)
    ]


def _post(place: int, query: int, first_stage: bool) -> Row:
    text, url = POSTS[place]
    found: Row = {"doc_id": f"d{place}", "text": text, "likes": place}
    if url:
        found["url"] = url
    if first_stage:
        found["first_stage_score"] = 10.0 - (place * 7 + query) % 11
    return found


def pairs(rows: Iterable[Row]) -> list[Row]:
    """Nested rows as pairs."""
    whole = [row | post for row in rows for post in row["posts"]]
    return [{name: value for name, value in row.items() if name != "posts"} for row in whole]


def write_lines(path: Path, rows: Iterable[Row | str]) -> Path:
    """Write rows, or lines as they are, in the form and compression of the name."""
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
        return path
    return index_samples.write_lines(path, rows)


def read_lines(path: Path) -> list[Row]:
    """All rows of a file, or of a folder's files in the order of their names."""
    if path.is_dir():
        return [row for part in sorted(path.iterdir()) for row in read_lines(part)]
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pylist()
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def scores(rows: Sequence[Row]) -> list[float]:
    """Scores of all posts of nested rows or pairs, in order."""
    return [post["score"] for row in rows for post in row.get("posts") or [row]]


def without_scores(rows: Sequence[Row]) -> list[Row]:
    """The rows as they were."""

    def bare(row: Row) -> Row:
        found = {name: value for name, value in row.items() if name != "score"}
        return found | ({"posts": [*map(bare, row["posts"])]} if "posts" in row else {})

    return [*map(bare, rows)]
