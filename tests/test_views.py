"""Texts to packed inputs, and packed inputs to padded tensors."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reranking_samples import AWKWARD, encoder

from rerankers.base import TRIGRAMS, URL_TRIGRAMS, WORDS
from rerankers.text.inputs import Packed
from rerankers.text.words import character_trigrams, url_text, words

CPU = torch.device("cpu")
ALL = (WORDS, TRIGRAMS, URL_TRIGRAMS)
TEXTS = ["the bbc cuts", "", "water shortages hit egypt again", "!!!", "é"]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.lists(st.integers(1, 99), max_size=6), min_size=1, max_size=8), st.data())
def test_padding_is_what_a_loop_does(texts: list[list[int]], data: st.DataObject) -> None:
    weights = [np.array(row, dtype=np.float32) / 100 for row in texts]
    packed = Packed.of(texts, weights)
    assert packed.lengths.tolist() == [len(row) for row in texts]
    rows = data.draw(st.lists(st.integers(0, len(texts) - 1), min_size=1, max_size=10))
    terms = packed.padded(np.array(rows), CPU)
    columns = max(1, *(len(texts[row]) for row in rows), 0)
    expected = [texts[row] + [0] * (columns - len(texts[row])) for row in rows]
    assert terms.ids.tolist() == expected
    np.testing.assert_allclose(terms.weights.numpy(), np.array(expected) / 100, rtol=1e-6)
    assert (terms.ids.dtype, terms.weights.dtype) == (torch.int64, torch.float32)


def test_posts_have_no_weights_and_queries_always_have_theirs() -> None:
    """Also queries that are all empty: their tensors have one column of padding."""
    assert Packed.of([[1, 2], []]).padded(np.array([0, 1]), CPU).weights.shape == (2, 0)
    nothing = np.zeros(0, dtype=np.float32)
    empty = Packed.of([[], []], [nothing, nothing]).padded(np.array([0, 1]), CPU)
    assert empty.ids.tolist() == [[0], [0]]
    assert empty.weights.tolist() == [[0.0], [0.0]]
    assert Packed.of([], []).lengths.shape == (0,)


def rows_of(packed: Packed) -> list[list[int]]:
    return [
        packed.ids[a:b].tolist() for a, b in zip(packed.starts, packed.starts[1:], strict=False)
    ]


def test_queries_and_posts_are_read_alike() -> None:
    reader = encoder()
    queries, posts = reader.queries(TEXTS, ALL), reader.posts(TEXTS, [""] * len(TEXTS), ALL)
    for view in (WORDS, TRIGRAMS):
        assert rows_of(queries[view]) == rows_of(posts[view])


@pytest.mark.parametrize("side", ["queries", "posts"])
def test_views_are_words_and_trigrams_of_the_text(side: str) -> None:
    reader = encoder()
    inputs = reader.queries(TEXTS, ALL) if side == "queries" else reader.posts(TEXTS, TEXTS, ALL)
    assert rows_of(inputs[WORDS]) == [reader.vocabulary.ids(words(text)) for text in TEXTS]
    # 0 is padding, so trigrams count from 1.
    expected = [(character_trigrams(words(text))[0] + 1).tolist() for text in TEXTS]
    assert rows_of(inputs[TRIGRAMS]) == expected


def test_url_trigrams() -> None:
    urls = ["http://www.bbc.co.uk/A?b", "", "http://t.co/x"]
    inputs = encoder().posts(["", "", ""], urls, ALL)
    assert rows_of(inputs[URL_TRIGRAMS]) == [
        (character_trigrams([text])[0] + 1).tolist() for text in ("bbc.co.uk/a", "<url>", "t.co/x")
    ]
    assert url_text("") == "<url>"


def test_a_trigram_has_the_weight_of_its_word() -> None:
    reader = encoder()
    inputs = reader.queries(TEXTS, ALL)
    expected_words, expected_trigrams = [], []
    for text in TEXTS:
        for word, weight in zip(words(text), reader.idf.weights(words(text)), strict=True):
            expected_words.append(weight)
            expected_trigrams += [weight] * len(character_trigrams([word])[0])
    np.testing.assert_array_equal(inputs[WORDS].weights, np.array(expected_words))
    np.testing.assert_array_equal(inputs[TRIGRAMS].weights, np.array(expected_trigrams))
    assert len(set(expected_words)) > 3


def test_only_the_views_asked_for() -> None:
    assert set(encoder().queries(TEXTS, (TRIGRAMS,))) == {TRIGRAMS}
    assert set(encoder().posts(TEXTS, TEXTS, (URL_TRIGRAMS,))) == {URL_TRIGRAMS}


@pytest.mark.parametrize("kind", AWKWARD)
def test_awkward_texts(kind: str) -> None:
    text = AWKWARD[kind]
    queries = encoder().queries([text, "water"], ALL)
    posts = encoder().posts([text], [text], ALL)
    for packed in (*queries.values(), *posts.values()):
        assert packed.starts[-1] == len(packed.ids) <= 4 * 1000 + 10
        assert (packed.ids > 0).all(), "0 is padding"
    for packed in queries.values():
        assert packed.weights is not None and packed.weights.shape == packed.ids.shape
