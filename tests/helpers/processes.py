"""Programs in a process of their own."""

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
    """A program that has ended, with this exit code if given; to it Python means this one, with the
    checkout's packages."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    inherited = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "COLUMNS": "100"}
    words, env = [*map(str, command)], inherited | environment
    done = subprocess.run(
        words, cwd=cwd, env=env, capture_output=True, text=True, timeout=600
    )
    assert code in (None, done.returncode), done.stdout + done.stderr
    return done


def run_python(*words: object, **options: Any) -> Done:
    return run_program(sys.executable, *words, **options)


def started(*words: object, cwd: Path = ROOT, **options: Any) -> subprocess.Popen[str]:
    """A program that still runs, whose output and errors can be read."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([*map(str, words)], cwd=cwd, text=True, **pipes, **options)


def elsewhere(function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a function in a new process, to which it and its arguments are sent."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result(timeout=300)


def end_with_parent() -> None:
    """``preexec_fn`` of a process that must not outlive these tests, even if they are killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def descendants(pid: int) -> list[int]:
    """Processes that a process has started, and those that they have, the oldest first."""
    started = [pid]
    for parent in started:
        children = Path(f"/proc/{parent}/task/{parent}/children")
        started += map(int, children.read_text().split()) if children.exists() else []
    return started[1:]
