"""The families of ``window``, and what it makes of scores, of an order, and of neither."""

import dataclasses
import math
from collections import Counter

import numpy as np
import numpy.typing as npt
import pytest
from helpers.feature_lists import IDF, computed, of_texts, random_list

import rerankers
from rerankers.features._candidates import CandidateList, minmax
from rerankers.pairs import FIRST_STAGE, ORDER
from rerankers.text.stems import stem
from rerankers.text.words import words

QUERY = "bbc world service cuts"


def unranked() -> CandidateList:
    return of_texts(QUERY, *random_list(QUERY, 90).texts)


def told(**signals: npt.NDArray[np.float64]) -> CandidateList:
    found = {name: values.astype(np.float32) for name, values in signals.items()}
    return dataclasses.replace(unranked(), signals=found)


def bm25(query: str, texts: list[str]) -> list[float]:
    """By the formula, of stems; a share of the highest possible score."""
    idf = {stem(word): float(IDF.weights([word])[0]) for word in words(query)}
    posts = [Counter(map(stem, words(text))) for text in texts]
    mean = sum(post.total() for post in posts) / len(posts)
    return [
        sum(
            idf[term] * post[term] / (post[term] + 0.9 * (0.6 + 0.4 * post.total() / mean))
            for term in idf
        )
        / sum(idf.values())
        for post in posts
    ]


def test_bm25_of_texts() -> None:
    candidates = unranked()
    expected = bm25(QUERY, list(candidates.texts))
    found = computed("lexical", candidates)
    np.testing.assert_allclose(found["bm25"], expected, rtol=1e-5)
    np.testing.assert_allclose(found["bm25_minmax"], minmax(np.array(expected)), atol=1e-5)
    better = [sum(other > score + 1e-9 for other in expected) for score in expected]
    np.testing.assert_allclose(found["bm25_log_rank"], np.log1p(better), atol=1e-5)


def test_likelihood_grows_with_rare_words_of_the_query_and_falls_with_length() -> None:
    texts = ["the cuts", "the the", "bbc cuts", "bbc cuts " + "and more words " * 20]
    short, without, rare, long = computed("lexical", of_texts("bbc the cuts", *texts))["ql"]
    assert without < short < rare and long < rare


@pytest.mark.parametrize(("scale", "shift"), [(1.0, 0.0), (250.0, -3.0)])
def test_the_unit_of_given_scores_says_nothing(scale: float, shift: float) -> None:
    scores = np.random.default_rng(1).normal(size=90)
    found, again = (
        computed("given", told(**{FIRST_STAGE: s})) for s in (scores, scores * scale + shift)
    )
    for name, values in found.items():
        np.testing.assert_allclose(again[name], values, atol=1e-4)
    np.testing.assert_allclose(found["minmax"], minmax(scores), atol=1e-6)
    best = int(scores.argmax())
    assert found["log_rank"][best] == 0.0 and found["rank_share"][best] == 0.0


def test_without_scores_the_order_is_known_and_without_it_nothing() -> None:
    order = 1.0 + np.random.default_rng(2).permutation(90)
    found = computed("given", told(**{ORDER: order}))
    np.testing.assert_allclose(found["log_rank"], np.log(order), atol=1e-6)
    assert np.isnan([found["minmax"], found["z"]]).all()
    assert np.isnan([*computed("given", unranked()).values()]).all()
    unknown = np.full(90, np.nan)
    assert np.isnan(
        [*computed("given", told(**{FIRST_STAGE: unknown, ORDER: unknown})).values()]
    ).all()


def test_feedback_weighs_posts_by_the_best_that_is_known_of_them() -> None:
    scores, order = np.random.default_rng(3).normal(size=90), np.arange(90) + 1.0
    np.testing.assert_allclose(
        told(**{FIRST_STAGE: scores, ORDER: order}).evidence, minmax(scores), atol=1e-6
    )
    by_place = told(**{ORDER: order}).evidence
    assert by_place[0] == 1.0 and by_place[-1] == 0.0
    assert by_place[9] == pytest.approx(1 - math.log(10) / math.log(90))
    np.testing.assert_allclose(
        unranked().evidence, minmax(np.array(bm25(QUERY, list(unranked().texts)))), atol=1e-6
    )


POSTS = [
    "breaking: storm warning for the whole coast tonight",
    "my coffee is cold and so is the weather",
    "a warning to all readers: spoilers ahead",
    "storm surge expected, the coast guard warns of floods",
    "coast to coast in nine days",
]


def test_a_set_of_texts_is_ranked_whatever_its_order() -> None:
    window = rerankers.load("window")
    first = window.rank("storm warning coast", POSTS)
    again = window.rank("storm warning coast", POSTS[::-1])
    assert [post.text for post in first] == [post.text for post in again]
    assert {post.text for post in first[:2]} == {POSTS[0], POSTS[3]}


def test_an_order_and_scores_are_read() -> None:
    window = rerankers.load("window")
    as_set = window.predict([("coast", post) for post in POSTS])
    in_order = window.predict([("coast", post) for post in POSTS], in_order=True)
    backwards = window.predict([("coast", post) for post in POSTS[::-1]], in_order=True)[::-1]
    scored = window.predict([("coast", post) for post in POSTS], scores=[5, 4, 3, 2, 1])
    assert len({tuple(v.tolist()) for v in (as_set, in_order, backwards, scored)}) == 4
    # A first stage's word for a post never counts against it.
    assert in_order[0] > backwards[0] and in_order[-1] < backwards[-1]
