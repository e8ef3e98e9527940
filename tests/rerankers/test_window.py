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
from rerankers.pairs import FIRST_STAGE, ORDER, Pairs
from rerankers.text.stems import stem
from rerankers.text.words import words

QUERY = "bbc world service cuts"


@pytest.fixture
def known_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """The samples' frequencies, of a few posts, are enough."""
    monkeypatch.setattr("rerankers.features._candidates.LEAST_KNOWN", 0.0)


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


@pytest.mark.usefixtures("known_words")
def test_bm25_of_texts() -> None:
    candidates = unranked()
    expected = bm25(QUERY, list(candidates.texts))
    found = computed("lexical", candidates)
    np.testing.assert_allclose(found["bm25"], expected, rtol=1e-5)
    np.testing.assert_allclose(found["bm25_minmax"], minmax(np.array(expected)), atol=1e-5)
    better = [sum(other > score + 1e-9 for other in expected) for score in expected]
    np.testing.assert_allclose(found["bm25_log_rank"], np.log1p(better), atol=1e-5)


@pytest.mark.usefixtures("known_words")
def test_likelihood_grows_with_rare_words_of_the_query_and_falls_with_length() -> None:
    texts = ["the cuts", "the the", "bbc cuts", "bbc cuts " + "and more words " * 20]
    values = computed("lexical", of_texts("bbc the cuts", *texts))
    short, without, rare, long = values["ql"]
    assert np.isnan([values["ql_minmax"], values["bm25_z"]]).all()  # In so short a list
    assert without < short < rare and long < rare


@pytest.mark.parametrize(("scale", "shift"), [(1.0, 0.0), (250.0, -3.0)])
def test_the_unit_of_given_scores_says_nothing(scale: float, shift: float) -> None:
    scores = np.random.default_rng(1).normal(size=90)
    found, again = (
        computed("given", told(**{FIRST_STAGE: s})) for s in (scores, scores * scale + shift)
    )
    assert found["log_size"] == pytest.approx([math.log(90)] * 90)
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
    unknown = np.full(90, np.nan)
    for candidates in (unranked(), told(**{FIRST_STAGE: unknown, ORDER: unknown})):
        *others, _ = computed("given", candidates).values()  # All but the size
        assert np.isnan(others).all()


@pytest.mark.usefixtures("known_words")
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
    posts = [f"{text} {number}" for number in range(8) for text in POSTS]
    as_set = window.predict([("coast", post) for post in posts])
    in_order = window.predict([("coast", post) for post in posts], in_order=True)
    backwards = window.predict([("coast", post) for post in posts[::-1]], in_order=True)[::-1]
    scored = window.predict([("coast", post) for post in posts], scores=range(40, 0, -1))
    assert len({tuple(v.tolist()) for v in (as_set, in_order, backwards, scored)}) == 4
    # A first stage's word for a post never counts against it.
    assert in_order[0] > backwards[0] and in_order[-1] < backwards[-1]


def test_a_post_of_a_batch_has_the_same_score_whatever_else_is_in_it() -> None:
    """Clients send lists in batches, whose first post need not be the best one."""
    window = rerankers.load("window")
    pairs = [("storm warning coast", post) for post in POSTS]
    alone = [float(window.predict([pair], in_order=True)[0]) for pair in pairs]
    assert window.predict(pairs, in_order=True).tolist() == alone
    assert window.predict(pairs[::-1], in_order=True).tolist() == alone[::-1]
    others = [("storm warning coast", f"storm {number}") for number in range(27)]
    assert window.predict([*pairs, *others]).tolist()[:5] == alone


def test_words_of_an_unknown_language_have_the_frequencies_of_the_list() -> None:
    """So posts are told apart where the source of IDF and the vectors know nothing."""
    posts = [
        f"ტყე ზღვა {'მთა' if number % 2 else 'ველი'} {'ქარი' * (number == 3)}"
        for number in range(40)
    ]
    candidates = dataclasses.replace(of_texts("ქარი ზღვა", *posts), signals={})
    assert not candidates.knows_frequencies
    rare, common = candidates.query_columns.idf.tolist()
    assert rare == pytest.approx(1.0) and common == pytest.approx(math.log(2) / math.log(41))
    assert np.argmax(candidates.bm25) == 3
    assert np.isnan(computed("quality", candidates)["mean_idf"]).all()
    assert np.isnan([*computed("meaning:general", candidates).values()]).all()


def test_contributions_add_up_to_scores_with_the_trust_in_the_first_stage() -> None:
    window, rows = rerankers.load("window"), np.arange(40)
    texts = [f"{text} {number}" for number in range(8) for text in POSTS]
    order = {ORDER: (rows + 1).astype(np.float32)}
    pairs = Pairs(["storm coast"], texts, [""] * 40, rows * 0, rows, order)
    scores, added = window.score(pairs), window.contributions(pairs).added.sum(axis=1)
    assert np.ptp(scores - added) < 1e-4
    trusting = dataclasses.replace(window.config, trust=window.config.trust + 1)
    more = dataclasses.replace(window, config=trusting).score(pairs)
    np.testing.assert_allclose(scores - more, np.log(1 + rows), atol=1e-4)
