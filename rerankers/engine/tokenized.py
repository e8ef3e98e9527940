"""Pairs whose texts have been read: what models and the engine work on."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from rerankers import features
from rerankers.base import PRIOR, Inputs, Interactions, Pairs, Reranker
from rerankers.engine.precomputed_posts import PrecomputedPosts
from rerankers.engine.precomputed_vectors import PrecomputedTower, PrecomputedVectors
from rerankers.errors import RerankerError
from rerankers.text.inputs import TextEncoder, TokenIds, on_device


class Scorable(Protocol):
    """Pairs that can be put through a model by row."""

    query_index: npt.NDArray[np.int64]

    def scores_of(
        self, model: Reranker, rows: npt.NDArray[np.int64], device: torch.device
    ) -> torch.Tensor:
        """Scores [B] of the pairs ``rows`` [B], with gradients if they are enabled."""

    def compared(
        self, model: Reranker, rows: npt.NDArray[np.int64], device: torch.device
    ) -> Interactions:
        """The pairs ``rows`` [B], compared but not yet judged."""

    def lengths(self) -> npt.NDArray[np.int64]:
        """[P] a number for each pair that grows with its work."""


OtherFeatures = Callable[[npt.NDArray[np.int64], npt.NDArray[np.int64]], npt.NDArray[np.float32]]
"""Features [P, K] of further pairs of the same texts, by ``query_index`` and ``post_index``."""


@dataclass
class Tokenized:
    """Pairs whose texts have been read.

    Attributes:
        queries: packed inputs of the queries.
        posts: packed inputs of the posts.
        query_index: [P] query of each pair.
        post_index: [P] post of each pair.
        features: [P, K] of the model's families; None if it has none.
        other_features: gives those of pairs that are made later; None if there are none.
        stored: tower -> its vectors, where the identifiers of posts are places among them.
    """

    queries: dict[str, TokenIds]
    posts: dict[str, TokenIds]
    query_index: npt.NDArray[np.int64]
    post_index: npt.NDArray[np.int64]
    features: npt.NDArray[np.float32] | None = None
    other_features: OtherFeatures | None = None
    stored: Mapping[str, PrecomputedTower] | None = None

    @classmethod
    def of(
        cls, pairs: Pairs, encoder: TextEncoder, model: Reranker,
        stored: PrecomputedPosts | None = None,
    ) -> "Tokenized":  # fmt: skip
        """Read the texts of ``pairs`` into the inputs and features that ``model`` declares.

        For features, posts that are ``stored`` have been read.
        """
        families = model.feature_families
        return cls(
            dict(encoder.queries(pairs.queries, model.query_inputs)),
            dict(encoder.posts(pairs.texts, pairs.urls, model.post_inputs)),
            pairs.query_index,
            pairs.post_index,
            features.table(pairs, families, encoder.idf, model.unit_vectors(), stored).values
            if families
            else None,
            _others(pairs, encoder, model) if families else None,
        )

    @classmethod
    def by(
        cls, pairs: Pairs, numbers: npt.NDArray[np.int64], encoder: TextEncoder, model: Reranker,
        precomputed: PrecomputedVectors,
    ) -> "Tokenized":  # fmt: skip
        """Read the queries alone: the posts ``numbers`` [P] of the pairs are on the disk.

        Raises:
            ValueError: the model reads features that say something of texts.
        """
        prior = None
        if model.feature_families:
            if model.feature_families != (PRIOR,):
                raise ValueError(f"found {model.feature_families}, of posts that are not read")
            nothing = np.zeros(len(pairs), dtype=np.float32)
            prior = pairs.signals.get(PRIOR, nothing).reshape(-1, 1)
        queries = dict(encoder.queries(pairs.queries, model.query_inputs))
        return cls(
            queries, dict(precomputed.inputs), pairs.query_index, numbers, prior,
            stored=precomputed.towers,
        )  # fmt: skip

    def scores_of(
        self, model: Reranker, rows: npt.NDArray[np.int64], device: torch.device
    ) -> torch.Tensor:
        """Scores [B] of the pairs ``rows`` [B], in one forward pass."""
        scores: torch.Tensor = model(*self.batch(rows, device), self.features_of(rows, device))
        return scores

    def compared(
        self, model: Reranker, rows: npt.NDArray[np.int64], device: torch.device
    ) -> Interactions:
        """The pairs ``rows`` [B], compared but not yet judged."""
        queries, posts, query_of_post = self.batch(rows, device)
        return model.compare(
            model.encode_queries(queries), model.encode_posts(posts), query_of_post,
            self.features_of(rows, device),
        )  # fmt: skip

    def features_of(self, rows: npt.NDArray[np.int64], device: torch.device) -> torch.Tensor | None:
        """Features [B, K] of the pairs ``rows``, None if there are none."""
        return None if self.features is None else on_device(self.features[rows], device)

    def batch(
        self, rows: npt.NDArray[np.int64], device: torch.device
    ) -> tuple[Inputs, Inputs, torch.Tensor]:
        """The pairs ``rows`` [B] as a model's input: queries, posts, query of each post."""
        queries, query_of_post = np.unique(self.query_index[rows], return_inverse=True)
        posts = self.post_index[rows]
        return (
            {view: packed.batch(queries, device) for view, packed in self.queries.items()},
            {view: packed.batch(posts, device) for view, packed in self.posts.items()},
            on_device(query_of_post.astype(np.int64), device),
        )

    def subset(self, rows: npt.NDArray[np.int64]) -> "Tokenized":
        """The pairs ``rows`` alone."""
        return Tokenized(
            self.queries, self.posts, self.query_index[rows], self.post_index[rows],
            None if self.features is None else self.features[rows], self.other_features,
        )  # fmt: skip

    def with_pairs(
        self, query_index: npt.NDArray[np.int64], post_index: npt.NDArray[np.int64]
    ) -> "Tokenized":
        """The same pairs and, after them, others of the same texts, of which no run says anything.

        Raises:
            RerankerError: a family needs the score in a run, and 0 would be some score.
        """
        both = self.features
        if both is not None and self.other_features is not None:
            both = np.concatenate([both, self.other_features(query_index, post_index)])
        return Tokenized(
            self.queries, self.posts,
            np.concatenate([self.query_index, query_index]),
            np.concatenate([self.post_index, post_index]),
            both, self.other_features,
        )  # fmt: skip

    def lengths(self) -> npt.NDArray[np.int64]:
        """[P] terms of each pair's post over all inputs, the measure of its work."""
        lengths = np.zeros(len(self.post_index), dtype=np.int64)
        for packed in self.posts.values():
            lengths += packed.lengths[self.post_index]
        return lengths


def _others(pairs: Pairs, encoder: TextEncoder, model: Reranker) -> OtherFeatures:
    """How to give further pairs of the same texts their features; no run has a signal for them."""
    families = model.feature_families

    def compute(
        query_index: npt.NDArray[np.int64], post_index: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float32]:
        if ranked := [name for name in families if features.signals_of([name]) - {PRIOR}]:
            raise RerankerError(
                "corrupted pairs are in no run, so they have no score in it for the features "
                f"{', '.join(ranked)}; train with another --sampling"
            )
        others = replace(pairs, query_index=query_index, post_index=post_index, signals={})
        return features.table(others, families, encoder.idf, model.unit_vectors()).values

    return compute
