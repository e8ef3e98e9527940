"""What commands need at run time: the allocator, devices, progress bars and keys.

It also tells the provenance that output files record.
"""

import datetime
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
"""Environment variables that make glibc's allocator keep large freed buffers.

With the defaults, PyTorch returns its buffers to the kernel after every layer and
spends half of its time in page faults. The last variable limits the number of arenas,
because with the defaults each thread would keep buffers of its own.
"""


def keep_allocations() -> None:
    """Restart this process with :data:`ALLOCATOR` in its environment.

    glibc reads these settings only when a process starts. The process is not restarted
    if the system is not Linux, or if one of the settings is already in the environment,
    set by the user or by an earlier restart.
    """
    if sys.platform != "linux" or any(name in os.environ for name in ALLOCATOR):
        return
    os.environ.update(ALLOCATOR)
    sys.stdout.flush()
    os.execv(sys.executable, sys.orig_argv[:1] + sys.orig_argv[1:])


def choose_device(
    device: str, threads: int | None = None, is_network: bool = True
) -> str:
    """Set the number of threads, and return the device that a model runs on.

    ``is_network`` tells whether PyTorch computes the model. For other models PyTorch is
    not imported. Raises UsageError if this machine lacks the device. See
    :func:`tweetrerank.rerankers.devices.placed`.
    """
    if threads:
        devices.set_threads(threads)
    try:
        return devices.placed(device, is_network)
    except RerankerError as error:
        raise UsageError(str(error)) from None


# Progress bars


@contextmanager
def bar(total: int, what: str, unit: str) -> Iterator[Callable[[int], Any]]:
    """Show a progress bar on stderr if stderr is a terminal.

    Args:
        total: number of units, or 0 if it is unknown.
        what: description before the bar.
        unit: noun for one unit, whose plural ends in s.

    Yields:
        A function that takes a number of finished units and adds them to the bar.
    """
    with _progress(total, what, unit) as progress:
        yield progress.update


@contextmanager
def step_bar(steps: int) -> Iterator[Callable[[str, int, int, str], None]]:
    """Show a progress bar of each epoch's steps, and a line for each finished epoch.

    Yields a function that takes the part of the training, the epoch, the number of
    finished steps and a message. Step 0 means that the epoch has finished.
    """
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
    """Show a progress bar for the training of trees on each fold and on all topics.

    Yields a function that takes the name of the part being trained and a message.
    """
    begun: dict[str, None] = {}
    with _progress(parts, "training", "part") as bar:

        def report(part: str, message: str) -> None:
            begun[part] = None
            _set(bar, part, message, len(begun) - 1)

        yield report
        bar.update(parts - bar.n)


def _set(progress: Any, description: str, message: str, position: int) -> None:
    progress.set_description_str(description, refresh=False)
    progress.set_postfix_str(message, refresh=False)
    progress.n = position
    progress.refresh()


def _progress(total: int, description: str, unit: str) -> Any:
    from tqdm import tqdm

    count = "{n:,}"
    times = "{elapsed}"
    if total:
        count = "{percentage:3.0f}%|{bar}| {n:,}/{total:,}"
        times = "{elapsed}<{remaining}"
    return tqdm(
        total=total or None,
        desc=description,
        unit=unit,
        disable=None,
        bar_format=f"{{desc}}: {count} {unit}s [{times}, {{rate_fmt}}{{postfix}}]",
    )


# Provenance


def provenance() -> dict[str, Any]:
    """Return the date, commit, machine and versions to record in output files.

    The commit is None outside a checkout. The version of PyTorch is there only if
    PyTorch is imported.
    """
    versions = {"python": platform.python_version()}
    torch = sys.modules.get("torch")
    if torch is not None:
        versions["torch"] = str(torch.__version__)
    return {
        "date": datetime.date.today().isoformat(),
        "commit": _commit(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "versions": versions,
    }


def _commit() -> str | None:
    folder = str(Path(__file__).parent)
    command = ["git", "-C", folder, "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        description = subprocess.check_output(
            command,
            stderr=subprocess.DEVNULL,
            text=True,
            timeout=5,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return description.strip()


# Keys of the service


def read_keys(path: Path) -> list[str]:
    """Return the keys of a file that has one key on each line.

    Raises DataError if the file cannot be read or has no key, or if a key has a
    character that an HTTP header cannot hold.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise DataError(
            f"{path}: found no text ({error}), expected one key a line"
        ) from None
    keys = [line.strip() for line in lines if line.strip()]
    if not keys:
        raise DataError(f"{path}: found no key, expected one a line")
    if any(not key.isascii() or " " in key or not key.isprintable() for key in keys):
        raise DataError(f"{path}: found a key with other characters than visible ASCII")
    return keys
