"""Tokenized pairs: the common input of scoring, training and the models."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

from rerankers import features
from rerankers.devices import is_host
from rerankers.errors import RerankerError
from rerankers.networks.base import Inputs, Interactions, Reranker
from rerankers.networks.inputs import TextEncoder, TokenIds, on_device
from rerankers.pairs import PRIOR, Pairs
from rerankers.text.ragged import Rows


class Scorable(Protocol):
    """Pairs that a model can score by row: tokenized ones, or cached interactions."""

    query_index: Rows

    def scores_of(self, model: Reranker, rows: Rows, device: torch.device) -> torch.Tensor:
        """Scores [B] of the pairs ``rows`` [B], with gradients if they are enabled."""

    def compared(self, model: Reranker, rows: Rows, device: torch.device) -> Interactions:
        """Interactions of the pairs ``rows`` [B]."""

    def lengths(self) -> Rows:
        """[P] a number for each pair that grows with its work."""


class Batch(NamedTuple):
    """Arguments of :meth:`rerankers.networks.base.Reranker.forward`, which describes them."""

    queries: Inputs
    posts: Inputs
    query_of_post: torch.Tensor
    features: torch.Tensor | None
    post_of_pair: torch.Tensor | None


OtherFeatures = Callable[[Rows, Rows], npt.NDArray[np.float32]]
"""``query_index`` and ``post_index`` of other pairs of the same texts -> features [P, K]."""


@dataclass
class Tokenized:
    """P pairs with the token ids and features that a model reads.

    Attributes:
        queries: input -> token ids of the queries.
        posts: input -> token ids of the posts.
        query_index: [P] query of each pair.
        post_index: [P] post of each pair.
        features: [P, K] of the model's feature families; None without families.
        other_features: features of other pairs; None without families.
    """

    queries: dict[str, TokenIds]
    posts: dict[str, TokenIds]
    query_index: Rows
    post_index: Rows
    features: npt.NDArray[np.float32] | None = None
    other_features: OtherFeatures | None = None

    @classmethod
    def from_pairs(cls, pairs: Pairs, encoder: TextEncoder, model: Reranker) -> Tokenized:
        """Tokenize the texts of ``pairs`` and compute the features that ``model`` declares."""
        tokenized = cls(
            encoder.queries(pairs.queries, model.query_inputs, model.idf, model.reading),
            encoder.posts(pairs.texts, pairs.urls, model.post_inputs, model.reading),
            pairs.query_index,
            pairs.post_index,
        )
        if families := model.feature_families:
            table = features.table(pairs, families, encoder.idf)
            tokenized.features = table.values
            tokenized.other_features = _other_features(pairs, encoder, model)
        return tokenized

    def scores_of(self, model: Reranker, rows: Rows, device: torch.device) -> torch.Tensor:
        """Scores [B] of the pairs ``rows`` [B], in one forward pass."""
        scores: torch.Tensor = model(*self.batch(rows, device))
        return scores

    def compared(self, model: Reranker, rows: Rows, device: torch.device) -> Interactions:
        """Interactions of the pairs ``rows`` [B]."""
        return model.interactions(*self.batch(rows, device))

    def features_of(self, rows: Rows, device: torch.device) -> torch.Tensor | None:
        """Features [B, K] of the pairs ``rows``, None if there are none."""
        return None if self.features is None else on_device(self.features[rows], device)

    def batch(self, rows: Rows, device: torch.device) -> Batch:
        """Arguments of a model's forward pass for the pairs ``rows`` [B]."""
        queries, query_of_post = np.unique(self.query_index[rows], return_inverse=True)
        posts, post_of_pair = np.unique(self.post_index[rows], return_inverse=True)
        is_shared = len(posts) < len(rows) and not is_host(device)
        if not is_shared:
            posts = self.post_index[rows]
        return Batch(
            {name: ids.batch(queries, device) for name, ids in self.queries.items()},
            {name: ids.batch(posts, device) for name, ids in self.posts.items()},
            on_device(query_of_post, device),
            self.features_of(rows, device),
            on_device(post_of_pair, device) if is_shared else None,
        )

    def take(self, rows: Rows) -> Tokenized:
        """The pairs ``rows``, with all texts."""
        return dataclasses.replace(
            self,
            query_index=self.query_index[rows],
            post_index=self.post_index[rows],
            features=None if self.features is None else self.features[rows],
        )

    def with_pairs(self, query_index: Rows, post_index: Rows) -> Tokenized:
        """These pairs, followed by other pairs of the same texts, which are in no run.

        Raises:
            RerankerError: a feature family reads the score in a run.
        """
        both = self.features
        if both is not None and self.other_features is not None:
            both = np.concatenate([both, self.other_features(query_index, post_index)])
        return dataclasses.replace(
            self,
            query_index=np.concatenate([self.query_index, query_index]),
            post_index=np.concatenate([self.post_index, post_index]),
            features=both,
        )

    def lengths(self) -> Rows:
        """[P] terms of each pair's post in all inputs, the measure of its work."""
        lengths = np.zeros(len(self.post_index), dtype=np.int64)
        for ids in self.posts.values():
            lengths += ids.lengths_of(self.post_index)
        return lengths


def _other_features(pairs: Pairs, encoder: TextEncoder, model: Reranker) -> OtherFeatures:
    """A function that computes features of other pairs of the same texts, without signals."""
    families = model.feature_families

    def compute(query_index: Rows, post_index: Rows) -> npt.NDArray[np.float32]:
        if ranked := [name for name in families if features.signals_of([name]) - {PRIOR}]:
            raise RerankerError(
                "corrupted pairs are in no run, so they have no score in it for the features "
                f"{', '.join(ranked)}; train with another `sampling`"
            )
        others = dataclasses.replace(
            pairs, query_index=query_index, post_index=post_index, signals={}
        )
        return features.table(others, families, encoder.idf).values

    return compute
