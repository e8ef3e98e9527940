"""The families of features, computed by plain loops, to compare the fast code with.

There is one function for each family. It returns the values [N] of each feature by its
name. :data:`NAIVE` lists the functions of all families.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from helpers.reranking_samples import encoder
from tweetrerank.rerankers import features
from tweetrerank.rerankers.features import feedback, matches, meaning, temporal
from tweetrerank.rerankers.features.candidates import CandidateList
from tweetrerank.rerankers.features.text_tables import PERSONAL_WORDS
from tweetrerank.rerankers.pairs import FIRST_STAGE, ORDER
from tweetrerank.rerankers.text.spaces import WordSpace, general
from tweetrerank.rerankers.text.stems import stem
from tweetrerank.rerankers.text.words import MAX_CHARACTERS, STOP_WORDS, hashtags, words

Vector = npt.NDArray[np.float64]
Floats = npt.NDArray[np.float32]
Features = dict[str, Any]

IDF = encoder().idf


def vectors_by_letters(
    tokens: Sequence[str],
) -> tuple[Floats, Floats]:
    """Return vectors that depend only on the words, and whether each word is known.

    The word ``cuts`` has a vector of zeros, and the word ``qx`` is unknown.
    """
    vectors = np.zeros(
        (len(tokens), 7),
        np.float32,
    )
    is_known = np.ones(len(tokens), np.float32)
    for row, token in enumerate(tokens):
        if token != "cuts":
            seed = sum(ord(letter) * 31**n for n, letter in enumerate(token))
            vectors[row] = np.random.default_rng(seed).normal(size=7)
        if token == "qx":
            is_known[row] = 0
    return vectors, is_known


SPACE = WordSpace(7, vectors_by_letters)


def idf(token: str) -> float:
    return float(IDF.weights([token])[0])


def share(flags: Sequence[bool]) -> float:
    if not flags:
        return 0.0
    return sum(flags) / len(flags)


def scaled(values: Any) -> Any:
    """Normalise values by min–max. The results are 0 if all values are equal."""
    low = np.nanmin(values)
    high = np.nanmax(values)
    return (np.array(values) - low) / ((high - low) or math.inf)


def standard(values: Any) -> Any:
    """Return standard scores. They are 0 if all values are equal."""
    deviations = np.array(values) - np.nanmean(values)
    if np.nanmax(values) == np.nanmin(values):
        return deviations * 0
    return deviations / np.nanstd(values)


def log_rank(values: Any) -> list[float]:
    """Return ln(1 + number of higher values) for each value, and NaN for NaN."""
    ranks = []
    for value in values:
        if math.isnan(value):
            ranks.append(math.nan)
        else:
            higher = sum(other > value + 1e-9 for other in values)
            ranks.append(math.log(1 + higher))
    return ranks


def normalised(
    values: Any,
    prefix: str = "",
) -> Features:
    return {
        f"{prefix}minmax": scaled(values),
        f"{prefix}z": standard(values),
        f"{prefix}log_rank": log_rank(values),
    }


def unit(vector: Vector) -> Vector:
    length = float(np.linalg.norm(vector))
    return vector / length if length else vector


def by_feature(rows: Sequence[dict[str, float]]) -> Features:
    return {name: [row[name] for row in rows] for name in rows[0]}


def content_words(query: str) -> list[str]:
    """Return the words of a query without stop words, or all if it has only those."""
    tokens = words(query)
    return [word for word in tokens if word not in STOP_WORDS] or tokens


def stems_of(text: str) -> Counter[str]:
    """Return how often each stem occurs."""
    return Counter(stem(word) for word in words(text))


def idf_of_stems(tokens: Iterable[str]) -> dict[str, float]:
    """Return the IDF of each stem, which is that of its most common word."""
    lowest: dict[str, float] = {}
    for word in tokens:
        name = stem(word)
        lowest[name] = min(idf(word), lowest.get(name, math.inf))
    return lowest


def grams_of(
    text: str,
    size: int,
) -> set[str]:
    """Return the distinct character n-grams of words with spaces around them."""
    line = f" {' '.join(words(text))} "
    return {line[start : start + size] for start in range(len(line) - size + 1)}


def mean(sizes: Sequence[int]) -> float:
    return max(1.0, sum(sizes) / len(sizes))


def naive_overlap(candidates: CandidateList) -> Features:
    rows = []
    for text in candidates.texts:
        common = set(words(candidates.query)) & set(words(text))
        content = common - STOP_WORDS
        row = {
            "words": len(common),
            "idf": sum(map(idf, common)),
            "content_words": len(content),
            "content_idf": sum(map(idf, content)),
        }
        rows.append(row)
    return by_feature(rows)


def naive_first_stage(candidates: CandidateList) -> Features:
    scores = candidates.signal(FIRST_STAGE).tolist()
    return {
        "score": scores,
        "minmax": scaled(scores),
        "reciprocal_rank": np.exp(-np.array(log_rank(scores))),
    }


def naive_given(candidates: CandidateList) -> Features:
    scores = candidates.signals.get(FIRST_STAGE)
    order = candidates.signals.get(ORDER)
    size = len(candidates)
    unknown = np.full(size, math.nan)
    values: Features = {"minmax": unknown, "z": unknown, "log_rank": unknown}
    if scores is not None:
        values = normalised(scores)
    elif order is not None:
        values["log_rank"] = np.log(order)
    values["log_size"] = np.full(
        size,
        math.log(size),
    )
    values["rank_share"] = np.expm1(values["log_rank"]) / size
    return values


def bm25_of_stems(
    texts: Sequence[str],
    weights: dict[str, float],
) -> list[float]:
    """Return BM25 by weights of stems, as shares of the highest possible score."""
    posts = [stems_of(text) for text in texts]
    mean_length = mean([post.total() for post in posts])
    highest = sum(weights.values()) or 1
    scores = []
    for post in posts:
        norm = 0.9 * (0.6 + 0.4 * post.total() / mean_length)
        score = 0.0
        for name, weight in weights.items():
            score += weight * post[name] / (post[name] + norm)
        scores.append(score / highest)
    return scores


def query_likelihood(
    texts: Sequence[str],
    weights: dict[str, float],
) -> list[float]:
    """Return the mean log ratio of stem frequencies in post and collection.

    The stems are those of the query, and the frequencies in a post are smoothed.
    """
    posts = [stems_of(text) for text in texts]
    mean_length = mean([post.total() for post in posts])
    scores = []
    for post in posts:
        score = 0.0
        for name, weight in weights.items():
            prior = matches.MU * math.exp(-matches.RANGE * weight) / mean_length
            smoothed = (post[name] + prior) / (1 + post.total() / matches.MU)
            score += math.log(smoothed / prior)
        scores.append(score / max(1, len(weights)))
    return scores


def naive_lexical(candidates: CandidateList) -> Features:
    weights = idf_of_stems(words(candidates.query))
    bm25 = bm25_of_stems(candidates.texts, weights)
    likelihood = query_likelihood(candidates.texts, weights)
    values = {"bm25": bm25, "ql": likelihood}
    return values | normalised(bm25, "bm25_") | normalised(likelihood, "ql_")


def naive_content(candidates: CandidateList) -> Features:
    """Return the features of content words.

    A content word counts as often as the query has it.
    """
    lowest = idf_of_stems(words(candidates.query))
    weights: dict[str, float] = {}
    for word in content_words(candidates.query):
        name = stem(word)
        weights[name] = weights.get(name, 0.0) + lowest[name]
    bm25 = bm25_of_stems(candidates.texts, weights)
    return {"bm25": bm25} | normalised(bm25)


def naive_grams(candidates: CandidateList) -> Features:
    query = grams_of(candidates.query, 4)
    posts = [grams_of(text, 4) for text in candidates.texts]
    weights = {}
    for gram in query:
        holders = sum(gram in post for post in posts)
        non_holders = len(posts) - holders
        weights[gram] = math.log(1 + (non_holders + 0.5) / (holders + 0.5))
    bm25 = []
    mean_length = mean([len(post) for post in posts])
    highest = sum(weights.values()) or 1
    for post in posts:
        norm = 1 + 0.9 * (0.25 + 0.75 * len(post) / mean_length)
        score = sum(weights[gram] for gram in query & post)
        bm25.append(score / norm / highest)
    return {"bm25": bm25} | normalised(bm25)


def shortest_cover(
    tokens: list[str],
    required: set[str],
) -> int:
    """Return the length of the shortest run of tokens that has all required ones."""
    shortest = len(tokens)
    for begin in range(len(tokens)):
        for end in range(begin + 1, len(tokens) + 1):
            if required <= set(tokens[begin:end]):
                shortest = min(shortest, end - begin)
                break
    return shortest


def naive_phrases(candidates: CandidateList) -> Features:
    rows = [phrases_of(candidates.query, text) for text in candidates.texts]
    return by_feature(rows)


def phrases_of(
    query: str,
    text: str,
) -> dict[str, float]:
    query_stems = [stem(word) for word in words(query)]
    query_pairs = set(pairwise(query_stems))
    content = {stem(word) for word in content_words(query)}
    tokens = [stem(word) for word in words(text)]
    pairs = query_pairs & set(pairwise(tokens))
    whole_query = False
    if query_stems:
        for start in range(len(tokens)):
            part = tokens[start : start + len(query_stems)]
            whole_query = whole_query or part == query_stems
    proximity = 0.0
    first_place = 0.0
    common = content & set(tokens)
    if common:
        proximity = len(common) / shortest_cover(tokens, common)
        first_place = 1 / (1 + min(tokens.index(token) for token in common))
    query_grams = grams_of(query, 3)
    grams = grams_of(text, 3)
    common_grams = len(grams & query_grams)
    return {
        "pairs": len(pairs) / max(1, len(query_pairs)),
        "whole_query": float(whole_query),
        "proximity": proximity,
        "first_place": first_place,
        "trigram_jaccard": common_grams / max(1, len(grams | query_grams)),
        "trigram_share": common_grams / max(1, len(query_grams)),
    }


def naive_quality(candidates: CandidateList) -> Features:
    texts = [text[:MAX_CHARACTERS] for text in candidates.texts]
    return by_feature([quality_of(text) for text in texts])


def quality_of(text: str) -> dict[str, float]:
    tokens = words(text)
    weights = [idf(word) for word in tokens]
    lower = re.sub(
        "[A-Z]",
        lambda letter: letter[0].lower(),
        text,
    )
    return {
        "words": len(tokens),
        "characters": len(text),
        "hashtags": len(hashtags(text)),
        "is_retweet": float(bool(re.match(r"(?i)\s*rt\b", text))),
        "exclamation_marks": text.count("!"),
        "question_marks": text.count("?"),
        "other_scripts": share([not character.isascii() for character in text]),
        "digits": share([character in "0123456789" for character in text]),
        "is_elongated": float(bool(re.search(r"([a-z])\1\1", lower))),
        "unknown_words": share([weight == 1.0 for weight in weights]),
        "stop_words": share([word in STOP_WORDS for word in tokens]),
        "mean_idf": sum(weights) / max(1, len(weights)),
        "personal_words": sum(word in PERSONAL_WORDS for word in tokens),
    }


def naive_temporal(candidates: CandidateList) -> Features:
    if not candidates.doc_ids:
        names = features.find("temporal").names
        return dict.fromkeys(
            names,
            [0.0] * len(candidates),
        )
    hours = np.array([(int(doc_id) >> 22) / 3_600_000 for doc_id in candidates.doc_ids])
    weights = scaled(candidates.signal(FIRST_STAGE)) ** 2
    is_other = 1 - np.eye(len(hours))
    values: Features = {
        "age": np.log1p(max(hours) - hours),
        "newer": [np.mean(hours > hour) for hour in hours],
    }
    for width in temporal.WIDTHS:
        gaps = np.subtract.outer(hours, hours)
        kernel = is_other * np.exp(-(gaps**2) / (2 * width**2))
        density = kernel @ weights / np.maximum(is_other @ weights, 1e-9)
        plain_density = kernel.sum(axis=1) / is_other.sum(axis=1)
        values[f"density_{width:.0f}h"] = density
        values[f"surplus_{width:.0f}h"] = density / np.maximum(plain_density, 1e-6)
    return values


def likeness_to_best(
    vectors: Sequence[Vector],
    scores: Any,
    depth: int,
) -> list[float]:
    """Return the products with the centroid of the best candidates other than itself.

    All candidates that tie with the last of the best are also among the best.
    """
    last = sorted(scores)[-min(depth, len(scores))]
    terms = []
    for score, vector in zip(scores, vectors, strict=True):
        terms.append((score + 0.001) * vector * (score >= last))
    products = []
    for vector, term in zip(vectors, terms, strict=True):
        centroid = unit(sum(terms) - term)
        products.append(float(vector @ centroid))
    return products


def naive_feedback(candidates: CandidateList) -> Features:
    posts = [words(text) for text in candidates.texts]
    lowest = idf_of_stems(word for post in posts for word in post)
    columns = {name: column for column, name in enumerate(sorted(lowest))}
    every = np.zeros((len(posts), len(columns)))
    for row, text in enumerate(candidates.texts):
        for name, count in stems_of(text).items():
            every[row, columns[name]] = (1 + math.log(count)) * lowest[name]
        every[row] = unit(every[row])
    other_stems = every.copy()
    for name in stems_of(candidates.query):
        if name in columns:
            other_stems[:, columns[name]] = 0.0
    values = {}
    for depth in feedback.DEPTHS:
        scores = candidates.evidence
        values[f"every_{depth}"] = likeness_to_best(
            list(every),
            scores,
            depth,
        )
        values[f"rest_{depth}"] = likeness_to_best(
            list(other_stems),
            scores,
            depth,
        )
    return values


def naive_meaning(candidates: CandidateList, space: WordSpace) -> Features:
    query = candidates.query
    evidence = candidates.evidence
    sums = [text_vector(text, space) for text in candidates.texts]
    cosine = [float(text_vector(query, space) @ vector) for vector in sums]
    mixed = (scaled(cosine) + evidence) / 2
    query_by_idf = idf_vector(query, space)
    idf_cosine = []
    mean_best = []
    least_best = []
    asked_words = list(dict.fromkeys(content_words(query)))
    weights = [idf(word) for word in asked_words]
    for text in candidates.texts:
        idf_cosine.append(float(query_by_idf @ idf_vector(text, space)))
        best = best_cosines(asked_words, text, space)
        mean_best.append(np.average(best, weights=weights) if weights else 0.0)
        least_best.append(min(best, default=0.0))
    values = {
        "cosine": cosine,
        "cosine_minmax": scaled(cosine),
        "cosine_z": standard(cosine),
        "idf_cosine": idf_cosine,
        "mean_best": mean_best,
        "least_best": least_best,
        "mixed_feedback": likeness_to_best(sums, mixed, 10),
        "mixed_minmax": mixed,
    }
    for depth in meaning.DEPTHS:
        values[f"feedback_{depth}"] = likeness_to_best(sums, evidence, depth)
    return values


def vectors_of(
    tokens: Sequence[str],
    space: WordSpace,
) -> list[Vector]:
    return list(space.vectors(tokens).astype(np.float64))


def text_vector(text: str, space: WordSpace) -> Vector:
    return unit(sum(vectors_of(words(text), space), np.zeros(space.size)))


def idf_vector(text: str, space: WordSpace) -> Vector:
    total = np.zeros(space.size)
    tokens = words(text)
    for token, vector in zip(tokens, vectors_of(tokens, space), strict=True):
        total += idf(token) * unit(vector)
    return unit(total)


def best_cosines(
    tokens: Sequence[str],
    text: str,
    space: WordSpace,
) -> list[float]:
    """Return the highest cosine of each token with any word of the text."""
    post = [unit(vector) for vector in vectors_of(words(text), space)]
    best = []
    for token_vector in vectors_of(tokens, space):
        cosines = [float(unit(token_vector) @ vector) for vector in post]
        best.append(max(cosines, default=0.0))
    return best


def naive_signal(candidates: CandidateList) -> Features:
    scores = candidates.signals["rm3"].astype(np.float64)
    return {"gap": np.nanmax(scores) - scores} | normalised(scores)


NAIVE: dict[str, Callable[[CandidateList], Features]] = {
    "content": naive_content,
    "feedback": naive_feedback,
    "first_stage": naive_first_stage,
    "given": naive_given,
    "grams": naive_grams,
    "lexical": naive_lexical,
    "meaning:adapted": lambda candidates: naive_meaning(candidates, SPACE),
    "meaning:general": lambda candidates: naive_meaning(candidates, general()),
    "overlap": naive_overlap,
    "phrases": naive_phrases,
    "quality": naive_quality,
    "signal:rm3": naive_signal,
    "temporal": naive_temporal,
}
