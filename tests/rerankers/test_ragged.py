"""Ragged arrays against lists of lists."""

import numpy as np
import pytest
from helpers.reranking_samples import ragged
from hypothesis import given, settings
from hypothesis import strategies as st

from rerankers.text.ragged import Ragged

LISTS = st.lists(st.lists(st.integers(1, 99), max_size=6), min_size=1, max_size=8)


def lists(found: Ragged) -> list[list[int]]:
    return [part.tolist() for part in np.split(found.values, found.starts[1:-1])]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(LISTS, st.data())
def test_rows_are_taken_cut_and_padded(rows: list[list[int]], data: st.DataObject) -> None:
    wanted = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=10))
    longest = data.draw(st.integers(0, 6))
    found = ragged(rows).take(np.array(wanted), longest)
    expected = [rows[row][:longest] for row in wanted]
    assert lists(found) == expected
    columns = max(1, *map(len, expected))
    assert found.padded(0).tolist() == [row + [0] * (columns - len(row)) for row in expected]
    assert lists(ragged(rows).take(np.array(wanted))) == [rows[row] for row in wanted]


@pytest.mark.parametrize("rows", [[], [[]]])
def test_no_lists_and_no_values(rows: list[list[int]]) -> None:
    found = ragged(rows)
    assert len(found) == len(found.lengths) == len(rows)
    assert found.padded(3).tolist() == [[3]] * len(rows)
    assert len(found.take(np.zeros(0, dtype=np.int64))) == 0
