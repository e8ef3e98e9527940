"""MP-HCNN on distinct windows, for many pairs; and on packed texts, for a few at a time.

Similarities of many pairs are computed once for each distinct window. Posts that come one request
after the other (:mod:`rerankers.scoring.cached`) are encoded in full, so that their vectors can be
kept.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rerankers.base import URL_TRIGRAMS, Inputs, Interactions
from rerankers.layers.pooling import Similarities
from rerankers.models.mp_hcnn import Model
from rerankers.scoring.fast_paths import PerQueryFastPath
from rerankers.scoring.packed import PackedSimilarities, PackedTower, PackedVectors
from rerankers.scoring.tokenized import Tokenized
from rerankers.scoring.windows import (
    TabulatedTower,
    TowerInput,
    WindowSimilarities,
    used_ids,
)
from rerankers.text.inputs import TextEncoder, TokenIds
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


class EncodedPosts(NamedTuple):
    """The vectors of P posts.

    Attributes:
        towers: tower -> vectors of its N inputs: all of the first post, of the second and so on.
        url_lengths: [P] trigrams of each post's URL.
    """

    towers: Mapping[str, PackedVectors]
    url_lengths: Rows

    @classmethod
    def joined(cls, parts: Sequence[EncodedPosts]) -> EncodedPosts:
        """The posts of at least one part, part after part."""
        towers = {
            tower: PackedVectors.joined([part.towers[tower] for part in parts])
            for tower in parts[0].towers
        }
        return cls(towers, np.concatenate([part.url_lengths for part in parts]))

    def slice(self, first: int, end: int) -> EncodedPosts:
        """The posts from ``first`` up to ``end``, which is not among them."""
        towers = {}
        for tower, packed in self.towers.items():
            inputs = len(packed.starts) // len(self.url_lengths)
            towers[tower] = packed.slice(first * inputs, end * inputs)
        return EncodedPosts(towers, self.url_lengths[first:end])


class PostEncoder:
    """Encodes posts to compare them with many queries; terms that were read are remembered.

    Args:
        model: in evaluation mode, on the CPU.
        encoder: of its checkpoint.
    """

    def __init__(self, model: Model, encoder: TextEncoder) -> None:
        self.model, self.encoder, self.inputs = model, encoder, tower_inputs(model)
        self._head = _in_double_precision(model)
        is_cosine = model.config.similarity == "cosine"
        self.towers = {
            name: PackedTower(tower, is_cosine)  # type: ignore[arg-type]
            for name, tower in model.towers.items()
        }
        self.names = {
            tower: [name for name, by in self.inputs.items() if by.tower == tower]
            for tower in self.towers
        }

    @property
    def bytes(self) -> int:
        """Size of the terms that are remembered."""
        return sum(tower.bytes for tower in self.towers.values())

    def query(self, text: str) -> EncodedQuery:
        """Encode a query."""
        model, device = self.model, torch.device("cpu")
        ids = self.encoder.queries([text], model.query_inputs, model.idf)
        inputs = {name: ids[name].batch(np.array([0]), device) for name in ids}
        return EncodedQuery.by(self.towers, model, inputs)

    def read(
        self,
        query: EncodedQuery,
        texts: Sequence[str],
        urls: Sequence[str],
        memory: Callable[[int], Tensor] = torch.empty,
    ) -> tuple[EncodedPosts, Tensor]:
        """Encode at least one post; their scores [P] for a query come with them.

        Args:
            query: as of :meth:`query`.
            texts: [P].
            urls: [P].
            memory: gives memory for so many numbers, where the vectors are put.
        """
        ids = self.encoder.posts(texts, urls, self.model.post_inputs)
        rows, joined = np.arange(len(texts)), {}
        for tower, names in self.names.items():
            parts = [ids[name].take(rows, self.inputs[name].longest) for name in names]
            by_post = np.arange(len(names) * len(rows)).reshape(len(names), -1).T.ravel()
            joined[tower] = Ragged.joined(parts).take(by_post)
        sizes = [self.towers[tower].size_of(packed) for tower, packed in joined.items()]
        towers, products = {}, {}
        for (tower, packed), part in zip(
            joined.items(), memory(sum(sizes)).split(sizes), strict=True
        ):
            towers[tower], products[tower] = self.towers[tower].encode(
                packed, query.vectors[tower], part
            )
        posts = EncodedPosts(towers, ids[URL_TRIGRAMS].lengths)
        return posts, self._scores(query, posts, products)

    def scores(self, query: EncodedQuery, posts: EncodedPosts) -> Tensor:
        """Scores [P] of posts for a query."""
        products = {
            tower: packed.products(query.vectors[tower]) for tower, packed in posts.towers.items()
        }
        return self._scores(query, posts, products)

    def _scores(
        self,
        query: EncodedQuery,
        posts: EncodedPosts,
        products: Mapping[str, Iterable[npt.NDArray[np.float32]]],
    ) -> Tensor:
        """The same; ``products`` are those of each tower, at each depth."""
        similarities: dict[str, list[Similarities]] = {name: [] for name in self.inputs}
        for tower, names in self.names.items():
            packed = posts.towers[tower]
            for values in products[tower]:
                level = PackedSimilarities(values, packed.starts, packed.ends)
                for name, own in zip(names, level.every(len(names)), strict=True):
                    similarities[name].append(own)
        interactions = _interactions(self.model, query, similarities, posts.url_lengths)
        scores: Tensor = self._head.integrate(
            {name: values.double() for name, values in interactions.items()}
        )
        return scores.float()


def _in_double_precision(model: Model) -> Model:
    """A model that shares everything with another but its small networks.

    These would round differently from batch to batch, more than the similarities do.
    """
    precise = copy.copy(model)
    precise._modules = {
        name: module if name == "towers" else copy.deepcopy(module).double()
        for name, module in model.named_children()
    }
    return precise
