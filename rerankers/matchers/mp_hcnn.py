"""MP-HCNN by distinct windows: similarities are computed once for each, and looked up."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from rerankers.base import TRIGRAMS, URL_TRIGRAMS, WORDS, Interactions
from rerankers.contexts import Ids, Texts, used_ids
from rerankers.encoded import Encoded
from rerankers.layers import mask_of, window_means
from rerankers.models.mp_hcnn import MEAN_SCALE, PLACEHOLDER_LENGTH, Model, Perspective
from rerankers.towers import TabulatedTower
from rerankers.views import Packed

_LETTERS = (TRIGRAMS, URL_TRIGRAMS)
_FLOOR = -1e4
"""Below every cosine: what a place beyond a text's end adds to a maximum."""


class Matches(NamedTuple):
    """One query against the places of texts, at one depth.

    Attributes:
        similarity: [U, Lq] of distinct windows and the query's positions.
        which: [T] row of ``similarity`` for each place.
    """

    similarity: Tensor
    which: Ids


class Question(NamedTuple):
    """A query as posts are compared with it.

    Attributes:
        terms: [V + 1, Lq] its similarity with every known term.
        phrases: its vectors [Lq, F] at each further depth.
    """

    terms: Tensor
    phrases: list[Tensor]


class Matcher:
    """Compares pairs of one query at a time, as the model's ``interact`` does.

    Args:
        model: in evaluation mode.
        encoded: the pairs.
    """

    def __init__(self, model: Model, encoded: Encoded) -> None:
        self.model, self.encoded = model, encoded
        normalized = model.config.similarity == "cosine"
        views = {
            WORDS: [encoded.queries[WORDS], encoded.posts[WORDS]],
            TRIGRAMS: [encoded.queries[TRIGRAMS], *(encoded.posts[v] for v in _LETTERS)],
        }
        self.towers = {
            name: TabulatedTower(tower, used_ids(views[name]), normalized)  # type: ignore[arg-type]
            for name, tower in model.towers.items()
        }
        self.question: tuple[int, dict[str, Question]] = (-1, {})

    def scores_of(self, rows: npt.NDArray[np.int64]) -> Tensor:
        """Scores [P] of the pairs ``rows`` of one query."""
        return self.model.integrate(self.compared(rows))

    def compared(self, rows: npt.NDArray[np.int64]) -> Interactions:
        """The pairs ``rows`` [P] of one query, compared but not yet judged."""
        query = int(self.encoded.query_index[rows[0]])
        posts = self._texts(self.encoded.post_index[rows])
        matches = self._matches(query, posts)
        interactions = {
            name: self._features(
                matches[places.post_view], posts[places.post_view],
                self._weights(query, places), places,
            )
            for name, places in self.model.perspectives.items()
        }  # fmt: skip
        if self.model.config.url_presence:
            present = posts[URL_TRIGRAMS].lengths > PLACEHOLDER_LENGTH
            interactions["url_presence"] = torch.from_numpy(present).float().view(-1, 1, 1)
        return interactions

    def _texts(self, rows: npt.NDArray[np.int64]) -> dict[str, Texts]:
        config, posts = self.model.config, self.encoded.posts
        longest = {WORDS: config.post_words, TRIGRAMS: config.post_trigrams,
                   URL_TRIGRAMS: config.url_trigrams}  # fmt: skip
        return {view: Texts.of(posts[view], rows, length) for view, length in longest.items()}

    def _matches(self, query: int, posts: dict[str, Texts]) -> dict[str, list[Matches]]:
        """Post view -> its similarities at every depth; posts and URLs share their windows."""
        matches = {}
        if WORDS in self.towers:
            matches[WORDS] = self._compare(query, WORDS, posts[WORDS])
        if TRIGRAMS in self.towers:
            border = len(posts[TRIGRAMS].ids)
            joined = Texts.joined([posts[view] for view in _LETTERS])
            both = self._compare(query, TRIGRAMS, joined)
            matches[TRIGRAMS] = [Matches(m.similarity, m.which[:border]) for m in both]
            matches[URL_TRIGRAMS] = [Matches(m.similarity, m.which[border:]) for m in both]
        return matches

    def _compare(self, query: int, view: str, texts: Texts) -> list[Matches]:
        """Similarities of the query and of each distinct window of ``texts``, at every depth."""
        question = self._question(query)[view]
        first, *deeper = self.towers[view].levels(texts)
        return [
            Matches(question.terms, first.which),
            *(
                Matches(level.vectors @ vectors.T, level.which)
                for level, vectors in zip(deeper, question.phrases, strict=True)
            ),
        ]

    def _question(self, query: int) -> dict[str, Question]:
        """View -> what a query asks for; kept until another query comes."""
        # Threads may ask for different queries at the same time.
        known, question = self.question
        if known != query:
            config, encoded = self.model.config, self.encoded.queries
            longest = {WORDS: config.query_words, TRIGRAMS: config.query_trigrams}
            row = np.array([query])
            question = {}
            for view, tower in self.towers.items():
                first, *deeper = (
                    level.vectors.index_select(0, torch.from_numpy(level.which))
                    for level in tower.levels(Texts.of(encoded[view], row, longest[view]))
                )
                question[view] = Question(tower.terms @ first.T, deeper)
            self.question = query, question
        return question

    def _weights(self, query: int, places: Perspective) -> Tensor:
        """IDF [1, Lq] of the query's terms."""
        view: Packed = self.encoded.queries[places.query_view]
        start, end = view.starts[query : query + 2]
        assert view.weights is not None
        return torch.from_numpy(view.weights[start : min(end, start + places.query_length)])[None]

    def _features(
        self, matches: list[Matches], texts: Texts, idf: Tensor, places: Perspective
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

    def _pool(self, matches: Matches, texts: Texts, places: Perspective) -> list[Tensor]:
        """Of the similarities of distinct windows, what each post has: [P, Lq] each."""
        similarity, which = matches
        rows = torch.from_numpy(texts.padded(which, len(similarity)))  # [P, Ld]
        if self.model.config.normalization != "none":
            each = F.pad(similarity, (0, 0, 0, 1))[rows].transpose(1, 2)  # [P, Lq, Ld]
            query_mask = each.new_ones(each.shape[:2])
            return self.model.pool(each, query_mask, _mask(texts), places)
        pooled = []
        if self.model.config.max_pooling:
            # The maximum over the first axis, of rows that index_select brings, is the quickest.
            floored = F.pad(similarity, (0, 0, 0, 1), value=_FLOOR)
            by_place = floored.index_select(0, rows.T.flatten())
            best = by_place.view(*rows.T.shape, -1).amax(dim=0)
            pooled.append(torch.where(torch.from_numpy(texts.lengths > 0)[:, None], best, 0.0))
        if self.model.config.mean_pooling:
            starts = torch.from_numpy(np.cumsum(texts.lengths) - texts.lengths)
            means = F.embedding_bag(torch.from_numpy(which), similarity, starts, mode="mean")
            pooled.append(MEAN_SCALE * means)
        return pooled


def _mask(texts: Texts) -> Tensor:
    """[N, L] 1.0 where a text has a term."""
    return mask_of(torch.from_numpy(texts.padded(np.ones_like(texts.ids), 0)))
