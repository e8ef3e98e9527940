"""Download of the files of ``catalogue.json``: resumed, retried, checked by SHA-256, atomic.

A file is downloaded to ``NAME.part`` beside its path and renamed once its hash is right. After an
interruption the next attempt continues the ``.part`` file.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from indexes.files import sha256_of
from pipeline.errors import DataError, UsageError
from pipeline.text import did_you_mean

CATALOGUE = Path(__file__).parent / "catalogue.json"
BLOCK = 1 << 16  # Bytes read at a time
CONNECT = 4.0  # Seconds for a connection, at most


class Cut(NamedTuple):
    """A file of word vectors that is made of an archive: its path below the data folder.

    It has the vectors of ``size`` dimensions; of ``plain`` words alone, see
    ``tweetrerank fetch``.
    """

    path: str
    size: int
    plain: bool = False


class Entry(NamedTuple):
    """One file of the catalogue."""

    path: str  # Below the data folder
    size: int  # In bytes
    sha256: str  # Of the whole file, hexadecimal
    groups: tuple[str, ...]  # Collections that need it
    url: str | None  # Address of the published file; None for a file to be put there by hand
    cuts: tuple[Cut, ...] = ()
    """Smaller files that are made of it. Once all are there, the entry is not needed."""

    def missing_cuts(self, folder: Path) -> list[Cut]:
        """Those of ``cuts`` that are not in the data folder."""
        return [cut for cut in self.cuts if not (folder / cut.path).is_file()]


class Patience(NamedTuple):
    """Limits of retries: seconds without data (``timeout``) end an attempt.

    The pause before the second attempt, in seconds, is doubled before each further one. A host is
    given up after ``unreached`` attempts that did not reach it.
    """

    attempts: int = 5
    timeout: float = 30.0
    pause: float = 1.0
    unreached: int = 3


PATIENCE = Patience()


class _TryAgainError(Exception):
    """An attempt failed, but the next one may succeed."""


class UnreachableError(DataError):
    """The host of a file cannot be reached; that of other files may be."""


@cache
def content() -> dict[str, Any]:
    """Collections and their files, and the terms of use of these by prefix of their groups."""
    found: dict[str, Any] = json.loads(CATALOGUE.read_text(encoding="utf-8"))
    return found


@cache
def catalogue() -> tuple[Entry, ...]:
    """All files that can be fetched."""
    entries = []
    for row in content()["files"]:
        cuts = tuple(Cut(*cut) for cut in row.get("cuts", ()))
        entries.append(Entry(**{**row, "groups": tuple(row["groups"]), "cuts": cuts}))
    return tuple(entries)


def by_hand(path: Path) -> str:
    """How to make the file ``path`` of a data folder; "" for one that can be fetched."""
    notes = content()["by_hand"].items()
    found = (note for folder, note in notes if path.parent.match(folder))
    return f"it is not published: {note}" if (note := next(found, "")) else ""


def select(names: Sequence[str]) -> list[Entry]:
    """The files of the named collections (``mb2011``, ``mb11``, ``trecqa``, …), or all of them."""
    groups = sorted({group for entry in catalogue() for group in entry.groups})
    aliases = {f"mb{group[-2:]}": group for group in groups if group.startswith("mb")}
    wanted = {aliases.get(name, name) for name in names}
    if unknown := sorted(wanted - set(groups)):
        expected = f"expected one of {', '.join(groups)}"
        known = [*groups, *aliases]
        raise UsageError(
            [f"found the name {name!r}, {expected}{did_you_mean(name, known)}" for name in unknown]
        )
    return [entry for entry in catalogue() if not names or wanted & set(entry.groups)]


def state(entry: Entry, folder: Path) -> str:
    """``present`` (itself, or all that is cut from it), ``missing`` or what is damaged."""
    path = folder / entry.path
    if not path.is_file():
        return "present" if entry.cuts and not entry.missing_cuts(folder) else "missing"
    size = path.stat().st_size
    if size != entry.size:
        return f"damaged: found {size} bytes, expected {entry.size}"
    found = sha256_of(path)
    if found != entry.sha256:
        return f"damaged: found the SHA-256 {found}, expected {entry.sha256}"
    return "present"


def fetch_all(
    entries: Iterable[Entry], folder: Path, patience: Patience = PATIENCE
) -> tuple[int, list[str]]:
    """Fetch missing and damaged files, with a line for each on stderr.

    Returns:
        The number of fetched files, and a message for each failure. Files of hosts that cannot be
        reached have one message.
    """
    from tqdm import tqdm

    wanted = [entry for entry in entries if state(entry, folder) != "present"]
    fetched, failures = 0, list[str]()
    unreachable: dict[str, UnreachableError] = {}  # host -> error
    total = sum(entry.size for entry in wanted if entry.url)
    with tqdm(total=total, unit="B", unit_scale=True, disable=None) as bar:
        for number, entry in enumerate(wanted, start=1):
            if _host(entry) in unreachable:
                continue
            bar.set_description(entry.path, refresh=False)
            try:
                fetch(entry, folder, patience, bar.update, bar.set_postfix_str)
                fetched += 1
                line = f"{number} of {len(wanted)}: {entry.path} ({entry.size / 1e6:.1f} MB)"
                tqdm.write(line, file=sys.stderr)
            except UnreachableError as error:
                unreachable[_host(entry)] = error
            except DataError as error:
                failures.append(str(error))
    for host, problem in unreachable.items():
        lost = sum(_host(each) == host for each in wanted)
        failures.append(
            f"{problem}: {lost} files are missing. Try again later, or put them into {folder} by "
            "hand; --list shows their paths and addresses"
        )
    # Files of a folder that are made by hand have the same message.
    return fetched, list(dict.fromkeys(failures))


def _host(entry: Entry) -> str:
    return urlsplit(entry.url or "").netloc


def fetch(
    entry: Entry,
    folder: Path,
    patience: Patience,
    progress: Callable[[int], Any] = lambda size: None,
    say: Callable[[str], Any] = lambda message: None,
) -> None:
    """Download one file to its path below ``folder``.

    ``progress`` is called with the number of bytes of each block, ``say`` before each further
    attempt.

    Raises:
        UnreachableError: the host cannot be reached.
        DataError: all attempts failed; the message has the path for a copy by hand.
    """
    place = folder / entry.path
    if entry.url is None:
        note = by_hand(place)
        raise DataError(
            f"{place.parent}: {note}" if note else f"{place}: not published, put your copy there"
        )
    place.parent.mkdir(parents=True, exist_ok=True)
    part = place.with_name(place.name + ".part")
    reason, lost = "", 0
    for attempt in range(patience.attempts):
        if attempt:
            pause = patience.pause * 2 ** (attempt - 1)
            say(f"{reason}; next attempt in {pause:.0f} s")
            time.sleep(pause)
        try:
            _download(entry.url, part, entry.size, patience.timeout, progress)
            _accept(entry, part, place)
            return
        except _TryAgainError as error:
            reason = str(error)
        except UnreachableError as error:
            reason, lost = str(error), lost + 1
            if lost >= patience.unreached:
                raise
    raise DataError(
        f"{entry.url}: {reason} (after {patience.attempts} attempts); try again later, or put "
        f"your own copy at {place}"
    )


def _download(
    url: str, part: Path, size: int, timeout: float, progress: Callable[[int], Any]
) -> None:
    """Download the rest of ``part``, or everything if the server does not support ranges."""
    import requests

    begun = part.stat().st_size if part.exists() else 0
    if begun > size:
        part.unlink()
        begun = 0
    if begun == size:
        return
    headers = {"Range": f"bytes={begun}-"} if begun else {}
    # Lengths and ranges must be those of the uncompressed file.
    headers["Accept-Encoding"] = "identity"
    try:
        answer = requests.get(
            url, headers=headers, stream=True, timeout=(min(timeout, CONNECT), timeout)
        )
    except requests.ConnectionError as error:
        # The cause, without the pool and the address that it is wrapped in.
        cause = str(getattr(error.args[0], "reason", error) if error.args else error)
        raise UnreachableError(
            f"cannot reach {urlsplit(url).netloc} ({cause.rpartition(': ')[2]})"
        ) from None
    except requests.RequestException as error:
        raise _TryAgainError(f"no answer: {error}") from None
    try:
        with answer:
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
    """Rename a finished download if its size and hash are those of the catalogue."""
    size = part.stat().st_size
    if size < entry.size:
        raise _TryAgainError(f"found {size} bytes, expected {entry.size}: the download was cut off")
    found = sha256_of(part)
    if size != entry.size or found != entry.sha256:
        part.unlink()
        raise _TryAgainError(f"found other content (SHA-256 {found}), expected {entry.sha256}")
    part.replace(place)
