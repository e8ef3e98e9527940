"""What the readers of text files in this package share."""

from collections.abc import Iterator
from pathlib import Path

from indexes import lines
from indexes.errors import CollectionError
from pipeline.command.errors import DataError


def numbered_lines(path: Path | str) -> Iterator[tuple[int, str]]:
    """As :func:`indexes.lines.numbered_lines`, with this package's error.

    Raises:
        DataError: the file is not there, is not UTF-8, or its compressed data are cut off.
    """
    try:
        yield from lines.numbered_lines(path)
    except CollectionError as error:
        raise DataError(str(error)) from None


def short(text: str) -> str:
    """A text in quotes for a message, cut off if long."""
    return repr(text if len(text) <= 60 else f"{text[:60]}…")
