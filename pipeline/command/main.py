"""The console command ``tweetrerank``, whose subcommands are modules of :mod:`tweetrerank.pipeline`.

``tweetrerank search …`` and ``python -m pipeline.search …`` are the same. A command's module has an
``Options`` dataclass (see :mod:`tweetrerank.pipeline.command.options`), a function ``main`` that takes one, and
a docstring that is the help text.
"""

import gc
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from typing import NoReturn

from tweetrerank.pipeline.command.options import USAGE, run_command
from tweetrerank.pipeline.runtime import keep_allocations
from tweetrerank.pipeline.text import did_you_mean
from tweetrerank.rerankers.devices import allow_processes

COMMANDS = (
    *("search", "rerank", "explain", "index", "train", "adapt", "evaluate"),
    *(
        "tune",
        "clicks",
        "compare",
        "serve",
        "export",
        "engine",
        "batch",
        "fetch",
        "models",
    ),
)


def run(name: str) -> NoReturn:
    """Run the command of this name as ``python -m`` does; call it at the end of its module."""
    _run(name, f"python -m pipeline.{name}", sys.argv[1:])


def tweetrerank() -> NoReturn:
    """Run the console command."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Until run_command begins.
    name, *arguments = sys.argv[1:] or [""]
    if name in COMMANDS:
        _run(name, f"tweetrerank {name}", arguments)
    if name in ("-h", "--help", "--version"):
        lines = ["usage: tweetrerank COMMAND [OPTIONS]", "", "Rerank short posts.", ""]
        for each in COMMANDS:
            summary = (
                import_module(f"tweetrerank.pipeline.{each}").__doc__ or ""
            ).partition("\n")[0]
            lines.append(f"  {each:<10}{summary}")
        text = "\n".join(
            [*lines, "", "Options of a command: tweetrerank COMMAND --help"]
        )
        if name == "--version":
            text = f"tweetrerank {version('tweetrerank')}"
        _prepare_streams()
        run_command(_NoOptions, lambda _: print(text), "tweetrerank", None, [])
    problem = (
        f"unknown command {name!r}{did_you_mean(name, COMMANDS)}"
        if name
        else "no command"
    )
    print(
        f"tweetrerank: bad usage:\n  {problem}\nsee tweetrerank --help", file=sys.stderr
    )
    sys.exit(USAGE)


@dataclass(frozen=True)
class _NoOptions:
    """The console command's own options take no value."""


def _prepare_streams() -> None:
    """Streams that are closed lead nowhere, and an encoding without a character shows a ``?``."""
    for name in ("stdout", "stderr"):
        if (stream := getattr(sys, name)) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
        else:
            stream.reconfigure(errors="replace")


def _run(name: str, program: str, arguments: Sequence[str]) -> NoReturn:
    _prepare_streams()
    keep_allocations()
    # Nearly all that a command makes it keeps: looking for cycles in it takes a twentieth of a
    # search's time. The defaults are 700, 10 and 10.
    gc.set_threshold(100_000, 20, 20)
    allow_processes()
    command = import_module(f"tweetrerank.pipeline.{name}")
    if (description := command.__doc__) and program.startswith("tweetrerank"):
        description = description.replace("python -m pipeline.", "tweetrerank ")
    run_command(command.Options, command.main, program, description, arguments)
