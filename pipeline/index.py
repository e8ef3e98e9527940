"""Build the index that a search runs on: of a named collection, or of your own posts.

  python -m pipeline.index --collection mb2012
  python -m pipeline.index --collection my-posts.toml
  python -m pipeline.index --posts monday.jsonl.gz --posts tuesday.jsonl.gz --index my-index
  python -m pipeline.index --collection mb2012 --precompute fusion

Own posts are JSON lines, plain or compressed (.gz, .bz2): "id" or "id_str", "text" or "contents",
and optionally "url"; posts in the form of Twitter's API are understood as they are.

With --precompute the posts' vectors are computed beforehand, so that a search only compares them
with its topics. For a fusion, the posts' words and counts are precomputed, and the vectors for the
rerankers whose scores it reads. An existing index is kept. A search with the same checkpoint uses
the precomputed posts by itself.
"""

import itertools
import time
from dataclasses import dataclass
from pathlib import Path

from pipeline.collections import named
from pipeline.collections.collection import AnswerCollection
from pipeline.command.errors import UsageError
from pipeline.command.main import run
from pipeline.command.options import existing_file, option


@dataclass(frozen=True)
class Options:
    """What to index, and where."""

    collection: str | None = option(
        "collection to index, by its name or its file", metavar="NAME|FILE"
    )
    topics: str | None = option(
        "the same, spelled as pipeline.search does: mb2011 and mb2012 share an index, and so do "
        "mb2013 and mb2014",
        metavar="NAME",
    )
    posts: tuple[Path, ...] = option(
        "file of your own posts; may be given several times",
        parse=existing_file,
        many=True,
        metavar="FILE",
    )
    index: Path | None = option(
        "folder to write the index into; an index that is there is replaced (default for a "
        "collection: indexes/GROUP under $TWEETRERANK_HOME)",
        parse=Path,
        metavar="DIR",
    )
    precompute: str | None = option(
        "checkpoint folder, or name of a model (its default checkpoint): precompute its vectors of "
        "the posts",
        metavar="CHECKPOINT",
    )
    data: Path | None = option(
        "folder of the collections' data (default: $TWEETRERANK_DATA)", parse=Path, metavar="DIR"
    )


def main(options: Options) -> None:
    """Build the index, or precompute the posts of an existing one, and report size and time."""
    name = _collection_name(options)

    from indexes import lucene
    from indexes.posts import read_posts

    collection = named.find(name, options.data) if name else None
    if isinstance(collection, AnswerCollection):
        raise collection.not_searched()
    directory = options.index or (collection.index_directory if collection else Path())
    checkpoint = _checkpoint(options.precompute, name) if options.precompute else None
    if checkpoint is None or options.posts or not directory.is_dir():
        start = time.perf_counter()
        if collection:
            manifest = collection.build_index(directory)
        else:
            posts = itertools.chain.from_iterable(map(read_posts, options.posts))
            manifest = lucene.build(posts, directory, options.posts)
        seconds = time.perf_counter() - start
        print(
            f"{manifest.posts:,} posts ({manifest.empties:,} empty) in {seconds:.1f} s, "
            f"{manifest.posts / seconds:,.0f} posts/s\nindex: {directory}"
        )
    if checkpoint:
        from pipeline.checkpoints import precompute_index

        for folder, size, seconds in precompute_index(directory, checkpoint):
            print(f"precomputed: {folder}, {size / 1e6:,.0f} MB in {seconds:.1f} s")


def _checkpoint(given: str, collection: str | None) -> Path:
    """A folder by its path, or a model's default checkpoint for the collection."""
    from pipeline.checkpoints import default_directory

    if "/" in given or Path(given).is_dir():
        return Path(given)
    return default_directory(given, named.find(collection).key if collection else "all")


def _collection_name(options: Options) -> str | None:
    """The collection to index, or None for own posts; raises UsageError without one of them."""
    names = {name for name in (options.collection, options.topics) if name}
    problems = []
    if len(names) > 1:
        problems.append("--collection and --topics name different collections; give one of them")
    if names and options.posts:
        problems.append("--posts cannot be combined with a collection; give one of them")
    is_there = options.index is not None and options.index.is_dir()
    if not names and not options.posts and not (options.precompute and is_there):
        problems.append("nothing to index: give --posts FILE --index DIR, or --collection NAME")
    if not names and options.posts and options.index is None:
        problems.append("--index DIR is missing: the folder to write the index into")
    if problems:
        raise UsageError(problems)
    return next(iter(names), None)


if __name__ == "__main__":
    run("index")
