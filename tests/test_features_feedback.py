"""The families ``feedback`` and ``neighbours``, and their vectors, against dense loops."""

import math
from collections import Counter

import numpy as np
import numpy.typing as npt
import pytest
from feature_lists import IDF, TextList, candidate_list, computed, of_texts, random_list

from rerankers.base import FIRST_STAGE
from rerankers.features.feedback import DEPTHS
from rerankers.text import words
from rerankers.word_table import stem

QUERIES = ["bbc world service cuts", "water shortages in egypt", "", "zzz"]
Vectors = npt.NDArray[np.float64]


def dense(candidates: TextList, without: bool) -> Vectors:
    """[N, V] the vectors; ``without`` the query's stems."""
    posts = [words(text) for text in candidates.texts]
    idf: dict[str, float] = {}
    for word in {word for post in posts for word in post}:
        idf[stem(word)] = min(idf.get(stem(word), 2.0), float(IDF.weights([word])[0]))
    columns = {name: column for column, name in enumerate(sorted(idf))}
    vectors = np.zeros((len(posts), len(columns)))
    for row, post in enumerate(posts):
        for name, count in Counter(map(stem, post)).items():
            vectors[row, columns[name]] = (1 + math.log(count)) * idf[name]
        vectors[row] /= np.linalg.norm(vectors[row]) or 1.0
    asked = {stem(word) for word in words(candidates.query)} & set(columns)
    if without:
        vectors[:, [columns[name] for name in asked]] = 0.0
    return vectors


def minmax(candidates: TextList) -> list[float]:
    scores = candidates.signal(FIRST_STAGE).tolist()
    lowest, highest = min(scores), max(scores)
    return [(s - lowest) / (highest - lowest) if highest > lowest else 0.0 for s in scores]


def feedback(vectors: Vectors, scores: list[float], depth: int) -> list[float]:
    last = sorted(scores)[-min(depth, len(scores))]
    values = []
    for i in range(len(scores)):
        others = [j for j in range(len(scores)) if scores[j] >= last and j != i]
        centroid = sum(((scores[j] + 0.001) * vectors[j] for j in others), 0 * vectors[i])
        length = float(np.linalg.norm(centroid))
        values.append(float(vectors[i] @ centroid) / length if length else 0.0)
    return values


@pytest.mark.parametrize("query", QUERIES)
def test_products_are_those_of_the_vectors(query: str) -> None:
    candidates = random_list(query, 120)
    found, others = candidates.term_vectors, np.array([3, 0, 50, 119])
    parts = zip((found.every, found.rest), found.products(others), (False, True), strict=True)
    for part, products, without in parts:
        vectors = dense(candidates, without)
        expected = vectors @ vectors.T
        np.testing.assert_allclose(part.squares, np.diag(expected), atol=1e-6)
        np.fill_diagonal(expected, 0.0)
        np.testing.assert_allclose(products, expected[:, others], atol=1e-6)


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("count", [1, 2, 4, 90])
def test_feedback_is_the_centroid_of_the_others(query: str, count: int) -> None:
    candidates = random_list(query, 90)
    candidates = (
        random_list(query, count) if count > 80 else of_texts(query, *candidates.texts[-count:])
    )
    found = computed("feedback", candidates)
    for name, without in (("every", False), ("rest", True)):
        vectors = dense(candidates, without)
        for depth in DEPTHS:
            expected = feedback(vectors, minmax(candidates), depth)
            np.testing.assert_allclose(found[f"{name}_{depth}"], expected, atol=1e-4)


def test_the_best_are_not_alike_because_they_are_in_the_centroid() -> None:
    """One post on top, all others worst: its own words are no evidence for it."""
    texts = ["alpha beta", *(f"gamma{n} delta{n}" for n in range(6))]
    scores = np.array([9.0, *[1.0] * 6], dtype=np.float32)
    lonely = candidate_list("bbc", texts, [], {FIRST_STAGE: scores})
    assert set(computed("feedback", lonely)["every_5"]) == {0.0}


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize(("count", "scores"), [(70, True), (70, False), (560, True)])
def test_neighbours_are_found_by_sorting(query: str, count: int, scores: bool) -> None:
    """Of 560 candidates only the best 500, and those with the last one's score, are neighbours."""
    candidates = random_list(query, count, seed=3, scores=scores)
    found, signal = computed("neighbours", candidates), minmax(candidates)
    best = [j for j, score in enumerate(signal) if score >= sorted(signal)[-min(500, count)]]
    assert count == 70 or 500 < len(best) < 560
    both = candidates.term_vectors.products(np.arange(count))
    for suffix, products in zip(("", "_rest"), both, strict=True):
        for i in range(0, count, 1 + count // 100):
            others = [float(products[i, j]) for j in best if j != i]
            last = sorted(others)[-20]
            near = [j for j in best if j != i and products[i, j] >= last]
            weight = sum(float(products[i, j]) for j in near)
            support = sum(float(products[i, j]) * signal[j] for j in near)
            assert found[f"support{suffix}"][i] == pytest.approx(support, abs=1e-5)
            mean = support / weight if weight else 0.0
            assert found[f"smoothed{suffix}"][i] == pytest.approx(mean, abs=1e-5)
            if not suffix:
                assert found["alike"][i] == sum(g > 0.5 for g in others)
                assert found["duplicates"][i] == sum(g > 0.8 for g in others)
                assert found["nearest"][i] == pytest.approx(
                    sum(sorted(others)[-10:]) / 10, abs=1e-6
                )


def test_a_post_alone_has_no_neighbours() -> None:
    assert {value for values in computed("neighbours", of_texts("bbc", "bbc cuts")).values()
            for value in values} == {0.0}  # fmt: skip
    assert computed("neighbours", of_texts("bbc"))["alike"] == []


def test_near_duplicates_are_counted() -> None:
    texts = ["bbc world service cuts", "@a: BBC World Service cut!", "lunch was good", ""]
    found = computed("neighbours", of_texts("egypt", *texts))
    assert found["duplicates"] == [1, 1, 0, 0] and found["alike"] == [1, 1, 0, 0]
