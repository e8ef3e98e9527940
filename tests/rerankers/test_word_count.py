"""Word counts against Python's sets, and stop words against their list."""

import numpy as np
import pytest
from helpers.overlap_samples import (
    encoder,
    every_pair,
    every_text_pair,
    naive_overlap,
    vocabulary,
)

from rerankers.networks import batches as scoring
from rerankers.networks.models.word_count import Model
from rerankers.text.words import STOP_WORDS, words


@pytest.mark.parametrize("configuration", ["count", "weighted"])
def test_scores_count_common_words_without_stop_words(configuration: str) -> None:
    model = Model(Model.configurations[configuration], vocabulary()).eval()
    column = 2 if configuration == "count" else 3
    expected = [naive_overlap(query, post)[column] for query, post in every_text_pair()]
    assert max(expected) > 1
    found = scoring.score(model, every_pair(), encoder())
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_the_list_is_written_as_words_are() -> None:
    assert all(word == word.lower() for word in STOP_WORDS)
    content = {
        "I don't know what she's doing": ["know"],
        "they're the ones we'll see, aren't they?": ["ones", "see"],
    }
    for text, expected in content.items():
        assert [word for word in words(text) if word not in STOP_WORDS] == expected
