"""The relevance model RM3 from the engine's term vectors, as Anserini computes it in Lucene."""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from indexes.methods import RM3

Weights = dict[str, np.float32]

_WORD = re.compile(r"[a-z0-9]{2,20}")
_COMMONEST = np.float32(0.1)
"""Share of the posts that have a word, above which it is not added to a query."""


class Term(NamedTuple):
    """A word of a post: how often it is there, and how many posts have it."""

    times: int
    posts: int


def expanded(
    query: Mapping[str, int],
    best: Sequence[tuple[float, Mapping[str, Term]]],
    posts: int,
    method: RM3,
) -> dict[str, float] | None:
    """Word -> weight of the new query; None if no feedback word has one: leave it as it is then.

    Computed in single precision, like Anserini's Rm3Reranker, so that words of equal weight are
    kept or dropped alike. ``query`` says how often each word is in it; ``best`` has score and words
    of the first round's best posts, best first; ``posts`` are those of the collection.
    """
    vectors = [_pruned(_kept(terms, posts), method.fb_terms) for _, terms in best]
    norms = [_norm(vector) for vector in vectors]
    scores = [np.float32(score) for score, _ in best]
    model: Weights = {}
    for word in dict.fromkeys(word for vector in vectors for word in vector):
        total = np.float32(0)
        for vector, norm, score in zip(vectors, norms, scores, strict=True):
            if norm > 0.001:
                total += vector.get(word, np.float32(0)) / norm * score
        model[word] = total
    model = _scaled(_pruned(model, method.fb_terms))
    if any(np.isnan(weight) for weight in model.values()):
        return None
    original = _scaled({word: np.float32(count) for word, count in query.items()})
    share = np.float32(method.original_weight)
    return {
        word: float(
            np.float32(
                float(share * original.get(word, np.float32(0)))
                + (1.0 - float(share)) * float(model.get(word, np.float32(0)))
            )
        )
        for word in dict.fromkeys([*original, *model])
    }


def _kept(terms: Mapping[str, Term], posts: int) -> Weights:
    """Plain words that not too many posts have, with their counts."""
    return {
        word: np.float32(term.times)
        for word, term in terms.items()
        if _WORD.fullmatch(word) and np.float32(term.posts) / np.float32(posts) <= _COMMONEST
    }


def _pruned(vector: Weights, most: int) -> Weights:
    """The words of the highest weights; of equal ones those that come first in the alphabet."""
    return dict(sorted(vector.items(), key=lambda item: (-item[1], item[0]))[:most])


def _norm(vector: Weights) -> np.float32:
    return np.float32(sum(abs(float(weight)) for weight in vector.values()))


def _scaled(vector: Weights) -> Weights:
    """With the sum 1; NaN if all weights are 0."""
    norm = sum(abs(float(weight)) for weight in vector.values())
    return {w: np.float32(float(v) / norm if norm else np.nan) for w, v in vector.items()}
