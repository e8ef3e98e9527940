"""Folders of data, indexes and trained checkpoints."""

import os
from collections.abc import Sequence
from pathlib import Path

from pipeline.command.errors import DataError


def home_directory() -> Path:
    """Folder of built indexes and trained checkpoints.

    ``$TWEETRERANK_HOME``, or else the user's cache folder.
    """
    if given := os.environ.get("TWEETRERANK_HOME"):
        return Path(given)
    from platformdirs import user_cache_path

    return user_cache_path("tweetrerank")


def data_directory(explicit: Path | None = None) -> Path:
    """Folder of the collections' data.

    ``explicit`` (from ``--data``), or ``$TWEETRERANK_DATA``, or ``data`` in the home folder.
    """
    if explicit is not None:
        return explicit
    if given := os.environ.get("TWEETRERANK_DATA"):
        return Path(given)
    return home_directory() / "data"


def require_files(collection: str, missing: Sequence[Path]) -> None:
    """Say how to get the files of a collection that are missing.

    Raises:
        DataError: there are some.
    """
    if missing:
        more = f" and {len(missing) - 1} more" if missing[1:] else ""
        raise DataError(
            f"{collection}: {missing[0]}{more} not found; fetch the data with\n"
            f"  python scripts/fetch_data.py {collection}\n"
            "or name a folder that has them by --data or TWEETRERANK_DATA"
        )
