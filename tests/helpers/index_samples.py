"""Random posts, topics about them, a writer of JSON lines, and tables of test cases."""

import gzip
import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tweetrerank.indexes.data_error import DataError
from tweetrerank.indexes.methods import Topic
from tweetrerank.indexes.posts import Post

# None of these is a stop word or changes under stemming.
_NAMES = (
    "alpha bravo delta echo foxtrot golf hotel juliet kilo lima oscar papa romeo tango"
)
WORDS = _NAMES.split()


def random_posts(count: int, seed: int = 0) -> list[Post]:
    """Return posts of 1 to 20 common and rare words, with ids of different lengths."""
    generator = random.Random(seed)
    weights = [1 / (rank + 1) for rank in range(len(WORDS))]
    posts = []
    for doc_id in generator.sample(range(5, 200 * count), count):
        length = generator.randint(1, 20)
        words = generator.choices(WORDS, weights, k=length)
        posts.append(Post(str(doc_id), " ".join(words)))
    return posts


POSTS = [*random_posts(400), Post("1", ""), Post("2", "?! ...")]

TOPICS = [
    *(
        Topic(
            str(number), " ".join(WORDS[number : number + 3]), None, f"{9000 * number}"
        )
        for number in range(1, 10)
    ),
    *(Topic(f"all {start}", " ".join(WORDS[start:14:5])) for start in range(5)),
    Topic("twice", "kilo kilo lima"),
    Topic("stop words", "the of and"),
    Topic("nothing", "?! zebra"),
    Topic("empty", ""),
    Topic("late", "alpha", None, "3"),
    Topic("odd", 'ALPHA\0 (bravo) \ud83d 💥 "AND" +delta~2 *'),
]


def refused(
    message: str, kind: type[DataError] = DataError
) -> pytest.RaisesExc[DataError]:
    """Expect an error with a message that matches this pattern."""
    return pytest.raises(kind, match=message)


def write_lines(path: Path, rows: Iterable[Any]) -> Path:
    """Write rows as JSON lines, or texts as they are, and return the path.

    The name of the file decides whether it is compressed by gzip, or is Parquet.
    """
    if path.suffix == ".parquet":
        from pyarrow import Table, parquet

        parquet.write_table(Table.from_pylist(rows), path)
        return path
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    content = "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape")
    if path.suffix == ".gz":
        content = gzip.compress(content)
    path.write_bytes(content)
    return path


def table(name: str) -> list[Any]:
    """Return the rows of a file of JSON lines in this folder."""
    lines = (Path(__file__).parent / name).read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines]
