"""Word counts against Python's sets, and their training, which does nothing."""

import numpy as np
import pytest
from helpers.overlap_samples import encoder, every_pair, every_text_pair, naive_overlap, vocabulary

from rerankers.models.word_count import Model
from rerankers.scoring import batches as scoring


@pytest.mark.parametrize("configuration", ["count", "weighted"])
def test_scores_count_common_words_without_stop_words(configuration: str) -> None:
    model = Model(Model.configurations[configuration], vocabulary()).eval()
    column = 2 if configuration == "count" else 3
    expected = [naive_overlap(query, post)[column] for query, post in every_text_pair()]
    assert max(expected) > 1
    found = scoring.score(model, every_pair(), encoder())
    np.testing.assert_allclose(found, expected, rtol=1e-6)
