"""What a post looks like, whatever the query: how long, how well written, how chatty.

The quality indicators of Weerkamp & de Rijke (ACL 2008) for blog posts, of Massoudi et al. (ECIR
2011) and of Duan et al. (COLING 2010) for tweets: length, hashtags, reposts, punctuation, emphasis
and words that no list knows. The papers leave thresholds and lists open; those here are this
project's.
"""

import numpy as np
import numpy.typing as npt

from rerankers.features._candidates import CandidateList

NAMES = (
    "words", "characters", "hashtags", "is_retweet", "exclamation_marks", "question_marks",
    "other_scripts", "digits", "is_elongated", "unknown_words", "stop_words", "mean_idf",
    "personal_words",
)  # fmt: skip
"""
``words``, ``characters``, ``hashtags``: how many of them the post has.
``is_retweet``: 1 if it begins with ``RT``, else 0.
``exclamation_marks``, ``question_marks``: number of ``!`` and ``?``.
``other_scripts``: share of characters outside ASCII, in [0, 1].
``digits``: share of characters 0 to 9, in [0, 1].
``is_elongated``: 1 if a letter a to z stands three times in a row, else 0.
``unknown_words``: share of words that the source of IDF has never seen (IDF of 1), in [0, 1].
``stop_words``: share of words that are stop words, in [0, 1].
``mean_idf``: mean IDF of the words, each in [0, 1].
``personal_words``: number of words as i, me, lol, u: see ``PERSONAL_WORDS``.
Shares and means of nothing are 0.
"""

SIGNALS: tuple[str, ...] = ()

_CERTAIN = 1.0 - 1e-6


def compute(candidates: CandidateList) -> npt.NDArray[np.float32]:
    """[N, 13]."""
    counted, tokens = candidates.posts.counted, candidates.tokens
    length = np.maximum(counted.characters, 1)
    columns = [
        tokens.counts,
        counted.characters,
        counted.hashtags,
        counted.is_retweet,
        counted.exclamation_marks,
        counted.question_marks,
        counted.other_scripts / length,
        counted.digits / length,
        counted.elongations > 0,
        tokens.mean(tokens.idf >= _CERTAIN),
        tokens.mean(tokens.is_stop_word),
        tokens.mean(tokens.idf),
        tokens.total(tokens.is_personal),
    ]
    return np.stack(columns, axis=1).astype(np.float32)
