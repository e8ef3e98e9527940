"""Work on the CPU's cores: PyTorch's own threads, or one thing to a thread."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

Thing = TypeVar("Thing")


@contextmanager
def one_thread_each() -> Iterator[int]:
    """PyTorch with a single thread in each of so many: those that it has outside."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield threads
    finally:
        torch.set_num_threads(threads)


def side_by_side(function: Callable[[Thing], None], things: Sequence[Thing]) -> None:
    """Call a function with each of some things, as many at a time as PyTorch has threads.

    It is of use where the function spends its time outside Python, as in large arrays.
    """
    if len(things) < 2 or torch.get_num_threads() < 2:
        for thing in things:
            function(thing)
        return
    with one_thread_each() as threads, ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(function, things):
            pass
