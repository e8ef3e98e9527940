"""Distinct windows of texts, against plain Python."""

import numpy as np
import pytest
from reranking_samples import ragged

from rerankers.engine.windows import distinct, used_ids, windows_of

ROWS = [[1, 2, 3, 1, 2], [], [4], [1, 2, 9], [2, 2, 2, 2]]


def test_windows_end_with_their_text() -> None:
    texts = ragged(ROWS)
    columns = windows_of(texts, texts.values, 3)
    expected = [tuple([*row, 0, 0][place : place + 3]) for row in ROWS for place in range(len(row))]
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == expected


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


def test_used_ids_are_those_of_any_input() -> None:
    assert used_ids([ragged([[3, 1], [0]]), ragged([[9, 3]])]).tolist() == [1, 3, 9]
    assert used_ids([ragged([[]])]).tolist() == []
