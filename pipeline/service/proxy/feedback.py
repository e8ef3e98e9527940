"""Words of a search's best hits, by which a second search finds further ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rerankers.text.vocabulary import Idf
from rerankers.text.words import STOP_WORDS, words

HITS, WORDS, SHARE = 5, 20, 0.3
"""Best hits that give words, words of them, and the query's share of all weights.

Chosen by the recall of both searches together on training topics of four collections.
"""


def feedback(
    query: str, texts: Sequence[str], scores: Sequence[float], idf: Idf
) -> dict[str, float]:
    """Word -> its weight in a search in which each word of the query has the weight 1.

    The relevance model RM3 (Abdul-Jaleel et al. 2004) over texts with their scores, times IDF:
    there are no document frequencies of the index that would tell common words.
    """
    model: dict[str, float] = {}
    for text, score in zip(texts, scores, strict=True):
        counts = Counter(w for w in words(text) if len(w) > 1 and w not in STOP_WORDS)
        for word, count in counts.items():
            model[word] = model.get(word, 0.0) + score * count / counts.total()
    weights = zip(model, idf.weights([*model]).tolist(), strict=True)
    best = Counter({word: model[word] * weight for word, weight in weights}).most_common(WORDS)
    total = sum(weight for _, weight in best)
    scale = len(words(query)) * (1 - SHARE) / SHARE
    return {word: scale * weight / total for word, weight in best if scale * weight > 0}
