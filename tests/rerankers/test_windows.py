"""Distinct windows of texts, against plain Python."""

from helpers.reranking_samples import ragged

from rerankers.scoring.windows import used_ids, windows_of

ROWS = [[1, 2, 3, 1, 2], [], [4], [1, 2, 9], [2, 2, 2, 2]]


def test_windows_end_with_their_text() -> None:
    texts = ragged(ROWS)
    columns = windows_of(texts, texts.values, 3)
    expected = [tuple([*row, 0, 0][place : place + 3]) for row in ROWS for place in range(len(row))]
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == expected


def test_used_ids_are_those_of_any_input() -> None:
    assert used_ids([ragged([[3, 1], [0]]), ragged([[9, 3]])]).tolist() == [1, 3, 9]
    assert used_ids([ragged([[]])]).tolist() == []
