"""Token ids of texts, and padded batches of them."""

import numpy as np
import pytest
import torch
from helpers.reranking_samples import AWKWARD, encoder, ragged

from rerankers.base import TRIGRAMS, URL_TRIGRAMS, WORDS
from rerankers.text.inputs import TokenIds
from rerankers.text.words import character_trigrams, url_text, words

CPU = torch.device("cpu")
ALL = (WORDS, TRIGRAMS, URL_TRIGRAMS)
TEXTS = ["the bbc cuts", "", "water shortages hit egypt again", "!!!", "é"]


def token_ids(rows: list[list[int]], is_weighted: bool) -> TokenIds:
    ids = ragged(rows)
    weights = ids.values.astype(np.float32) / 100 if is_weighted else None
    return TokenIds(ids.values, ids.starts, weights)


def test_a_batch_is_padded_to_its_longest_text() -> None:
    terms = token_ids([[1, 2, 3], [], [4, 5]], True).batch(np.array([2, 1, 2]), CPU)
    assert terms.ids.tolist() == [[4, 5], [0, 0], [4, 5]]
    np.testing.assert_allclose(terms.weights.numpy(), terms.ids.numpy() / 100, rtol=1e-6)
    assert (terms.ids.dtype, terms.weights.dtype) == (torch.int64, torch.float32)


def test_posts_have_no_weights_and_queries_always_have_theirs() -> None:
    """Also queries that are all empty: their tensors have one column of padding."""
    assert token_ids([[1, 2], []], False).batch(np.array([0, 1]), CPU).weights.shape == (2, 0)
    empty = token_ids([[], []], True).batch(np.array([0, 1]), CPU)
    assert empty.ids.tolist() == [[0], [0]]
    assert empty.weights.tolist() == [[0.0], [0.0]]


def rows_of(ids: TokenIds) -> list[list[int]]:
    return [part.tolist() for part in np.split(ids.values, ids.starts[1:-1])]


def test_queries_and_posts_are_read_alike() -> None:
    reader = encoder()
    queries, posts = reader.queries(TEXTS, ALL), reader.posts(TEXTS, [""] * len(TEXTS), ALL)
    for name in (WORDS, TRIGRAMS):
        assert rows_of(queries[name]) == rows_of(posts[name])


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


def test_only_the_inputs_asked_for() -> None:
    assert set(encoder().queries(TEXTS, (TRIGRAMS,))) == {TRIGRAMS}
    assert set(encoder().posts(TEXTS, TEXTS, (URL_TRIGRAMS,))) == {URL_TRIGRAMS}


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
