"""Token ids of texts, and padded batches of them."""

import numpy as np
import pytest
from helpers.reranking_samples import AWKWARD, encoder

from rerankers.base import TRIGRAMS, URL_TRIGRAMS, WORDS
from rerankers.text.inputs import TokenIds
from rerankers.text.words import character_trigrams, url_text, words

ALL = (WORDS, TRIGRAMS, URL_TRIGRAMS)
TEXTS = ["the bbc cuts", "", "water shortages hit egypt again", "!!!", "é"]


def rows_of(ids: TokenIds) -> list[list[int]]:
    return [part.tolist() for part in np.split(ids.values, ids.starts[1:-1])]


@pytest.mark.parametrize("side", ["queries", "posts"])
def test_inputs_are_words_and_trigrams_of_the_text(side: str) -> None:
    reader = encoder()
    inputs = reader.queries(TEXTS, ALL) if side == "queries" else reader.posts(TEXTS, TEXTS, ALL)
    assert rows_of(inputs[WORDS]) == [reader.vocabulary.ids(words(text)) for text in TEXTS]
    # 0 is padding, so trigrams count from 1.
    expected = [(character_trigrams(words(text)).values + 1).tolist() for text in TEXTS]
    assert rows_of(inputs[TRIGRAMS]) == expected


def test_url_trigrams() -> None:
    urls = ["http://www.bbc.co.uk/A?b", "", "http://t.co/x"]
    inputs = encoder().posts(["", "", ""], urls, ALL)
    assert rows_of(inputs[URL_TRIGRAMS]) == [
        (character_trigrams([text]).values + 1).tolist()
        for text in ("bbc.co.uk/a", "<url>", "t.co/x")
    ]
    assert url_text("") == "<url>"


def test_a_trigram_has_the_weight_of_its_word() -> None:
    reader = encoder()
    inputs = reader.queries(TEXTS, ALL)
    expected_words, expected_trigrams = [], []
    for text in TEXTS:
        for word, weight in zip(words(text), reader.idf.weights(words(text)), strict=True):
            expected_words.append(weight)
            expected_trigrams += [weight] * len(character_trigrams([word]).values)
    np.testing.assert_array_equal(inputs[WORDS].weights, np.array(expected_words))
    np.testing.assert_array_equal(inputs[TRIGRAMS].weights, np.array(expected_trigrams))
    assert len(set(expected_words)) > 3


@pytest.mark.parametrize("kind", AWKWARD)
def test_awkward_texts(kind: str) -> None:
    text = AWKWARD[kind]
    queries = encoder().queries([text, "water"], ALL)
    posts = encoder().posts([text], [text], ALL)
    for ids in (*queries.values(), *posts.values()):
        assert ids.starts[-1] == len(ids.values) <= 4 * 1000 + 10
        assert (ids.values > 0).all(), "0 is padding"
    for ids in queries.values():
        assert ids.weights is not None and ids.weights.shape == ids.values.shape
