"""Random posts, topics about them, a writer of JSON lines, and tables of test cases."""

import gzip
import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tweetrerank.indexes.methods import Topic
from tweetrerank.indexes.posts import Post

# None of these is a stop word or changes under stemming.
_NAMES = (
    "alpha bravo delta echo foxtrot golf hotel juliet kilo lima oscar papa romeo tango"
)
WORDS = _NAMES.split()


def random_posts(count: int, seed: int = 0) -> list[Post]:
    """Posts of 1 to 20 words, common and rare ones, with ids of different lengths."""
    drawn = random.Random(seed)
    weights = [1 / (n + 1) for n in range(len(WORDS))]
    ids = drawn.sample(range(5, 200 * count), count)
    texts = (
        " ".join(drawn.choices(WORDS, weights, k=drawn.randint(1, 20))) for _ in ids
    )
    return [Post(str(n), text) for n, text in zip(ids, texts, strict=True)]


POSTS = [*random_posts(400), Post("1", ""), Post("2", "?! ...")]
TOPICS = [
    *(
        Topic(str(n), " ".join(WORDS[n : n + 3]), None, str(9000 * n))
        for n in range(1, 10)
    ),
    *(Topic(f"all {n}", " ".join(WORDS[n:14:5])) for n in range(5)),
    Topic("twice", "kilo kilo lima"),
    Topic("stop words", "the of and"),
    Topic("nothing", "?! zebra"),
    Topic("empty", ""),
    Topic("late", "alpha", None, "3"),
    Topic("odd", 'ALPHA\0 (bravo) \ud83d 💥 "AND" +delta~2 *'),
]


def write_lines(path: Path, rows: Iterable[Any]) -> Path:
    """Write rows as JSON, or lines as they are, in the compression of the name; or as Parquet."""
    if path.suffix == ".parquet":
        from pyarrow import Table, parquet

        parquet.write_table(Table.from_pylist(rows), path)
        return path
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    content = "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape")
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def table(name: str) -> list[Any]:
    """Rows of a file beside this one."""
    return [
        *map(json.loads, (Path(__file__).parent / name).read_text("utf-8").splitlines())
    ]
