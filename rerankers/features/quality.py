"""What a post looks like, whatever the query: how long, how well written, how chatty.

The quality indicators of Weerkamp & de Rijke (ACL 2008) for blog posts, of Massoudi et al. (ECIR
2011) and of Duan et al. (COLING 2010) for tweets: length, hashtags, reposts, punctuation, emphasis
and words that no list knows. The papers leave thresholds and lists open; those here are this
project's.
"""

import re

import numpy as np
import numpy.typing as npt

from rerankers.candidates import CandidateList

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

_RETWEET = re.compile(r"\s*rt\b", re.IGNORECASE)
_CERTAIN = 1.0 - 1e-6


def compute(candidates: CandidateList) -> npt.NDArray[np.float32]:
    """[N, 13]."""
    characters, tokens = candidates.characters, candidates.tokens
    codes, texts = characters.codes, candidates.texts
    columns = [
        tokens.counts,
        characters.counts,
        np.array([len(tags) for tags in candidates.hashtags], dtype=np.int64),
        np.array([bool(_RETWEET.match(text)) for text in texts], dtype=np.bool_),
        characters.count(codes == ord("!")),
        characters.count(codes == ord("?")),
        characters.share(codes > 127),
        characters.share((codes >= ord("0")) & (codes <= ord("9"))),
        characters.count(_third_in_a_row(codes, characters.text)) > 0,
        tokens.mean(tokens.idf >= _CERTAIN),
        tokens.mean(tokens.is_stop_word),
        tokens.mean(tokens.idf),
        tokens.total(tokens.is_personal),
    ]
    return np.stack(columns, axis=1).astype(np.float32)


def _third_in_a_row(
    codes: npt.NDArray[np.uint32], text: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    """Whether a letter and the two after it are the same, capital or not: [C - 2]."""
    small = codes | 0x20
    is_letter = (small >= ord("a")) & (small <= ord("z"))
    same = (small[:-2] == small[1:-1]) & (small[1:-1] == small[2:]) & (text[:-2] == text[2:])
    found: npt.NDArray[np.bool_] = same & is_letter[:-2]
    return found
