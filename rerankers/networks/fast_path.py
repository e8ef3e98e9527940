"""The fast path of MP-HCNN: similarities are computed once for each distinct window.

It computes the model's forward pass in another order, batch by batch for a set of tokenized pairs;
tests compare the two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from rerankers.devices import is_host
from rerankers.networks.base import URL_TRIGRAMS, Inputs, Interactions, Reranker
from rerankers.networks.inputs import TokenIds
from rerankers.networks.layers.pooling import Similarities
from rerankers.networks.models.mp_hcnn import Model
from rerankers.networks.ngrams import (
    TabulatedTower,
    TowerInput,
    WindowSimilarities,
    used_ids,
)
from rerankers.networks.tokenized import Scorable, Tokenized
from rerankers.text.ragged import Ragged, Rows


def tower_inputs(model: Model) -> dict[str, TowerInput]:
    """Inputs of a post that towers encode."""
    return {
        perspective.post_input: TowerInput(perspective.query_input, perspective.post_length)
        for perspective in model.perspectives.values()
    }


def towers(model: Model, *texts: Mapping[str, TokenIds]) -> dict[str, TabulatedTower]:
    """The model's towers, for the terms of ``texts``, which are given by input."""
    # A tower has the name of the query input that it encodes.
    read = {name: {name} for name in model.towers}
    for name, (tower, _) in tower_inputs(model).items():
        read[tower].add(name)
    is_cosine = model.config.similarity == "cosine"
    tabulated = {}
    for tower, names in read.items():
        ids = used_ids([packed[name] for packed in texts for name in names if name in packed])
        module = model.towers[tower]
        tabulated[tower] = TabulatedTower(module, ids, is_cosine)  # type: ignore[arg-type]
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


class FastPath:
    """Similarities by distinct windows; pooling and features are the model's.

    Args:
        model: in evaluation mode, on the CPU.
        pairs: tokenized.
    """

    def __init__(self, model: Model, pairs: Tokenized) -> None:
        self.model, self.pairs = model, pairs
        self.tower_inputs = tower_inputs(model)
        self.towers = towers(model, pairs.queries, pairs.posts)
        self._last: tuple[int, EncodedQuery] | None = None

    def scores_of(self, rows: Rows) -> torch.Tensor:
        """Scores [P] of the pairs ``rows`` of one query."""
        return self.model.integrate(self.compared(rows))

    def compared(self, rows: Rows) -> Interactions:
        """Interactions of the pairs ``rows`` [P] of one query."""
        query, posts = self._query(rows), self.pairs.post_index[rows]
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

    def _query(self, rows: Rows) -> EncodedQuery:
        """The query of the pairs ``rows``; encoded again only when it changes."""
        row, last = int(self.pairs.query_index[rows[0]]), self._last
        # Threads may need different queries at the same time.
        if last is None or last[0] != row:
            index, cpu = np.array([row]), torch.device("cpu")
            inputs = {name: ids.batch(index, cpu) for name, ids in self.pairs.queries.items()}
            self._last = last = row, EncodedQuery.by(self.towers, self.model, inputs)
        return last[1]


def find(model: Reranker, pairs: Scorable) -> FastPath | None:
    """The fast path for these pairs; None if only the model's own forward pass can score them.

    It is for MP-HCNN on the CPU, for texts rather than cached interactions, for positions of
    padding that count for nothing, or for a constant, and for one tower of trigrams.
    """
    if not isinstance(model, Model) or model.reads_padding or model.config.separate_urls:
        return None
    if not isinstance(pairs, Tokenized) or not is_host(model.device_of()):
        return None
    return FastPath(model, pairs)
