"""Runtime of commands: allocator, device and threads, progress bars, tables, keys, provenance."""

import datetime
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tweetrerank.indexes.data_error import DataError
from tweetrerank.pipeline.usage_error import UsageError
from tweetrerank.rerankers import devices
from tweetrerank.rerankers.reranker_error import RerankerError

ALLOCATOR = {
    "MALLOC_MMAP_THRESHOLD_": "1073741824",
    "MALLOC_TRIM_THRESHOLD_": "8589934592",
    "MALLOC_TOP_PAD_": "268435456",
    "MALLOC_ARENA_MAX": "2",
}
"""Settings of glibc's allocator that keep big buffers in the process, for all of its threads. With
the defaults PyTorch returns them to the kernel after every layer and spends half of its time in
page faults, and every thread keeps its own."""


def keep_allocations() -> None:
    """Restart this process with :data:`ALLOCATOR` in its environment, unless it has them. The
    settings are read when a process starts, so the only way is to start it again. Does nothing
    where they would not help (no glibc) or the user has set them otherwise."""
    if sys.platform != "linux" or any(name in os.environ for name in ALLOCATOR):
        return
    os.environ.update(ALLOCATOR)
    sys.stdout.flush()
    os.execv(sys.executable, sys.orig_argv[:1] + sys.orig_argv[1:])


def choose_device(
    device: str, threads: int | None = None, is_network: bool = True
) -> str:
    """Set the threads, and find the device of a network; see :func:`tweetrerank.rerankers.devices.placed`. Only
    networks are computed by PyTorch; for other models it is not even imported."""
    if threads:
        devices.set_threads(threads)
    try:
        return devices.placed(device, is_network)
    except RerankerError as error:
        raise UsageError(str(error)) from None


@contextmanager
def bar(total: int, what: str, unit: str) -> Iterator[Callable[[int], Any]]:
    """A progress bar on stderr; nothing where stderr is no terminal. ``total`` is 0 if it is not
    known; the plural of ``unit`` ends in s."""
    with _progress(total, what, unit) as progress:
        yield progress.update


@contextmanager
def step_bar(steps: int) -> Iterator[Callable[[str, int, int, str], None]]:
    """A progress bar over the steps of each epoch, and a line for each finished epoch."""
    with _progress(steps, "", "step") as progress:

        def report(part: str, epoch: int, step: int, message: str) -> None:
            if step == 0:
                progress.write(f"{part}, epoch {epoch}: {message}", file=sys.stderr)
                progress.reset()
                return
            _set(progress, f"{part}, epoch {epoch}", message, step)

        yield report


@contextmanager
def part_bar(parts: int) -> Iterator[Callable[[str, str], None]]:
    """A progress bar over the parts of a training of trees: the folds, and all topics."""
    begun: dict[str, None] = {}
    with _progress(parts, "training", "part") as bar:

        def report(part: str, message: str) -> None:
            begun[part] = None
            _set(bar, part, message, len(begun) - 1)

        yield report
        bar.update(parts - bar.n)


def _set(progress: Any, what: str, message: str, done: int) -> None:
    progress.set_description_str(what, refresh=False)
    progress.set_postfix_str(message, refresh=False)
    progress.n = done
    progress.refresh()


def _progress(total: int, what: str, unit: str) -> Any:
    from tqdm import tqdm

    count = "{percentage:3.0f}%|{bar}| {n:,}/{total:,}" if total else "{n:,}"
    left = "<{remaining}" if total else ""
    shown = f"{{desc}}: {count} {unit}s [{{elapsed}}{left}, {{rate_fmt}}{{postfix}}]"
    return tqdm(
        total=total or None, desc=what, unit=unit, disable=None, bar_format=shown
    )


def provenance() -> dict[str, Any]:
    """Date, commit of this checkout, if it is one, machine and versions, for what is written."""
    versions = {"python": platform.python_version()}
    commit: str | None = None
    if torch := sys.modules.get("torch"):
        versions["torch"] = str(torch.__version__)
    command = [
        "git",
        "-C",
        str(Path(__file__).parent),
        "describe",
        "--always",
        "--dirty",
    ]
    quiet: Any = {"stderr": subprocess.DEVNULL, "text": True, "timeout": 5}
    with suppress(OSError, subprocess.SubprocessError):
        commit = subprocess.check_output([*command, "--abbrev=12"], **quiet).strip()
    return {
        "date": datetime.date.today().isoformat(),
        "commit": commit,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "versions": versions,
    }


def read_keys(path: Path) -> list[str]:
    """The keys of a file, one a line; raises DataError for none, or one that is no header."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise DataError(
            f"{path}: found no text ({error}), expected one key a line"
        ) from None
    if not (keys := [*filter(None, map(str.strip, lines))]):
        raise DataError(f"{path}: found no key, expected one a line")
    if any(not key.isascii() or " " in key or not key.isprintable() for key in keys):
        raise DataError(f"{path}: found a key with other characters than visible ASCII")
    return keys
