#!/usr/bin/env python3
"""Send mutated requests to the rerank service; none may be a mistake of its own, or hang.

    python scripts/fuzz.py                                # 100,000 requests: about ten minutes
    python scripts/fuzz.py --first 4711 --requests 1      # one of them again

The service is started for it, on this machine. Values, JSON and HTTP are mutated: wrong types and
keys, huge numbers and texts, deep nesting, broken Unicode, cut bodies, odd headers and lengths.
"""

from dataclasses import dataclass

from pipeline.command.options import non_negative_int, option, positive_int, run_command


@dataclass(frozen=True)
class Options:
    """Which requests to send."""

    requests: int = option("number of requests", default=100_000, parse=positive_int)
    first: int = option("number of the first one", default=0, parse=non_negative_int)


def main(options: Options) -> None:
    """Send them, then print the figures."""
    from benchmarks.fuzzing import measure_fuzz

    measure_fuzz(options.requests, options.first)


if __name__ == "__main__":
    run_command(Options, main, "scripts/fuzz.py", __doc__)
