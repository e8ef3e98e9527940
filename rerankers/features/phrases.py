"""Positions of the query's words in a post (adjacent, close, early), and overlap of trigrams.

Words are compared by stems. Pairs and the whole query are the ordered windows of Metzler & Croft
(2005), proximity follows the minimum cover of Tao & Zhai (2007), and the overlaps of trigrams are
Broder's (1997) resemblance and containment.
"""

import itertools

import numpy as np
import numpy.typing as npt

from rerankers.features._candidates import CandidateList, Tokens
from rerankers.features._tables import Floats
from rerankers.text.ragged import among, distinct_trigrams
from rerankers.text.words import words

NAMES = ("pairs", "whole_query", "proximity", "first_place", "trigram_jaccard", "trigram_share")
"""
``pairs``: share of the query's distinct pairs of adjacent words that are adjacent in the post, in
this order; in [0, 1], 0 for a query of one word.
``whole_query``: 1 if the post contains the whole query as a phrase, else 0.
``proximity``: number of distinct words of the query in the post / number of words of the shortest
part of the post with all of these, in (0, 1]; 0 without such words.
``first_place``: 1 / (1 + words before the first word of the query), in (0, 1]; 0 without one.
``trigram_jaccard``: distinct character trigrams in both / in either, in [0, 1].
``trigram_share``: share of the query's distinct character trigrams in the post, in [0, 1].
``proximity`` and ``first_place`` ignore stop words unless the query has no other words. Trigrams
are taken from the words with spaces around them (`` bbc cuts ``).
"""

SIGNALS: tuple[str, ...] = ()


def compute(candidates: CandidateList) -> npt.NDArray[np.float32]:
    """[N, 6]."""
    tokens = candidates.tokens
    proximity, first_place = _places(tokens)
    jaccard, share = _trigrams(candidates)
    columns = [_pairs(tokens), _whole_query(tokens), proximity, first_place, jaccard, share]
    return np.stack(columns, axis=1).astype(np.float32)


def _pairs(tokens: Tokens) -> Floats:
    """[N]."""
    query, stem, post = tokens.query.stem.tolist(), tokens.words.stem, tokens.posts.owners
    pairs = set(itertools.pairwise(query))
    counts = np.zeros(len(tokens.posts))
    for first, second in pairs:
        at = np.flatnonzero(stem[:-1] == first)
        at = at[(stem[at + 1] == second) & (post[at] == post[at + 1])]
        counts[np.unique(post[at])] += 1
    return counts / max(1, len(pairs))


def _whole_query(tokens: Tokens) -> Floats:
    """[N]."""
    is_whole, size = np.zeros(len(tokens.posts)), len(tokens.query.stem)
    stems, post = tokens.words.stem, tokens.posts.owners
    starts = np.arange(max(0, len(stems) - size + 1) if size else 0)
    for offset, stem in enumerate(tokens.query.stem):
        starts = starts[stems[starts + offset] == stem]
    inside = post[starts] == post[starts + size - 1]
    is_whole[post[starts[inside]]] = 1.0
    return is_whole


def _places(tokens: Tokens) -> tuple[Floats, Floats]:
    """``proximity`` and ``first_place``: two arrays [N]."""
    content = tokens.query.stem[~tokens.query.is_stop_word]
    stems = np.unique(content if len(content) else tokens.query.stem)  # [Lq]
    at = np.flatnonzero(among(tokens.words.stem, stems))  # [H] places of query words
    if not len(at):
        return np.zeros(len(tokens.posts)), np.zeros(len(tokens.posts))
    which, post = np.searchsorted(stems, tokens.words.stem[at]), tokens.posts.owners[at]
    is_there = np.zeros((len(tokens.posts), len(stems)), dtype=np.bool_)
    is_there[post, which] = True
    # The shortest part that ends at a place begins at the earliest of the query words' last
    # occurrences up to there; occurrences in earlier posts do not count.
    seen = np.full((len(at), len(stems)), -1, dtype=np.int64)
    seen[np.arange(len(at)), which] = at
    seen = np.maximum.accumulate(seen, axis=0)
    begin = np.where(is_there[post], seen, len(tokens.words.stem)).min(axis=1)
    complete = begin >= at - tokens.posts.positions[at]
    shortest = np.full(len(tokens.posts), np.inf)
    np.minimum.at(shortest, post[complete], (at - begin + 1.0)[complete])
    first = np.full(len(tokens.posts), np.inf)
    np.minimum.at(first, post, tokens.posts.positions[at])
    return is_there.sum(axis=1) / shortest, 1.0 / (1.0 + first)


def _trigrams(candidates: CandidateList) -> tuple[Floats, Floats]:
    """``trigram_jaccard`` and ``trigram_share``: two arrays [N]."""
    query = f" {' '.join(words(candidates.query))} "
    of_query = distinct_trigrams([query]).values
    posts = candidates.posts.column("trigrams")  # Distinct in each post.
    is_common = among(posts.values, np.sort(of_query))
    common = np.bincount(posts.owners[is_common], minlength=len(posts))
    either = posts.lengths + len(of_query) - common
    return common / np.maximum(either, 1), common / max(1, len(of_query))
