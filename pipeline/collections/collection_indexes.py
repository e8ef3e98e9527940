"""The index of a named collection: where it is kept, and how it is built."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.command.errors import DataError, UsageError

if TYPE_CHECKING:
    from indexes.manifest import Manifest
    from pipeline.collections.named import Collection

PROGRAM = "python -m pipeline.index"
"""The command that builds it."""


def collection_directory(collection: "Collection") -> Path:
    """Where the index of a named collection is kept.

    Raises:
        UsageError: its candidates are given, so there is nothing to index.
    """
    from pipeline.collections import named

    directory = named.index_directory(collection)
    if directory is None:
        raise UsageError(
            f"found {collection.name}, expected a collection whose posts are searched: the "
            "candidates of this one are given, and it needs no index "
            f"(python -m pipeline.search --topics {collection.name} ranks them)"
        )
    return directory


def build_collection(
    collection: "Collection", directory: Path, data: Path | None = None
) -> "Manifest":
    """Index a named collection's posts.

    Raises:
        DataError: the collection's files are not there.
        CollectionError: they are malformed, or the index cannot be written.
    """
    from indexes import lucene

    sources = collection.post_sources()
    if missing := [path for path in sources if not path.exists()]:
        raise DataError(
            f"{collection.name}: there is no file {missing[0]}; get it by\n"
            f"  python scripts/fetch_data.py {collection.name}\n"
            "or name the folder of a copy by --data or $TWEETRERANK_DATA"
        )
    words = ["--collection", collection.name, "--index", str(directory)]
    words += ["--data", str(data)] if data else []
    return lucene.build(
        collection.posts(),
        directory,
        sources,
        rebuild=f"{PROGRAM} {shlex.join(words)}",
    )
