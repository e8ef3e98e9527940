"""The family ``feedback`` against dense loops."""

import math
from collections import Counter

import numpy as np
import numpy.typing as npt
import pytest
from helpers.feature_lists import IDF, computed, of_texts, random_list

from rerankers.features._candidates import CandidateList
from rerankers.features._tables import stem
from rerankers.features.feedback import DEPTHS
from rerankers.text.words import words

pytestmark = pytest.mark.usefixtures("any_list_is_enough")

Vectors = npt.NDArray[np.float64]


def dense(candidates: CandidateList, without: bool) -> Vectors:
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


def feedback(vectors: Vectors, scores: list[float], depth: int) -> list[float]:
    last = sorted(scores)[-min(depth, len(scores))]
    values = []
    for i in range(len(scores)):
        others = [j for j in range(len(scores)) if scores[j] >= last and j != i]
        centroid = sum(((scores[j] + 0.001) * vectors[j] for j in others), 0 * vectors[i])
        length = float(np.linalg.norm(centroid))
        values.append(float(vectors[i] @ centroid) / length if length else 0.0)
    return values


@pytest.mark.parametrize("query", ["bbc world service cuts", ""])
@pytest.mark.parametrize("count", [1, 4, 90])
def test_feedback_is_the_centroid_of_the_others(query: str, count: int) -> None:
    candidates = random_list(query, 90)
    candidates = (
        random_list(query, count) if count > 80 else of_texts(query, *candidates.texts[-count:])
    )
    found = computed("feedback", candidates)
    for name, without in (("every", False), ("rest", True)):
        vectors = dense(candidates, without)
        for depth in DEPTHS:
            expected = feedback(vectors, candidates.evidence.tolist(), depth)
            np.testing.assert_allclose(found[f"{name}_{depth}"], expected, atol=1e-4)
