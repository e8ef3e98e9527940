#!/usr/bin/env python3
"""Download the test collections' files, each checked by its SHA-256.

    python scripts/fetch_data.py mb2011 mb2012      # some collections
    python scripts/fetch_data.py                    # everything
    python scripts/fetch_data.py --list             # all files, and whether they are present
    python scripts/fetch_data.py --check            # compare the files with their checksums

The tweets are for research only. Instead of a download you may copy a file into the data folder,
under the path that --list shows. The next call continues interrupted downloads.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

from pipeline.command.options import argument, option, run_command


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
            [entry.path, f"{entry.size:,} bytes", state, "" if entry.url else "(by hand)"]
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
    fetched, failures = downloads.fetch_all(entries, folder)
    print(f"{fetched} files fetched into {folder}")
    if failures:
        raise DataError("\n  ".join(["not all files could be fetched:", *failures]))


if __name__ == "__main__":
    run_command(Options, main, "scripts/fetch_data.py", __doc__)
