"""Fetching the files of ``catalogue.json``: resumed, retried, checked by SHA-256, never half there.

A file is downloaded to ``NAME.part`` beside its place and moved there once its hash is right. What
an interruption leaves is the ``.part``, which the next attempt continues.
"""

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.command.errors import DataError, UsageError
from pipeline.command.options import did_you_mean

CATALOGUE = Path(__file__).parent / "catalogue.json"
BLOCK = 1 << 16
"""Bytes read at a time."""


@dataclass(frozen=True)
class Entry:
    """One file of the catalogue.

    Attributes:
        path: place under the data folder.
        size: in bytes.
        sha256: of the whole file, hexadecimal.
        groups: collections that need it.
        url: where it is published, or None if it must be put in place by hand.
    """

    path: str
    size: int
    sha256: str
    groups: tuple[str, ...]
    url: str | None


@dataclass(frozen=True)
class Patience:
    """How long to try.

    Attributes:
        attempts: at each file.
        timeout: seconds without a byte before an attempt is given up.
        pause: seconds before the second attempt; doubled before each further one.
    """

    attempts: int = 5
    timeout: float = 30.0
    pause: float = 1.0


class _TryAgainError(Exception):
    """An attempt failed in a way that the next one may not."""


@cache
def catalogue() -> tuple[Entry, ...]:
    """All files that can be fetched."""
    rows = json.loads(CATALOGUE.read_text(encoding="utf-8"))["files"]
    return tuple(Entry(**{**row, "groups": tuple(row["groups"])}) for row in rows)


def terms() -> dict[str, str]:
    """Group (or the beginning of its name) -> the terms of use of its files."""
    content: dict[str, str] = json.loads(CATALOGUE.read_text(encoding="utf-8"))["terms"]
    return content


def select(names: Sequence[str]) -> list[Entry]:
    """The files of the named collections (``mb2011``, ``mb11``, ``trecqa``, …), or all of them.

    Raises:
        UsageError: naming every name that is unknown.
    """
    groups = sorted({group for entry in catalogue() for group in entry.groups})
    aliases = {f"mb{group[-2:]}": group for group in groups if group.startswith("mb")}
    wanted = {aliases.get(name, name) for name in names}
    if unknown := sorted(wanted - set(groups)):
        raise UsageError(
            [f"found the name {name!r}, expected one of {', '.join(groups)}"
             + did_you_mean(name, [*groups, *aliases]) for name in unknown]
        )  # fmt: skip
    return [entry for entry in catalogue() if not names or wanted & set(entry.groups)]


def state(entry: Entry, folder: Path) -> str:
    """``present``, ``missing`` or what is wrong with the file that is there."""
    path = folder / entry.path
    if not path.is_file():
        return "missing"
    size = path.stat().st_size
    if size != entry.size:
        return f"damaged: found {size} bytes, expected {entry.size}"
    found = _hash_of(path)
    if found != entry.sha256:
        return f"damaged: found the SHA-256 {found}, expected {entry.sha256}"
    return "present"


def fetch_all(
    entries: Iterable[Entry], folder: Path, patience: Patience | None = None
) -> tuple[int, list[str]]:
    """Fetch what is not there yet, with a progress bar on a terminal.

    Returns:
        The number of files fetched, and a sentence for each that could not be.
    """
    from tqdm import tqdm

    wanted = [entry for entry in entries if state(entry, folder) != "present"]
    failures, fetched = [], 0
    total = sum(entry.size for entry in wanted if entry.url)
    with tqdm(total=total, unit="B", unit_scale=True, disable=None) as bar:
        for entry in wanted:
            bar.set_description(entry.path, refresh=False)
            try:
                fetch(entry, folder, patience or Patience(), bar.update)
                fetched += 1
            except DataError as error:
                failures.append(str(error))
    return fetched, failures


def fetch(
    entry: Entry,
    folder: Path,
    patience: Patience,
    progress: Callable[[int], Any] = lambda size: None,
) -> None:
    """Download one file to its place under ``folder``.

    Args:
        progress: called with the number of bytes of each block.

    Raises:
        DataError: it cannot be had; the message says where a local copy may be put instead.
    """
    place = folder / entry.path
    if entry.url is None:
        raise DataError(f"{entry.path} is not published; put your copy at {place}")
    place.parent.mkdir(parents=True, exist_ok=True)
    part = place.with_name(place.name + ".part")
    reason = ""
    for attempt in range(patience.attempts):
        if attempt:
            time.sleep(patience.pause * 2 ** (attempt - 1))
        try:
            _download(entry.url, part, entry.size, patience.timeout, progress)
            _accept(entry, part, place)
            return
        except _TryAgainError as error:
            reason = str(error)
    raise DataError(
        f"{entry.url}: {reason} (after {patience.attempts} attempts); try again later, or put "
        f"your own copy at {place}"
    )


def _download(
    url: str, part: Path, size: int, timeout: float, progress: Callable[[int], Any]
) -> None:
    """Continue ``part`` to the whole file, or begin anew if the server cannot continue it."""
    import requests

    begun = part.stat().st_size if part.exists() else 0
    if begun > size:
        part.unlink()
        begun = 0
    if begun == size:
        return
    headers = {"Range": f"bytes={begun}-"} if begun else {}
    # Compression on the way would make lengths and ranges mean something else.
    headers["Accept-Encoding"] = "identity"
    try:
        with requests.get(url, headers=headers, stream=True, timeout=timeout) as answer:
            if answer.status_code not in (200, 206):
                raise _TryAgainError(f"the server answered {answer.status_code} {answer.reason}")
            continued = answer.status_code == 206
            with part.open("ab" if continued else "wb") as stream:
                for block in answer.iter_content(BLOCK):
                    stream.write(block)
                    progress(len(block))
                    if stream.tell() > size:
                        break
                stream.flush()
                os.fsync(stream.fileno())
    except requests.RequestException as error:
        raise _TryAgainError(f"the download broke off: {error}") from None


def _accept(entry: Entry, part: Path, place: Path) -> None:
    """Move a finished download to its place if it is what the catalogue says."""
    size = part.stat().st_size
    if size < entry.size:
        raise _TryAgainError(f"found {size} bytes, expected {entry.size}: the download was cut off")
    found = _hash_of(part)
    if size != entry.size or found != entry.sha256:
        part.unlink()
        raise _TryAgainError(f"found other content (SHA-256 {found}), expected {entry.sha256}")
    part.replace(place)


def _hash_of(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
