#!/usr/bin/env python3
"""Tune λ; the same as ``tweetrerank tune``."""

from tweetrerank.pipeline import tune
from tweetrerank.pipeline.command.options import run_command

if __name__ == "__main__":
    description = tune.__doc__.replace(
        "python -m pipeline.tune", "python scripts/tune_lambda.py"
    )
    run_command(tune.Options, tune.main, "scripts/tune_lambda.py", description)
