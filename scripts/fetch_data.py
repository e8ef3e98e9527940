#!/usr/bin/env python3
"""Download the test collections' files, each checked by its SHA-256.

    python scripts/fetch_data.py mb2011 mb2012      # some collections
    python scripts/fetch_data.py                    # everything
    python scripts/fetch_data.py --list             # all files, and whether they are present
    python scripts/fetch_data.py --check            # compare the files with their checksums

The tweets are for research only. Instead of a download you may copy a file into the data folder,
under the path that --list shows beside its address. The next call continues interrupted downloads.
Word vectors are cut from GloVe's archive at the end, and hold the words of the collections that are
there then.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

from pipeline.command.options import argument, option, parse_arguments, run_command


@dataclass(frozen=True)
class Options:
    """Names of collections, and the data folder."""

    names: tuple[str, ...] = argument(
        "collections (mb2011, mb12, trecqa-raw, trecqa-clean, trecqa-all-raw, trecqa-all-clean, "
        "wikiqa, embeddings); none means all",
        many=True,
        required=False,
    )
    list: bool = option("list the files instead of fetching them", flag=True)
    check: bool = option("check the present files instead of fetching any", flag=True)
    data: Path | None = option("data folder (default: $TWEETRERANK_DATA)", parse=Path)


def main(options: Options) -> None:
    """List, check or fetch."""
    from pipeline.collections import downloads
    from pipeline.collections.collection import data_directory
    from pipeline.command.errors import DataError
    from pipeline.command.runtime import print_table

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
    for beginning, text in downloads.terms().items():
        if any(group.startswith(beginning) for entry in entries for group in entry.groups):
            print(text, file=sys.stderr)
    if not options.names:
        by_hand = [entry for entry in entries if not entry.url]
        if missing := {str(Path(e.path).parent) for e in by_hand if not (folder / e.path).exists()}:
            places = ", ".join(missing)
            print(f"put there by hand (scripts/README.md says how): {places}", file=sys.stderr)
        entries = [entry for entry in entries if entry.url]
    fetched, failures = downloads.fetch_all(entries, folder)
    print(f"{fetched} files fetched into {folder}")
    for entry in entries:
        cuts = entry.missing_cuts(folder)
        if cuts and downloads.state(entry, folder) == "present":
            for path, *how in cuts:
                files = ["--output", str(folder / path), "--data", str(folder)]
                cut(folder / entry.path, [*how, *files])
    if failures:
        heading = [] if len(failures) == 1 else ["not all files could be fetched:"]
        raise DataError("\n  ".join([*heading, *failures]))


def cut(archive: Path, arguments: list[str]) -> None:
    """Make a smaller file of word vectors from an archive."""
    from pipeline import vectors

    words = ["--cut", str(archive), *arguments]
    vectors.main(parse_arguments(vectors.Options, "fetch_data", None, words))


if __name__ == "__main__":
    run_command(Options, main, "scripts/fetch_data.py", __doc__)
