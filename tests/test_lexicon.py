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
    lexicon = Lexicon.of(texts)
    trigrams, lengths = lexicon.trigrams()
    starts = lexicon.spread(lengths)
    for row, text in enumerate(texts):
        part = lexicon.places[lexicon.starts[row] : lexicon.starts[row + 1]]
        assert [lexicon.words[place] for place in part] == words(text)
        of_text = trigrams[starts[row] : starts[row + 1]]
        np.testing.assert_array_equal(of_text, character_trigrams(words(text))[0])


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
    trigrams, counts = url_trigrams(urls)
    expected = [character_trigrams([url_text(url)])[0] for url in urls]
    np.testing.assert_array_equal(trigrams, np.concatenate(expected))
    assert counts.tolist() == [len(row) for row in expected]
    nothing, no_counts = url_trigrams([])
    assert len(nothing) == len(no_counts) == 0
