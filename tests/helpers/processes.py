"""Runs programs and functions in separate processes."""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
Done = subprocess.CompletedProcess[str]


def run_program(
    *command: object, cwd: Path = ROOT, code: Any = None, **environment: str
) -> Done:
    """Run a program to its end, and return its outcome.

    The name ``python`` means this Python, with the packages of the checkout. Raises
    AssertionError if ``code`` is given and the exit code is another one.
    """
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    variables = {"PATH": path, "PYTHONPATH": str(ROOT), "COLUMNS": "100"}
    result = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env=os.environ | variables | environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert code in (None, result.returncode), result.stdout + result.stderr
    return result


def run_python(*words: object, **options: Any) -> Done:
    return run_program(sys.executable, *words, **options)


def started(*words: object, cwd: Path = ROOT, **options: Any) -> subprocess.Popen[str]:
    """Start a program. Its output and errors can be read while it runs."""
    return subprocess.Popen(
        list(map(str, words)),
        cwd=cwd,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,
    )


def elsewhere(function: Callable[..., Any], *arguments: Any) -> Any:
    """Run a picklable function in a new process, and return its result."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result(timeout=300)


def end_with_parent() -> None:
    """Let this process be killed when its parent ends, even if that is by SIGKILL.

    This is meant for the argument ``preexec_fn``. It does nothing except on Linux.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def descendants(pid: int) -> list[int]:
    """Return the ids of all descendants of a process, in the order of generations."""
    processes = [pid]
    for parent in processes:
        children = Path(f"/proc/{parent}/task/{parent}/children")
        if children.exists():
            processes += map(int, children.read_text().split())
    return processes[1:]
