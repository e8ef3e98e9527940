"""Runtime of commands: allocator, device and threads, progress bars, tables, provenance."""

from __future__ import annotations

import datetime
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.command.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

ALLOCATOR = {
    "MALLOC_MMAP_THRESHOLD_": "1073741824",
    "MALLOC_TRIM_THRESHOLD_": "8589934592",
    "MALLOC_TOP_PAD_": "268435456",
}
"""Settings of glibc's allocator that keep big buffers in the process. With the defaults PyTorch
returns them to the kernel after every layer and spends half of its time in page faults."""

WIDTH = 10_000
"""Nothing is wrapped or cut here; that is up to the terminal."""


def keep_allocations() -> None:
    """Restart this process with :data:`ALLOCATOR` in its environment, unless it has them.

    The settings are read when a process starts, so the only way is to start it again. Does
    nothing where they would not help (no glibc) or the user has set them otherwise.
    """
    if sys.platform != "linux" or any(name in os.environ for name in ALLOCATOR):
        return
    os.environ.update(ALLOCATOR)
    sys.stdout.flush()
    os.execv(sys.executable, sys.orig_argv[:1] + sys.orig_argv[1:])


def device_name(text: str) -> str:
    """``auto``, ``cpu``, ``cuda`` (every GPU) or ``cuda:N`` (one of them)."""
    if not re.fullmatch(r"auto|cpu|cuda(:[0-9]+)?", text):
        raise ValueError(f"found {text!r}, expected auto, cpu, cuda or cuda:N")
    return text


def choose_device(device: str, threads: int | None = None) -> str:
    """Set PyTorch's threads and turn ``auto`` into the device that is there."""
    import torch

    if threads:
        torch.set_num_threads(threads)
    name, _, number = device.partition(":")
    if name == "cuda" and not torch.cuda.is_available():
        raise UsageError("--device: found no CUDA device for PyTorch; use --device cpu or auto")
    if number and int(number) >= (count := torch.cuda.device_count()):
        raise UsageError(f"--device: found {device}, expected cuda:N with N below {count}")
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return device


@contextmanager
def bar(total: int, what: str, unit: str) -> Iterator[Callable[[int], Any]]:
    """A progress bar on stderr; nothing where stderr is no terminal."""
    from tqdm import tqdm

    with tqdm(total=total, desc=what, unit=unit, unit_scale=True, disable=None) as shown:
        yield shown.update


@contextmanager
def step_bar(steps: int) -> Iterator[Callable[[str, int, int, str], None]]:
    """A progress bar over the steps of each epoch, and a line for each finished epoch."""
    from tqdm import tqdm

    with tqdm(total=steps, unit="step", disable=None) as bar:

        def report(part: str, epoch: int, step: int, message: str) -> None:
            if step == 0:
                tqdm.write(f"{part}, epoch {epoch}: {message}", file=sys.stderr)
                return
            bar.set_description(f"{part}, epoch {epoch}", refresh=False)
            bar.set_postfix_str(message, refresh=False)
            bar.n = step
            bar.refresh()

        yield report


def open_console() -> Console:
    """A console for stdout that prints texts as they are: they may look like rich's markup."""
    from rich.console import Console

    return Console(markup=False, highlight=False, emoji=False, soft_wrap=True, width=WIDTH)


def print_table(
    header: Sequence[str], rows: Iterable[Sequence[str | Text]], left: Sequence[int] = (0,)
) -> None:
    """Print a table without lines; columns but those of ``left`` are aligned on the right."""
    from rich.table import Table

    rows = list(rows)
    table = Table(box=None, pad_edge=False, show_header=bool(header))
    for index, heading in enumerate(header or rows[0]):
        table.add_column(heading, justify="left" if index in left else "right")
    for row in rows:
        table.add_row(*row)
    console = open_console()
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        print(line.rstrip())


def one_line(text: str, width: int = 100) -> str:
    """A text without line breaks and control characters, cut to ``width``."""
    printable = "".join(c if c.isprintable() else "�" for c in " ".join(text.split()))
    return printable if len(printable) <= width else printable[: width - 1] + "…"


def provenance() -> dict[str, Any]:
    """Date, commit, machine and versions, for what is written to disk."""
    import torch

    return {
        "date": datetime.date.today().isoformat(),
        "commit": _commit(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
    }


def _commit() -> str | None:
    """The commit of this checkout, or None outside of one."""
    try:
        command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
        answer = subprocess.run(
            [*command, "--abbrev=12"], capture_output=True, text=True, check=True, timeout=5
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()
