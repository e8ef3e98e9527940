"""Parallel work on the CPU, and what a GPU would have to be waited for."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import local
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import torch

Item = TypeVar("Item")

HOSTS = ("cpu",)
"""Types of devices whose numbers can be read at once; those of a GPU have to be waited for."""

_chosen = 0
"""Threads by :func:`set_threads`; 0 before it is called."""

_within = local()
"""``threads`` of a thread inside :func:`one_thread_each`."""


def is_host(device: torch.device) -> bool:
    """Whether a device is one of :data:`HOSTS`."""
    return device.type in HOSTS


def threads() -> int:
    """Threads for parallel work: those of :func:`set_threads`, or of PyTorch, once it is imported.

    Before that $OMP_NUM_THREADS, or the number of cores that this process may use.
    """
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
    """Call a function with each item, in :func:`threads`.

    It helps functions that spend their time outside of Python, as in operations on large arrays.
    """
    if len(items) < 2 or threads() < 2:
        for item in items:
            function(item)
        return
    with one_thread_each() as count, ThreadPoolExecutor(count) as pool:
        for _ in pool.map(function, items):
            pass
