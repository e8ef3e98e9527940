"""Distinct rows and values among few, against sets."""

import numpy as np
import pytest

from rerankers.text.ragged import among, distinct, distinct_trigrams


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


def test_values_among_few() -> None:
    values = np.array([5, 0, 9, 2**63, 5, 7], dtype=np.uint64)
    for few in ([], [5], [0, 5, 2**63], [1, 6, 8]):
        found = among(values, np.array(few, dtype=np.uint64)).tolist()
        assert found == [value in set(few) for value in values.tolist()]


@pytest.mark.parametrize("last", ["z", "\U0001f600", "\U0010ffff"])
def test_distinct_trigrams(last: str) -> None:
    """Also where trigrams and texts together need more than 64 bits."""
    random = np.random.default_rng(1)
    letters = [*"ab c", "é", last]
    lengths = random.integers(0, 20, 60)
    texts = ["".join(random.choice(letters, length).tolist()) for length in lengths]
    found = distinct_trigrams(texts)
    assert len(found) == len(texts)
    for text, part in zip(texts, np.split(found.values, found.starts[1:-1]), strict=True):
        trigrams = {text[at : at + 3] for at in range(len(text) - 2)}
        numbers = [sum(ord(c) << (21 * (2 - k)) for k, c in enumerate(t)) for t in trigrams]
        assert sorted(part.tolist()) == sorted(numbers)
