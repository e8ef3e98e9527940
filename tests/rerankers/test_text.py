"""Posts, queries and URLs to words, stems and trigrams: expectations by hand, and invariants."""

import json
from itertools import product
from string import ascii_lowercase
from typing import Any

import numpy as np
import pytest
from helpers.index_samples import table
from hypothesis import example, given, settings
from hypothesis import strategies as st
from nltk.stem import PorterStemmer

from tweetrerank.rerankers.checkpoint import SHIPPED
from tweetrerank.rerankers.model import VOCABULARY
from tweetrerank.rerankers.text import words as reading
from tweetrerank.rerankers.text.lexicon import Lexicon
from tweetrerank.rerankers.text.ragged import code_points, distinct, distinct_grams
from tweetrerank.rerankers.text.stems import stem
from tweetrerank.rerankers.text.words import (
    STOP_WORDS,
    character_trigrams,
    url_text,
    words,
)


@pytest.mark.parametrize("case", table("texts.jsonl"), ids=lambda case: case["text"])
def test_words(case: dict[str, Any]) -> None:
    assert words(case["text"]) == case["words"]


def test_words_of_the_shipped_vocabulary_are_read_as_they_are() -> None:
    path = SHIPPED / "mp_hcnn" / "words" / VOCABULARY
    known = json.loads(path.read_text(encoding="utf-8"))["words"]
    known = [w for w in known if w.isalnum() and not reading.ELONGATION.search(w)]
    assert len(known) > 40_000
    chunks = [known[start : start + 50] for start in range(0, len(known), 50)]
    assert [words(" ".join(chunk)) for chunk in chunks] == chunks


def test_stop_words_are_written_as_words_are() -> None:
    text = "I don't know what she's doing. They're the ones we'll see, aren't they?"
    assert [word for word in words(text) if word not in STOP_WORDS] == [
        "know",
        "ones",
        "see",
    ]


def test_stanford_escapes_end_as_the_same_words_as_the_raw_post() -> None:
    for stanford, raw in (
        ("`` bbc -LRB- ap -RRB- '' cuts", '"bbc (ap)" cuts'),
        ("-LCB- a -RCB- -LSB- b -RSB-", "{a} [b]"),
        (
            "after briefings \\/ details on weds  ## cuts",
            "after briefings/details on weds #cuts",
        ),
        ("rt @names : hello @url", "RT @bob: hello http://t.co/x"),
        ("17 5 % , bbc 's do n't it 's we 'll", "17 5%, bbc's don't it’s we’ll"),
    ):
        assert words(stanford) == words(raw)


def test_only_the_beginning_of_a_long_text_is_read() -> None:
    assert words("ab " * 10_000) == words("ab " * 10_000 + "end")
    assert len(words("ab " * 10_000)) <= reading.MAX_CHARACTERS // 3 + 1
    assert sum(map(len, words("ab" * 10_000))) <= reading.MAX_CHARACTERS


@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.text(max_size=80))
def test_words_of_any_text(raw: str) -> None:
    found = words(raw)
    for word in found:
        assert word and word == word.lower() and not set(word) & set(" @#/_\0")
    assert words(" ".join(found)) == found, "reading the words again changes them"


@pytest.mark.parametrize(("url", "expected"), table("urls.jsonl"))
def test_url_text(url: str, expected: str) -> None:
    assert url_text(url) == expected


def trigrams(text: str) -> list[int]:
    return character_trigrams([text]).values.tolist()


def test_trigrams_cross_spaces_but_not_texts() -> None:
    both = character_trigrams(["bbc", "a b", ""])
    second = [trigrams(part)[1] for part in ("#a ", "a b", " b#")]
    assert both.values.tolist() == trigrams("bbc") + second
    assert both.lengths.tolist() == [3, 3, 0]
    assert len(character_trigrams([])) == 0


def test_identifiers_are_those_of_trained_weights() -> None:
    """Literals: other identifiers would change the meaning of every shipped checkpoint."""
    assert trigrams("a") == [1 * 40]
    assert trigrams("ab") == [1 * 40 + 2, 1 * 1600 + 2 * 40]
    assert trigrams("z09")[1] == 26 * 1600 + 27 * 40 + 36
    assert trigrams(".-!")[1] == 37 * 1600 + 38 * 40 + 39


def test_every_character_of_ascii_is_taken_apart_as_by_the_tokenizer() -> None:
    texts = [f"a{chr(code)}b {chr(code)}c d{chr(code)}" for code in range(128)]
    assert reading.tokens_of([*texts, "日本"]) == [
        *reading.tokens_of(texts),
        "日本",
        reading.END,
    ]
    expected = ["rock'n'roll", "tis", "the", "o", "clock", reading.END]
    assert reading.tokens_of(["rock'n'roll 'tis the o''clock'"]) == expected


def test_texts_that_the_look_ahead_passes_over_have_one_spelling() -> None:
    passed = [
        c for c in map(chr, range(0x110000)) if not reading._HAS_SPELLINGS.search(c)
    ]
    assert not any(pattern.search("a".join(passed)) for pattern, _ in reading.SPELLINGS)


@example(
    [
        "Sooooo good, isn't it?\nRT @x: http://t.co/a",
        "",
        "a_b -LRB- c -RRB-",
        "it’s ŚĆ",
        "\n",
    ]
)
@settings(max_examples=50, deadline=None)
@given(st.lists(st.text(max_size=30), max_size=6))
def test_any_texts_are_read_as_alone(texts: list[str]) -> None:
    lexicon = Lexicon.from_texts(texts)
    by_word = lexicon.trigrams()
    starts = lexicon.texts.starts
    assert len(lexicon.texts) == len(texts)
    for text, start, end in zip(texts, starts[:-1], starts[1:], strict=True):
        rows = lexicon.texts.values[start:end]
        assert [lexicon.words[row] for row in rows] == words(text)
        trigrams = by_word.values[by_word.starts[start] : by_word.starts[end]]
        np.testing.assert_array_equal(trigrams, character_trigrams(words(text)).values)


STEMMER = PorterStemmer()
SUFFIXES = """
9 É News ational tional izer entli ousli ization ation ator alism iveness fulness ousness aliti
iviti biliti fulli logi icate ative alize iciti ical ful ness ance ible ement ment ous ied
"""
PAIRS = map("".join, product(ascii_lowercase, repeat=2))
ENDINGS = ["", *SUFFIXES.split(), *ascii_lowercase, *PAIRS]


def test_stems_are_those_of_nltk_for_all_endings_and_exceptions() -> None:
    whole = [
        beginning + ending for beginning in ("", "tr", "agree") for ending in ENDINGS
    ]
    whole += [each for word in STEMMER.pool for each in (word, word.upper())]
    assert [*map(stem, whole)] == [*map(STEMMER.stem, whole)]


def test_rows_that_share_a_slot_are_told_apart() -> None:
    """Of 40,000 rows with few repetitions, many have the same place in the hash table."""
    random = np.random.default_rng(1)
    few = random.integers(0, 2**40, 60)
    columns = [np.repeat(np.arange(1000), 40), few[random.integers(0, 60, 40_000)]]
    first, kinds = distinct(columns)
    rows = np.stack(columns, axis=1)
    np.testing.assert_array_equal(rows[first][kinds], rows)
    kinds_of_rows = len(np.unique(rows, axis=0))
    assert len(first) == kinds_of_rows
    first, kinds = distinct(columns, is_exact=False)
    np.testing.assert_array_equal(rows[first][kinds], rows)
    assert kinds_of_rows <= len(first) < 2 * kinds_of_rows


@pytest.mark.parametrize("size", [3, 4])
def test_distinct_grams(size: int) -> None:
    random = np.random.default_rng(1)
    letters, lengths = [*"ab c", "é", "\U0010ffff"], random.integers(0, 20, 60)
    texts = ["".join(random.choice(letters, length).tolist()) for length in lengths]
    found = distinct_grams(code_points(texts), size)
    of_texts = [
        {text[at : at + size] for at in range(len(text) - size + 1)} for text in texts
    ]
    assert found.lengths.tolist() == [*map(len, of_texts)]
    assert len({*found.values.tolist()}) == len(set().union(*of_texts))
    again = distinct_grams(code_points(texts[::-1]), size)
    parts, reverse = (np.split(r.values, r.starts[1:-1]) for r in (found, again))
    for part, same in zip(parts, reverse[::-1], strict=True):
        np.testing.assert_array_equal(part, same)
