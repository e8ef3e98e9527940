"""Long texts, of which a model reads one passage: the one that shares most with the query."""

import re
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tweetrerank.rerankers.text.lexicon import Lexicon
from tweetrerank.rerankers.text.ragged import Rows
from tweetrerank.rerankers.text.stems import stem
from tweetrerank.rerankers.text.words import MAX_CHARACTERS, STOP_WORDS, words

HALF = (
    MAX_CHARACTERS // 2
)  # Two adjacent pieces of this length are a passage: they overlap

# To the last blank within the length; without one, to its end.
_PIECE = re.compile(rf"(?s:.{{1,{HALF}}}(?=\s|\Z)|.{{{HALF}}})")


def best_passages(queries: Sequence[str], texts: Sequence[str]) -> list[str]:
    """Parts of N texts to read, each for its query: a short text whole, else its best passage.

    A passage has at most :data:`MAX_CHARACTERS` characters and ends between words. The best has the
    highest BM25 score (k₁ = 0.9, b = 0.4), by the statistics of the passages of all long texts of
    the query; of equal ones the first.
    """
    read, rows_of = list(texts), defaultdict(list)
    for row, (query, text) in enumerate(zip(queries, texts, strict=True)):
        if len(text) > MAX_CHARACTERS:
            rows_of[query].append(row)
    for query, rows in rows_of.items():
        for row, passage in zip(
            rows, _best(query, [texts[row] for row in rows]), strict=True
        ):
            read[row] = passage
    return read


def _best(query: str, texts: Sequence[str]) -> list[str]:
    """The best passage of each of N long texts."""
    pieces = [_PIECE.findall(text) for text in texts]
    counts, lengths = _counts(
        query[:MAX_CHARACTERS], [piece for own in pieces for piece in own]
    )
    # A passage is a piece and the next one: each piece begins one but the last of its text.
    ends = np.cumsum([len(own) for own in pieces])
    begins = np.delete(np.arange(ends[-1]), ends - 1)
    counts, lengths = (
        counts[begins] + counts[begins + 1],
        lengths[begins] + lengths[begins + 1],
    )
    holders = (counts > 0).sum(axis=0)
    idf = np.log1p((len(counts) - holders + 0.5) / (holders + 0.5))
    norm = 0.9 * (0.6 + 0.4 * lengths / max(lengths.mean(), 1.0))
    scores = counts / (counts + norm[:, None]) @ idf
    own_scores = np.split(scores, ends[:-1] - np.arange(1, len(pieces)))
    best = [int(own.argmax()) for own in own_scores]
    return ["".join(own[row : row + 2]) for own, row in zip(pieces, best, strict=True)]


def _counts(query: str, pieces: Sequence[str]) -> tuple[npt.NDArray[np.int64], Rows]:
    """[N, S] occurrences of the query's S stems in N pieces, and the words [N] of each piece.

    Function words count only in a query of nothing else.
    """
    lexicon, wanted = Lexicon.from_texts(pieces), set(words(query))
    # In one order, as sums of scores are to be the same in every process.
    stems = sorted({*map(stem, wanted - STOP_WORDS or wanted)})
    # One more column for all other words.
    column_of = defaultdict(
        lambda: len(stems), zip(stems, range(len(stems)), strict=True)
    )
    columns = np.array(
        [column_of[stem(word)] for word in lexicon.words], dtype=np.int64
    )
    counts = np.zeros((len(pieces), len(stems) + 1), dtype=np.int64)
    np.add.at(counts, (lexicon.texts.owners, columns[lexicon.texts.values]), 1)
    return counts[:, :-1], lexicon.texts.lengths
