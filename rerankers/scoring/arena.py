"""Memory of which parts are lent in turn: what was not used since the last turn gives way.

The replacement is CLOCK (Corbató, 1968, "A paging experiment with the Multics system"), which is
close to "least recently used". The memory can be touched before it is lent: a fresh page costs
more time than what a convolution writes into it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import Lock, main_thread
from typing import Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

AT_ONCE = 1 << 16
"""Numbers that are touched at once."""


class Owner(Protocol):
    """Whom a part is lent to.

    Attributes:
        readers: those who read or write it now; it does not give way.
        is_used: since it was last passed over.
    """

    readers: int
    is_used: bool


OwnerType = TypeVar("OwnerType", bound=Owner)


class Span(NamedTuple, Generic[OwnerType]):
    """Numbers ``start`` to ``end`` of an arena, lent or free."""

    start: int
    end: int
    owner: OwnerType | None


class Arena(Generic[OwnerType]):
    """Memory for float32 numbers.

    Args:
        size: in numbers. Those that were never lent or touched take no memory.
        drop: called with an owner that loses its part.
    """

    def __init__(self, size: int, drop: Callable[[OwnerType], None]) -> None:
        self._values, self._drop = torch.empty(size), drop
        # All of the memory by address, from the hand on.
        self._spans: deque[Span[OwnerType]] = deque([Span(0, size, None)])
        self._touched, self._lock = 0, Lock()

    def lend(self, owner: OwnerType, size: int, limit: int) -> Tensor | None:
        """Memory [size], not initialised; None if those who read leave too little.

        Calls must not overlap.

        Args:
            owner: of whom ``drop`` is called when it gives way.
            size: in numbers.
            limit: what lies behind this number is not lent.
        """
        start = end = self._spans[0].start if self._spans else 0
        # Two turns: in the first one, what is in use is passed over.
        for _ in range(2 * len(self._spans)):
            if not self._spans:
                break
            span = self._spans.popleft()
            if span.start != end:  # The hand is at the beginning again.
                self._give_back(start, end)
                start = span.start
            if span.owner and (span.owner.readers or span.owner.is_used):
                span.owner.is_used = False
                self._give_back(start, span.start)
                self._spans.append(span)
                start = end = span.end
                continue
            if span.owner:
                self._drop(span.owner)
            end = span.end
            if start + size <= min(end, limit):
                return self._lent(owner, start, size, end)
        self._give_back(start, end)
        return None

    def _give_back(self, start: int, end: int) -> None:
        if end > start:
            self._spans.append(Span(start, end, None))

    def _lent(self, owner: OwnerType, start: int, size: int, end: int) -> Tensor:
        stop = start + size
        if end > stop:
            self._spans.appendleft(Span(stop, end, None))
        self._spans.append(Span(start, stop, owner))
        if stop > self._touched:
            with self._lock:  # Not while this memory is being touched.
                self._touched = max(self._touched, stop)
        return self._values[start:stop]

    def touch(self) -> None:
        """Write into all that was not lent yet, unless the program ends.

        Others may be lent a part meanwhile.
        """
        while self._touched < len(self._values) and main_thread().is_alive():
            with self._lock:
                self._values[self._touched : self._touched + AT_ONCE].zero_()
                self._touched += AT_ONCE
