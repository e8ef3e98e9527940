"""Devices of PyTorch, and parallel work on the CPU."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

Item = TypeVar("Item")


def devices_of(device: torch.device | str) -> list[torch.device]:
    """Devices by name: all GPUs for ``cuda``, one device for any other name."""
    named = torch.device(device)
    if named.type != "cuda" or named.index is not None:
        return [named]
    # Without a GPU, PyTorch raises the error.
    return [torch.device("cuda", n) for n in range(torch.cuda.device_count())] or [named]


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
