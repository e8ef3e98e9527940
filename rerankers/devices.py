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

HOSTS = (
    "cpu",
)  # Types of devices whose numbers can be read without waiting, as for a GPU's

_chosen = 0  # Threads by :func:`set_threads`; 0 before it is called
_within = local()  # ``threads`` of a thread inside :func:`one_thread_each`
_forks = False  # Whether :func:`processes` may be more than one


def device_name(text: str) -> str:
    """``auto``, ``cpu``, ``cuda`` (the first GPU) or ``cuda:N``; raises ValueError for others."""
    if not re.fullmatch(r"auto|cpu|cuda(:[0-9]+)?", text):
        raise ValueError(f"found {text!r}, expected auto, cpu, cuda or cuda:N")
    return text


def placed(device: object, is_network: bool) -> str:
    """The device that is there for a network, the one of ``auto``; others are on the CPU.
    Raises RerankerError if there is no such device."""
    try:
        name, _, number = device_name(str(device)).partition(":")
    except ValueError as error:
        raise RerankerError(f"`device`: {error}") from None
    if name == "cpu" or not is_network:
        return "cpu"
    try:
        import torch
    except ModuleNotFoundError:
        raise RerankerError(
            "found no PyTorch, which networks need; install it: pip install 'tweetrerank[neural]'"
        ) from None
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if not torch.cuda.is_available():
        raise RerankerError(
            "`device`: found no CUDA device for PyTorch; use `device` cpu or auto"
        )
    if number and int(number) >= (count := torch.cuda.device_count()):
        raise RerankerError(
            f"`device`: found {device}, expected cuda:N with N below {count}"
        )
    return str(device)


def has_bfloat16(kind: str) -> bool:
    """Whether the processor (``cpu`` or ``cuda``) multiplies bfloat16 faster than fp32."""
    import torch

    if kind == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def threads() -> int:
    """Threads for parallel work: those of :func:`set_threads`, or of PyTorch, once it is imported;
    before that $OMP_NUM_THREADS, or the number of cores that this process may use."""
    if count := getattr(_within, "threads", 0) or _chosen:
        return int(count)
    if torch := sys.modules.get("torch"):
        return int(torch.get_num_threads())
    given = os.environ.get("OMP_NUM_THREADS", "")
    return (
        int(given) if given.isdecimal() and int(given) else len(os.sched_getaffinity(0))
    )


def set_threads(count: int) -> None:
    """Set the threads for parallel work, also those of PyTorch if it is imported."""
    global _chosen
    _chosen = count
    share_threads()


def share_threads() -> None:
    """Give PyTorch, which may just have been imported, the threads of :func:`set_threads`."""
    if _chosen and (torch := sys.modules.get("torch")):
        torch.set_num_threads(_chosen)


# One thread in a forked process: the others, OpenMP's too, were not copied.
os.register_at_fork(after_in_child=lambda: set_threads(1))


@contextmanager
def one_thread_each() -> Iterator[int]:
    """One thread inside the block, also for PyTorch; yields the number of threads before it."""
    before, torch = threads(), sys.modules.get("torch")
    outer, _within.threads = getattr(_within, "threads", 0), 1
    if torch:
        torch.set_num_threads(1)
    try:
        yield before
    finally:
        _within.threads = outer
        if torch:
            torch.set_num_threads(before)


def allow_processes() -> None:
    """Let forked processes share work, in commands: of other programs a thread may hold a lock."""
    global _forks
    _forks = sys.platform == "linux"


def processes() -> int:
    """Processes for work that Python's lock keeps threads from sharing."""
    return threads() if _forks else 1


def in_processes(
    function: Callable[[Item], Iterable[Result]], items: Sequence[Item]
) -> Iterator[Result]:
    """The results of a function of each item, computed by a forked process for each, as they come.
    Raises the function's error, and RerankerError if a process is killed."""
    from multiprocessing import connection, get_context

    reader: Any
    context, running = get_context("fork"), dict[Any, Any]()
    try:
        for item in items:
            reader, writer = context.Pipe(duplex=False)
            given = function, item, writer, [*running, reader]
            process = context.Process(target=_send, args=given, daemon=True)
            process.start()
            writer.close()
            running[reader] = process
        while running:
            for reader in connection.wait([*running]):
                try:
                    result = reader.recv()
                except EOFError:
                    (process := running.pop(reader)).join()
                    if process.exitcode:
                        problem = "a process has ended early, for its memory perhaps; use one, by"
                        raise RerankerError(f"{problem} OMP_NUM_THREADS=1") from None
                    continue
                if isinstance(result, Exception):
                    raise result
                yield result
    finally:
        for process in running.values():
            process.terminate()


def _send(function: Any, item: Any, writer: Any, readers: Iterable[Any]) -> None:
    """Send the results, or the error; ends when the process that waits has been killed."""
    for reader in readers:
        reader.close()
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # The process that waits ends this one.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with suppress(OSError):
        try:
            for result in function(item):
                writer.send(result)
        except Exception as error:
            writer.send(error)
