"""Features of a post's quality, such as length, spelling and style.

They do not depend on the query.
"""

import numpy as np

from tweetrerank.rerankers.features.candidates import CERTAIN, CandidateList
from tweetrerank.rerankers.features.family import Columns, family


@family(
    "words characters hashtags is_retweet exclamation_marks question_marks"
    " other_scripts digits is_elongated unknown_words stop_words mean_idf"
    " personal_words"
)
def quality(candidates: CandidateList) -> Columns:
    """Return indicators of quality from papers on blog posts and on tweets.

    Those for blog posts are from Weerkamp & de Rijke (ACL 2008). Tweet features are
    from Massoudi et al. (ECIR 2011) and Duan et al. (COLING 2010): length, hashtags,
    reposts, punctuation, emphasis and unknown words. The papers do not specify
    thresholds and lists of words, so we chose them.

    ``words``, ``characters``, ``hashtags``: numbers of words, characters and hashtags.
    ``is_retweet``: 1 if the post begins with ``RT``, else 0.
    ``exclamation_marks``, ``question_marks``: number of ``!`` and ``?``.
    ``other_scripts``: share of characters outside ASCII, in [0, 1].
    ``digits``: share of characters 0 to 9, in [0, 1].
    ``is_elongated``: 1 if a letter a to z occurs three times in a row, else 0.
    ``unknown_words``: share of words that the source of IDF does not have, in [0, 1].
    ``stop_words``: share of words that are stop words, in [0, 1].
    ``mean_idf``: mean IDF of the words, each in [0, 1].
    ``personal_words``: number of words like i, me, lol, u; see ``PERSONAL_WORDS``.
    Shares and means are 0 for a post without words or characters. ``unknown_words`` and
    ``mean_idf`` are NaN if the source of IDF does not fit the language of the list.
    """
    counts = candidates.posts.counted
    tokens = candidates.tokens
    length = np.maximum(counts.characters, 1)
    idf_factor = 1.0 if candidates.knows_frequencies else np.nan
    return [
        tokens.posts.lengths,
        counts.characters,
        counts.hashtags,
        counts.is_retweet,
        counts.exclamation_marks,
        counts.question_marks,
        counts.other_scripts / length,
        counts.digits / length,
        counts.elongations > 0,
        idf_factor * tokens.mean(tokens.words.idf >= CERTAIN),
        tokens.mean(tokens.words.is_stop_word),
        idf_factor * tokens.mean(tokens.words.idf),
        tokens.total(tokens.words.is_personal),
    ]
