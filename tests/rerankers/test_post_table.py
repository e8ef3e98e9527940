"""The tables of posts and words: columns of posts, and stems against NLTK's."""

import itertools
import string
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from helpers.feature_lists import IDF
from helpers.reranking_samples import AWKWARD, POSTS
from nltk.stem import PorterStemmer

from rerankers.features._tables import PostTable, WordTable, stem
from rerankers.text.ragged import Ragged
from rerankers.text.spaces import WordSpace
from rerankers.text.words import URL_PLACEHOLDER, hashtags, url_text, words

TEXTS = [*AWKWARD.values(), *(text for text, _ in POSTS), "", "so\n\nmany\nlines", "#a_b ## c", ""]
URLS = [*AWKWARD.values(), *(url for _, url in POSTS), "", "http://x.org/é", "http://", "\ud83d"]

STEMMER = PorterStemmer()
ENDINGS = [
    *("", "9", "É", "News", "ational", "tional", "izer", "entli", "ousli", "ization", "ation"),
    *("ator", "alism", "iveness", "fulness", "ousness", "aliti", "iviti", "biliti", "fulli"),
    *("logi", "icate", "ative", "alize", "iciti", "ical", "ful", "ness", "ance", "ible", "ement"),
    *("ment", "ous", "ied"),
    *string.ascii_lowercase,
    *map("".join, itertools.product(string.ascii_lowercase, repeat=2)),
]


def lists(column: Ragged) -> list[list[int]]:
    return [
        column.values[start:end].tolist()
        for start, end in zip(column.starts[:-1], column.starts[1:], strict=True)
    ]


def test_columns_of_posts() -> None:
    table = WordTable(IDF)
    posts = PostTable.read(TEXTS, URLS, table)
    tagged = [words(" ".join(hashtags(text))) for text in TEXTS]
    for column, expected in (("words", map(words, TEXTS)), ("hashtag_words", tagged)):
        found = [table.spelled(np.array(row)) for row in lists(posts.column(column))]
        assert found == list(expected), column
    for row, text in zip(lists(posts.column("trigrams")), TEXTS, strict=True):
        line = f" {' '.join(words(text))} "
        assert len(row) == len(set(row)) == len({line[i : i + 3] for i in range(len(line) - 2)})
    said = [url_text(url) for url in URLS]
    links = [bytes(row).decode(errors="surrogatepass") for row in lists(posts.column("link"))]
    assert links == ["" if link == URL_PLACEHOLDER else link for link in said]
    assert posts.counted.hashtags.tolist() == [len(hashtags(text)) for text in TEXTS]


@pytest.mark.parametrize("beginning", ["", "tr", "agree"])
def test_stems_are_those_of_nltk_for_all_endings(beginning: str) -> None:
    words = [beginning + ending for ending in ENDINGS]
    assert [stem(word) for word in words] == [STEMMER.stem(word) for word in words]


def test_stems_of_exceptions_are_those_of_nltk() -> None:
    words = [each for word in STEMMER.pool for each in (word, word.upper())]
    assert len(words) > 20
    assert [stem(word) for word in words] == [STEMMER.stem(word) for word in words]


def test_rows_of_words_in_a_space() -> None:
    """Known words are looked up once for all tables, new ones once for each."""
    asked: list[str] = []

    def compute(spelled: Sequence[str]) -> npt.NDArray[np.float32]:
        asked.extend(spelled)
        return np.array([[len(word)] for word in spelled], dtype=np.float32)

    known = WordTable(IDF)
    known.rows(["storm", "cuts", "power"])
    kept, space = known.known(), WordSpace(1, compute)
    for new in (["zebra", "quay"], ["mist"]):
        table = WordTable(IDF, known=kept)
        spelled = ["cuts", *new, "cuts", "storm"]
        rows = table.rows(spelled)
        for _ in range(2):
            found = space.at(table.rows_in(space, rows))
            assert found.vectors[:, 0].tolist() == [len(word) for word in spelled]
        assert table.rows_in(space, rows[:0]).tolist() == []
    assert sorted(asked) == ["cuts", "mist", "quay", "storm", "zebra"]
    other = WordSpace(1, lambda spelled: np.zeros((len(spelled), 1), dtype=np.float32))
    assert other.at(table.rows_in(other, rows)).vectors.sum() == 0
