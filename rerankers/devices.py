"""Choose the device of a network, and share work among threads and processes."""

import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import local
from typing import Any, TypeVar

from tweetrerank.rerankers.reranker_error import RerankerError

Item = TypeVar("Item")
Result = TypeVar("Result")

HOSTS = ("cpu",)
"""Types of devices that compute at once. Reading numbers from a GPU has to wait."""

_chosen = 0  # Number of threads that set_threads() got; 0 before it is called
# The attribute ``threads`` is the number of threads inside one_thread_each(). It holds
# only for the thread that set it.
_within = local()
_forks = False  # Whether processes() may be more than one


def device_name(text: str) -> str:
    """Return the name of a device after a check of its form.

    The name is ``auto``, ``cpu``, ``cuda`` (the first GPU) or ``cuda:N``. Raises
    ValueError for any other name.
    """
    if not re.fullmatch(r"auto|cpu|cuda(:[0-9]+)?", text):
        raise ValueError(f"found {text!r}, expected auto, cpu, cuda or cuda:N")
    return text


def placed(device: object, is_network: bool) -> str:
    """Return the device that a model runs on.

    Only networks use a GPU. ``auto`` becomes ``cuda`` if the machine has a GPU, else
    ``cpu``. Raises RerankerError if the name is malformed, the machine has no such
    device, or PyTorch is missing.
    """
    try:
        name = device_name(str(device))
    except ValueError as error:
        raise RerankerError(f"`device`: {error}") from None
    if name == "cpu" or not is_network:
        return "cpu"
    try:
        import torch
    except ModuleNotFoundError:
        raise RerankerError(
            "found no PyTorch, which networks need; install it: "
            "pip install 'tweetrerank[neural]'"
        ) from None
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if not torch.cuda.is_available():
        raise RerankerError(
            "`device`: found no CUDA device for PyTorch; use `device` cpu or auto"
        )
    number = name.partition(":")[2]
    count = torch.cuda.device_count()
    if number and int(number) >= count:
        raise RerankerError(
            f"`device`: found {device}, expected cuda:N with N below {count}"
        )
    return str(device)


def has_bfloat16(kind: str) -> bool:
    """Whether ``cpu`` or ``cuda`` multiplies bfloat16 faster than fp32."""
    import torch

    if kind == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def threads() -> int:
    """Return the number of threads for parallel work.

    This is the first of the following that is known: 1 inside :func:`one_thread_each`,
    the number that :func:`set_threads` got, PyTorch's number if PyTorch is imported,
    $OMP_NUM_THREADS, and the number of cores that this process may use.
    """
    count = getattr(_within, "threads", 0) or _chosen
    if count:
        return int(count)
    torch = sys.modules.get("torch")
    if torch:
        return int(torch.get_num_threads())
    limit = os.environ.get("OMP_NUM_THREADS", "")
    if limit.isdecimal() and int(limit):
        return int(limit)
    return len(os.sched_getaffinity(0))


def set_threads(count: int) -> None:
    """Set the number of threads for parallel work, here and in PyTorch if imported."""
    global _chosen
    _chosen = count
    share_threads()


def share_threads() -> None:
    """Tell PyTorch the number of threads that :func:`set_threads` got.

    Call this after importing PyTorch. It does nothing if no number was set.
    """
    torch = sys.modules.get("torch")
    if _chosen and torch:
        torch.set_num_threads(_chosen)


# A forked process uses one thread, because fork copies neither the other threads nor
# those of OpenMP.
os.register_at_fork(after_in_child=lambda: set_threads(1))


@contextmanager
def one_thread_each() -> Iterator[int]:
    """Use one thread inside the ``with`` block, here and in PyTorch.

    Yields the number of threads that was used before the block, and restores it after.
    """
    before = threads()
    torch = sys.modules.get("torch")
    outer = getattr(_within, "threads", 0)
    _within.threads = 1
    if torch:
        torch.set_num_threads(1)
    try:
        yield before
    finally:
        _within.threads = outer
        if torch:
            torch.set_num_threads(before)


def allow_processes() -> None:
    """Let :func:`processes` be more than 1 (on Linux), so that processes share work.

    Only our commands call this. Other programs may have a thread that holds a lock at
    the moment of the fork, and the forked process would wait for that lock for ever.
    """
    global _forks
    _forks = sys.platform == "linux"


def processes() -> int:
    """Return the number of processes for work that threads cannot share.

    It is 1 unless :func:`allow_processes` has been called.
    """
    if _forks:
        return threads()
    return 1


def in_processes(
    function: Callable[[Item], Iterable[Result]], items: Sequence[Item]
) -> Iterator[Result]:
    """Call a function for each item in a separate forked process; yield all results.

    All processes run at once. Results come as soon as they are ready, so those of
    different items are mixed. An error of the function is raised here. Raises
    RerankerError if a process is killed.
    """
    from multiprocessing import connection, get_context

    context = get_context("fork")
    running: dict[Any, Any] = {}  # Reader of a pipe -> process that writes to it
    try:
        for item in items:
            reader, writer = context.Pipe(duplex=False)
            process = context.Process(
                target=_send,
                args=(function, item, writer, [*running, reader]),
                daemon=True,
            )
            process.start()
            writer.close()
            running[reader] = process
        while running:
            ready: Any = connection.wait(list(running))
            for pipe in ready:
                try:
                    result = pipe.recv()
                except EOFError:
                    _join(running.pop(pipe))
                    continue
                if isinstance(result, Exception):
                    raise result
                yield result
    finally:
        for process in running.values():
            process.terminate()


def _join(process: Any) -> None:
    """Wait for a process to end. Raises RerankerError if it did not end normally."""
    process.join()
    if process.exitcode:
        raise RerankerError(
            "a process has ended early, for its memory perhaps; use one, by "
            "OMP_NUM_THREADS=1"
        )


def _send(function: Any, item: Any, writer: Any, readers: Iterable[Any]) -> None:
    """Compute the results of an item and send each, or the error, to the main process.

    Sending fails, and this process ends, when the main process has been killed.
    """
    # As long as this process had these ends of the pipes open, sending would not fail.
    for reader in readers:
        reader.close()
    # Ctrl-C reaches all processes, but the main process ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with suppress(OSError):
        try:
            for result in function(item):
                writer.send(result)
        except Exception as error:
            writer.send(error)
