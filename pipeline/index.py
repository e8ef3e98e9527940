"""Build the index that a search runs on: of a named collection, or of your own posts.

  python -m pipeline.index --collection mb2012
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
from typing import TYPE_CHECKING

from pipeline.collections.collection_indexes import build_collection, collection_directory
from pipeline.command.errors import UsageError
from pipeline.command.main import run
from pipeline.command.options import existing_file, option

if TYPE_CHECKING:
    from indexes.manifest import Manifest


@dataclass(frozen=True)
class Options:
    """What the command line says."""

    collection: str | None = option("name of a collection to index", metavar="NAME")
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
    collection = None
    if name is None:
        assert options.index is not None  # _collection_name has seen to it
        directory = options.index
    else:
        from pipeline.collections import named

        collection = named.find(name, options.data)
        # First of all it says whether the collection has an index.
        usual = collection_directory(collection)
        directory = options.index or usual
    checkpoint = _checkpoint(options.precompute, name)
    if checkpoint is None or options.posts or not directory.is_dir():
        start = time.perf_counter()
        manifest = (
            build_files(options.posts, directory)
            if collection is None
            else build_collection(collection, directory, options.data)
        )
        seconds = time.perf_counter() - start
        print(
            f"{manifest.posts:,} posts ({manifest.empties:,} empty) in {seconds:.1f} s, "
            f"{manifest.posts / seconds:,.0f} posts/s\nindex: {directory}"
        )
    if checkpoint is not None:
        from pipeline import precomputed

        for folder, size, seconds in precomputed.write(directory, checkpoint):
            print(f"precomputed: {folder}, {size / 1e6:,.0f} MB in {seconds:.1f} s")


def _checkpoint(precompute: str | None, collection: str | None) -> Path | None:
    """The folder that ``--precompute`` means."""
    if precompute is None or "/" in precompute or Path(precompute).is_dir():
        return None if precompute is None else Path(precompute)
    from pipeline.checkpoints import default_directory

    return default_directory(precompute, collection or "all")


def build_files(files: "tuple[Path, ...]", directory: Path) -> "Manifest":
    """Index files of posts; raises CollectionError."""
    from indexes import lucene
    from indexes.posts import read_posts

    posts = itertools.chain.from_iterable(map(read_posts, files))
    return lucene.build(posts, directory, files)


def _collection_name(options: Options) -> str | None:
    """The collection to index, or None for own posts.

    Raises:
        UsageError: neither is given, or both, or own posts without a folder.
    """
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
