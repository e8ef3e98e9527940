"""Programs in a process of their own."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run_program(
    *command: object, cwd: Path = ROOT, **environment: str
) -> subprocess.CompletedProcess[str]:
    """A program that has ended, to which Python means this one, with the checkout's packages."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    inherited = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "COLUMNS": "100"}
    return subprocess.run(
        [*map(str, command)],
        cwd=cwd,
        env=inherited | environment,
        capture_output=True,
        text=True,
        timeout=600,
    )


def run_python(
    *words: object, cwd: Path = ROOT, **environment: str
) -> subprocess.CompletedProcess[str]:
    """The same for Python with these words."""
    return run_program(sys.executable, *words, cwd=cwd, **environment)
