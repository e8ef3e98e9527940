"""Console command ``tweetrerank``, whose subcommands are modules of ``pipeline``.

``tweetrerank search …`` and ``python -m pipeline.search …`` are the same command. The
module of a command has a dataclass ``Options`` and a function ``main`` that takes an
instance of it. Its docstring is the help text. See
:mod:`tweetrerank.pipeline.command.options`.
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
    "search",
    "rerank",
    "explain",
    "index",
    "train",
    "adapt",
    "evaluate",
    "tune",
    "clicks",
    "compare",
    "serve",
    "export",
    "engine",
    "batch",
    "fetch",
    "models",
)


def run(name: str) -> NoReturn:
    """Run a command with the arguments of ``python -m``, and exit with its code.

    The module of a command calls this in its last statement.
    """
    _run(name, f"python -m pipeline.{name}", sys.argv[1:])


def tweetrerank() -> NoReturn:
    """Run the console command, and exit with the code of the subcommand.

    The code is 2 if there is no such subcommand.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Until run_command sets its own.
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name in COMMANDS:
        _run(name, f"tweetrerank {name}", sys.argv[2:])
    if name in ("-h", "--help", "--version"):
        text = _help()
        if name == "--version":
            text = f"tweetrerank {version('tweetrerank')}"
        _prepare_streams()
        run_command(_NoOptions, lambda _: print(text), "tweetrerank", None, [])
    problem = "no command"
    if name:
        problem = f"unknown command {name!r}{did_you_mean(name, COMMANDS)}"
    message = f"tweetrerank: bad usage:\n  {problem}\nsee tweetrerank --help"
    print(message, file=sys.stderr)
    sys.exit(USAGE)


@dataclass(frozen=True)
class _NoOptions:
    """The console command itself has no options that are parsed."""


def _help() -> str:
    """Return the help text of the console command, with a line for each subcommand."""
    lines = ["usage: tweetrerank COMMAND [OPTIONS]", "", "Rerank short posts.", ""]
    for name in COMMANDS:
        description = import_module(f"tweetrerank.pipeline.{name}").__doc__ or ""
        summary = description.partition("\n")[0]
        lines.append(f"  {name:<10}{summary}")
    lines += ["", "Options of a command: tweetrerank COMMAND --help"]
    return "\n".join(lines)


def _prepare_streams() -> None:
    """Make stdout and stderr safe to print to.

    A closed stream is opened on the null device. A character that the encoding of a
    stream lacks is shown as ``?``.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
        else:
            stream.reconfigure(errors="replace")


def _run(name: str, program: str, arguments: Sequence[str]) -> NoReturn:
    _prepare_streams()
    keep_allocations()
    # A command keeps nearly all objects that it makes, so garbage collection finds
    # little. With the default thresholds, 700, 10 and 10, it takes a twentieth of the
    # time of a search.
    gc.set_threshold(100_000, 20, 20)
    allow_processes()
    command = import_module(f"tweetrerank.pipeline.{name}")
    description = command.__doc__
    if description and program.startswith("tweetrerank"):
        description = description.replace("python -m pipeline.", "tweetrerank ")
    run_command(command.Options, command.main, program, description, arguments)
