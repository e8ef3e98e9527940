"""Download the files of the test collections, and check the SHA-256 of each.

    python -m pipeline.fetch mb2011 mb2012    # some collections
    python -m pipeline.fetch                  # everything
    python -m pipeline.fetch --list           # all files, and whether they are present
    python -m pipeline.fetch --check          # compare the files with their checksums

The tweets are for research only. You can also copy a file into the data folder by hand.
Its path and address are shown by --list. A file whose download was interrupted is
downloaded from the start. At the end, smaller files of word vectors are cut from
GloVe's archive. They cover the words of the collections that are then in the data
folder.
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
# Seconds to wait for a connection, and for the next part of the data
TIMEOUT = (4.0, 30.0)
# Number of the commonest words that a cut keeps even if no collection has them
COMMONEST = 100_000

PLAIN = re.compile(r"[a-z][a-z0-9-]+|[!-/:-@[-`{-~“”‘’…£¥€]")
"""Pattern of the words that a plain cut such as glove.6B.100d.bin.gz may hold.

It excludes numbers, single letters, accents, and words with dots or apostrophes.
"""


@dataclass(frozen=True)
class Options:
    """Names of collections, and the folder of their data."""

    names: tuple[str, ...] = argument(
        "collections (mb2011, mb12, trecqa-raw, trecqa-clean, trecqa-all-raw, "
        "trecqa-all-clean, wikiqa, embeddings, argkp-train, …); none means all that "
        "can be fetched",
        many=True,
        required=False,
    )
    list: bool = option("list the files instead of fetching them", flag=True)
    check: bool = option("check the present files instead of fetching any", flag=True)
    data: Path | None = option("data folder (default: $TWEETRERANK_DATA)", parse=Path)


# Files of the catalogue


class Cut(NamedTuple):
    """A file of word vectors that is cut from an archive."""

    path: str  # Below the data folder
    size: int  # Dimensions of a vector
    plain: bool = False  # Whether it keeps only the words that match :data:`PLAIN`


class Entry(NamedTuple):
    """A file of the catalogue."""

    path: str  # Below the data folder
    size: int  # In bytes
    sha256: str  # Hexadecimal
    groups: tuple[str, ...]  # Collections that need it
    url: str | None  # None if users have to copy the file by hand
    cuts: tuple[Cut, ...] = ()
    """Smaller files that are cut from this one. If all exist, it is not needed."""

    def missing_cuts(self, folder: Path) -> list[Cut]:
        """Return the ``cuts`` that are not in the data folder."""
        return [cut for cut in self.cuts if not (folder / cut.path).is_file()]

    @property
    def host(self) -> str:
        """Name of the server, or "" without a URL."""
        return urlsplit(self.url or "").netloc


@cache
def entries() -> tuple[Entry, ...]:
    """Return all files that can be fetched."""
    return tuple(_entry(row) for row in catalogue()["files"])


def _entry(row: dict[str, Any]) -> Entry:
    cuts = tuple(Cut(*cut) for cut in row.get("cuts", ()))
    return Entry(**(row | {"groups": tuple(row["groups"]), "cuts": cuts}))


def select(names: Sequence[str]) -> list[Entry]:
    """Return the files of the named collections, or all files if there is no name.

    ``mb11`` is short for ``mb2011``. Raises UsageError for unknown names.
    """
    groups = sorted(_groups(entries()))
    aliases = {f"mb{group[-2:]}": group for group in groups if group.startswith("mb")}
    selected = {aliases.get(name, name) for name in names}
    expected = f"expected one of {', '.join(groups)}"
    problems = []
    for name in sorted(selected.difference(groups)):
        similar = did_you_mean(name, groups + list(aliases))
        problems.append(f"found the name {name!r}, {expected}{similar}")
    if problems:
        raise UsageError(problems)
    if not names:
        return list(entries())
    return [entry for entry in entries() if selected.intersection(entry.groups)]


def _groups(selected: Iterable[Entry]) -> set[str]:
    return {group for entry in selected for group in entry.groups}


def state(entry: Entry, folder: Path) -> str:
    """Return ``present``, ``missing``, or a text that tells how the file is damaged.

    A missing file also counts as present if all of its cuts exist.
    """
    path = folder / entry.path
    if not path.is_file():
        has_cuts = entry.cuts and not entry.missing_cuts(folder)
        return "present" if has_cuts else "missing"
    size = path.stat().st_size
    if size != entry.size:
        return f"damaged: found {size} bytes, expected {entry.size}"
    sha256 = sha256_of(path)
    if sha256 != entry.sha256:
        return f"damaged: found the SHA-256 {sha256}, expected {entry.sha256}"
    return "present"


# The command


def main(options: Options) -> None:
    """List, check or fetch the files.

    Raises DataError if a checked file is missing or damaged, or if not all files could
    be fetched.
    """
    selected = select(options.names)
    folder = data_directory(options.data)
    if options.list or options.check:
        _list(selected, folder, options)
        return
    if not options.names:
        _note_manual_files(selected, folder)
        selected = [entry for entry in selected if entry.url]
    _print_terms(selected)
    fetched, failures = fetch_all(selected, folder)
    print(f"{fetched} files fetched into {folder}")
    _write_cuts(selected, folder)
    if len(failures) > 1:
        failures.insert(0, "not all files could be fetched:")
    if failures:
        raise DataError("\n  ".join(failures))


def _note_manual_files(selected: Sequence[Entry], folder: Path) -> None:
    """Print the folders of the missing files that have to be copied by hand."""
    folders = {
        str(Path(entry.path).parent)
        for entry in selected
        if not entry.url and not (folder / entry.path).exists()
    }
    if folders:
        instruction = "put there by hand (fetch with a collection's name says how)"
        say(f"{instruction}: {', '.join(folders)}")


def _print_terms(selected: Sequence[Entry]) -> None:
    """Print the terms of use of the selected collections."""
    groups = _groups(selected)
    for prefix, terms in catalogue()["terms"].items():
        if any(group.startswith(prefix) for group in groups):
            say(terms)


def _list(selected: Sequence[Entry], folder: Path, options: Options) -> None:
    states = {entry: state(entry, folder) for entry in selected}
    bad = [entry for entry in selected if states[entry] != "present"]
    listed = selected if options.list else bad
    if listed:
        rows = [
            [
                entry.path,
                f"{entry.size:,} bytes",
                states[entry],
                entry.url or "(by hand)",
            ]
            for entry in listed
        ]
        print_table([], rows, left=[0, 2, 3])
    present = len(selected) - len(bad)
    print(f"{present} of {len(selected)} files are in {folder}")
    if options.check and bad:
        problem = f"{len(bad)} files are missing or damaged"
        raise DataError(f"{problem}; fetch them without --check")


# Downloads


class UnreachableError(DataError):
    """Raised if the server of a file cannot be reached. Other servers may still be."""


def fetch_all(wanted: Iterable[Entry], folder: Path) -> tuple[int, list[str]]:
    """Fetch the missing and the damaged files, and print a line for each on stderr.

    Returns:
        The number of fetched files, and a list of messages about failures. There is one
        message for all files of a server that cannot be reached.
    """
    missing = [entry for entry in wanted if state(entry, folder) != "present"]
    fetched = 0
    failures = []
    unreachable = {}  # Server -> error
    for number, entry in enumerate(missing, start=1):
        if entry.host in unreachable:
            continue
        try:
            fetch(entry, folder)
            fetched += 1
            size = f"{entry.size / 1e6:.1f} MB"
            say(f"{number} of {len(missing)}: {entry.path} ({size})")
        except UnreachableError as error:
            unreachable[entry.host] = error
        except DataError as error:
            failures.append(str(error))
    for host, problem in unreachable.items():
        lost = sum(entry.host == host for entry in missing)
        failures.append(
            f"{problem}: {lost} files are missing. Try again later, or put them into "
            f"{folder} by hand; --list shows their paths and addresses"
        )
    # All files that users have to put into a folder by hand have the same message.
    return fetched, list(dict.fromkeys(failures))


def fetch(entry: Entry, folder: Path, attempts: int = ATTEMPTS) -> None:
    """Download a file to its path below ``folder``, with a progress bar.

    Raises UnreachableError if the server cannot be reached. Raises DataError if the
    file is not published or if all attempts failed. That message tells where to put a
    copy by hand.
    """
    import pooch
    from requests import RequestException

    place = folder / entry.path
    if entry.url is None:
        instruction = by_hand(place)
        if instruction:
            raise DataError(f"{place.parent}: {instruction}")
        raise DataError(f"{place}: not published, put your copy there")
    pooch.get_logger().setLevel("ERROR")
    files = pooch.create(
        folder,
        "",
        registry={entry.path: f"sha256:{entry.sha256}"},
        urls={entry.path: entry.url},
        retry_if_failed=attempts - 1,
    )
    try:
        files.fetch(entry.path, downloader=_downloader(entry))
    except (RequestException, ValueError) as error:
        # The cause is short. The error around it repeats the connection pool.
        cause = getattr(next(iter(error.args), None), "reason", None)
        if cause:
            reason = str(cause).rpartition(": ")[2]
            raise UnreachableError(f"cannot reach {entry.host} ({reason})") from None
        raise DataError(
            f"{entry.url}: {error} (after {attempts} attempts); try again later, or "
            f"put your own copy at {place}"
        ) from None


def _downloader(entry: Entry) -> Any:
    import pooch
    from tqdm import tqdm

    bar = tqdm(
        total=entry.size,
        desc=entry.path,
        unit="B",
        unit_scale=True,
        leave=False,
        disable=None,
    )
    # A server must not compress the file on the way, because the SHA-256 is that of the
    # file as it is.
    headers = {"Accept-Encoding": "identity"}
    return pooch.HTTPDownloader(progressbar=bar, timeout=TIMEOUT, headers=headers)


# Word vectors


def _write_cuts(selected: Sequence[Entry], folder: Path) -> None:
    for entry in selected:
        cuts = entry.missing_cuts(folder)
        if cuts and state(entry, folder) == "present":
            for cut in cuts:
                write_cut(folder / entry.path, cut, folder)


def write_cut(archive: Path, cut: Cut, folder: Path) -> None:
    """Write a smaller file of word vectors from GloVe's archive (.zip).

    It has the commonest words of the archive, and the words of the collections in the
    data ``folder``.
    """
    from tweetrerank.rerankers.text.vectors import read_archive, word2vec_bytes

    paths = [folder / entry.path for entry in entries() if entry.url]
    texts = [path for path in paths if path.suffix == ".toks" and path.exists()]
    words_of_texts = _words(texts)

    def is_chosen(words: Sequence[str]) -> list[bool]:
        """Return whether to keep each word. The most frequent word comes first."""
        usable = [not cut.plain or bool(PLAIN.fullmatch(word)) for word in words]
        ranked = zip(words, usable, accumulate(usable), strict=True)
        return [
            is_usable and (rank <= COMMONEST or word in words_of_texts)
            for word, is_usable, rank in ranked
        ]

    vectors = read_archive(archive, cut.size, is_chosen)
    path = folder / cut.path
    write_bytes(path, gzip.compress(word2vec_bytes(vectors), mtime=0))
    words = counted(len(vectors.words), "word")
    files = counted(len(texts), "file")
    print(
        f"wrote {path} of {words}: the commonest {COMMONEST:,} and those of {files} of "
        "texts"
    )


def _words(paths: Sequence[Path]) -> set[str]:
    """Return the words of files in lower case, and the parts of words.

    Words are separated by white space. A part has only letters, digits and apostrophes.
    """
    words: set[str] = set()
    for path in paths:
        text = path.read_text(encoding="utf-8").lower()
        words.update(text.split())
        words.update(re.findall("[a-z0-9']+", text))
    return words


if __name__ == "__main__":
    run("fetch")
