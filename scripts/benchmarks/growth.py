"""Indexing, searching and reranking of ever larger collections.

The posts of the collection are copied with fresh ids and other words. Files and indexes are kept in
``$TWEETRERANK_HOME/growth``, a folder for each size; a further run measures the searches again, and
indexes what is missing. To index again, remove a folder ``index``.
"""

import json
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks.measuring import Row
from benchmarks.search import measured
from benchmarks.workload import Workload
from indexes.files import atomic_file
from indexes.manifest import IndexManifest
from indexes.posts import Post
from indexes.store import POSTS_FILE
from pipeline.collections.collection import home_directory
from pipeline.command.errors import DataError

REPLACED = 0.2  # Share of a copy's words that other words of the pool replace

MISSPELLED = 0.3
"""Share of the copies with a misspelled word, which is mostly a new one of the vocabulary."""

BUILT = "built.json"  # File of the time and the memory of indexing, in the index's folder

_SERIAL = 24  # bits of an id
_SEARCHES = Path(__file__).with_name("growth_searches.py")


FIGURES = {
    "index_rate": "indexing, posts/s",
    "index_processor": "– per second of processor time, posts",
    "index_peak": "– peak memory (RSS), MB",
    "index": "Lucene's files, bytes/post",
    "store": "posts, bytes/post",
    "ql": "query likelihood, 1000 hits, ms",
    "rm3": "RM3, 1000 hits, ms",
    "rerank": "reranking of 1000 posts, ms",
    "search_peak": "– peak memory (RSS) of searching and reranking, MB",
}


def copies(posts: Sequence[Post], count: int, seed: int = 1) -> Iterator[Post]:
    """``count`` posts: copies of ``posts``, round by round, with fresh ids and other words.

    Ids are numbers in the range of those of ``posts`` and in no order. Replacements are drawn by
    the frequency of words in ``posts``.
    """
    drawn, letters = random.Random(seed), "abcdefghijklmnopqrstuvwxyz"
    numbers = [int(post.doc_id) >> _SERIAL for post in posts]
    oldest, newest = min(numbers), max(numbers) + 1
    split = [(post.text.split(), post.url) for post in posts]
    pool = [word for words, _ in split for word in words]
    for serial in range(count):
        original, url = split[serial % len(split)]
        words = original.copy()
        for _ in range(int(REPLACED * len(words) + drawn.random())):
            words[int(drawn.random() * len(words))] = pool[int(drawn.random() * len(pool))]
        if words and drawn.random() < MISSPELLED:
            place = int(drawn.random() * len(words))
            word = words[place]
            letter, cut = letters[int(drawn.random() * 26)], int(drawn.random() * len(word))
            words[place] = word[:cut] + letter + word[cut:]
        number = oldest + int(drawn.random() * (newest - oldest))
        yield Post(str(number << _SERIAL | serial), " ".join(words), url)


def write_posts(path: Path, posts: Sequence[Post], count: int) -> None:
    """Write :func:`copies` as JSON lines."""
    with atomic_file(path) as stream:
        for post in copies(posts, count):
            fields = {"id": post.doc_id, "text": post.text, "url": post.url}
            stream.write(json.dumps(fields, ensure_ascii=False) + "\n")


def measure(workload: Workload) -> list[Row]:
    """A table of its own, printed: a column for each size, and the exponent of the growth."""
    sizes = workload.sizes
    figures = [_figures(workload, size) for size in sizes]
    rows = [["", *(f"{size:,} posts" for size in sizes), "exponent"]]
    rows.append(["---"] * len(rows[0]))
    for key, title in FIGURES.items():
        values = [of_size[key] for of_size in figures]
        exponent = "–"
        if len(sizes) > 1:
            exponent = f"{np.polyfit(np.log(sizes), np.log(values), 1)[0]:.2f}"
        shown = [f"{value:,.{0 if value >= 100 else 1}f}" for value in values]
        rows.append([title, *shown, exponent])
    print("\n".join(f"| {' | '.join(row)} |" for row in rows), flush=True)
    return []


def _figures(workload: Workload, size: int) -> dict[str, float]:
    """Name -> figure of one size."""
    folder = home_directory() / "growth" / str(size)
    posts, index = folder / "posts.jsonl", folder / "index"
    if not posts.exists():
        write_posts(posts, list(workload.source.posts()), size)
    # An index without times of its own is of an earlier version.
    if not (index / BUILT).exists():
        command = [sys.executable, "-m", "pipeline.index", "--index", str(index)]
        times = measured([*command, "--posts", str(posts)])
        with atomic_file(index / BUILT) as stream:
            json.dump(times, stream)
    times = json.loads((index / BUILT).read_text(encoding="utf-8"))
    manifest = IndexManifest.read(index)
    store = manifest.files[POSTS_FILE]
    figures = {
        "index_rate": size / times["seconds"],
        "index_processor": size / times["processor"],
        "index_peak": times["peak"] / 1e6,
        "store": store / manifest.posts,
        "index": (sum(manifest.files.values()) - store) / manifest.posts,
        **_searched(workload, index),
    }
    print(f"{size:,} posts: {json.dumps(figures)}", flush=True)
    return figures


def _searched(workload: Workload, index: Path) -> dict[str, float]:
    """The figures of ``growth_searches.py`` in a process of its own."""
    words = [workload.collection, str(index), str(workload.directory), str(workload.rounds)]
    words += [str(workload.data)] if workload.data else []
    done = subprocess.run(
        [sys.executable, str(_SEARCHES), *words], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise DataError(f"searching {index} failed:\n{done.stderr[-2000:]}")
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures
