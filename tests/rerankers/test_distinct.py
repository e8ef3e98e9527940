"""Distinct rows, against a set of tuples."""

import numpy as np

from rerankers.text.ragged import distinct


def test_rows_that_share_a_slot_are_told_apart() -> None:
    """Of 40,000 rows with few repetitions, many have the same place in the hash table."""
    random = np.random.default_rng(1)
    columns = [
        np.repeat(np.arange(1000), 40),
        random.integers(0, 2**40, 60)[random.integers(0, 60, 40_000)],
    ]
    first, kinds = distinct(columns)
    rows = np.stack(columns, axis=1)
    np.testing.assert_array_equal(rows[first][kinds], rows)
    kinds_of_rows = len(np.unique(rows, axis=0))
    assert len(first) == kinds_of_rows
    first, kinds = distinct(columns, is_exact=False)
    np.testing.assert_array_equal(rows[first][kinds], rows)
    assert kinds_of_rows <= len(first) < 2 * kinds_of_rows
