"""Numbered lines of UTF-8 text files, plain or compressed; errors name file and line."""

import bz2
import gzip
import itertools
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from indexes.errors import CollectionError


def numbered_lines(
    path: Path | str, error_type: type[Exception] = CollectionError
) -> Iterator[tuple[int, str]]:
    """Yield (number from 1, line without its line end); only ``\\n`` and ``\\r\\n`` end a line.

    ``.gz`` and ``.bz2`` files are decompressed; a byte order mark is skipped.

    Raises:
        error_type: the file is missing or not UTF-8, or its compressed data are damaged.
    """
    number = 0
    try:
        with _open(Path(path)) as stream:
            for number, raw in enumerate(stream, start=1):
                text = raw.decode("utf-8-sig" if number == 1 else "utf-8")
                yield number, text.removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise error_type(
            f"{path}:{number}: found the byte 0x{error.object[error.start]:02x} at column "
            f"{error.start + 1}, expected UTF-8 text (a compressed file must have a name that ends "
            "in .gz or .bz2)"
        ) from None
    except (OSError, EOFError, zlib.error) as error:
        # The errors of damaged data, among them gzip's and bz2's OSErrors, have no errno.
        if isinstance(error, OSError) and error.errno is not None:
            raise error_type(f"{path}: cannot be read: {error.strerror}") from None
        after = f" after line {number}" if number else ""
        raise error_type(
            f"{path}: the compressed data are broken or cut off{after} ({error}); "
            "get a whole copy of the file"
        ) from None


def parallel_lines(
    folder: Path | str, required: Sequence[str], optional: Sequence[str] = ()
) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield (number from 1, file name -> line) from the parallel files of a folder.

    Optional files may be absent, and are then absent in the result.

    Raises:
        CollectionError: a file is missing, or has more or fewer lines than the others.
    """
    folder = Path(folder)
    missing = [name for name in required if not (folder / name).exists()]
    if missing:
        raise CollectionError(
            f"{folder}: found no {', no '.join(missing)}; expected {list(required)}"
        )
    present = [*required, *(name for name in optional if (folder / name).exists())]
    streams = [numbered_lines(folder / name) for name in present]
    for number, lines in enumerate(itertools.zip_longest(*streams), start=1):
        if None in lines:
            ended = present[lines.index(None)]
            raise CollectionError(
                f"{folder / ended}: found {number - 1} lines, expected as many as in the parallel "
                "files beside it"
            )
        yield number, {name: line for name, (_, line) in zip(present, lines, strict=True)}


def listed(names: Sequence[str], most: int = 3) -> str:
    """The first of some names, and the number of the others, for messages."""
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if names[most:] else "")


def short(text: str) -> str:
    """The beginning of a text in quotes, for messages."""
    text = text.strip()
    return repr(text if len(text) <= 60 else text[:59] + "…")


def _open(path: Path) -> IO[bytes] | gzip.GzipFile:
    match path.suffix.lower():
        case ".gz":
            return gzip.open(path, "rb")
        case ".bz2":
            return bz2.open(path, "rb")
        case _:
            return path.open("rb")
