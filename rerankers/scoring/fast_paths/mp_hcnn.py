"""MP-HCNN on distinct windows: similarities are computed once for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from rerankers.base import URL_TRIGRAMS, Inputs, Interactions
from rerankers.layers.pooling import Similarities
from rerankers.models.mp_hcnn import Model
from rerankers.scoring.fast_paths import PerQueryFastPath
from rerankers.scoring.tokenized import Tokenized
from rerankers.scoring.windows import (
    TabulatedTower,
    TowerInput,
    WindowSimilarities,
    used_ids,
)
from rerankers.text.inputs import TokenIds
from rerankers.text.ragged import Ragged, Rows

PRECISIONS = ("fp32", "bf16")


def covers(model: Model) -> bool:
    """Whether positions of padding count for nothing, or for a constant."""
    return not model.reads_padding


def tower_inputs(model: Model) -> dict[str, TowerInput]:
    """Inputs of a post that towers encode."""
    return {
        perspective.post_input: TowerInput(perspective.query_input, perspective.post_length)
        for perspective in model.perspectives.values()
    }


def towers(
    model: Model, *texts: Mapping[str, TokenIds], precision: str = "fp32"
) -> dict[str, TabulatedTower]:
    """The model's towers, for the terms of ``texts``, which are given by input."""
    # A tower has the name of the query input that it encodes.
    read = {name: {name} for name in model.towers}
    for name, (tower, _) in tower_inputs(model).items():
        read[tower].add(name)
    is_cosine = model.config.similarity == "cosine"
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    tabulated = {}
    for tower, names in read.items():
        ids = used_ids([packed[name] for packed in texts for name in names if name in packed])
        module = model.towers[tower]
        tabulated[tower] = TabulatedTower(module, ids, is_cosine, dtype)  # type: ignore[arg-type]
    return tabulated


class EncodedQuery(NamedTuple):
    """Input -> terms [1, Lq] of one query, and tower -> its vectors, as the tower gives them."""

    terms: Inputs
    vectors: dict[str, Any]

    @classmethod
    def by(cls, towers: Mapping[str, Any], model: Model, inputs: Inputs) -> EncodedQuery:
        """Encode a query; one without terms is read as one position of padding."""
        terms = model.cut_queries(inputs)
        vectors = {}
        for name, tower in towers.items():
            ids = terms[name].ids[0].numpy()
            vectors[name] = tower.encode_query(Ragged(ids, np.array([0, len(ids)])))
        return cls(terms, vectors)


def _interactions(
    model: Model,
    query: EncodedQuery,
    similarities: Mapping[str, Sequence[Similarities]],
    url_lengths: Rows,
) -> Interactions:
    """Interactions of P posts with one query.

    Args:
        similarities: input -> similarities at each depth.
        url_lengths: [P] trigrams of each post's URL.
    """
    pooled = {
        name: [model.pool(level, perspective) for level in similarities[perspective.post_input]]
        for name, perspective in model.perspectives.items()
    }
    first, longest = torch.zeros(len(url_lengths), dtype=torch.int64), model.config.url_trigrams
    read = torch.from_numpy(np.minimum(url_lengths, longest))
    features: Interactions = model.features(pooled, query.terms, first, read)
    return features


class FastPath(PerQueryFastPath[EncodedQuery]):
    """Similarities by distinct windows; pooling and features are the model's.

    ``precision`` is that of the products in convolutions.
    """

    def __init__(self, model: Model, pairs: Tokenized, precision: str = "fp32") -> None:
        super().__init__(model, pairs)
        self.tower_inputs = tower_inputs(model)
        self.towers = towers(model, pairs.queries, pairs.posts, precision=precision)

    def compared(self, rows: Rows) -> Interactions:
        """Interactions of the pairs ``rows`` [P] of one query."""
        query, posts = self.query(rows), self.pairs.post_index[rows]
        url_lengths = self.pairs.posts[URL_TRIGRAMS].lengths_of(posts)
        similarities = self._similarities(query, posts)
        return _interactions(self.model, query, similarities, url_lengths)

    def _similarities(
        self, query: EncodedQuery, posts: Rows
    ) -> dict[str, list[WindowSimilarities]]:
        """Input -> similarities at each depth. Inputs of one tower share its windows."""
        similarities: dict[str, list[WindowSimilarities]] = {}
        for tower, encoder in self.towers.items():
            names = [name for name, by in self.tower_inputs.items() if by.tower == tower]
            parts = [
                self.pairs.posts[name].take(posts, self.tower_inputs[name].longest)
                for name in names
            ]
            joined = Ragged.joined(parts)
            levels = [s.split(parts) for s in encoder.similarities(joined, query.vectors[tower])]
            similarities |= {
                name: list(by_depth) for name, *by_depth in zip(names, *levels, strict=True)
            }
        return similarities

    def encode_query(self, inputs: Inputs) -> EncodedQuery:
        """Encode a query."""
        return EncodedQuery.by(self.towers, self.model, inputs)
