"""Matches of query and post: words, phrases, trigrams, links, hashtags, lexical scores."""

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt

from tweetrerank.rerankers.features.candidates import (
    CandidateList,
    Columns,
    Tokens,
    family,
    normalised,
)
from tweetrerank.rerankers.features.text_tables import Floats
from tweetrerank.rerankers.text.ragged import Ragged, Rows, among, distinct_grams

MU = 100.0  # Dirichlet prior: words of the collection that a post is smoothed with
RANGE = (
    16.1  # ln N/n of a word of one post in as many as the background list counts: IDF 1
)


@family("words idf content_words content_idf")
def overlap(candidates: CandidateList) -> Columns:
    """Common words: Severyn & Moschitti (2015), section 4.1, and Rao et al. (2019), section 4.2.

    As in :class:`~tweetrerank.rerankers.networks.layers.common_words.WordOverlap` they are counts and sums over
    distinct words.

    ``words``: |q ∩ d|, number of distinct words in both texts.
    ``idf``: sum of their IDF, each in [0, 1].
    ``content_words``, ``content_idf``: the same without stop words.
    """
    query = candidates.query_columns
    idf, content = query.idf, ~query.is_stop_word  # [Lq]
    weights = np.stack(
        [np.ones_like(idf), idf, content, content * idf], axis=1
    )  # [Lq, 4]
    common = candidates.contains(candidates.posts.column("words"))
    return [*(common[:, :, None] * weights).sum(axis=1).T]


@family("has_hashtag query_words")
def hashtags(candidates: CandidateList) -> Columns:
    """The hashtag features of Rao et al. (2019), section 4.2.

    ``has_hashtag``: 1 if the post has a hashtag, else 0.
    ``query_words``: share of the query's distinct words in its hashtags, in [0, 1].
    ``#water_shortage`` has two words, ``#watershortage`` has one.
    """
    is_there = candidates.contains(candidates.posts.column("hashtag_words"))
    return candidates.posts.counted.hashtags > 0, candidates.shares(is_there)


@family("has_url query_words")
def links(candidates: CandidateList) -> Columns:
    """The URL features of Rao et al. (2019), section 4.2.

    ``has_url``: 1 if the expanded URL of the post is known, else 0.
    ``query_words``: share of the query's distinct words that are substrings of the URL's host or
    path (``cut`` of ``bbc.co.uk/service-cuts``), in [0, 1].
    """
    found = candidates.posts.column("link")
    is_there = np.zeros((len(found), len(candidates.query_words)), dtype=np.bool_)
    for column, word in enumerate(candidates.query_words):
        letters = np.frombuffer(word.encode(errors="surrogatepass"), dtype=np.uint8)
        is_there[_holding(found, letters), column] = True
    return found.lengths > 0, candidates.shares(is_there)


def _holding(lists: Ragged, part: npt.NDArray[Any]) -> Rows:
    """Numbers of the lists that contain some adjacent values, one for each occurrence."""
    values, size = lists.values, len(part)
    at = np.arange(max(0, len(values) - size + 1) if size else 0)
    for offset, value in enumerate(part):
        at = at[values[at + offset] == value]
    holder = np.searchsorted(lists.starts, at, side="right") - 1
    return holder[at + size <= lists.starts[holder + 1]]


@family("bm25 bm25_minmax bm25_z bm25_log_rank ql ql_minmax ql_z ql_log_rank")
def lexical(candidates: CandidateList) -> Columns:
    """BM25, and query likelihood with Dirichlet smoothing (Zhai & Lafferty 2004), over stems.

    Statistics of a collection are those of the source of IDF: an index's own, or a list of word
    frequencies.

    ``bm25``: share of the highest possible BM25 score of the query, in [0, 1).
    ``ql``: mean over the query's stems of ln(p(stem | post) / p(stem | collection)).
    ``…_minmax``, ``…_z``, ``…_log_rank``: as in the family ``signal``, over the candidates; NaN in
    a short list of given ones.
    """
    if not len(candidates):
        return [np.zeros(0)] * 8
    return [
        column
        for scores in (candidates.bm25, _likelihood(candidates))
        for column in (
            scores,
            *(candidates.compared * each for each in normalised(scores)),
        )
    ]


@family("bm25 minmax z log_rank")
def content(candidates: CandidateList) -> Columns:
    """BM25 of content words, which counts repeated words of a query, as engines do.

    ``bm25``: share of the highest possible score, in [0, 1); the others as in ``lexical``.
    """
    if not len(candidates):
        return [np.zeros(0)] * 4
    scores = candidates.content_bm25
    return scores, *(candidates.compared * each for each in normalised(scores))


def _likelihood(candidates: CandidateList) -> Floats:
    """[N] mean log ratio of the query's stems in the smoothed post and in the collection."""
    frequencies, idf = candidates.stem_frequencies
    lengths = candidates.posts.column("words").lengths
    # A word of n in N posts, once in each, is this share of all their words.
    background = np.exp(-RANGE * idf) / candidates.mean_length
    ratios = (
        np.log1p(frequencies / (MU * background)) + np.log(MU / (MU + lengths))[:, None]
    )
    return ratios.sum(axis=1) / max(1, len(idf))


@family("bm25 minmax z log_rank")
def grams(candidates: CandidateList) -> Columns:
    """BM25 over distinct sequences of four characters, for languages whose words have many forms.

    They stand in for stems (McNamee & Mayfield 2004). k₁ = 0.9 and b = 0.75; IDF is that among the
    candidates.

    ``bm25``: share of the query's highest possible score, in [0, 1).
    ``minmax``, ``z``, ``log_rank``: of ``bm25``, as in the family ``signal``.
    All are NaN in a short list of given candidates.
    """
    if candidates.is_short or not len(candidates):
        return [np.full(len(candidates), np.nan)] * 4
    query = distinct_grams(candidates.spaced_query, 4).values
    posts = candidates.posts.column("grams")
    common = among(posts.values, query)
    places = np.searchsorted(query, posts.values[common])
    holders = np.bincount(places, minlength=len(query))
    weights = np.log1p((len(posts) - holders + 0.5) / (holders + 0.5))
    sums = np.bincount(posts.owners[common], weights[places], len(posts))
    norm = 1 + 0.9 * (
        0.25 + 0.75 * posts.lengths / max(float(posts.lengths.mean()), 1.0)
    )
    scores = sums / norm / max(weights.sum(), 1e-9)
    return scores, *normalised(scores)


@family("pairs whole_query proximity first_place trigram_jaccard trigram_share")
def phrases(candidates: CandidateList) -> Columns:
    """Places of the query's words, compared by stems, and overlap of character trigrams.

    Pairs and the whole query are the ordered windows of Metzler & Croft (2005), proximity follows
    the minimum cover of Tao & Zhai (2007), and the overlaps of trigrams are Broder's (1997)
    resemblance and containment.

    ``pairs``: share of the query's distinct pairs of adjacent words that are adjacent in the post,
    in this order; in [0, 1], 0 for a query of one word.
    ``whole_query``: 1 if the post contains the whole query as a phrase, else 0.
    ``proximity``: number of distinct words of the query in the post / number of words of the
    shortest part of the post with all of these, in (0, 1]; 0 without such words.
    ``first_place``: 1 / (1 + words before the first word of the query), in (0, 1]; 0 without one.
    ``trigram_jaccard``: distinct character trigrams in both / in either, in [0, 1].
    ``trigram_share``: share of the query's distinct character trigrams in the post, in [0, 1].
    ``proximity`` and ``first_place`` ignore stop words unless the query has no other words.
    Trigrams are taken from the words with spaces around them (`` bbc cuts ``).
    """
    tokens = candidates.tokens
    stems, query = Ragged(tokens.words.stem, tokens.posts.starts), tokens.query.stem
    pairs, whole = np.zeros(len(stems)), np.zeros(len(stems))
    distinct = set(itertools.pairwise(query.tolist()))
    for pair in distinct:
        has_pair = np.zeros(len(stems))
        has_pair[_holding(stems, np.array(pair))] = 1
        pairs += has_pair
    whole[_holding(stems, query)] = 1
    return (
        pairs / max(1, len(distinct)),
        whole,
        *_places(tokens),
        *_trigrams(candidates),
    )


def _places(tokens: Tokens) -> tuple[Floats, Floats]:
    """``proximity`` and ``first_place``: two arrays [N]."""
    content = tokens.query.stem[~tokens.query.is_stop_word]
    # [Lq]; without indices NumPy would import its masked arrays.
    stems, _ = np.unique(
        content if len(content) else tokens.query.stem, return_index=True
    )
    at = np.flatnonzero(among(tokens.words.stem, stems))  # [H] places of query words
    posts = len(tokens.posts)
    if not len(at):
        return np.zeros(posts), np.zeros(posts)
    which, post = np.searchsorted(stems, tokens.words.stem[at]), tokens.posts.owners[at]
    is_there = np.zeros((posts, len(stems)), dtype=np.bool_)
    is_there[post, which] = True
    # The shortest part that ends at a place begins at the earliest of the query words' last
    # occurrences up to there; occurrences in earlier posts do not count.
    seen = np.full((len(at), len(stems)), -1, dtype=np.int64)
    seen[np.arange(len(at)), which] = at
    seen = np.maximum.accumulate(seen, axis=0)
    begin = np.where(is_there[post], seen, len(tokens.words.stem)).min(axis=1)
    complete = begin >= at - tokens.posts.positions[at]
    shortest, first = np.full(posts, np.inf), np.full(posts, np.inf)
    np.minimum.at(shortest, post[complete], (at - begin + 1.0)[complete])
    np.minimum.at(first, post, tokens.posts.positions[at])
    return is_there.sum(axis=1) / shortest, 1.0 / (1.0 + first)


def _trigrams(candidates: CandidateList) -> tuple[Floats, Floats]:
    """``trigram_jaccard`` and ``trigram_share``: two arrays [N]."""
    of_query = distinct_grams(candidates.spaced_query, 3).values
    posts = candidates.posts.column("trigrams")  # Distinct in each post.
    is_common = among(posts.values, of_query)
    common = np.bincount(posts.owners[is_common], minlength=len(posts))
    either = posts.lengths + len(of_query) - common
    return common / np.maximum(either, 1), common / max(1, len(of_query))
