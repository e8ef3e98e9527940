"""Options, errors and runtime of commands."""

import signal
import sys
from pathlib import Path

_PROGRAM = Path(sys.argv[0])
if _PROGRAM.parent == Path(__file__).parents[1] or _PROGRAM.name == "tweetrerank":
    # In a command: Ctrl-C during imports ends it without a traceback, until run_command begins.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
