"""The family ``meaning`` against loops over words."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from helpers.feature_lists import IDF, computed, of_texts, random_list, with_space
from helpers.reranking_samples import all_pairs

from rerankers import features
from rerankers.errors import RerankerError
from rerankers.features.meaning import DEPTHS, NAMES
from rerankers.pairs import FIRST_STAGE
from rerankers.text.spaces import ADAPTED, WordSpace, general
from rerankers.text.words import STOP_WORDS, words

pytestmark = pytest.mark.usefixtures("any_list_is_enough")

Vector = npt.NDArray[np.float64]
SIZE = 7


def of_letters(tokens: Sequence[str]) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Vectors that only depend on the word; that of ``cuts`` is 0, that of ``qx`` is unknown."""
    seeds = [sum(ord(c) * 31**n for n, c in enumerate(token)) for token in tokens]
    rows = [np.random.default_rng(seed).normal(size=SIZE) for seed in seeds]
    known = [[token != "cuts"] for token in tokens]
    is_known = np.array([token != "qx" for token in tokens], np.float32)
    return (np.array(rows) * known).astype(np.float32), is_known


SPACE = WordSpace(SIZE, of_letters)


def vectors(space: WordSpace, tokens: Sequence[str]) -> list[Vector]:
    return list(space.vectors(tokens).astype(np.float64))


def unit(vector: Vector) -> Vector:
    length = float(np.linalg.norm(vector))
    return vector / length if length else vector


def idf(token: str) -> float:
    return float(IDF.weights([token])[0])


def scaled(values: Sequence[float]) -> list[float]:
    low, high = min(values), max(values)
    return [(value - low) / (high - low) if high > low else 0.0 for value in values]


def feedback(sums: list[Vector], weights: list[float], depth: int) -> list[float]:
    """Cosine with the centroid of the others among the best, with all of the last one's score."""
    last = sorted(weights)[-min(depth, len(weights))]
    found = []
    for i, vector in enumerate(sums):
        others = [j for j in range(len(sums)) if weights[j] >= last and j != i]
        centroid = sum(((weights[j] + 0.001) * sums[j] for j in others), 0 * vector)
        found.append(float(vector @ unit(centroid)))
    return found


def expected(query: str, texts: Sequence[str], scores: list[float], space: WordSpace) -> object:
    """All features, by loops."""
    zero = np.zeros(space.size)

    def total(text: str) -> Vector:
        return unit(sum(vectors(space, words(text)), zero))

    def weighted(text: str) -> Vector:
        both = zip(words(text), vectors(space, words(text)), strict=True)
        return unit(sum((idf(token) * unit(vector) for token, vector in both), zero))

    distinct = list(dict.fromkeys(words(query)))
    asked = [word for word in distinct if word not in STOP_WORDS] or distinct
    weights = [idf(word) for word in asked]
    best = [
        [
            max((float(unit(q) @ unit(v)) for v in vectors(space, words(text))), default=0.0)
            for q in vectors(space, asked)
        ]
        for text in texts
    ]
    sums = [total(text) for text in texts]
    cosine = [float(total(query) @ vector) for vector in sums]
    first = scaled(scores)
    mixed = [(a + b) / 2 for a, b in zip(scaled(cosine), first, strict=True)]
    deviation = float(np.std(cosine))
    mean = [sum(w * b for w, b in zip(weights, row, strict=True)) for row in best]
    return {
        "cosine": cosine,
        "cosine_minmax": scaled(cosine),
        "cosine_z": [(c - np.mean(cosine)) / deviation if deviation else 0 for c in cosine],
        "idf_cosine": [float(weighted(query) @ weighted(text)) for text in texts],
        "mean_best": [m / sum(weights) if weights else 0.0 for m in mean],
        "least_best": [min(row, default=0.0) for row in best],
        **{f"feedback_{depth}": feedback(sums, first, depth) for depth in DEPTHS},
        "mixed_feedback": feedback(sums, mixed, 10),
        "mixed_minmax": mixed,
    }


# Words that come twice, a word whose vector is 0, stop words with others or alone, no words.
@pytest.mark.parametrize("name", ["general", "adapted"])
@pytest.mark.parametrize(
    "query", ["cuts in the cuts of water", "was my bbc cut", "the", "cuts", "storm 日本", ""]
)
def test_features_are_those_of_loops(name: str, query: str) -> None:
    candidates = with_space(random_list(query, 70, seed=len(query)), SPACE)
    scores = candidates.signal(FIRST_STAGE).tolist()
    assert "" in candidates.texts
    space = general() if name == "general" else SPACE
    wanted = expected(query, candidates.texts, scores, space)
    found = computed(f"meaning:{name}", candidates)
    assert isinstance(wanted, dict) and list(found) == list(wanted) == list(NAMES)
    for feature, values in wanted.items():
        np.testing.assert_allclose(found[feature], values, atol=2e-5, err_msg=feature)


def test_features_are_unknown_without_a_space() -> None:
    assert np.isnan([*computed("meaning:adapted", random_list("bbc cuts", 20)).values()]).all()
    assert np.isfinite([*computed("meaning:general", random_list("bbc cuts", 20)).values()]).all()


@pytest.mark.parametrize(
    ("name", "query", "texts", "is_known"),
    [
        ("adapted", "qx bbc", ["qx", "qx storm", "cuts"], True),
        ("adapted", "qx bbc", ["qx", "qx storm", "qx"], False),
        ("general", "Wie hoch ist der Turm?", ["Der Turm ist hoch."], True),
        ("general", "高さは何メートルですか", ["東京タワーの高さは"], False),
        ("general", "क्या है", ["हिन्दी क्या"], False),
    ],
)
def test_features_are_unknown_where_most_words_are(
    name: str, query: str, texts: list[str], is_known: bool
) -> None:
    found = computed(f"meaning:{name}", with_space(of_texts(query, *texts), SPACE))
    assert np.isfinite([*found.values()]).all() == is_known
    assert is_known or np.isnan([*found.values()]).all()


@pytest.mark.parametrize("texts", [["bbc cuts"], [""], ["", " "], ["zzz"] * 3])
def test_few_empty_or_equal_posts(texts: list[str]) -> None:
    found = computed("meaning:adapted", with_space(of_texts("bbc water", *texts), SPACE))
    assert np.isfinite([*found.values()]).all()
    for name in ("cosine_minmax", "cosine_z", "mixed_minmax"):
        assert found[name] == pytest.approx([0.0] * len(texts), abs=1e-6)
    assert any(found["cosine"]) == bool(texts[0])
    assert bool(any(found["feedback_5"])) == (texts[0] == "zzz")  # of the others
    nothing = computed("meaning:adapted", with_space(of_texts("bbc water"), SPACE))
    assert nothing == {name: [] for name in NAMES}


def test_every_query_has_the_space_of_its_collection() -> None:
    """Queries of collections with and without one in the same table."""
    pairs = all_pairs()
    count = len(pairs.queries)
    alone = features.table(pairs, ["meaning:adapted"], IDF).values
    assert np.isnan(alone).all()
    spaces = [{ADAPTED: SPACE} if row % 2 else {} for row in range(count)]
    found = features.table(dataclasses.replace(pairs, resources=spaces), ["meaning:adapted"], IDF)
    np.testing.assert_array_equal(np.isnan(found.values).all(axis=1), pairs.query_index % 2 == 0)
    np.testing.assert_array_equal(np.isnan(found.values).any(axis=1), pairs.query_index % 2 == 0)
    rows = np.flatnonzero(pairs.query_index % 2)
    part = dataclasses.replace(pairs, resources=spaces).take(rows)
    again = features.table(part, ["meaning:adapted"], IDF).values
    np.testing.assert_array_equal(again, found.values[rows])


@pytest.mark.parametrize("name", ["meaning", "meaning:", "meaning:mine", "meaning:generally"])
def test_there_are_two_spaces(name: str) -> None:
    with pytest.raises(RerankerError, match="expected meaning:general or meaning:adapted"):
        features.find(name)
