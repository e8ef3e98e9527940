"""Build the index for searches of a named collection or of posts from files.

  python -m pipeline.index --collection mb2012
  python -m pipeline.index --collection my-posts.toml
  python -m pipeline.index --posts mon.jsonl.gz --posts tue.jsonl.gz --index my-index
  python -m pipeline.index --collection mb2012 --engine http://localhost:9200
  python -m pipeline.index --index my-index --check

A file of --posts has JSON lines, a JSON array, or a table (.csv, .tsv). It may be
compressed (.gz, .bz2). A post has an "id" or "id_str", a "text" or "contents", and
optionally a "title" and a "url". Name other columns with --columns. The posts of BEIR,
and those of the APIs and exports of Twitter, Mastodon and Bluesky, need no --columns.
A folder in BEIR's form (corpus.jsonl, queries.jsonl, qrels) is a collection.

With --engine, the index is built in OpenSearch or Elasticsearch. If the command was
interrupted, or the engine refused some posts, run it again: it sends only the missing
posts. It never replaces or deletes an index of the engine.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tweetrerank.indexes.manifest import IndexManifest
from tweetrerank.indexes.posts import FIELDS
from tweetrerank.pipeline.collections import named
from tweetrerank.pipeline.collections.collection import Collection
from tweetrerank.pipeline.collections.index_place import IndexPlace
from tweetrerank.pipeline.collections.sources import PostFiles
from tweetrerank.pipeline.command.main import run
from tweetrerank.pipeline.command.options import existing_file, option
from tweetrerank.pipeline.ranking.ranking_options import EngineOptions, engine_of
from tweetrerank.pipeline.usage_error import UsageError


def _columns(text: str) -> dict[str, str]:
    """Parse ``id=tweet_id,text=body`` to a column name for each field of a post.

    Raises ValueError if a part has no ``=``, or if a field is unknown or repeated.
    """
    parts = text.split(",")
    columns = dict(part.split("=", 1) for part in parts if "=" in part)
    if len(columns) != len(parts) or columns.keys() - set(FIELDS):
        expected = f"expected FIELD=NAME,… with {', '.join(FIELDS)}"
        raise ValueError(f"found {text!r}, {expected}")
    return columns


@dataclass(frozen=True)
class Options(EngineOptions):
    """Posts and index."""

    collection: str | None = option(
        "collection to index, by its name or its file; mb2011 and mb2012 share an "
        "index, and so do mb2013 and mb2014",
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
        "names of columns or keys in these files: id=tweet_id,text=body, and also url "
        "and title",
        parse=_columns,
        metavar="FIELD=NAME,…",
    )
    index: Path | None = option(
        "folder to write the index into; an index that is there is replaced (default "
        "for a collection: indexes/GROUP under $TWEETRERANK_HOME)",
        parse=Path,
        metavar="DIR",
    )
    check: bool = option(
        "read the index and compare its checksums; nothing is built", flag=True
    )
    data: Path | None = option(
        "folder of the collections' data (default: $TWEETRERANK_DATA)",
        parse=Path,
        metavar="DIR",
    )


def main(options: Options) -> None:
    """Build an index, or check one with --check."""
    problems = _contradictions(options) + _missing_options(options)
    if problems:
        raise UsageError(problems)
    collection = _collection(options)
    place = collection.place()
    if place.engine:
        _check_engine_options(options, place)
    elif options.index:
        place = place._replace(folder=options.index)
    if options.check:
        _check_index(place)
    else:
        _build(options, collection, place)


def _collection(options: Options) -> Collection:
    """Return the named collection, or an unnamed one made of the files of --posts."""
    engine_options = engine_of(options)
    if options.collection:
        collection = named.find(options.collection, options.data)
        return named.on_engine(collection, engine_options)
    engine = None
    if engine_options:
        engine = named.engine_address(engine_options, None, None)
    source = PostFiles(options.posts, options.columns or {})
    place = IndexPlace("", options.index, engine)
    return Collection("", post_source=source, index=place)


def _check_index(place: IndexPlace) -> None:
    """Compare the checksums of an index. Raises DataError if a file is damaged."""
    manifest = IndexManifest.read(place.directory)
    manifest.check(place.directory, None, whole=True)
    size = f"{sum(manifest.files.values()) / 1e6:,.1f} MB"
    print(f"no damage in {len(manifest.files)} files, {size}\nindex: {place}")


def _build(options: Options, collection: Collection, place: IndexPlace) -> None:
    """Build an index, and print the number of posts, the time and the place."""
    from tweetrerank.pipeline.ranking.frequencies import file_of

    started = time.perf_counter()
    manifest, sent = replace(collection, index=place).build_index()
    if not options.index:
        # Count the words now: the home folder may be read-only later.
        file_of(collection)
    seconds = time.perf_counter() - started
    count = f"{manifest.posts:,} posts ({manifest.empties:,} empty)"
    if place.engine:
        count += f", {sent:,} of them sent"
    rate = f"{sent / seconds:,.0f} posts/s"
    print(f"{count} in {seconds:.1f} s, {rate}\nindex: {place}")


# Options


def _contradictions(options: Options) -> list[str]:
    problems = []
    if options.check and (options.posts or options.engine):
        problems.append(
            "--check changes nothing and reads a local index; give it alone"
        )
    if options.columns and not options.posts:
        problems.append("--columns names columns of --posts; give these")
    if options.collection and options.posts:
        problems.append(
            "--posts cannot be combined with a collection; give one of them"
        )
    return problems


def _missing_options(options: Options) -> list[str]:
    if options.collection:
        return []
    index = options.index
    if not options.posts:
        if options.check and index is not None and index.is_dir():
            return []
        remedy = "give --posts FILE --index DIR, or --collection NAME"
        return [f"nothing to index: {remedy}"]
    if index is None and options.engine is None:
        return ["--index DIR is missing: the folder to write the index into"]
    return []


def _check_engine_options(options: Options, place: IndexPlace) -> None:
    """Check the options for an index in a search engine.

    Raises UsageError if --index or --check is given, or if the collection names an
    existing index that is only searched, not built.
    """
    assert place.engine
    problems = [
        f"--{name}: not with an index in a search engine"
        for name in ("index", "check")
        if getattr(options, name)
    ]
    if problems:
        raise UsageError(problems)
    if not place.engine.has_methods:
        problem = f"{place} is searched as it is, not built"
        raise UsageError(f"{options.collection}: {problem}")


if __name__ == "__main__":
    run("index")
