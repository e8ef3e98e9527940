"""Build the index that a search runs on: of a named collection, or of your own posts.

  python -m pipeline.index --collection mb2012
  python -m pipeline.index --collection my-posts.toml
  python -m pipeline.index --posts monday.jsonl.gz --posts tuesday.jsonl.gz --index my-index
  python -m pipeline.index --index my-index --add wednesday.jsonl.gz thursday.jsonl.gz
  python -m pipeline.index --collection my-posts.toml --add wednesday.jsonl.gz
  python -m pipeline.index --collection mb2012 --engine http://localhost:9200
  python -m pipeline.index --index my-index --remove 1042,1077
  python -m pipeline.index --index my-index --check

Own posts are JSON lines, plain or compressed (.gz, .bz2): "id" or "id_str", "text" or "contents",
and optionally "title" and "url"; posts in the form of BEIR or of Twitter's API are understood as
they are. A folder in BEIR's form (corpus.jsonl, queries.jsonl, qrels) is a collection.

With --add and --remove an index is changed, that of an own collection too; the files that it was
built from are not read again. It is still the collection's index, whether or not the collection's
file names the added posts. Building it anew reads the files that are named, and nothing else.
Searches see the old index until the new one is complete, and an interruption leaves the old one. A
changed index gives the same results as one built from the resulting posts.

With --engine the index is one in OpenSearch or Elasticsearch. A run that was interrupted, or whose
posts were partly refused, is repeated: it sends only what is missing. No index there is replaced or
deleted.
"""

import itertools
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from indexes.lines import numbered_lines, short
from indexes.manifest import IndexManifest
from indexes.posts import is_doc_id
from pipeline.collections import named
from pipeline.collections.collection import (
    AnswerCollection,
    SearchedCollection,
    engine_directory,
    engine_options,
)
from pipeline.command.errors import DataError, UsageError
from pipeline.command.main import run
from pipeline.command.options import existing_file, option
from pipeline.command.ranking import EngineOptions, engine_of


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
    index: Path | None = option(
        "folder to write the index into; an index that is there is replaced (default for a "
        "collection: indexes/GROUP under $TWEETRERANK_HOME)",
        parse=Path,
        metavar="DIR",
    )
    add: tuple[Path, ...] = option(
        "files of posts to add to the index --index, or to that of the own collection",
        parse=existing_file,
        many=True,
        following=True,
        metavar="FILE",
    )
    remove: str | None = option(
        "posts to remove from it (before others are added): a file of ids, one a line, or ids "
        "separated by commas",
        metavar="IDS",
    )
    replace: bool = option("added posts replace those with the same id", flag=True)
    check: bool = option("read the index and compare its checksums; nothing is built", flag=True)
    data: Path | None = option(
        "folder of the collections' data (default: $TWEETRERANK_DATA)", parse=Path, metavar="DIR"
    )


@dataclass(frozen=True)
class Options(EngineOptions, _LocalOptions):
    """The same, or where in a search engine."""


def main(options: Options) -> None:
    """Build or change an index, and report sizes and times."""
    is_change = bool(options.add) or options.remove is not None
    _check_options(options, is_change)
    collection = named.find(options.collection, options.data) if options.collection else None
    if isinstance(collection, AnswerCollection):
        raise collection.not_searched()
    given = engine_of(options)
    if given or (collection and collection.engine):
        _build_in_engine(options, collection, given)
        return
    directory = options.index or (collection.index_directory if collection else Path())
    if options.check:
        _check(directory)
        return
    if is_change and collection:
        _check_own(collection, directory)
    if is_change:
        _change(options, directory, collection)
    else:
        _build(options, directory, collection)


def _check_options(options: Options, is_change: bool) -> None:
    """Raise UsageError for options that do not fit."""
    name, posts, index = options.collection, options.posts, options.index
    reads = index is not None and index.is_dir() and options.check
    rules = {
        "--check changes nothing and reads a local index; give it alone": options.check
        and (is_change or posts or options.engine),
        "--index DIR or --collection FILE is missing: the index to change by --add or --remove": (
            is_change and index is None and not name
        ),
        "--add and --remove change an index; they cannot be combined with --posts": (
            is_change and posts
        ),
        "--replace needs --add FILE": options.replace and not options.add,
        "--posts cannot be combined with a collection; give one of them": name and posts,
        "nothing to index: give --posts FILE --index DIR, or --collection NAME": not (
            name or posts or is_change or reads or options.replace
        ),
        "--index DIR is missing: the folder to write the index into": (
            not name and posts and index is None and options.engine is None
        ),
    }
    if problems := [problem for problem, is_there in rules.items() if is_there]:
        raise UsageError(problems)


def _build(options: Options, directory: Path, collection: SearchedCollection | None) -> None:
    """Build an index on this machine, and report its posts."""
    from indexes import lucene
    from indexes.posts import read_posts

    start = time.perf_counter()
    if collection:
        manifest = collection.build_index(directory)
    else:
        posts = itertools.chain.from_iterable(map(read_posts, options.posts))
        place = shlex.join(["--index", str(directory.absolute())])
        manifest = lucene.build(posts, directory, options.posts, _rebuild(options.posts, place))
    seconds = time.perf_counter() - start
    print(
        f"{manifest.posts:,} posts ({manifest.empties:,} empty) in {seconds:.1f} s, "
        f"{manifest.posts / seconds:,.0f} posts/s\nindex: {directory}"
    )


def _build_in_engine(
    options: Options, collection: SearchedCollection | None, given: dict[str, Any]
) -> None:
    """Fill the index in a search engine, and report its posts."""
    local = ("index", "add", "remove", "check")
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
        from indexes.engines.building import build
        from indexes.posts import read_posts

        address = named.engine_address(given, None, None)
        posts = itertools.chain.from_iterable(map(read_posts, options.posts))
        rebuild = _rebuild(options.posts, engine_options(address))
        directory = engine_directory(address)
        manifest, sent = build(address, posts, options.posts, directory, rebuild)
    seconds = time.perf_counter() - start
    print(
        f"{manifest.posts:,} posts ({manifest.empties:,} empty), {sent:,} of them sent in "
        f"{seconds:.1f} s, {sent / seconds:,.0f} posts/s\nindex: {address}"
    )


def _rebuild(posts: Sequence[Path], place: str) -> str:
    """The command that builds an index of one's own posts, with the options that say where."""
    words = [word for path in posts for word in ("--posts", str(path.absolute()))]
    return f"python -m pipeline.index {shlex.join(words)} {place}"


def _check_own(own: SearchedCollection, directory: Path) -> None:
    """Raise an error for a collection whose index is not to be changed, or not there."""
    if own.file is None:
        raise UsageError(
            f"--add and --remove: found {own.name}, expected the file of an own collection "
            "(my-posts.toml) or --index DIR: the posts of a named collection are always the same"
        )
    if not directory.exists():
        raise DataError(
            f"{directory}: there is no index of {own.title} yet; build it with\n"
            f"  python -m pipeline.index --collection {shlex.quote(str(own.file))}"
        )


def _change(options: Options, directory: Path, own: SearchedCollection | None) -> None:
    """Remove posts, add posts, and report their numbers."""
    from indexes.changes import change

    start = time.perf_counter()
    doc_ids, before = _doc_ids(options.remove or ""), IndexManifest.read(directory)
    after = change(
        directory,
        _command(options, directory, own),
        options.add,
        doc_ids,
        replace=options.replace,
    )
    if after.changes == before.changes:
        print(f"nothing to change: {after.posts:,} posts\nindex: {directory}")
        return
    done = after.changes[-1]
    print(
        f"{done.added:,} posts added, {done.replaced:,} replaced, {done.removed:,} removed in "
        f"{time.perf_counter() - start:.1f} s: {after.posts:,} posts ({after.empties:,} empty)\n"
        f"index: {directory}"
    )
    if own:
        _tell_of_differences(options, own, done.removed)


def _tell_of_differences(options: Options, own: SearchedCollection, removed: int) -> None:
    """Say what an index built anew from the collection's files would have, or lack."""
    files = {path.resolve() for path in own.post_files()}
    if unnamed := [str(path) for path in options.add if path.resolve() not in files]:
        print(
            f"note: {own.file} does not name {', '.join(unnamed)}; add it to posts there, so that "
            "the posts are not lost when the index is built anew",
            file=sys.stderr,
        )
    if removed:
        print(
            "note: removed posts that are still in the files of the collection come back when the "
            "index is built anew",
            file=sys.stderr,
        )


def _check(directory: Path) -> None:
    manifest = IndexManifest.read(directory)
    manifest.check(directory, None)
    manifest.check_content(directory)
    size = sum(manifest.files.values())
    print(f"no damage in {len(manifest.files)} files, {size / 1e6:,.1f} MB\nindex: {directory}")


def _command(options: Options, directory: Path, own: SearchedCollection | None) -> str:
    """The command that repeats a change of an index, for its manifest."""
    words = ["--collection", str(own.file.absolute())] if own and own.file else []
    words += ["--index", str(directory.absolute())]
    if options.add:
        words += ["--add", *(str(path.absolute()) for path in options.add)]
    if options.remove is not None:
        path = Path(options.remove)
        words += ["--remove", str(path.absolute()) if _is_file(path) else options.remove]
    words += ["--replace"] * options.replace
    return shlex.join(["python", "-m", "pipeline.index", *words])


def _doc_ids(given: str) -> list[str]:
    """The ids in a file, one a line, or separated by commas."""
    path = Path(given)
    if not _is_file(path):
        return [doc_id for part in given.split(",") if (doc_id := part.strip())]
    doc_ids = []
    for number, line in numbered_lines(path):
        if not (doc_id := line.strip()):
            continue
        if not is_doc_id(doc_id):
            raise DataError(f"{path}:{number}: found {short(line)}, expected one id")
        doc_ids.append(doc_id)
    return doc_ids


def _is_file(path: Path) -> bool:
    """Whether there is such a file; a long list of ids is no valid path."""
    try:
        return path.is_file()
    except OSError:
        return False


if __name__ == "__main__":
    run("index")
