"""Explain MP-HCNN by its matches, which are its similarities before pooling.

Table 6 of Rao et al. (AAAI 2019) shades the words of a post by them. ``model`` is
always MP-HCNN's :class:`Model`.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, NamedTuple

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
from tweetrerank.rerankers.networks.base import POST, QUERY
from tweetrerank.rerankers.networks.inputs import TextEncoder, Tokenized
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

COSINE_BOUNDS = (0.7, 0.8, 0.9, 0.99)  # Cosines of unrelated phrases reach about 0.7
SOFTMAX_BOUNDS = (0.1, 0.25, 0.5, 0.75)

SHARES_OF_GREATEST = (0.25, 0.5, 0.75, 0.95)
"""Bounds for dot products without a softmax, as shares of the greatest dot product."""

STEPS = ("weak", "fair", "good", "exact or nearly so")
"""Names of the shades 1 to 4. Shade 0 is no match."""

PERSPECTIVES = {
    "words": "words of the post",
    "post_trigrams": "letters of the post",
    "url_trigrams": "letters of the URL",
}


class Matches(NamedTuple):
    """The similarities of one query and one post, in one perspective at one depth."""

    values: Values  # [Lq, Ld], after the softmax if the model has one
    length: int  # Number of terms in a phrase

    def best(self) -> Values:
        """Return the similarity of each query phrase with its best match, [Lq]."""
        return _maximum(self.values, axis=1)

    def post_terms(self) -> Values:
        """Return for each term of the post the similarity of its best phrase, [Ld].

        The phrase is the best among those that contain the term.
        """
        phrases = _maximum(self.values, axis=0)
        best = []
        for place in range(len(phrases)):
            start = max(0, place - self.length + 1)
            best.append(phrases[start : place + 1].max())
        return np.array(best, np.float32)


def _maximum(values: Values, axis: int) -> Values:
    """Return the maximum over an axis. Over an empty axis it is 0."""
    if not values.size:
        return values.sum(axis=axis)
    return values.max(axis=axis)


class PairMatches(NamedTuple):
    """Matches of a query and a post, both cut to the lengths that the model reads."""

    query_words: list[str]
    weights: Values  # IDF of each query word
    post_words: list[Word]
    url: tuple[Span, ...]
    """Centre of each trigram of the URL. It is empty without a URL."""
    matches: dict[str, list[Matches]]
    """Name in PERSPECTIVES -> its matches at each depth."""


def find_matches(
    model: Any,
    encoder: TextEncoder,
    query: str,
    texts: Sequence[str],
    urls: Sequence[str],
) -> list[PairMatches]:
    """Return the matches of a query with each post.

    A post is given by its text and its URL, which is "" if it has none. Raises
    RerankerError if the model reads texts in another way than is shown.
    """
    if model.reading != reading.Reading():
        raise RerankerError(
            f"found a model that reads texts as {model.reading}; matches are shown of "
            f"models of {reading.Reading()}, for example of another configuration"
        )
    pairs = _without_matches(
        model,
        encoder,
        query,
        texts,
        urls,
    )
    rows = np.arange(len(texts))
    inputs = Pairs(
        [query],
        texts,
        urls,
        np.zeros_like(rows),
        rows,
    )
    tokenized = Tokenized.from_pairs(inputs, encoder, model)
    with torch.inference_mode():
        terms, post_terms, query_of_post, _ = tokenized.batch(rows, model.device_of())
        encoded = model.encode(terms, QUERY)
        posts = model.encode(post_terms, POST)
        for name, perspective in model.perspectives.items():
            query_length = int(encoded.terms[perspective.query_input].lengths)
            lengths = posts.terms[perspective.post_input].lengths.tolist()
            levels = model.similarities(
                encoded,
                posts,
                query_of_post,
                perspective,
            )
            for depth, level in enumerate(levels):
                phrase_length = 1 + depth * (perspective.width - 1)
                for pair, values, length in zip(pairs, level, lengths, strict=True):
                    inside = values[:query_length, :length].cpu().numpy()
                    matches = pair.matches.setdefault(name, [])
                    matches.append(Matches(inside, phrase_length))
    return pairs


def _without_matches(
    model: Any,
    encoder: TextEncoder,
    query: str,
    texts: Sequence[str],
    urls: Sequence[str],
) -> list[PairMatches]:
    """Return the words and places of a query and of each post.

    The matches are to be added.
    """
    query_words = reading.words(query)[: model.config.query_words]
    weights = encoder.idf.weights(query_words, model.idf != "relative")
    pairs = []
    for text, url in zip(texts, urls, strict=True):
        letters, spans = find_url(url)
        trigrams = tuple(trigram_spans(spans, letters))
        post_words = find_words(text)[: model.config.post_words]
        pairs.append(PairMatches(query_words, weights, post_words, trigrams, {}))
    return pairs


def explain(
    model: Any,
    encoder: TextEncoder,
    pairs: Pairs,
    rows: Sequence[int],
) -> Explanation:
    """Explain the scores of the pairs ``rows`` of one query by their best matches."""
    posts = pairs.post_index[rows].tolist()
    texts = [pairs.texts[post] for post in posts]
    urls = [pairs.urls[post] for post in posts]
    matched = find_matches(
        model,
        encoder,
        pairs.queries[0],
        texts,
        urls,
    )
    measure, bounds = _measure(model, matched)
    steps = []
    for name, bound in zip(STEPS, bounds, strict=True):
        steps.append(f"{name} from {bound:.2f}")
    columns = []
    for name, levels in matched[0].matches.items():
        for level in levels:
            columns.append(Column(_heading(name, level), PERSPECTIVES[name]))
    explained = []
    for text, url, pair in zip(texts, urls, matched, strict=True):
        explained.append(reasons(text, url, pair, bounds))
    return Explanation(
        "matches",
        measure,
        steps,
        columns,
        explained,
    )


def _measure(
    model: Any,
    pairs: Sequence[PairMatches],
) -> tuple[str, tuple[float, ...]]:
    """Return (name of the similarity, lower bounds of weak, fair … matches)."""
    if model.config.normalization != "none":
        return f"{model.config.similarity} similarity after a softmax", SOFTMAX_BOUNDS
    if model.config.similarity == "cosine":
        return "cosine similarity", COSINE_BOUNDS
    greatest = max(_greatest(pairs), 1e-6)
    return "dot product", tuple(share * greatest for share in SHARES_OF_GREATEST)


def _greatest(pairs: Sequence[PairMatches]) -> float:
    """Return the greatest similarity of all pairs, or 1 if there is none."""
    maxima = []
    for pair in pairs:
        for levels in pair.matches.values():
            for level in levels:
                if level.values.size:
                    maxima.append(float(level.values.max()))
    return max(maxima, default=1.0)


def _heading(name: str, matches: Matches) -> str:
    """Return the length of the phrases of one depth, in words."""
    if name != "words":
        return f"{matches.length + 2} letters"
    if matches.length == 1:
        return "word"
    return f"{matches.length} words"


def reasons(
    text: str,
    url: str,
    pair: PairMatches,
    bounds: Sequence[float],
) -> Reasons:
    """Return the matches of one post.

    ``bounds`` are the lower bounds of the shades 1 to 4.
    """
    shaded = _shaded(text, url, pair, bounds)
    # Single words show most of a text. Pieces of several letters show most of a URL or
    # of a long word.
    depths = len(next(iter(pair.matches.values())))
    depth = min(1, depths - 1)
    text_key = ("words", 0) if "words" in pair.matches else ("post_trigrams", depth)
    url_key = ("url_trigrams", depth)
    plain_text = shade(text, (), (), bounds)
    plain_url = shade(url.strip(), (), (), bounds)
    shaded_text = shaded.pop(text_key, plain_text)
    shaded_url = shaded.pop(url_key, plain_url)
    further = []
    for (name, depth), segments in shaded.items():
        heading = _heading(name, pair.matches[name][depth])
        further.append((f"{PERSPECTIVES[name]}, {heading}", segments))
    return Reasons(shaded_text, shaded_url, _rows(pair, bounds), further)


def _shaded(
    text: str,
    url: str,
    pair: PairMatches,
    bounds: Sequence[float],
) -> dict[tuple[str, int], list[Segment]]:
    """Return (perspective, depth) -> text or URL in the shades of its matches."""
    shaded = {}
    for name, levels in pair.matches.items():
        if name == "url_trigrams" and not pair.url:
            continue
        shaded_string = url if name == "url_trigrams" else text
        places = _places(pair, name)
        for depth, level in enumerate(levels):
            shaded[name, depth] = shade(
                shaded_string,
                places,
                level.post_terms(),
                bounds,
            )
    return shaded


def _rows(pair: PairMatches, bounds: Sequence[float]) -> list[Row]:
    """Return the row of each query word, with a cell for each perspective and depth."""
    columns = []
    for name, levels in pair.matches.items():
        for level in levels:
            columns.append(_cells(pair, name, level, bounds))
    rows = []
    for place, word in enumerate(pair.query_words):
        cells = tuple(column[place] for column in columns)
        rows.append(Row(word, float(pair.weights[place]), cells))
    return rows


def _places(pair: PairMatches, name: str) -> Sequence[Span]:
    """Return the place of each term of a perspective in the post's text or URL."""
    if name == "words":
        return [word.place for word in pair.post_words]
    if name == "url_trigrams":
        return pair.url
    places = []
    for word in pair.post_words:
        places += trigram_spans(word.spans, word.text)
    return places


def _cells(
    pair: PairMatches,
    name: str,
    matches: Matches,
    bounds: Sequence[float],
) -> list[Cell]:
    """Return the cell of each query word, for one perspective and depth."""
    phrases = [""] * len(pair.query_words)
    if name == "words" and pair.post_words:
        phrases = _best_phrases(pair.post_words, matches)
    cells = []
    scores = _scores(pair, name, matches)
    for score, phrase in zip(scores, phrases, strict=True):
        step = 0 if score is None else bisect_right(bounds, score)
        cells.append(Cell(score, step, phrase))
    return cells


def _scores(
    pair: PairMatches,
    name: str,
    matches: Matches,
) -> list[float | None]:
    """Return the similarity of each query word with its best match.

    It is None if it is not known.
    """
    if name == "words":
        return matches.best().tolist()
    if name == "url_trigrams" and not pair.url:
        return [None] * len(pair.query_words)
    return mean_by_word(matches.best(), pair.query_words)


def _best_phrases(post_words: Sequence[Word], matches: Matches) -> list[str]:
    """Return the phrase of the post that matches each query word best.

    Ties keep the earlier phrase.
    """
    words = [word.text for word in post_words]
    phrases = []
    for start in matches.values.argmax(axis=1).tolist():
        phrases.append(" ".join(words[start : start + matches.length]))
    return phrases


def mean_by_word(
    values: Values,
    words: Sequence[str],
) -> list[float | None]:
    """Return the mean of ``values`` over the trigrams of each word.

    ``values`` [L] has a value for each trigram of all words. The mean is None for a
    word if all its trigrams are cut off.
    """
    lengths = [len(reading.character_trigrams([word]).values) for word in words]
    means: list[float | None] = []
    for block in np.split(values, np.cumsum(lengths))[:-1]:
        means.append(float(block.mean()) if len(block) else None)
    return means
