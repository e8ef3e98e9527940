"""The family ``soft_match`` and its vectors against loops over words."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from helpers.feature_lists import IDF, VECTORS, computed, of_texts, only, random_list, with_vectors
from helpers.reranking_samples import VECTOR_SIZE, all_pairs, vocabulary

from rerankers import features
from rerankers.base import FIRST_STAGE
from rerankers.features.feedback import DEPTHS
from rerankers.text.vectors import UnitVectors
from rerankers.text.words import STOP_WORDS, words

Vector = npt.NDArray[np.float64]
KNOWN = dict(zip(vocabulary().known, vocabulary().vectors.astype(np.float64), strict=True))


def unit(vector: Vector) -> Vector:
    length = float(np.linalg.norm(vector))
    return vector / length if length else vector


def total(tokens: Sequence[str]) -> Vector:
    """The words' unit vectors, weighted by IDF, as one of length 1."""
    zero = np.zeros(VECTOR_SIZE)
    each = [float(IDF.weights([t])[0]) * unit(KNOWN[t]) for t in tokens if t in KNOWN]
    return unit(sum(each, zero))


def asked(query: str) -> list[str]:
    distinct = list(dict.fromkeys(words(query)))
    content = [word for word in distinct if word not in STOP_WORDS] or distinct
    return [word for word in content if word in KNOWN]


def matches(query: str, text: str) -> dict[str, float]:
    compared, post = asked(query), words(text)
    if not compared:
        return {"mean_best": 0.0, "least_best": 0.0, "centroid": 0.0}
    zero = np.zeros(VECTOR_SIZE)
    best = [
        max((float(unit(KNOWN[q]) @ unit(KNOWN.get(t, zero))) for t in post), default=0.0)
        for q in compared
    ]
    idf = [float(IDF.weights([q])[0]) for q in compared]
    return {
        "mean_best": sum(w * b for w, b in zip(idf, best, strict=True)) / sum(idf),
        "least_best": min(best),
        "centroid": float(total(compared) @ total(post)),
    }


def feedback(texts: Sequence[str], scores: list[float], depth: int) -> list[float]:
    vectors = [total(words(text)) for text in texts]
    lowest, highest = min(scores), max(scores)
    weights = [(s - lowest) / (highest - lowest) if highest > lowest else 0.0 for s in scores]
    last = sorted(weights)[-min(depth, len(weights))]
    values = []
    for i, vector in enumerate(vectors):
        others = [j for j in range(len(texts)) if weights[j] >= last and j != i]
        centroid = sum(((weights[j] + 0.001) * vectors[j] for j in others), 0 * vector)
        values.append(float(vector @ unit(centroid)))
    return values


# Words that come twice, that have no vector, or that are stop words, with others or alone.
@pytest.mark.parametrize(
    "query", ["cuts in the cuts of water", "was my bbc cut", "with me", "the", "zzz"]
)
def test_query_words_are_matched_with_the_nearest_words(query: str) -> None:
    candidates = with_vectors(random_list(query, 80, seed=len(query)), VECTORS)
    found = computed("soft_match", candidates)
    for row, text in enumerate(candidates.texts):
        for name, value in matches(query, text).items():
            assert found[name][row] == pytest.approx(value, abs=1e-5), (name, text[:80])
    assert bool(np.any(found["mean_best"])) == bool(asked(query))


@pytest.mark.parametrize(("count", "scores"), [(1, True), (4, True), (150, True), (150, False)])
def test_feedback_is_the_centroid_of_the_others(count: int, scores: bool) -> None:
    full = with_vectors(random_list("bbc cuts", 150, scores=scores), VECTORS)
    candidates = only(full, np.arange(150 - count, 150))
    found = computed("soft_match", candidates)
    for depth in DEPTHS:
        expected = feedback(candidates.texts, candidates.signal(FIRST_STAGE).tolist(), depth)
        np.testing.assert_allclose(found[f"feedback_{depth}"], expected, atol=1e-5)
    assert (count > 1) == bool(np.any(found["feedback_5"]))


def test_a_centroid_without_its_largest_part() -> None:
    """One score is far above the others, whose centroid is a thousandth of the whole."""
    texts = [text for text in random_list("", 30, seed=4).texts if total(words(text)).any()][:12]
    scores = np.array([1000.0, *range(10, -1, -1)], dtype=np.float32)
    candidates = with_vectors(of_texts("bbc", *texts), VECTORS)
    candidates = dataclasses.replace(candidates, signals={FIRST_STAGE: scores})
    found = computed("soft_match", candidates)
    for depth in DEPTHS:
        expected = feedback(texts, scores.tolist(), depth)
        np.testing.assert_allclose(found[f"feedback_{depth}"], expected, atol=1e-5)


def test_matches_are_bit_identical_with_other_candidates() -> None:
    random, query = np.random.default_rng(0), "bbc world service cuts"
    known = sorted({word for text in random_list("", 60).texts for word in words(text)})
    vectors = UnitVectors(known, random.normal(size=(len(known), 100)).astype(np.float32))
    texts = [text for text in random_list("", 60).texts if text]
    whole = computed("soft_match", with_vectors(of_texts(query, *texts), vectors))
    for row, text in enumerate(texts):
        alone = computed("soft_match", with_vectors(of_texts(query, text), vectors))
        for name in ("mean_best", "least_best"):
            assert alone[name] == [whole[name][row]]


def test_features_without_vectors_are_0() -> None:
    assert not any(map(any, computed("soft_match", random_list("bbc cuts", 20)).values()))
    nothing = UnitVectors([], np.zeros((0, 5), dtype=np.float32))
    candidates = with_vectors(random_list("bbc cuts", 20), nothing)
    assert not any(map(any, computed("soft_match", candidates).values()))
    assert computed("soft_match", with_vectors(of_texts("bbc"), VECTORS))["centroid"] == []
    pairs = all_pairs()
    assert not features.table(pairs, ["soft_match"], IDF).values.any()
    assert features.table(pairs, ["soft_match"], IDF, VECTORS).values.any()


def test_a_word_is_looked_up_once_for_all_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    asked_for: list[str] = []

    def rows(tokens: Sequence[str]) -> npt.NDArray[np.int64]:
        asked_for.extend(tokens)
        return np.zeros(len(tokens), dtype=np.int64)

    vectors = UnitVectors(vocabulary().known, vocabulary().vectors)
    monkeypatch.setattr(vectors, "rows", rows)
    assert features.table(all_pairs(), ["soft_match"], IDF, vectors).values.any(axis=None) == 0
    assert len(asked_for) == len(set(asked_for)) > 20
