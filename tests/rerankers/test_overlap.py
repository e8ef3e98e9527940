"""Common words against Python's sets, and stop words against their list."""

import numpy as np
import torch
from helpers.overlap_samples import (
    KNOWN,
    POSTS,
    QUERIES,
    encoder,
    every_text_pair,
    naive_overlap,
    vocabulary,
)

from rerankers.base import WORDS, Terms
from rerankers.layers.overlap import StopWords, WordOverlap, first_occurrences
from rerankers.text.vocabulary import Vocabulary
from rerankers.text.words import STOP_WORDS, words

CPU = torch.device("cpu")


def test_overlap_is_that_of_sets() -> None:
    reader = encoder()
    queries = reader.queries(QUERIES, [WORDS])[WORDS].batch(np.arange(len(QUERIES)), CPU)
    posts = reader.posts(POSTS, [""] * len(POSTS), [WORDS])[WORDS]
    query_index, post_index = np.divmod(np.arange(len(QUERIES) * len(POSTS)), len(POSTS))
    ids = posts.batch(post_index, CPU).ids
    found = WordOverlap(vocabulary())(queries, ids, torch.from_numpy(query_index))
    expected = [naive_overlap(query, post) for query, post in every_text_pair()]
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-5)


def test_padding_is_no_common_word() -> None:
    ids = torch.tensor([[1, 2, 0, 0]])
    overlap = WordOverlap(vocabulary())
    query = Terms(ids, torch.tensor([[0.5, 0.25, 0.0, 0.0]]))
    one = torch.zeros(1, dtype=torch.int64)
    assert overlap(query, torch.tensor([[3, 0, 0]]), one).tolist() == [[0, 0, 0, 0]]
    assert overlap(query, torch.tensor([[0, 2, 2]]), one)[0, :2].tolist() == [1, 0.25]


def test_first_occurrences_are_those_of_a_loop() -> None:
    random = np.random.default_rng(2)
    ids = random.integers(0, 5, size=(30, 9))
    expected = np.zeros(ids.shape)
    for row, text in enumerate(ids.tolist()):
        seen = {0}
        for place, term in enumerate(text):
            expected[row, place] = term not in seen
            seen.add(term)
    np.testing.assert_array_equal(first_occurrences(torch.from_numpy(ids)).numpy(), expected)


def test_every_stop_word_of_the_vocabulary_is_told() -> None:
    known = [*sorted(STOP_WORDS), "storm", "water"]
    reader = Vocabulary(known, np.zeros((len(known), 3), dtype=np.float32))
    found = StopWords(reader)(torch.tensor(reader.ids(known)))
    assert found.tolist() == [0.0] * len(STOP_WORDS) + [1.0, 1.0]


def test_unknown_words_are_content_and_padding_is_not() -> None:
    """Also stop words that have no vector, and the last identifier there is."""
    reader = vocabulary()
    assert {"and", "to"} <= STOP_WORDS - set(KNOWN)
    last = len(KNOWN) + reader.buckets
    ids = torch.tensor([[*reader.ids(["and", "to", "unseen", "the", "storm"]), last, 0]])
    assert StopWords(reader)(ids).tolist() == [[1, 1, 1, 0, 1, 1, 0]]


def test_the_list_is_written_as_words_are() -> None:
    assert all(word == word.lower() for word in STOP_WORDS)
    content = {
        "I don't know what she's doing": ["know"],
        "they're the ones we'll see, aren't they?": ["ones", "see"],
    }
    for text, expected in content.items():
        assert [word for word in words(text) if word not in STOP_WORDS] == expected
