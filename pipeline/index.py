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
    """Fields of posts and their columns, from ``id=tweet_id,text=body``."""
    found = dict(part.split("=", 1) for part in text.split(",") if "=" in part)
    if len(found) != len(text.split(",")) or found.keys() - {*FIELDS}:
        raise ValueError(
            f"found {text!r}, expected FIELD=NAME,… with {', '.join(FIELDS)}"
        )
    return found


@dataclass(frozen=True)
class Options(EngineOptions):
    """Posts and index."""

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
    check: bool = option(
        "read the index and compare its checksums; nothing is built", flag=True
    )
    data: Path | None = option(
        "folder of the collections' data (default: $TWEETRERANK_DATA)",
        parse=Path,
        metavar="DIR",
    )


def main(options: Options) -> None:
    """Build an index, and report its size and the time."""
    _check_options(options)
    given = engine_of(options)
    if options.collection:
        collection = named.on_engine(
            named.find(options.collection, options.data), given
        )
    else:
        engine = named.engine_address(given, None, None) if given else None
        source = PostFiles(options.posts, options.columns or {})
        collection = Collection(
            "", post_source=source, index=IndexPlace("", options.index, engine)
        )
    if (place := collection.place()).engine:
        problem = "--{}: not with an index in a search engine"
        if wrong := [
            problem.format(n) for n in ("index", "check") if getattr(options, n)
        ]:
            raise UsageError(wrong)
        if not place.engine.has_methods:
            raise UsageError(
                f"{options.collection}: {place} is searched as it is, not built"
            )
    elif options.index:
        place = place._replace(folder=options.index)
    if options.check:
        manifest = IndexManifest.read(place.directory)
        manifest.check(place.directory, None, whole=True)
        size = f"{sum(manifest.files.values()) / 1e6:,.1f} MB"
        print(f"no damage in {len(manifest.files)} files, {size}\nindex: {place}")
        return
    from tweetrerank.pipeline.ranking.frequencies import file_of

    start = time.perf_counter()
    manifest, sent = replace(collection, index=place).build_index()
    if not options.index:  # The home folder, which may be read-only later
        file_of(collection)
    seconds = time.perf_counter() - start
    of_them = f", {sent:,} of them sent" if place.engine else ""
    print(
        f"{manifest.posts:,} posts ({manifest.empties:,} empty){of_them} in {seconds:.1f} s, "
        f"{sent / seconds:,.0f} posts/s\nindex: {place}"
    )


def _check_options(options: Options) -> None:
    """Raise UsageError for options that do not fit."""
    name, posts, index = options.collection, options.posts, options.index
    reads = index is not None and index.is_dir() and options.check
    rules = {
        "--check changes nothing and reads a local index; give it alone": options.check
        and (posts or options.engine),
        "--columns names columns of --posts; give these": options.columns and not posts,
        "--posts cannot be combined with a collection; give one of them": name
        and posts,
        "nothing to index: give --posts FILE --index DIR, or --collection NAME": not (
            name or posts or reads
        ),
        "--index DIR is missing: the folder to write the index into": (
            not name and posts and index is None and options.engine is None
        ),
    }
    if problems := [problem for problem, is_there in rules.items() if is_there]:
        raise UsageError(problems)


if __name__ == "__main__":
    run("index")
