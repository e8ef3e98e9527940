"""MP-HCNN by distinct windows: similarities are computed once for each, and looked up."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rerankers.base import TRIGRAMS, URL_TRIGRAMS, WORDS, Interactions
from rerankers.engine import pooling
from rerankers.engine.per_query import PerQueryFastPath
from rerankers.engine.tokenized import Tokenized
from rerankers.engine.towers import QueryVectors, TabulatedTower, TowerInput, WindowSimilarities
from rerankers.engine.windows import TokenSequences, used_ids
from rerankers.layers.similarity import window_means
from rerankers.models.mp_hcnn import MEAN_SCALE, PLACEHOLDER_LENGTH, Model
from rerankers.perspectives import Perspective
from rerankers.text.inputs import Packed


def tower_inputs(model: Model) -> dict[str, TowerInput]:
    """Inputs of a post that towers read."""
    config = model.config
    known = {
        WORDS: TowerInput(WORDS, config.post_words),
        TRIGRAMS: TowerInput(TRIGRAMS, config.post_trigrams),
        URL_TRIGRAMS: TowerInput(TRIGRAMS, config.url_trigrams),
    }
    return {
        view: tower_input
        for view, tower_input in known.items()
        if tower_input.tower in model.towers
    }


def towers(
    model: Model, *texts: Mapping[str, Packed], precision: str = "fp32"
) -> dict[str, TabulatedTower]:
    """The model's towers, for the terms of texts given by view."""
    read: dict[str, list[Packed]] = {name: [] for name in model.towers}
    for view, tower_input in tower_inputs(model).items():
        read[tower_input.tower] += [packed[view] for packed in texts if view in packed]
    is_cosine = model.config.similarity == "cosine"
    number = torch.bfloat16 if precision == "bf16" else torch.float32
    return {
        name: TabulatedTower(tower, used_ids(read[name]), is_cosine, number)  # type: ignore[arg-type]
        for name, tower in model.towers.items()
    }


PRECISIONS = ("fp32", "bf16")


class FastPath(PerQueryFastPath[dict[str, QueryVectors]]):
    """Similarities by distinct windows.

    Args:
        model: in evaluation mode.
        encoded: the pairs.
        precision: of the products in convolutions.
    """

    def __init__(self, model: Model, encoded: Tokenized, precision: str = "fp32") -> None:
        super().__init__(model, encoded)
        self.tower_inputs = tower_inputs(model)
        # What is on the disk needs no tower, the queries always do.
        computed = [encoded.queries] if encoded.stored else [encoded.queries, encoded.posts]
        self.query_towers = towers(model, *computed, precision=precision)
        self.post_towers = encoded.stored or self.query_towers

    def compared(self, rows: npt.NDArray[np.int64]) -> Interactions:
        """The pairs ``rows`` [P] of one query, compared but not yet judged."""
        query, question = int(self.encoded.query_index[rows[0]]), self.question(rows)
        post_index = self.encoded.post_index[rows]
        posts = {
            view: TokenSequences.from_packed(self.encoded.posts[view], post_index, longest)
            for view, (_, longest) in self.tower_inputs.items()
        }
        matches = self._matches(question, posts)
        interactions = {
            name: self._features(
                matches[places.post_input], posts[places.post_input],
                self._weights(query, places), places,
            )
            for name, places in self.model.perspectives.items()
        }  # fmt: skip
        if self.model.config.url_presence:
            lengths = self.encoded.posts[URL_TRIGRAMS].lengths[post_index]
            present = np.minimum(lengths, self.model.config.url_trigrams) > PLACEHOLDER_LENGTH
            interactions["url_presence"] = torch.from_numpy(present).float().view(-1, 1, 1)
        return interactions

    def _matches(
        self, question: dict[str, QueryVectors], posts: dict[str, TokenSequences]
    ) -> dict[str, list[WindowSimilarities]]:
        """View -> its similarities at every depth; inputs that share a tower share its windows."""
        matches = {}
        for name, tower in self.post_towers.items():
            inputs = [
                view for view, tower_input in self.tower_inputs.items() if tower_input.tower == name
            ]
            joined = TokenSequences.joined([posts[view] for view in inputs])
            compared = tower.compare(joined, question[name])
            borders = np.cumsum([0, *(len(posts[view].ids) for view in inputs)])
            for view, start, end in zip(inputs, borders[:-1], borders[1:], strict=True):
                matches[view] = [
                    WindowSimilarities(m.similarity, m.which[start:end]) for m in compared
                ]
        return matches

    def ask(self, query: int) -> dict[str, QueryVectors]:
        """Tower -> what a query asks of it."""
        config, row = self.model.config, np.array([query])
        longest = {WORDS: config.query_words, TRIGRAMS: config.query_trigrams}
        return {
            name: tower.ask(
                TokenSequences.from_packed(self.encoded.queries[name], row, longest[name])
            )
            for name, tower in self.query_towers.items()
        }

    def _weights(self, query: int, places: Perspective) -> Tensor:
        """IDF [1, Lq] of the query's terms."""
        view: Packed = self.encoded.queries[places.query_input]
        start, end = view.starts[query : query + 2]
        assert view.weights is not None
        return torch.from_numpy(view.weights[start : min(end, start + places.query_length)])[None]

    def _features(
        self,
        matches: list[WindowSimilarities],
        texts: TokenSequences,
        idf: Tensor,
        places: Perspective,
    ) -> Tensor:
        """Equation 1: pooled matches of each query position, and its weight: [P, Lq, K + 1]."""
        config, there = self.model.config, torch.ones_like(idf)
        if not idf.shape[1]:
            kept = (config.max_pooling + config.mean_pooling) * len(matches)
            return torch.zeros(len(texts.lengths), 1, kept + 1)
        features = []
        for depth, found in enumerate(matches):
            pooled = self._pool(found, texts, places)
            if config.evidence == "positions" and config.idf_weights and depth < places.weighted:
                weights = window_means(idf, there, 1 + depth * (places.width - 1))
                pooled = [values * weights for values in pooled]
            features += pooled
        features.append((idf if config.idf_weights else there).expand(len(texts.lengths), -1))
        return torch.stack(features, dim=2)

    def _pool(
        self, matches: WindowSimilarities, texts: TokenSequences, places: Perspective
    ) -> list[Tensor]:
        """Of the similarities of distinct windows, what each post has: [P, Lq] each."""
        config = self.model.config
        if config.normalization == "post":
            shares = pooling.softmax(matches, texts, config.temperature, places.post_length)
            wanted = (config.max_pooling, config.mean_pooling)
            return [values for values, kept in zip(shares, wanted, strict=True) if kept]
        pooled = []
        if config.max_pooling:
            pooled.append(pooling.best(matches, texts))
        if config.mean_pooling:
            pooled.append(MEAN_SCALE * pooling.mean(matches, texts))
        return pooled
