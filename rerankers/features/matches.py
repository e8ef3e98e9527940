"""Features of how query and post match: words, phrases, trigrams, links, hashtags and
BM25."""

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt

from tweetrerank.rerankers.features.candidates import CandidateList, Tokens
from tweetrerank.rerankers.features.family import Columns, family
from tweetrerank.rerankers.features.scaling import normalised
from tweetrerank.rerankers.features.text_tables import Floats
from tweetrerank.rerankers.text.ragged import Ragged, Rows, among, distinct_grams

# Weight of the Dirichlet prior: a post is smoothed by so many words of the collection
MU = 100.0

RANGE = 16.1
"""ln N/n of a word with an IDF of 1, for N posts of which n have the word. Such a word
occurs in one post of the source of IDF."""


@family("words idf content_words content_idf")
def overlap(candidates: CandidateList) -> Columns:
    """Return counts of the words that query and post have in common.

    These are the features of Severyn & Moschitti (2015), section 4.1, and Rao et al.
    (2019), section 4.2. Like
    :class:`~tweetrerank.rerankers.networks.layers.common_words.WordOverlap`, they are
    counts and sums over distinct words.

    ``words``: number of distinct words that occur in both texts.
    ``idf``: sum of the IDF of these words. Each IDF is in [0, 1].
    ``content_words``, ``content_idf``: the same without stop words.
    """
    query = candidates.query_columns
    is_content = ~query.is_stop_word  # [Lq]
    weights = np.stack(
        [
            np.ones_like(query.idf),
            query.idf,
            is_content,
            is_content * query.idf,
        ],
        axis=1,
    )  # [Lq, 4]
    common = candidates.contains(candidates.posts.column("words"))  # [N, Lq]
    weighted = common[:, :, None] * weights  # [N, Lq, 4]
    return list(weighted.sum(axis=1).T)


@family("has_hashtag query_words")
def hashtags(candidates: CandidateList) -> Columns:
    """Return the hashtag features of Rao et al. (2019), section 4.2.

    ``has_hashtag``: 1 if the post has a hashtag, else 0.
    ``query_words``: share of the query's distinct words that are words of the post's
    hashtags, in [0, 1]. ``#water_shortage`` has two words, ``#watershortage`` has one.
    """
    posts = candidates.posts
    is_there = candidates.contains(posts.column("hashtag_words"))
    return [posts.counted.hashtags > 0, candidates.shares(is_there)]


@family("has_url query_words")
def links(candidates: CandidateList) -> Columns:
    """Return the URL features of Rao et al. (2019), section 4.2.

    ``has_url``: 1 if the expanded URL of the post is known, else 0.
    ``query_words``: share of the query's distinct words that are substrings of the
    URL's host and path (as ``cut`` is of ``bbc.co.uk/service-cuts``), in [0, 1].
    """
    urls = candidates.posts.column("link")
    words = candidates.query_words
    is_there = np.zeros(
        (len(urls), len(words)),
        dtype=np.bool_,
    )
    for column, word in enumerate(words):
        letters = word.encode(errors="surrogatepass")
        holders = _holders(urls, np.frombuffer(letters, dtype=np.uint8))
        is_there[holders, column] = True
    return [urls.lengths > 0, candidates.shares(is_there)]


def _holders(lists: Ragged, phrase: npt.NDArray[Any]) -> Rows:
    """Return the number of the list for each occurrence of a phrase in some lists.

    A phrase is an array of values that must be adjacent. The empty phrase never occurs.
    """
    values = lists.values
    size = len(phrase)
    count = max(0, len(values) - size + 1) if size else 0
    places = np.arange(count)
    for offset, value in enumerate(phrase):
        places = places[values[places + offset] == value]
    holders = np.searchsorted(lists.starts, places, side="right") - 1
    ends = lists.starts[holders + 1]
    return holders[places + size <= ends]


@family("bm25 bm25_minmax bm25_z bm25_log_rank ql ql_minmax ql_z ql_log_rank")
def lexical(candidates: CandidateList) -> Columns:
    """Return BM25 and query likelihood with Dirichlet smoothing (Zhai & Lafferty 2004).

    Both are computed over stems. Statistics of the collection come from the source of
    IDF, which is an index or a list of word frequencies.

    ``bm25``: BM25 as a share of the highest possible score of the query, in [0, 1).
    ``ql``: mean over the query's stems of ln(p(stem | post) / p(stem | collection)).
    ``…_minmax``, ``…_z``, ``…_log_rank``: these two over the candidates, as in the
    family ``signal``. NaN in a list that is too short to compare its candidates.
    """
    if not len(candidates):
        return [np.zeros(0)] * 8
    bm25 = candidates.bm25
    likelihood = _likelihood(candidates)
    return [
        bm25,
        *_compared(candidates, bm25),
        likelihood,
        *_compared(candidates, likelihood),
    ]


@family("bm25 minmax z log_rank")
def content(candidates: CandidateList) -> Columns:
    """Return BM25 over the query's content words.

    A word that the query repeats counts repeatedly, as in search engines.

    ``bm25``: BM25 as a share of the highest possible score, in [0, 1).
    ``minmax``, ``z``, ``log_rank``: as in the family ``lexical``.
    """
    if not len(candidates):
        return [np.zeros(0)] * 4
    scores = candidates.content_bm25
    return [scores, *_compared(candidates, scores)]


def _compared(candidates: CandidateList, scores: Floats) -> list[Floats]:
    """Return scores normalised in three ways, each [N], or NaN in a short list."""
    return [candidates.comparison_factor * column for column in normalised(scores)]


def _likelihood(candidates: CandidateList) -> Floats:
    """Return ``ql`` of each candidate [N].

    It is the mean over the query's stems of the logarithm of a ratio: the stem's
    probability in the smoothed post, divided by that in the collection.
    """
    stems = candidates.stem_counts
    lengths = candidates.posts.column("words").lengths
    # A stem's share of all words of the collection. It is assumed to occur once in each
    # post that has it.
    background = np.exp(-RANGE * stems.idf) / candidates.mean_length
    log_lengths = np.log(MU / (MU + lengths))
    log_counts = np.log1p(stems.counts / (MU * background))
    ratios = log_counts + log_lengths[:, None]
    return ratios.sum(axis=1) / max(1, len(stems.idf))


@family("bm25 minmax z log_rank")
def grams(candidates: CandidateList) -> Columns:
    """Return BM25 over distinct sequences of four characters.

    These sequences take the place of stems in languages whose words have many forms
    (McNamee & Mayfield 2004). The parameters are k₁ = 0.9 and b = 0.75. The IDF is that
    among the candidates.

    ``bm25``: BM25 as a share of the query's highest possible score, in [0, 1).
    ``minmax``, ``z``, ``log_rank``: ``bm25`` over the candidates, as in the family
    ``signal``.
    All are NaN in a list that is too short to compare its candidates.
    """
    if candidates.is_short or not len(candidates):
        unknown = np.full(len(candidates), np.nan)
        return [unknown] * 4
    query = distinct_grams(candidates.spaced_query, 4).values  # [G]
    posts = candidates.posts.column("grams")
    is_common = among(posts.values, query)
    places = np.searchsorted(query, posts.values[is_common])
    holders = np.bincount(places, minlength=len(query))
    non_holders = len(posts) - holders
    weights = np.log1p((non_holders + 0.5) / (holders + 0.5))  # [G]
    sums = np.bincount(
        posts.owners[is_common],
        weights[places],
        len(posts),
    )
    mean_length = max(float(posts.lengths.mean()), 1.0)
    norm = 1 + 0.9 * (0.25 + 0.75 * posts.lengths / mean_length)
    scores = sums / norm / max(weights.sum(), 1e-9)
    return [scores, *normalised(scores)]


@family("pairs whole_query proximity first_place trigram_jaccard trigram_share")
def phrases(candidates: CandidateList) -> Columns:
    """Return features of where the query's words are in the post, and of trigrams.

    Words are compared by their stems. ``pairs`` and ``whole_query`` are the ordered
    phrases of Metzler & Croft (2005). ``proximity`` follows the minimum cover of Tao &
    Zhai (2007). The overlaps of trigrams are Broder's (1997) resemblance and
    containment.

    ``pairs``: share of the query's distinct pairs of adjacent words that are also
    adjacent in the post, in the same order; in [0, 1]. It is 0 for a query of one word.
    ``whole_query``: 1 if the post contains the whole query as a phrase, else 0.
    ``proximity``: number of distinct words of the query that the post has, divided by
    the number of words in the shortest part of the post that has them all; in (0, 1].
    It is 0 if the post has no word of the query.
    ``first_place``: 1 / (1 + number of words before the first word of the query), in
    (0, 1]. It is 0 if the post has no word of the query.
    ``trigram_jaccard``: number of distinct character trigrams that both texts have,
    divided by the number of those that either has; in [0, 1].
    ``trigram_share``: share of the query's distinct character trigrams that the post
    has, in [0, 1].
    ``proximity`` and ``first_place`` ignore stop words, unless the query has no other
    words. Trigrams are taken from the words with spaces around them (`` bbc cuts ``).
    """
    tokens = candidates.tokens
    stems = Ragged(tokens.words.stem, tokens.posts.starts)
    query = tokens.query.stem
    query_pairs = set(itertools.pairwise(query.tolist()))
    pairs = np.zeros(len(stems))
    for pair in query_pairs:
        has_pair = np.zeros(len(stems))
        has_pair[_holders(stems, np.array(pair))] = 1
        pairs += has_pair
    whole_query = np.zeros(len(stems))
    whole_query[_holders(stems, query)] = 1
    return [
        pairs / max(1, len(query_pairs)),
        whole_query,
        *_places(tokens),
        *_trigrams(candidates),
    ]


def _places(tokens: Tokens) -> tuple[Floats, Floats]:
    """Return (``proximity`` [N], ``first_place`` [N])."""
    count = len(tokens.posts)
    stems = _content_stems(tokens)  # [S]
    # Query words occur at H places in the posts. ``places``, ``columns`` and ``posts``
    # say at which place, which stem, and in which post; each is [H].
    places = np.flatnonzero(among(tokens.words.stem, stems))
    if not len(places):
        return np.zeros(count), np.zeros(count)
    columns = np.searchsorted(stems, tokens.words.stem[places])
    posts = tokens.posts.owners[places]
    is_there = np.zeros(
        (count, len(stems)),
        dtype=np.bool_,
    )
    is_there[posts, columns] = True
    # Take a place where a part of the post may end. For each query word that the post
    # has, find its last occurrence up to that place. The shortest part begins at the
    # earliest of these. It has all words if none of these is in an earlier post.
    last_seen = np.full(
        (len(places), len(stems)),
        -1,
        dtype=np.int64,
    )
    last_seen[np.arange(len(places)), columns] = places
    last_seen = np.maximum.accumulate(last_seen, axis=0)  # [H, S]
    end = len(tokens.words.stem)
    begins = np.where(is_there[posts], last_seen, end).min(axis=1)
    positions = tokens.posts.positions[places]
    is_complete = begins >= places - positions
    lengths = places - begins + 1.0
    shortest = np.full(count, np.inf)
    np.minimum.at(shortest, posts[is_complete], lengths[is_complete])
    first = np.full(count, np.inf)
    np.minimum.at(first, posts, positions)
    proximity = is_there.sum(axis=1) / shortest
    return proximity, 1.0 / (1.0 + first)


def _content_stems(tokens: Tokens) -> npt.NDArray[np.int32]:
    """Return the distinct stems of the query's content words.

    If the query has no content words, those of all its words are returned.
    """
    stems = tokens.query.stem[~tokens.query.is_stop_word]
    if not len(stems):
        stems = tokens.query.stem
    # Without return_index NumPy would import its masked arrays.
    distinct_stems, _ = np.unique(stems, return_index=True)
    return distinct_stems


def _trigrams(candidates: CandidateList) -> tuple[Floats, Floats]:
    """Return (``trigram_jaccard`` [N], ``trigram_share`` [N])."""
    query = distinct_grams(candidates.spaced_query, 3).values
    posts = candidates.posts.column("trigrams")  # Distinct in each post
    is_common = among(posts.values, query)
    common = np.bincount(
        posts.owners[is_common],
        minlength=len(posts),
    )
    either = posts.lengths + len(query) - common
    jaccard = common / np.maximum(either, 1)
    share = common / max(1, len(query))
    return jaccard, share
