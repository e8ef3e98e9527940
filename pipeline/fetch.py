"""Download the test collections' files, each checked by its SHA-256.

    python -m pipeline.fetch mb2011 mb2012    # some collections
    python -m pipeline.fetch                  # everything
    python -m pipeline.fetch --list           # all files, and whether they are present
    python -m pipeline.fetch --check          # compare the files with their checksums

The tweets are for research only. Instead of a download you may copy a file into the data folder,
under the path that --list shows beside its address. An interrupted file is downloaded anew.
Word vectors are cut from GloVe's archive at the end, and hold the words of the collections that are
there then.
"""

import gzip
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from tweetrerank.indexes.data_error import DataError
from tweetrerank.indexes.files import sha256_of, write_bytes
from tweetrerank.pipeline.collections.catalogue import by_hand, catalogue
from tweetrerank.pipeline.collections.folders import data_directory
from tweetrerank.pipeline.command.main import run
from tweetrerank.pipeline.command.options import argument, option
from tweetrerank.pipeline.text import counted, did_you_mean, print_table, say
from tweetrerank.pipeline.usage_error import UsageError

ATTEMPTS = 5
TIMEOUT = (4.0, 30.0)  # Seconds for a connection, and without data
COMMONEST = 100_000  # Words of a cut that need not occur in a collection

PLAIN = re.compile(r"[a-z][a-z0-9-]+|[!-/:-@[-`{-~“”‘’…£¥€]")
"""Words of our glove.6B.100d.bin.gz: no numbers, single letters, accents, dots or apostrophes."""


@dataclass(frozen=True)
class Options:
    """Names of collections, and the data folder."""

    names: tuple[str, ...] = argument(
        "collections (mb2011, mb12, trecqa-raw, trecqa-clean, trecqa-all-raw, trecqa-all-clean, "
        "wikiqa, embeddings, argkp-train, …); none means all that can be fetched",
        many=True,
        required=False,
    )
    list: bool = option("list the files instead of fetching them", flag=True)
    check: bool = option("check the present files instead of fetching any", flag=True)
    data: Path | None = option("data folder (default: $TWEETRERANK_DATA)", parse=Path)


class Cut(NamedTuple):
    """A file of word vectors of ``size`` dimensions that is made of an archive."""

    path: str  # Below the data folder
    size: int
    plain: bool = False  # Of :data:`PLAIN` words alone


class Entry(NamedTuple):
    """One file of the catalogue."""

    path: str  # Below the data folder
    size: int  # In bytes
    sha256: str  # Of the whole file, hexadecimal
    groups: tuple[str, ...]  # Collections that need it
    url: (
        str | None
    )  # Address of the published file; None for a file to be put there by hand
    cuts: tuple[Cut, ...] = ()
    """Smaller files that are made of it. Once all are there, the entry is not needed."""

    def missing_cuts(self, folder: Path) -> list[Cut]:
        """The ``cuts`` that are not in the data folder."""
        return [cut for cut in self.cuts if not (folder / cut.path).is_file()]

    @property
    def host(self) -> str:
        """Name of the server."""
        return urlsplit(self.url or "").netloc


class UnreachableError(DataError):
    """The host of a file cannot be reached; that of other files may be."""


def main(options: Options) -> None:
    """List, check or fetch."""
    wanted, folder = select(options.names), data_directory(options.data)
    if options.list or options.check:
        _list(wanted, folder, options)
        return
    if not options.names:
        lacking = [e for e in wanted if not e.url and not (folder / e.path).exists()]
        if missing := {str(Path(entry.path).parent) for entry in lacking}:
            told = "put there by hand (fetch with a collection's name says how)"
            say(f"{told}: {', '.join(missing)}")
        wanted = [entry for entry in wanted if entry.url]
    for beginning, text in catalogue()["terms"].items():
        if any(
            group.startswith(beginning) for entry in wanted for group in entry.groups
        ):
            say(text)
    fetched, failures = fetch_all(wanted, folder)
    print(f"{fetched} files fetched into {folder}")
    for entry in wanted:
        if (cuts := entry.missing_cuts(folder)) and state(entry, folder) == "present":
            for cut in cuts:
                write_cut(folder / entry.path, cut, folder)
    if failures:
        heading = [] if len(failures) == 1 else ["not all files could be fetched:"]
        raise DataError("\n  ".join([*heading, *failures]))


@cache
def entries() -> tuple[Entry, ...]:
    """All files that can be fetched."""
    found = [
        Entry(**{**row, "groups": tuple(row["groups"])}) for row in catalogue()["files"]
    ]
    return tuple(e._replace(cuts=tuple(Cut(*cut) for cut in e.cuts)) for e in found)


def select(names: Sequence[str]) -> list[Entry]:
    """The files of the named collections (``mb2011``, ``mb11``, ``trecqa``, …), or all of them."""
    groups = sorted({group for entry in entries() for group in entry.groups})
    aliases = {f"mb{group[-2:]}": group for group in groups if group.startswith("mb")}
    wanted = {aliases.get(name, name) for name in names}
    if unknown := sorted(wanted - {*groups}):
        known, expected = [*groups, *aliases], f"expected one of {', '.join(groups)}"
        raise UsageError(
            [
                f"found the name {name!r}, {expected}{did_you_mean(name, known)}"
                for name in unknown
            ]
        )
    return [entry for entry in entries() if not names or wanted & {*entry.groups}]


def state(entry: Entry, folder: Path) -> str:
    """``present`` (itself, or all that is cut from it), ``missing`` or what is damaged."""
    if not (path := folder / entry.path).is_file():
        return "present" if entry.cuts and not entry.missing_cuts(folder) else "missing"
    if (size := path.stat().st_size) != entry.size:
        return f"damaged: found {size} bytes, expected {entry.size}"
    if (found := sha256_of(path)) != entry.sha256:
        return f"damaged: found the SHA-256 {found}, expected {entry.sha256}"
    return "present"


def fetch_all(wanted: Iterable[Entry], folder: Path) -> tuple[int, list[str]]:
    """Fetch missing and damaged files, with a line for each on stderr; the number of those, and a
    message for each failure, or for all files of a host that cannot be reached."""
    wanted = [entry for entry in wanted if state(entry, folder) != "present"]
    fetched, failures = 0, list[str]()
    unreachable: dict[str, UnreachableError] = {}  # host -> error
    for number, entry in enumerate(wanted, start=1):
        if entry.host in unreachable:
            continue
        try:
            fetch(entry, folder)
            fetched += 1
            say(f"{number} of {len(wanted)}: {entry.path} ({entry.size / 1e6:.1f} MB)")
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
    """Download one file to its path below ``folder``, with a progress bar; DataError, when all
    attempts failed, has the path for a copy by hand."""
    import pooch
    from requests import RequestException
    from tqdm import tqdm

    place = folder / entry.path
    if entry.url is None:
        if note := by_hand(place):
            raise DataError(f"{place.parent}: {note}")
        raise DataError(f"{place}: not published, put your copy there")
    pooch.get_logger().setLevel("ERROR")
    looks: dict[str, Any] = {
        "unit": "B",
        "unit_scale": True,
        "leave": False,
        "disable": None,
    }
    bar = tqdm(total=entry.size, desc=entry.path, **looks)
    identity = {
        "Accept-Encoding": "identity"
    }  # The hash is that of the uncompressed file.
    get = pooch.HTTPDownloader(progressbar=bar, timeout=TIMEOUT, headers=identity)
    known, urls = {entry.path: f"sha256:{entry.sha256}"}, {entry.path: entry.url}
    files = pooch.create(
        folder, "", registry=known, urls=urls, retry_if_failed=attempts - 1
    )
    try:
        files.fetch(entry.path, downloader=get)
    except (RequestException, ValueError) as error:
        # The cause, without the pool and the address that it is wrapped in.
        if cause := getattr(next(iter(error.args), None), "reason", None):
            reason = str(cause).rpartition(": ")[2]
            raise UnreachableError(f"cannot reach {entry.host} ({reason})") from None
        raise DataError(
            f"{entry.url}: {error} (after {attempts} attempts); try again later, or put your own "
            f"copy at {place}"
        ) from None


def _list(wanted: Sequence[Entry], folder: Path, options: Options) -> None:
    states = {entry: state(entry, folder) for entry in wanted}
    bad = [entry for entry, state in states.items() if state != "present"]
    if shown := [*states] if options.list else bad:
        rows = [
            [e.path, f"{e.size:,} bytes", states[e], e.url or "(by hand)"]
            for e in shown
        ]
        print_table([], rows, left=[0, 2, 3])
    print(f"{len(wanted) - len(bad)} of {len(wanted)} files are in {folder}")
    if options.check and bad:
        raise DataError(
            f"{len(bad)} files are missing or damaged; fetch them without --check"
        )


def write_cut(archive: Path, cut: Cut, folder: Path) -> None:
    """Write a file of the commonest words of GloVe's archive (.zip) and of those of collections
    that are in the data ``folder``."""
    from tweetrerank.rerankers.text.vectors import read_archive, word2vec_bytes

    known = (folder / entry.path for entry in entries() if entry.url)
    texts, added = (
        [path for path in known if path.suffix == ".toks" and path.exists()],
        set[str](),
    )
    for path in texts:  # Words as they stand, and their parts
        text = path.read_text(encoding="utf-8").lower()
        added.update(text.split(), re.findall("[a-z0-9']+", text))

    def chosen(words: Sequence[str]) -> list[bool]:
        """Which of the words to keep, most frequent first: common ones, the collections'."""
        usable = [not cut.plain or bool(PLAIN.fullmatch(word)) for word in words]
        ranked = zip(words, usable, accumulate(usable), strict=True)
        return [
            is_so and (rank <= COMMONEST or word in added)
            for word, is_so, rank in ranked
        ]

    vectors = read_archive(archive, cut.size, chosen)
    write_bytes(folder / cut.path, gzip.compress(word2vec_bytes(vectors), mtime=0))
    print(
        f"wrote {folder / cut.path} of {counted(len(vectors.words), 'word')}: the commonest "
        f"{COMMONEST:,} and those of {counted(len(texts), 'file')} of texts"
    )


if __name__ == "__main__":
    run("fetch")
