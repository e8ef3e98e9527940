"""The families ``feedback`` and ``neighbours``, and their vectors, against dense loops."""

import math
from collections import Counter

import numpy as np
import numpy.typing as npt
import pytest
from feature_lists import IDF, TextList, candidate_list, computed, of_texts, random_list

from rerankers.base import FIRST_STAGE
from rerankers.features._word_table import stem
from rerankers.features.feedback import DEPTHS
from rerankers.text.words import words

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


def compared(candidates: TextList) -> tuple[Vectors, Vectors]:
    """[N, N] each candidate with each, by all stems and by those that are not the query's."""
    blocks = list(candidates.term_vectors.products(np.arange(len(candidates))))
    return (
        np.concatenate([every for _, every, _ in blocks]),
        np.concatenate([rest for _, _, rest in blocks]),
    )


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
    found = candidates.term_vectors
    for part, products, without in zip((found.every, found.rest), compared(candidates),
                                       (False, True), strict=True):  # fmt: skip
        vectors = dense(candidates, without)
        expected = vectors @ vectors.T
        np.testing.assert_allclose(part.squares, np.diag(expected), atol=1e-6)
        np.fill_diagonal(expected, 0.0)
        np.testing.assert_allclose(products, expected, atol=1e-6)


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
@pytest.mark.parametrize(("count", "scores"), [(70, True), (70, False), (345, True)])
def test_neighbours_are_found_by_sorting(query: str, count: int, scores: bool) -> None:
    """From 320 on, the nearest are searched in groups of 16; 345 are no whole groups."""
    candidates = random_list(query, count, seed=3, scores=scores)
    found, signal = computed("neighbours", candidates), minmax(candidates)
    for suffix, products in zip(("", "_rest"), compared(candidates), strict=True):
        for i in range(len(candidates)):
            others = [float(g) for j, g in enumerate(products[i]) if j != i]
            last = sorted(others)[-20]
            near = [j for j in range(count) if j != i and products[i, j] >= last]
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


def test_others_than_the_best_are_no_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 200 candidates the 21 best and those with the last one's score; compared by blocks."""
    monkeypatch.setattr("rerankers.features.neighbours._BEST", 21)
    candidates = random_list("bbc world service cuts", 200, seed=3)
    found, signal = computed("neighbours", candidates), minmax(candidates)
    best = [j for j, score in enumerate(signal) if score >= sorted(signal)[-21]]
    assert 21 < len(best) < 30
    every, _ = compared(candidates)
    monkeypatch.setattr("rerankers.features._term_vectors._BLOCK", 64)
    assert computed("neighbours", candidates) == found
    for i in range(len(candidates)):
        others = [(float(every[i, j]), signal[j]) for j in best if j != i]
        last = sorted(g for g, _ in others)[-20]
        expected = sum(g * score for g, score in others if g >= last)
        assert found["support"][i] == pytest.approx(expected, abs=1e-5)
        assert found["alike"][i] == sum(g > 0.5 for g, _ in others)
        nearest = sum(sorted(g for g, _ in others)[-10:]) / 10
        assert found["nearest"][i] == pytest.approx(nearest, abs=1e-6)


def test_a_post_alone_has_no_neighbours() -> None:
    assert {value for values in computed("neighbours", of_texts("bbc", "bbc cuts")).values()
            for value in values} == {0.0}  # fmt: skip
    assert computed("neighbours", of_texts("bbc"))["alike"] == []


def test_near_duplicates_are_counted() -> None:
    texts = ["bbc world service cuts", "@a: BBC World Service cut!", "lunch was good", ""]
    found = computed("neighbours", of_texts("egypt", *texts))
    assert found["duplicates"] == [1, 1, 0, 0] and found["alike"] == [1, 1, 0, 0]
