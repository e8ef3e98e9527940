#!/usr/bin/env python3
"""Download the test collections; the same as ``tweetrerank fetch``."""

from tweetrerank.pipeline import fetch
from tweetrerank.pipeline.command.options import run_command

if __name__ == "__main__":
    description = fetch.__doc__.replace(
        "python -m pipeline.fetch", "python scripts/fetch_data.py"
    )
    run_command(fetch.Options, fetch.main, "scripts/fetch_data.py", description)
