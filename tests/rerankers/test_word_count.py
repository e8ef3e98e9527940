"""Word counts against Python's sets, and stop words against their list."""

import numpy as np
import pytest
import torch
from helpers.overlap_samples import (
    KNOWN,
    encoder,
    every_pair,
    every_text_pair,
    naive_overlap,
    vocabulary,
)

from rerankers.layers.overlap import StopWords
from rerankers.models.word_count import Model
from rerankers.scoring import batches as scoring
from rerankers.text.words import STOP_WORDS, words


@pytest.mark.parametrize("configuration", ["count", "weighted"])
def test_scores_count_common_words_without_stop_words(configuration: str) -> None:
    model = Model(Model.configurations[configuration], vocabulary()).eval()
    column = 2 if configuration == "count" else 3
    expected = [naive_overlap(query, post)[column] for query, post in every_text_pair()]
    assert max(expected) > 1
    found = scoring.score(model, every_pair(), encoder())
    np.testing.assert_allclose(found, expected, rtol=1e-6)


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
