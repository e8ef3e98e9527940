"""The tables of posts and words: columns of posts, and stems against NLTK's."""

import itertools
import string

import pytest
from nltk.stem import PorterStemmer

from rerankers.features._tables import stem

STEMMER = PorterStemmer()
ENDINGS = [
    *("", "9", "É", "News", "ational", "tional", "izer", "entli", "ousli", "ization", "ation"),
    *("ator", "alism", "iveness", "fulness", "ousness", "aliti", "iviti", "biliti", "fulli"),
    *("logi", "icate", "ative", "alize", "iciti", "ical", "ful", "ness", "ance", "ible", "ement"),
    *("ment", "ous", "ied"),
    *string.ascii_lowercase,
    *map("".join, itertools.product(string.ascii_lowercase, repeat=2)),
]


@pytest.mark.parametrize("beginning", ["", "tr", "agree"])
def test_stems_are_those_of_nltk_for_all_endings(beginning: str) -> None:
    words = [beginning + ending for ending in ENDINGS]
    assert [stem(word) for word in words] == [STEMMER.stem(word) for word in words]


def test_stems_of_exceptions_are_those_of_nltk() -> None:
    words = [each for word in STEMMER.pool for each in (word, word.upper())]
    assert len(words) > 20
    assert [stem(word) for word in words] == [STEMMER.stem(word) for word in words]
