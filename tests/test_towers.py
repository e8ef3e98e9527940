"""The tabulated tower against the tower's own forward pass."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from reranking_samples import ragged

from rerankers.engine.windows import TabulatedTower, used_ids
from rerankers.layers.convolutions import ConvolutionTower
from rerankers.layers.embeddings import TrainedVectors
from rerankers.layers.similarity import PADDING_SIMILARITY
from rerankers.text.inputs import TokenIds

TEXTS = [[1, 2, 3, 1, 2, 3], [5], [], [2, 3, 1, 2, 9, 9, 9], [1, 2, 3, 1, 2]]


@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize(("width", "depth"), [(2, 0), (2, 1), (3, 2), (4, 3)])
def test_vectors_are_those_of_the_forward_pass(width: int, depth: int, normalized: bool) -> None:
    torch.manual_seed(1)
    vectors = TrainedVectors(np.random.default_rng(1).normal(size=(9, 5)).astype(np.float32), 1)
    tower = ConvolutionTower(vectors, 5, 7, width, depth).eval()
    ids = ragged(TEXTS)
    packed = TokenIds(ids.values, ids.starts)
    texts = packed.take(np.arange(len(TEXTS)), 6)
    padded = packed.batch(np.arange(len(TEXTS)), torch.device("cpu")).ids[:, :6]
    with torch.no_grad():
        expected = tower(padded)
        tabulated = TabulatedTower(tower, used_ids([packed]), normalized)
        query = tabulated.encode_query(texts)
        matches = tabulated.similarities(texts, query)
    assert len(query.levels) == len(matches) == len(tabulated.sizes) == depth + 1
    inside = padded.ne(0)
    wanted = [
        (F.normalize(plain, dim=2, eps=1e-6) if normalized else plain)[inside] for plain in expected
    ]
    for found, vectors in zip(query.levels, wanted, strict=True):
        torch.testing.assert_close(found, vectors, rtol=1e-5, atol=1e-6)
    for found, vectors in zip(matches, wanted, strict=True):
        products = found.values[torch.from_numpy(found.rows)]
        torch.testing.assert_close(products, vectors @ vectors.T, rtol=1e-5, atol=1e-5)
        assert found.values[-1].tolist() == [PADDING_SIMILARITY] * len(vectors)
