"""Devices of networks, and parallel work on the CPU."""

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
"""Types of devices whose numbers can be read without waiting, as for a GPU's."""

_chosen = 0  # Number of threads by set_threads(); 0 before it is called
_within = local()  # ``threads``: number of threads of a thread in one_thread_each()
_forks = False  # Whether processes() may be more than one


def device_name(text: str) -> str:
    """Check a device: ``auto``, ``cpu``, ``cuda`` (the first GPU) or ``cuda:N``.

    Raises ValueError for others.
    """
    if not re.fullmatch(r"auto|cpu|cuda(:[0-9]+)?", text):
        raise ValueError(f"found {text!r}, expected auto, cpu, cuda or cuda:N")
    return text


def placed(device: object, is_network: bool) -> str:
    """Return the device of a model, ``auto`` resolved; only networks use a GPU.

    Raises RerankerError if the machine has no such device.
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
    """Number of threads for parallel work.

    The number of :func:`set_threads`; else PyTorch's, if it is imported; else
    $OMP_NUM_THREADS, or the number of cores that this process may use.
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
    """Set the number of threads for parallel work, and PyTorch's if it is imported."""
    global _chosen
    _chosen = count
    share_threads()


def share_threads() -> None:
    """Give PyTorch, after its import, the number of threads of :func:`set_threads`."""
    torch = sys.modules.get("torch")
    if _chosen and torch:
        torch.set_num_threads(_chosen)


# One thread in a forked process: fork does not copy the others, nor those of OpenMP.
os.register_at_fork(after_in_child=lambda: set_threads(1))


@contextmanager
def one_thread_each() -> Iterator[int]:
    """Use one thread inside the block, also in PyTorch.

    Yields the number of threads before it.
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
    """Let forked processes share work.

    Commands call it. In other programs a thread may hold a lock at the fork.
    """
    global _forks
    _forks = sys.platform == "linux"


def processes() -> int:
    """Number of processes for work that threads cannot share."""
    if _forks:
        return threads()
    return 1


def in_processes(
    function: Callable[[Item], Iterable[Result]], items: Sequence[Item]
) -> Iterator[Result]:
    """Yield the results of a function of each item, as they come.

    A forked process computes the results of an item. Raises the function's error, and
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
    """Wait for the end of a process; RerankerError if it was killed."""
    process.join()
    if process.exitcode:
        raise RerankerError(
            "a process has ended early, for its memory perhaps; use one, by "
            "OMP_NUM_THREADS=1"
        )


def _send(function: Any, item: Any, writer: Any, readers: Iterable[Any]) -> None:
    """Send the results, or the error; ends when the waiting process has been killed."""
    for reader in readers:
        reader.close()
    # The waiting process ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with suppress(OSError):
        try:
            for result in function(item):
                writer.send(result)
        except Exception as error:
            writer.send(error)
