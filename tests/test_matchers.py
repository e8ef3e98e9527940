"""Each faster way gives the scores of the model's own forward pass."""

from typing import Any

import numpy as np
import pytest
import torch
from reranking_samples import AWKWARD, POSTS, QUERIES, all_pairs, encoder, small_model

from rerankers import matchers
from rerankers.encoded import Encoded
from rerankers.scoring import batches_of

POOLS = {"posts": [*POSTS, *((text, text) for text in AWKWARD.values())],
         "queries": [*QUERIES, *AWKWARD.values()]}  # fmt: skip


@pytest.mark.parametrize(
    ("configuration", "changes"),
    [
        ("robust", {}), ("paper", {}), ("robust", {"depth": 0}), ("paper", {"depth": 3}),
        ("robust", {"use_words": False}), ("robust", {"mean_pooling": False}),
        ("robust", {"max_pooling": False}), ("robust", {"idf_weights": False}),
        ("robust", {"use_post_trigrams": False, "use_url_trigrams": False, "url_presence": False}),
        ("robust", {"normalization": "query", "similarity": "dot"}),
        ("paper", {"similarity": "cosine", "idf_weights": False}),
    ],
)  # fmt: skip
def test_mp_hcnn_scores_as_its_forward_pass(configuration: str, changes: dict[str, Any]) -> None:
    model = small_model("mp_hcnn", configuration, **changes)
    encoded = Encoded.of(all_pairs(POOLS["queries"], POOLS["posts"]), encoder(), model)
    matcher = matchers.find(model, encoded)
    assert matcher is not None
    with torch.inference_mode():
        for size in (1, 9, 100):
            for rows in batches_of(encoded, size):
                plain = encoded.scores_of(model, rows, torch.device("cpu"))
                torch.testing.assert_close(matcher.scores_of(rows), plain, rtol=1e-5, atol=1e-5)


def test_windows_that_are_the_same_are_computed_once() -> None:
    """Copies of a post add no distinct window."""
    model: Any = small_model("mp_hcnn", "robust")
    text, url = "storm warning for the coast", "http://x.org/storm"
    counts = []
    for copies in (1, 50):
        encoded = Encoded.of(all_pairs(["storm"], [(text, url)] * copies), encoder(), model)
        matcher: Any = matchers.find(model, encoded)
        matches = matcher._matches(0, matcher._texts(np.arange(copies)))
        counts.append({view: [len(x.similarity) for x in of] for view, of in matches.items()})
    assert counts[0] == counts[1]


def test_a_model_without_a_file_has_none() -> None:
    model = small_model("knrm", "words")
    assert matchers.find(model, Encoded.of(all_pairs(), encoder(), model)) is None
