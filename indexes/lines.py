"""Numbered lines of UTF-8 text files, plain or compressed, with errors that name the line."""

import bz2
import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from indexes.errors import CollectionError


def numbered_lines(path: Path | str) -> Iterator[tuple[int, str]]:
    """Yield (number from 1, line without its line end); only ``\\n`` and ``\\r\\n`` end a line.

    ``.gz`` and ``.bz2`` files are unpacked on the way.

    Raises:
        CollectionError: the file is not there, is not UTF-8, or its compressed data are broken
            or cut off.
    """
    number = 0
    try:
        with _open(Path(path)) as stream:
            for number, raw in enumerate(stream, start=1):
                yield number, _decode(raw, f"{path}:{number}", first=number == 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise _broken(path, number, error) from None
    except OSError as error:
        # bz2 reports broken data as an OSError without a number; real ones (no such file) have one.
        if error.errno is None:
            raise _broken(path, number, error) from None
        raise CollectionError(f"{path}: cannot be read: {error.strerror}") from None


def _open(path: Path) -> IO[bytes] | gzip.GzipFile:
    match path.suffix.lower():
        case ".gz":
            return gzip.open(path, "rb")
        case ".bz2":
            return bz2.open(path, "rb")
        case _:
            return path.open("rb")


def _decode(raw: bytes, where: str, first: bool) -> str:
    try:
        text = raw.decode("utf-8-sig" if first else "utf-8")
    except UnicodeDecodeError as error:
        raise CollectionError(
            f"{where}: found the byte 0x{raw[error.start]:02x} at column {error.start + 1}, "
            "expected UTF-8 text (a compressed file must have a name that ends in .gz or .bz2)"
        ) from None
    return text.removesuffix("\n").removesuffix("\r")


def _broken(path: Path | str, number: int, error: Exception) -> CollectionError:
    after = f" after line {number}" if number else ""
    return CollectionError(
        f"{path}: the compressed data are broken or cut off{after} ({error}); "
        "get a whole copy of the file"
    )
