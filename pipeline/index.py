"""Build the index that a search runs on: of a named collection, or of your own posts.

  python -m pipeline.index --collection mb2012
  python -m pipeline.index --collection my-posts.toml
  python -m pipeline.index --posts monday.jsonl.gz --posts tuesday.jsonl.gz --index my-index
  python -m pipeline.index --collection mb2012 --engine http://localhost:9200
  python -m pipeline.index --index my-index --check

Own posts are JSON lines, a JSON array, or a table (.csv, .tsv), plain or compressed (.gz, .bz2):
"id" or "id_str", "text" or "contents", and optionally "title" and "url"; others are named by
--columns. Posts of BEIR, of Twitter's, Mastodon's and Bluesky's APIs and exports are understood as
they are. A folder in BEIR's form (corpus.jsonl, queries.jsonl, qrels) is a collection.

With --engine the index is one in OpenSearch or Elasticsearch. A run that was interrupted, or whose
posts were partly refused, is repeated: it sends only what is missing. No index there is replaced or
deleted.
"""

import shlex
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from indexes.manifest import IndexManifest
from indexes.posts import FIELDS, Post, read_posts
from pipeline.collections import named
from pipeline.collections.collection import Collection, IndexPlace, engine_options
from pipeline.command.main import run
from pipeline.command.options import existing_file, option
from pipeline.command.ranking import EngineOptions, engine_of
from pipeline.errors import UsageError


def _columns(text: str) -> dict[str, str]:
    """Fields of posts and their columns, from ``id=tweet_id,text=body``."""
    found = dict(part.split("=", 1) for part in text.split(",") if "=" in part)
    if len(found) != len(text.split(",")) or found.keys() - {*FIELDS}:
        raise ValueError(f"found {text!r}, expected FIELD=NAME,… with {', '.join(FIELDS)}")
    return found


@dataclass(frozen=True)
class _LocalOptions:
    """What to index, and where on this machine."""

    collection: str | None = option(
        "collection to index, by its name or its file; mb2011 and mb2012 share an index, and so do "
        "mb2013 and mb2014",
        names=("--collection", "--topics"),
        metavar="NAME|FILE",
    )
    posts: tuple[Path, ...] = option(
        "file of your own posts; may be given several times",
        parse=existing_file,
        many=True,
        metavar="FILE",
    )
    columns: Mapping[str, str] | None = option(
        "names of columns or keys in these files: id=tweet_id,text=body, and also url and title",
        parse=_columns,
        metavar="FIELD=NAME,…",
    )
    index: Path | None = option(
        "folder to write the index into; an index that is there is replaced (default for a "
        "collection: indexes/GROUP under $TWEETRERANK_HOME)",
        parse=Path,
        metavar="DIR",
    )
    check: bool = option("read the index and compare its checksums; nothing is built", flag=True)
    data: Path | None = option(
        "folder of the collections' data (default: $TWEETRERANK_DATA)", parse=Path, metavar="DIR"
    )


@dataclass(frozen=True)
class Options(EngineOptions, _LocalOptions):
    """The same, or where in a search engine."""


def main(options: Options) -> None:
    """Build an index, and report its size and the time."""
    _check_options(options)
    collection = named.find(options.collection, options.data) if options.collection else None
    place = collection.place() if collection else None
    given = engine_of(options)
    if given or (collection and collection.engine):
        _build_in_engine(options, collection, given)
        return
    directory = options.index or (place.directory if place else Path())
    if options.check:
        _check(directory)
        return
    _build(options, directory, collection)


def _check_options(options: Options) -> None:
    """Raise UsageError for options that do not fit."""
    name, posts, index = options.collection, options.posts, options.index
    reads = index is not None and index.is_dir() and options.check
    rules = {
        "--check changes nothing and reads a local index; give it alone": options.check
        and (posts or options.engine),
        "--columns names columns of --posts; give these": options.columns and not posts,
        "--posts cannot be combined with a collection; give one of them": name and posts,
        "nothing to index: give --posts FILE --index DIR, or --collection NAME": not (
            name or posts or reads
        ),
        "--index DIR is missing: the folder to write the index into": (
            not name and posts and index is None and options.engine is None
        ),
    }
    if problems := [problem for problem, is_there in rules.items() if is_there]:
        raise UsageError(problems)


def _build(options: Options, directory: Path, collection: Collection | None) -> None:
    """Build an index on this machine, and report its posts."""
    import indexes

    start = time.perf_counter()
    if collection:
        manifest = collection.build_index(directory)
    else:
        place = shlex.join(["--index", str(directory.absolute())])
        rebuild = _rebuild(options, place)
        manifest = indexes.build(_posts(options), directory, options.posts, rebuild)
    seconds = time.perf_counter() - start
    print(
        f"{manifest.posts:,} posts ({manifest.empties:,} empty) in {seconds:.1f} s, "
        f"{manifest.posts / seconds:,.0f} posts/s\nindex: {directory}"
    )


def _build_in_engine(
    options: Options, collection: Collection | None, given: dict[str, Any]
) -> None:
    """Fill the index in a search engine, and report its posts."""
    local = ("index", "check")
    if problems := [
        f"--{name}: not with an index in a search engine"
        for name in local
        if getattr(options, name)
    ]:
        raise UsageError(problems)
    start = time.perf_counter()
    if collection:
        collection = named.on_engine(collection, given)
        address = collection.engine
        assert address is not None
        if not address.has_methods:
            raise UsageError(f"{collection.title}: {address} is searched as it is, not built")
        manifest, sent = collection.build_engine_index()
    else:
        from indexes.engines.layout import build

        address = named.engine_address(given, None, None)
        rebuild = _rebuild(options, engine_options(address))
        directory = IndexPlace(engine=address).directory
        manifest, sent = build(address, _posts(options), options.posts, directory, rebuild)
    seconds = time.perf_counter() - start
    print(
        f"{manifest.posts:,} posts ({manifest.empties:,} empty), {sent:,} of them sent in "
        f"{seconds:.1f} s, {sent / seconds:,.0f} posts/s\nindex: {address}"
    )


def _posts(options: Options) -> Iterator[Post]:
    return (post for path in options.posts for post in read_posts(path, options.columns))


def _rebuild(options: Options, place: str) -> str:
    """The command that builds an index of one's own posts, with the options that say where."""
    words = [word for path in options.posts for word in ("--posts", str(path.absolute()))]
    if options.columns:
        words += ["--columns", ",".join(map("=".join, options.columns.items()))]
    return f"python -m pipeline.index {shlex.join(words)} {place}"


def _check(directory: Path) -> None:
    manifest = IndexManifest.read(directory)
    manifest.check(directory, None, whole=True)
    size = sum(manifest.files.values())
    print(f"no damage in {len(manifest.files)} files, {size / 1e6:,.1f} MB\nindex: {directory}")


if __name__ == "__main__":
    run("index")
