"""Texts by their distinct words, against reading one text after the other."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rerankers.text.lexicon import Lexicon
from rerankers.text.words import (
    END,
    character_trigrams,
    tokens_of,
    url_text,
    url_trigrams,
    words,
)

TEXTS = [
    "Sooooo good, isn't it?\nRT @x: http://t.co/a",
    "",
    "a_b -LRB- c -RRB-",
    "good it’s ŚĆ",
    "\n",
]


def check(texts: list[str]) -> None:
    lexicon = Lexicon.from_texts(texts)
    by_word = lexicon.trigrams()
    assert len(lexicon.texts) == len(texts)
    for text, start, end in zip(
        texts, lexicon.texts.starts[:-1], lexicon.texts.starts[1:], strict=True
    ):
        rows = lexicon.texts.values[start:end]
        assert [lexicon.words[row] for row in rows] == words(text)
        trigrams = by_word.values[by_word.starts[start] : by_word.starts[end]]
        np.testing.assert_array_equal(trigrams, character_trigrams(words(text)).values)


def test_every_text_is_read_as_alone() -> None:
    check(TEXTS)
    check([])


@given(st.lists(st.text(max_size=30), max_size=6))
def test_any_texts_are_read_as_alone(texts: list[str]) -> None:
    check(texts)


def test_each_text_has_one_end() -> None:
    assert tokens_of(TEXTS).count(END) == len(TEXTS)


def test_urls_are_read_as_alone() -> None:
    urls = ["http://www.bbc.co.uk/News?x=1", "", "é", "a", "http://x.org/" + "y" * 30]
    found = url_trigrams(urls)
    expected = [character_trigrams([url_text(url)]).values for url in urls]
    np.testing.assert_array_equal(found.values, np.concatenate(expected))
    assert found.lengths.tolist() == [len(row) for row in expected]
    assert len(url_trigrams([])) == 0
