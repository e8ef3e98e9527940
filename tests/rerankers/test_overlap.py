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

from rerankers.base import WORDS
from rerankers.layers.overlap import StopWords, WordOverlap
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
