"""Distinct windows of texts, against plain Python."""

import numpy as np
import pytest

from rerankers.engine.windows import TokenSequences, distinct, used_ids
from rerankers.text.inputs import Packed


def texts(rows: list[list[int]], longest: int = 100) -> TokenSequences:
    packed = Packed.of([[7, 7, 7], *rows])
    return TokenSequences.from_packed(packed, np.arange(1, len(rows) + 1), longest)


ROWS = [[1, 2, 3, 1, 2], [], [4], [1, 2, 9], [2, 2, 2, 2]]


def test_texts_are_laid_end_to_end() -> None:
    found = texts(ROWS, longest=3)
    assert found.ids.tolist() == [1, 2, 3, 4, 1, 2, 9, 2, 2, 2]
    assert found.lengths.tolist() == [3, 0, 1, 3, 3]
    assert found.remaining.tolist() == [3, 2, 1, 1, 3, 2, 1, 3, 2, 1]


def test_windows_end_with_their_text() -> None:
    found = texts(ROWS)
    columns = found.windows(found.ids, 3)
    expected = [tuple([*row, 0, 0][place : place + 3]) for row in ROWS for place in range(len(row))]
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == expected


def test_padded_rows_hold_the_texts() -> None:
    found = texts(ROWS)
    padded = found.padded(found.ids, 99)
    assert padded.shape == (5, 5)
    for row, text in zip(padded.tolist(), ROWS, strict=True):
        assert row == text + [99] * (5 - len(text))
    assert texts([[]]).padded(np.zeros(0, np.int64), 3).tolist() == [[3]]


@pytest.mark.parametrize("highest", [3, 40, 2**20, 2**40])
def test_distinct_rows_are_told_apart(highest: int) -> None:
    rng = np.random.default_rng(1)
    values = rng.integers(0, highest, 12)
    columns = [rng.choice(values, 500) for _ in range(4)]
    first, which = distinct(columns)
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    for row, number in zip(rows, which.tolist(), strict=True):
        assert rows[first[number]] == row
    assert len(first) <= 1.1 * len(set(rows))
    assert sorted(which[first].tolist()) == list(range(len(first)))


def test_nothing_has_no_distinct_rows() -> None:
    empty = np.zeros(0, np.int64)
    first, which = distinct([empty, empty])
    assert first.tolist() == which.tolist() == []


def test_used_ids_are_those_of_any_view() -> None:
    assert used_ids([Packed.of([[3, 1], [0]]), Packed.of([[9, 3]])]).tolist() == [1, 3, 9]
    assert used_ids([Packed.of([[]])]).tolist() == []
