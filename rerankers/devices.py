"""Parallel work on the CPU, and what a GPU would have to be waited for."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

Item = TypeVar("Item")

HOSTS = ("cpu",)
"""Types of devices whose numbers can be read at once; those of a GPU have to be waited for."""


def is_host(device: torch.device) -> bool:
    """Whether a device is one of :data:`HOSTS`."""
    return device.type in HOSTS


@contextmanager
def one_thread_each() -> Iterator[int]:
    """One thread for PyTorch inside the block; yields the number of threads before it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield threads
    finally:
        torch.set_num_threads(threads)


def in_threads(function: Callable[[Item], None], items: Sequence[Item]) -> None:
    """Call a function with each item, in as many threads as PyTorch has.

    It helps functions that spend their time outside of Python, as in operations on large arrays.
    """
    if len(items) < 2 or torch.get_num_threads() < 2:
        for item in items:
            function(item)
        return
    with one_thread_each() as threads, ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(function, items):
            pass
