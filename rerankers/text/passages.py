"""Choose the passage of a long text that a model reads: the best one for the query."""

import re
from collections import defaultdict
from collections.abc import Sequence
from itertools import chain

import numpy as np
import numpy.typing as npt

from tweetrerank.rerankers.text.lexicon import Lexicon
from tweetrerank.rerankers.text.ragged import Rows
from tweetrerank.rerankers.text.stems import stem
from tweetrerank.rerankers.text.words import MAX_CHARACTERS, STOP_WORDS, words

# Characters of a piece, at most. Two adjacent pieces make a passage, so passages
# overlap by one piece.
HALF = MAX_CHARACTERS // 2

Counts = npt.NDArray[np.int64]

# A piece ends before the last blank within HALF characters. If there is no blank, it
# has exactly HALF characters.
_PIECE = re.compile(rf"(?s:.{{1,{HALF}}}(?=\s|\Z)|.{{{HALF}}})")


def best_passages(
    queries: Sequence[str],
    texts: Sequence[str],
) -> list[str]:
    """Return the part of each of N texts that a model should read for its query.

    ``queries`` has one query for each text. A text of up to :data:`MAX_CHARACTERS`
    characters is returned as it is. Of a longer one, the passage with the highest BM25
    score (k₁ = 0.9, b = 0.4) is returned; the first one wins a tie. A passage has at
    most :data:`MAX_CHARACTERS` characters, and ends between words where the text has
    blanks. BM25 takes its statistics from the passages of all long texts of the same
    query.
    """
    pairs = zip(queries, texts, strict=True)
    long_texts = defaultdict[str, list[int]](list)
    for row, (query, text) in enumerate(pairs):
        if len(text) > MAX_CHARACTERS:
            long_texts[query].append(row)
    passages = list(texts)
    for query, rows in long_texts.items():
        best = _best(query, [texts[row] for row in rows])
        for row, passage in zip(rows, best, strict=True):
            passages[row] = passage
    return passages


def _best(
    query: str,
    texts: Sequence[str],
) -> list[str]:
    """Return the best passage of each of N long texts for one query."""
    pieces = [_PIECE.findall(text) for text in texts]
    # Each piece but the last of its text begins a passage.
    ends = np.cumsum([len(text_pieces) for text_pieces in pieces])
    begins = np.delete(
        np.arange(ends[-1]),
        ends - 1,
    )
    all_pieces = list(chain.from_iterable(pieces))
    scores = _bm25(query[:MAX_CHARACTERS], all_pieces, begins)
    passage_ends = ends[:-1] - np.arange(1, len(pieces))
    scores_by_text = np.split(scores, passage_ends)
    passages = []
    for text_pieces, text_scores in zip(pieces, scores_by_text, strict=True):
        best = int(text_scores.argmax())
        passages.append("".join(text_pieces[best : best + 2]))
    return passages


def _bm25(
    query: str,
    pieces: Sequence[str],
    begins: Rows,
) -> npt.NDArray[np.float64]:
    """Return the BM25 scores [P] of passages.

    ``begins`` [P] has the number of each passage's first piece.
    """
    counts, lengths = _counts(query, pieces)
    counts = counts[begins] + counts[begins + 1]  # [P, S]
    lengths = lengths[begins] + lengths[begins + 1]  # [P]
    holders = (counts > 0).sum(axis=0)
    non_holders = len(counts) - holders
    idf = np.log1p((non_holders + 0.5) / (holders + 0.5))
    mean_length = max(lengths.mean(), 1.0)
    norm = 0.9 * (0.6 + 0.4 * lengths / mean_length)
    return counts / (counts + norm[:, None]) @ idf


def _counts(
    query: str,
    pieces: Sequence[str],
) -> tuple[Counts, Rows]:
    """Return (counts of the query's S stems in N pieces [N, S], lengths of these [N]).

    Lengths are in words. Stop words of the query are left out unless it has no others.
    """
    query_words = set(words(query))
    content_words = query_words - STOP_WORDS
    # Sorted, because the rounding of sums must not depend on the hash seed.
    stems = sorted(set(map(stem, content_words or query_words)))
    column_of = {name: column for column, name in enumerate(stems)}
    other_words = len(stems)  # One more column for all other words
    lexicon = Lexicon.from_texts(pieces)
    columns = np.array(
        [column_of.get(stem(word), other_words) for word in lexicon.words],
        dtype=np.int64,
    )
    shape = (len(pieces), len(stems) + 1)
    counts = np.zeros(shape, dtype=np.int64)
    places = (lexicon.texts.owners, columns[lexicon.texts.values])
    np.add.at(counts, places, 1)
    return counts[:, :-1], lexicon.texts.lengths
