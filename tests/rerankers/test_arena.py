"""Memory that is lent in turn."""

import threading
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from rerankers.scoring import arena
from rerankers.scoring.arena import Arena


@dataclass(eq=False)
class Owner:
    name: str = ""
    readers: int = 0
    is_used: bool = False


def names(owners: list[Owner]) -> str:
    return "".join(owner.name for owner in owners)


def lend(memory: Arena[Owner], name: str, size: int, limit: int = 10) -> Owner | None:
    owner = Owner(name)
    lent = memory.lend(owner, size, limit)
    assert lent is None or lent.shape == (size,)
    return owner if lent is not None else None


def test_the_oldest_gives_way_unless_it_was_used() -> None:
    dropped: list[Owner] = []
    memory = Arena(10, dropped.append)
    a, b, c = (lend(memory, name, 3) for name in "abc")
    assert a and b and c and not dropped
    a.is_used = True
    # One number is left; b's and c's are taken with it, for a was used.
    assert lend(memory, "d", 5)
    assert names(dropped) == "bc"
    # The second time a gives way.
    assert not a.is_used
    assert lend(memory, "e", 3)
    assert names(dropped) == "bca"


def test_those_who_read_keep_their_memory() -> None:
    dropped: list[Owner] = []
    memory = Arena(10, dropped.append)
    first, last = lend(memory, "a", 5), lend(memory, "b", 5)
    assert first and last
    first.readers = 1
    assert lend(memory, "c", 6) is None
    assert names(dropped) == "b"
    assert lend(memory, "d", 5)
    first.readers = 0
    assert lend(memory, "e", 10)
    assert names(dropped) == "bad"


def test_a_limit_that_falls() -> None:
    dropped: list[Owner] = []
    memory = Arena(10, dropped.append)
    assert lend(memory, "a", 8)
    assert lend(memory, "b", 2)
    assert lend(memory, "c", 5, limit=4) is None
    assert names(dropped) == "ab"
    assert lend(memory, "d", 4, limit=4)
    assert lend(memory, "e", 3, limit=7)
    assert names(dropped) == "ab"
    assert lend(memory, "f", 1, limit=0) is None
    assert lend(Arena(0, dropped.append), "g", 1) is None


def test_lent_parts_never_overlap() -> None:
    """What an owner has written stays until it is dropped, whatever else is lent meanwhile."""
    kept: dict[Owner, torch.Tensor] = {}
    memory = Arena(1000, kept.pop)
    rng = np.random.default_rng(1)
    for number in range(3000):
        size, owner = int(rng.integers(1, 120)), Owner(str(number))
        lent = memory.lend(owner, size, int(rng.integers(800, 1001)))
        if lent is not None:
            lent.fill_(number)
            kept[owner] = lent
        for other in rng.choice([*kept], 3):
            other.is_used, other.readers = True, int(rng.random() < 0.2)
        for other, values in kept.items():
            assert (values == int(other.name)).all()
    assert 5 < len(kept) < 1000


@pytest.mark.parametrize("at_once", [7, 1 << 16])
def test_touching_does_not_change_what_is_lent(
    monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(arena, "AT_ONCE", at_once)
    memory: Arena[Owner] = Arena(20_000, lambda owner: None)
    thread = threading.Thread(target=memory.touch)
    thread.start()
    lent = []
    for number in range(1, 200):
        values = memory.lend(Owner(), 100, 20_000)
        assert values is not None
        lent.append(values.fill_(number))
    thread.join()
    for number, values in enumerate(lent, start=1):
        assert (values == number).all()
