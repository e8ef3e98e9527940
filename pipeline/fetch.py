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
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from indexes.files import write_bytes
from pipeline.collections import downloads
from pipeline.collections.collection import data_directory
from pipeline.collections.downloads import Cut, Entry, catalogue
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
    entries, folder = downloads.select(options.names), data_directory(options.data)
    if options.list or options.check:
        _list(entries, folder, options)
        return
    if not options.names:
        by_hand = [entry for entry in entries if not entry.url]
        if missing := {str(Path(e.path).parent) for e in by_hand if not (folder / e.path).exists()}:
            told = "put there by hand (fetch with a collection's name says how)"
            print(f"{told}: {', '.join(missing)}", file=sys.stderr)
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


def _list(entries: Sequence[Entry], folder: Path, options: Options) -> None:
    states = {entry: downloads.state(entry, folder) for entry in entries}
    bad = [entry for entry, state in states.items() if state != "present"]
    if shown := [*states] if options.list else bad:
        rows = [[e.path, f"{e.size:,} bytes", states[e], e.url or "(by hand)"] for e in shown]
        print_table([], rows, left=[0, 2, 3])
    print(f"{len(entries) - len(bad)} of {len(entries)} files are in {folder}")
    if options.check and bad:
        raise DataError(f"{len(bad)} files are missing or damaged; fetch them without --check")


def write_cut(archive: Path, cut: Cut, folder: Path) -> None:
    """Write a file of the commonest words of GloVe's archive and of those of the collections.

    ``archive`` is GloVe's .zip; collections that are not in the data ``folder`` are left out.
    """
    from rerankers.text.vectors import read_archive, word2vec_bytes

    known = (folder / entry.path for entry in catalogue() if entry.url)
    texts, added = [path for path in known if path.suffix == ".toks" and path.exists()], set[str]()
    for path in texts:  # Words as they stand, and their parts
        text = path.read_text(encoding="utf-8").lower()
        added.update(text.split(), re.findall("[a-z0-9']+", text))

    def chosen(words: Sequence[str]) -> list[bool]:
        """Of the words, most frequent first, the commonest and those of the collections."""
        usable = [not cut.plain or bool(PLAIN.fullmatch(word)) for word in words]
        ranked = zip(words, usable, accumulate(usable), strict=True)
        return [is_so and (rank <= COMMONEST or word in added) for word, is_so, rank in ranked]

    vectors = read_archive(archive, cut.size, chosen)
    write_bytes(folder / cut.path, gzip.compress(word2vec_bytes(vectors), mtime=0))
    print(
        f"wrote {folder / cut.path} of {counted(len(vectors.words), 'word')}: the commonest "
        f"{COMMONEST:,} and those of {counted(len(texts), 'file')} of texts"
    )


if __name__ == "__main__":
    run("fetch")
