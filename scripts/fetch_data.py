#!/usr/bin/env python3
"""Download the test collections' files, each checked by its SHA-256.

    python scripts/fetch_data.py mb2011 mb2012      # some collections
    python scripts/fetch_data.py                    # everything
    python scripts/fetch_data.py --list             # what there is, and what is here
    python scripts/fetch_data.py --check            # are the files here whole?

The tweets are for research only. A copy that you have may be put into the data folder instead,
under the path that --list shows. Interrupted downloads are continued by the next call.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

from pipeline.command.options import argument, option, run_command


@dataclass(frozen=True)
class Options:
    """What to fetch, and where to."""

    names: tuple[str, ...] = argument(
        "collections (mb2011, mb12, trecqa-raw, trecqa-clean, wikiqa, embeddings); none means all",
        many=True, required=False,
    )  # fmt: skip
    list: bool = option("show the files instead of fetching them", flag=True)
    check: bool = option("check the files that are here instead of fetching any", flag=True)
    data: Path | None = option("data folder (default: $TWEETRERANK_DATA)", parse=Path)


def main(options: Options) -> None:
    """List, check or fetch."""
    from pipeline.collections import downloads
    from pipeline.collections.locations import data_directory
    from pipeline.command.errors import DataError

    entries = downloads.select(options.names)
    folder = data_directory(options.data)
    if options.list or options.check:
        states = {entry: downloads.state(entry, folder) for entry in entries}
        for entry, state in states.items():
            if options.list or state != "present":
                source = "" if entry.url else "  (not published: put a copy there)"
                print(f"{entry.path:50} {entry.size:>11,} bytes  {state}{source}")
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
        raise DataError("\n  ".join([f"{len(failures)} files could not be had:", *failures]))


if __name__ == "__main__":
    run_command(Options, main, "scripts/fetch_data.py", __doc__)
