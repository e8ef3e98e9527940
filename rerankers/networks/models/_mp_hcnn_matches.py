"""Matches of MP-HCNN, for explanations: similarities of each perspective before pooling.

Rao et al. (AAAI 2019), Table 6, shades the words of a post by them.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch

from tweetrerank.rerankers.explanation import (
    Cell,
    Column,
    Explanation,
    Reasons,
    Row,
    Segment,
    shade,
)
from tweetrerank.rerankers.networks.base import POST, QUERY, Reranker
from tweetrerank.rerankers.networks.inputs import TextEncoder, Tokenized
from tweetrerank.rerankers.networks.models.mp_hcnn import Model
from tweetrerank.rerankers.pairs import Pairs
from tweetrerank.rerankers.reranker_error import RerankerError
from tweetrerank.rerankers.text import words as reading
from tweetrerank.rerankers.text.spans import (
    Span,
    Word,
    find_url,
    find_words,
    trigram_spans,
)

Values = npt.NDArray[np.float32]

COSINE_BOUNDS = (0.7, 0.8, 0.9, 0.99)  # Unrelated phrases have cosines up to about 0.7
SOFTMAX_BOUNDS = (0.1, 0.25, 0.5, 0.75)

SHARES_OF_GREATEST = (0.25, 0.5, 0.75, 0.95)
"""Bounds for similarities without an upper limit (dot products without softmax), as shares of the
greatest one."""

STEPS = (
    "weak",
    "fair",
    "good",
    "exact or nearly so",
)  # Names of the shades 1 to 4; 0 is none

PERSPECTIVES = {
    "words": "words of the post",
    "post_trigrams": "letters of the post",
    "url_trigrams": "letters of the URL",
}


class Matches(NamedTuple):
    """Similarities of one query and one post, in one perspective at one depth."""

    values: Values  # [Lq, Ld], after the softmax if the model has one
    length: int  # Terms in a phrase

    def best(self) -> Values:
        """Similarity of each query phrase with its best match: [Lq], 0 for an empty post."""
        return self.values.max(axis=1) if self.values.size else self.values.sum(axis=1)

    def post_terms(self) -> Values:
        """Similarity of the best phrase that contains each term of the post: [Ld]."""
        phrases = (
            self.values.max(axis=0) if self.values.size else self.values.sum(axis=0)
        )
        first = [max(0, place - self.length + 1) for place in range(len(phrases))]
        best = [phrases[start : place + 1].max() for place, start in enumerate(first)]
        return np.array(best, np.float32)


class PairMatches(NamedTuple):
    """Matches of a query and a post, both cut to the lengths that the model reads."""

    query_words: list[str]
    weights: Values  # IDF of each query word
    post_words: list[Word]
    url: tuple[
        Span, ...
    ]  # Of the centre of each trigram of the URL; empty without a URL
    matches: dict[
        str, list[Matches]
    ]  # One of PERSPECTIVES -> its matches at each depth


def find_matches(
    model: Model,
    encoder: TextEncoder,
    query: str,
    texts: Sequence[str],
    urls: Sequence[str],
) -> list[PairMatches]:
    """Matches of a query with each post, given by its text and its expanded URL or ""."""
    if model.reading != reading.Reading():
        raise RerankerError(
            f"found a model that reads texts as {model.reading}; matches are shown of models of "
            f"{reading.Reading()}, for example of another configuration"
        )
    rows, found = np.arange(len(texts)), list[PairMatches]()
    pairs = Pairs([query], texts, urls, np.zeros_like(rows), rows)
    tokens = reading.words(query)[: model.config.query_words]
    weights = encoder.idf.weights(tokens, model.idf != "relative")
    for text, url in zip(texts, urls, strict=True):
        letters, spans = find_url(url)
        places, post_words = trigram_spans(spans, letters), find_words(text)
        post_words = post_words[: model.config.post_words]
        found.append(PairMatches(tokens, weights, post_words, tuple(places), {}))
    with torch.inference_mode():
        tokenized = Tokenized.from_pairs(pairs, encoder, model)
        asked, posts, query_of_post, _ = tokenized.batch(rows, model.device_of())
        encoded = model.encode(asked, QUERY), model.encode(posts, POST)
        for name, each in model.perspectives.items():
            query_length = int(encoded[0].terms[each.query_input].lengths)
            lengths = encoded[1].terms[each.post_input].lengths.tolist()
            levels = model.similarities(*encoded, query_of_post, each)
            for depth, level in enumerate(levels):
                size = 1 + depth * (each.width - 1)
                for pair, values, length in zip(found, level, lengths, strict=True):
                    own = Matches(values[:query_length, :length].cpu().numpy(), size)
                    pair.matches.setdefault(name, []).append(own)
    return found


def explain(
    model: Reranker, encoder: TextEncoder, pairs: Pairs, rows: Sequence[int]
) -> Explanation:
    """Reasons for the scores of the pairs ``rows`` of one query: its best matches by word."""
    places, matcher = pairs.post_index[rows].tolist(), cast(Model, model)
    texts, urls = (
        [pairs.texts[row] for row in places],
        [pairs.urls[row] for row in places],
    )
    found = find_matches(matcher, encoder, pairs.queries[0], texts, urls)
    measure, bounds = _measure(matcher, found)
    steps = [
        f"{name} from {bound:.2f}" for name, bound in zip(STEPS, bounds, strict=True)
    ]
    posts = [reasons(*post, bounds) for post in zip(texts, urls, found, strict=True)]
    levels = found[0].matches.items()
    columns = [
        Column(_heading(name, n), PERSPECTIVES[name]) for name, of in levels for n in of
    ]
    return Explanation("matches", measure, steps, columns, posts)


def _measure(
    model: Model, found: Sequence[PairMatches]
) -> tuple[str, tuple[float, ...]]:
    """Measure of similarity, in words, and the least ones of weak, fair … matches."""
    if model.config.normalization != "none":
        return f"{model.config.similarity} similarity after a softmax", SOFTMAX_BOUNDS
    if model.config.similarity == "cosine":
        return "cosine similarity", COSINE_BOUNDS
    levels = [
        each.values for pair in found for of in pair.matches.values() for each in of
    ]
    greatest = max((float(level.max()) for level in levels if level.size), default=1.0)
    return "dot product", tuple(
        share * max(greatest, 1e-6) for share in SHARES_OF_GREATEST
    )


def _heading(name: str, matches: Matches) -> str:
    """Length of the phrases of one depth."""
    if name != "words":
        return f"{matches.length + 2} letters"
    return f"{matches.length} words" if matches.length > 1 else "word"


def reasons(
    text: str, url: str, found: PairMatches, bounds: Sequence[float]
) -> Reasons:
    """Matches of one post; ``bounds`` are the least similarities of the shades 1 to 4."""
    trigrams = [
        s for word in found.post_words for s in trigram_spans(word.spans, word.text)
    ]
    words = [word.place for word in found.post_words]
    places = {"words": words, "post_trigrams": trigrams, "url_trigrams": found.url}
    shaded, cells = dict[tuple[str, int], list[Segment]](), list[list[Cell]]()
    for name, levels in found.matches.items():
        for depth, each in enumerate(levels):
            cells.append(_cells(found, name, each, bounds))
            shown = url if name == "url_trigrams" else text
            if name != "url_trigrams" or found.url:
                shaded[name, depth] = shade(
                    shown, places[name], each.post_terms(), bounds
                )
    depth = min(1, len(levels) - 1)
    # Single words say most about a text; pieces of several letters about a URL, one long word.
    of_text = ("words", 0) if "words" in found.matches else ("post_trigrams", depth)
    of_words = zip(
        found.query_words, found.weights, zip(*cells, strict=True), strict=True
    )
    return Reasons(
        shaded.pop(of_text, shade(text, (), (), bounds)),
        shaded.pop(("url_trigrams", depth), shade(url.strip(), (), (), bounds)),
        [Row(word, float(weight), row) for word, weight, row in of_words],
        [
            (
                f"{PERSPECTIVES[name]}, {_heading(name, found.matches[name][depth])}",
                segments,
            )
            for (name, depth), segments in shaded.items()
        ],
    )


def _cells(
    found: PairMatches, name: str, matches: Matches, bounds: Sequence[float]
) -> list[Cell]:
    """The cell of one perspective and depth for each query word."""
    phrases = [""] * len(found.query_words)
    scores: list[float | None] = matches.best().tolist()
    if name == "words" and found.post_words:
        words = [word.text for word in found.post_words]
        starts = matches.values.argmax(axis=1).tolist()  # The first of equals
        phrases = [" ".join(words[start : start + matches.length]) for start in starts]
    elif name == "url_trigrams" and not found.url:
        scores = [None] * len(found.query_words)
    elif name != "words":
        scores = mean_by_word(matches.best(), found.query_words)
    shades = [0 if score is None else bisect_right(bounds, score) for score in scores]
    return [Cell(*each) for each in zip(scores, shades, phrases, strict=True)]


def mean_by_word(values: Values, words: Sequence[str]) -> list[float | None]:
    """Means of ``values`` [L], one for each trigram of all words, over each word's trigrams. None
    for a word whose trigrams are all cut off."""
    lengths = [len(reading.character_trigrams([word]).values) for word in words]
    parts = np.split(values, np.cumsum(lengths))[:-1]
    return [float(part.mean()) if len(part) else None for part in parts]
