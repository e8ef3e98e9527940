"""Find the folders of data, indexes and trained models."""

import os
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

import platformdirs

from tweetrerank.indexes.data_error import DataError
from tweetrerank.pipeline.text import say

NO_FILE = Path("general")
"""Pseudo path that means the general word vectors instead of a file of word vectors.

They are those of :func:`tweetrerank.rerankers.text.spaces.general`.
"""


def home_directory() -> Path:
    """Return the folder of files that can be made again, such as indexes.

    It is ``$TWEETRERANK_HOME`` if that is set, else a folder in the user's cache.
    """
    folder = os.environ.get("TWEETRERANK_HOME")
    return Path(folder) if folder else _platform_folder("user_cache_path")


def models_directory() -> Path:
    """Return the folder of trained models.

    It is ``$TWEETRERANK_HOME`` if that is set, else a folder in the user's data.
    """
    folder = os.environ.get("TWEETRERANK_HOME")
    return Path(folder) if folder else _platform_folder("user_data_path")


def data_directory(explicit: Path | None = None) -> Path:
    """Return the folder of the collections' data.

    It is ``explicit`` (of the option ``--data``) if that is given, else
    ``$TWEETRERANK_DATA`` if that is set, else ``data`` in the home folder.
    """
    folder = explicit or os.environ.get("TWEETRERANK_DATA")
    return Path(folder) if folder else home_directory() / "data"


def default_vectors(data: Path | None = None) -> Path:
    """Return the file of the word vectors that models are trained with by default."""
    return data_directory(data) / "embeddings" / "glove.6B.100d.bin.gz"


@cache
def _platform_folder(kind: str) -> Path:
    """Return the platform's folder for one kind of files.

    It is a temporary folder if the platform's folder cannot be written. ``kind`` is the
    name of a function of platformdirs.
    """
    try:
        folder: Path = getattr(platformdirs, kind)("tweetrerank")
    except RuntimeError:
        return _temporary_folder("this user has no home folder")
    ancestors = [folder, *folder.parents]
    nearest = next(path for path in ancestors if path.exists())
    if folder.exists() or os.access(nearest, os.W_OK):
        return folder
    return _temporary_folder(f"{nearest} cannot be written")


def _temporary_folder(reason: str) -> Path:
    """Return this user's folder among the temporary files, and print why it is used.

    Raises DataError if another user owns a folder of that name.
    """
    folder = Path(tempfile.gettempdir(), f"tweetrerank-{os.getuid()}")
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    if folder.stat().st_uid != os.getuid():
        raise DataError(
            f"{folder}: found a folder of another user; set TWEETRERANK_HOME"
        )
    say(f"note: {reason}; {folder} is used, or set TWEETRERANK_HOME")
    return folder
