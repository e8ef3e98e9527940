"""Devices of networks, and parallel work on the CPU."""

import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import local
from typing import TypeVar

from rerankers.errors import RerankerError

Item = TypeVar("Item")

HOSTS = ("cpu",)  # Types of devices whose numbers can be read without waiting, as for a GPU's

_chosen = 0  # Threads by :func:`set_threads`; 0 before it is called
_within = local()  # ``threads`` of a thread inside :func:`one_thread_each`


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
        raise RerankerError("`device`: found no CUDA device for PyTorch; use `device` cpu or auto")
    if number and int(number) >= (count := torch.cuda.device_count()):
        raise RerankerError(f"`device`: found {device}, expected cuda:N with N below {count}")
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
    return int(given) if given.isdecimal() and int(given) else len(os.sched_getaffinity(0))


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


def in_threads(function: Callable[[Item], None], items: Sequence[Item]) -> None:
    """Call a function with each item, in :func:`threads`, which helps functions that spend their
    time outside of Python, as in operations on large arrays."""
    if len(items) < 2 or threads() < 2:
        list(map(function, items))
        return
    with one_thread_each() as count, ThreadPoolExecutor(count) as pool:
        list(pool.map(function, items))
