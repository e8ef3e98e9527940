"""Where things live on disk."""

import os
from pathlib import Path


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
