"""MP-HCNN on distinct windows: similarities are computed once for each."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch

from rerankers.base import URL_TRIGRAMS, Inputs, Interactions
from rerankers.engine.fast_paths import PerQueryFastPath
from rerankers.engine.tokenized import Tokenized
from rerankers.engine.windows import (
    QueryVectors,
    TabulatedTower,
    TowerInput,
    WindowSimilarities,
    used_ids,
)
from rerankers.models.mp_hcnn import Model
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
    found = {}
    for tower, names in read.items():
        ids = used_ids([packed[name] for packed in texts for name in names if name in packed])
        module = model.towers[tower]
        found[tower] = TabulatedTower(module, ids, is_cosine, dtype)  # type: ignore[arg-type]
    return found


class EncodedQuery(NamedTuple):
    """Input -> terms [1, Lq] of one query, and tower -> its vectors."""

    terms: Inputs
    vectors: dict[str, QueryVectors]


class FastPath(PerQueryFastPath[EncodedQuery]):
    """Similarities by distinct windows; pooling and features are the model's.

    ``precision`` is that of the products in convolutions.
    """

    def __init__(self, model: Model, pairs: Tokenized, precision: str = "fp32") -> None:
        super().__init__(model, pairs)
        self.tower_inputs = tower_inputs(model)
        # Precomputed posts need no tower; queries always do.
        computed = [pairs.queries] if pairs.post_towers else [pairs.queries, pairs.posts]
        self.query_towers = towers(model, *computed, precision=precision)
        self.post_towers = pairs.post_towers or self.query_towers

    def compared(self, rows: Rows) -> Interactions:
        """Interactions of the pairs ``rows`` [P] of one query."""
        query, posts = self.query(rows), self.pairs.post_index[rows]
        similarities = self._similarities(query, posts)
        pooled = {
            name: [self.model.pool(s, perspective) for s in similarities[perspective.post_input]]
            for name, perspective in self.model.perspectives.items()
        }
        url_lengths = self.pairs.posts[URL_TRIGRAMS].lengths[posts]
        features: Interactions = self.model.features(
            pooled,
            query.terms,
            torch.zeros(len(rows), dtype=torch.int64),
            torch.from_numpy(np.minimum(url_lengths, self.model.config.url_trigrams)),
        )
        return features

    def _similarities(
        self, query: EncodedQuery, posts: Rows
    ) -> dict[str, list[WindowSimilarities]]:
        """Input -> similarities at each depth. Inputs of one tower share its windows."""
        found: dict[str, list[WindowSimilarities]] = {}
        for tower, encoder in self.post_towers.items():
            names = [name for name, by in self.tower_inputs.items() if by.tower == tower]
            parts = [
                self.pairs.posts[name].take(posts, self.tower_inputs[name].longest)
                for name in names
            ]
            joined = Ragged.joined(parts)
            levels = [s.split(parts) for s in encoder.similarities(joined, query.vectors[tower])]
            found |= {name: list(by_depth) for name, *by_depth in zip(names, *levels, strict=True)}
        return found

    def encode_query(self, inputs: Inputs) -> EncodedQuery:
        """Encode a query; one without terms is read as one position of padding."""
        terms = self.model.cut_queries(inputs)
        vectors = {}
        for name, tower in self.query_towers.items():
            ids = terms[name].ids[0].numpy()
            vectors[name] = tower.encode_query(Ragged(ids, np.array([0, len(ids)])))
        return EncodedQuery(terms, vectors)
