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

from __future__ import annotations

import gzip
import re
import sys
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from indexes.files import write_bytes
from pipeline.collections import downloads
from pipeline.collections.collection import data_directory
from pipeline.collections.downloads import Cut, catalogue
from pipeline.command.main import run
from pipeline.command.options import argument, option
from pipeline.errors import DataError
from pipeline.text import counted, print_table

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


def main(options: Options) -> None:
    """List, check or fetch."""
    entries = downloads.select(options.names)
    folder = data_directory(options.data)
    if options.list or options.check:
        states = {entry: downloads.state(entry, folder) for entry in entries}
        rows = [
            [entry.path, f"{entry.size:,} bytes", state, entry.url or "(by hand)"]
            for entry, state in states.items()
            if options.list or state != "present"
        ]
        if rows:
            print_table([], rows, left=[0, 2, 3])
        bad = [entry for entry, state in states.items() if state != "present"]
        print(f"{len(entries) - len(bad)} of {len(entries)} files are in {folder}")
        if options.check and bad:
            raise DataError(f"{len(bad)} files are missing or damaged; fetch them without --check")
        return
    if not options.names:
        by_hand = [entry for entry in entries if not entry.url]
        if missing := {str(Path(e.path).parent) for e in by_hand if not (folder / e.path).exists()}:
            places = ", ".join(missing)
            print(
                f"put there by hand (fetch with a collection's name says how): {places}",
                file=sys.stderr,
            )
        entries = [entry for entry in entries if entry.url]
    for beginning, text in downloads.content()["terms"].items():
        if any(group.startswith(beginning) for entry in entries for group in entry.groups):
            print(text, file=sys.stderr)
    fetched, failures = downloads.fetch_all(entries, folder)
    print(f"{fetched} files fetched into {folder}")
    for entry in entries:
        cuts = entry.missing_cuts(folder)
        if cuts and downloads.state(entry, folder) == "present":
            for cut in cuts:
                write_cut(folder / entry.path, cut, folder)
    if failures:
        heading = [] if len(failures) == 1 else ["not all files could be fetched:"]
        raise DataError("\n  ".join([*heading, *failures]))


def write_cut(archive: Path, cut: Cut, folder: Path) -> None:
    """Write a file of the commonest words of GloVe's archive and of those of the collections.

    Args:
        archive: GloVe's .zip.
        cut: the file.
        folder: of the data; collections that are not there are left out.
    """
    from rerankers.text.vectors import read_archive, word2vec_bytes

    texts = collection_texts(folder)
    added = words_of_texts(texts)
    vectors = read_archive(archive, cut.size, lambda words: chosen(words, added, plain=cut.plain))
    write_bytes(folder / cut.path, gzip.compress(word2vec_bytes(vectors), mtime=0))
    print(
        f"wrote {folder / cut.path} of {counted(len(vectors.words), 'word')}: the commonest "
        f"{COMMONEST:,} and those of {counted(len(texts), 'file')} of texts"
    )


def chosen(words: Sequence[str], added: AbstractSet[str], *, plain: bool) -> list[bool]:
    """Whether each of the words, most frequent first, is among the commonest or in ``added``."""
    usable = [not plain or bool(PLAIN.fullmatch(word)) for word in words]
    ranks = accumulate(usable)
    return [
        is_usable and (rank <= COMMONEST or word in added)
        for word, is_usable, rank in zip(words, usable, ranks, strict=True)
    ]


def collection_texts(folder: Path) -> list[Path]:
    """Files of queries and posts, in the data folder, of the collections that can be fetched."""
    entries = (entry for entry in catalogue() if entry.url and entry.path.endswith(".toks"))
    paths = (folder / entry.path for entry in entries)
    return [path for path in paths if path.exists()]


def words_of_texts(paths: Sequence[Path]) -> set[str]:
    """Words of the texts as they stand, and their parts of letters, digits and apostrophes."""
    found: set[str] = set()
    for path in paths:
        text = path.read_text(encoding="utf-8").lower()
        found.update(text.split(), re.findall("[a-z0-9']+", text))
    return found


if __name__ == "__main__":
    run("fetch")
