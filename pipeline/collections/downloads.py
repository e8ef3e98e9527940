"""Download of the files of ``catalogue.json``: retried, checked by SHA-256, atomic."""

import json
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from indexes.files import sha256_of
from pipeline.errors import DataError, UsageError
from pipeline.text import did_you_mean

CATALOGUE = Path(__file__).parent / "catalogue.json"
ATTEMPTS = 5
TIMEOUT = (4.0, 30.0)  # Seconds for a connection, and without data


class Cut(NamedTuple):
    """A file of word vectors of ``size`` dimensions that is made of an archive."""

    path: str  # Below the data folder
    size: int
    plain: bool = False  # Of plain words alone, see ``tweetrerank fetch``


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

    @property
    def host(self) -> str:
        """Name of the server."""
        return urlsplit(self.url or "").netloc


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
    entries = [Entry(**{**row, "groups": tuple(row["groups"])}) for row in content()["files"]]
    return tuple(e._replace(cuts=tuple(Cut(*cut) for cut in e.cuts)) for e in entries)


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
    entries: Iterable[Entry], folder: Path, attempts: int = ATTEMPTS
) -> tuple[int, list[str]]:
    """Fetch missing and damaged files, with a line for each on stderr.

    Returns:
        The number of fetched files, and a message for each failure. Files of hosts that cannot be
        reached have one message.
    """
    wanted = [entry for entry in entries if state(entry, folder) != "present"]
    fetched, failures = 0, list[str]()
    unreachable: dict[str, UnreachableError] = {}  # host -> error
    for number, entry in enumerate(wanted, start=1):
        if entry.host in unreachable:
            continue
        try:
            fetch(entry, folder, attempts)
            fetched += 1
            size = f"{entry.size / 1e6:.1f} MB"
            print(f"{number} of {len(wanted)}: {entry.path} ({size})", file=sys.stderr)
        except UnreachableError as error:
            unreachable[entry.host] = error
        except DataError as error:
            failures.append(str(error))
    for host, problem in unreachable.items():
        lost = sum(each.host == host for each in wanted)
        failures.append(
            f"{problem}: {lost} files are missing. Try again later, or put them into {folder} by "
            "hand; --list shows their paths and addresses"
        )
    # Files of a folder that are made by hand have the same message.
    return fetched, list(dict.fromkeys(failures))


def fetch(entry: Entry, folder: Path, attempts: int = ATTEMPTS) -> None:
    """Download one file to its path below ``folder``, with a progress bar.

    Raises:
        UnreachableError: the host cannot be reached.
        DataError: all attempts failed; the message has the path for a copy by hand.
    """
    import pooch
    from requests import RequestException
    from tqdm import tqdm

    place = folder / entry.path
    if entry.url is None:
        note = by_hand(place)
        raise DataError(
            f"{place.parent}: {note}" if note else f"{place}: not published, put your copy there"
        )
    pooch.get_logger().setLevel("ERROR")
    looks: dict[str, Any] = {"unit": "B", "unit_scale": True, "leave": False, "disable": None}
    bar = tqdm(total=entry.size, desc=entry.path, **looks)
    # The hash is that of the uncompressed file.
    identity = {"Accept-Encoding": "identity"}
    get = pooch.HTTPDownloader(progressbar=bar, timeout=TIMEOUT, headers=identity)
    known, urls = {entry.path: f"sha256:{entry.sha256}"}, {entry.path: entry.url}
    files = pooch.create(folder, "", registry=known, urls=urls, retry_if_failed=attempts - 1)
    try:
        files.fetch(entry.path, downloader=get)
    except (RequestException, ValueError) as error:
        # The cause, without the pool and the address that it is wrapped in.
        cause = getattr(error.args[0], "reason", None) if error.args else None
        if cause is not None:
            reason = str(cause).rpartition(": ")[2]
            raise UnreachableError(f"cannot reach {entry.host} ({reason})") from None
        raise DataError(
            f"{entry.url}: {error} (after {attempts} attempts); try again later, or put your own "
            f"copy at {place}"
        ) from None
