"""Families of features against plain loops, and the table of features."""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Patch
from helpers.naive_features import (
    IDF,
    NAIVE,
    SPACE,
    Vector,
    naive_lexical,
    scaled,
    unit,
)
from helpers.reranking_samples import AWKWARD, POSTS, QUERIES, all_pairs

from tweetrerank.rerankers import features
from tweetrerank.rerankers.features import temporal
from tweetrerank.rerankers.features.candidates import CandidateList
from tweetrerank.rerankers.features.judged import JUDGED, JUDGMENTS, JudgedPosts
from tweetrerank.rerankers.features.text_tables import PostTable, WordTable
from tweetrerank.rerankers.pairs import FIRST_STAGE, FREQUENCIES, ORDER, PRIOR, Pairs
from tweetrerank.rerankers.reranker_error import RerankerError
from tweetrerank.rerankers.text.spaces import ADAPTED, general
from tweetrerank.rerankers.text.vocabulary import Idf


@pytest.fixture(autouse=True)
def any_list_is_enough(monkeypatch: Patch) -> None:
    """Compare the candidates of short lists, and take all words as known.

    ``monkeypatch.undo()`` restores the limits in a test.
    """
    package = "tweetrerank.rerankers.features"
    monkeypatch.setattr(f"{package}.candidates.LEAST_KNOWN", 0)
    monkeypatch.setattr(f"{package}.meaning.LEAST_KNOWN", 0)
    monkeypatch.setattr(f"{package}.candidates.FEWEST_COMPARED", 0)
    monkeypatch.setattr(f"{package}.candidates.RAREST_KNOWN", 2)


def of_texts(
    query: str,
    texts: Sequence[str],
    urls: Sequence[str] = (),
    ids: Sequence[str] = (),
    source: Idf = IDF,
    **signals: Vector,
) -> CandidateList:
    """Candidates with these texts, and with word vectors of the collection."""
    table = WordTable(source)
    return CandidateList(
        query=query,
        posts=PostTable.read(texts, urls or [""] * len(texts), table),
        doc_ids=ids,
        signals={name: values.astype(np.float32) for name, values in signals.items()},
        words=table,
        resources={ADAPTED: SPACE},
        texts=texts,
    )


def random_list(
    query: str,
    missing: Sequence[str] = (),
    count: int = 70,
) -> CandidateList:
    """Awkward posts, then posts of random words of the samples.

    Scores have one decimal, so that some are equal. 30 % of the posts have no score of
    ``rm3``. ``missing``: names of signals to leave out.
    """
    random = np.random.default_rng(len(query))
    vocabulary = [word for text, _ in POSTS for word in text.split()]
    texts = list(AWKWARD.values())
    for length in random.integers(1, 14, size=count):
        texts.append(" ".join(random.choice(vocabulary, size=length)))
    # Two days, at 2^22 to the millisecond
    ids = random.integers(
        2**54,
        2**54 + 172_800_000 * 2**22,
        size=count,
    )
    first_stage, rm3 = random.normal(size=(2, count)).round(1)
    rm3[random.random(count) < 0.3] = math.nan
    signals = {
        FIRST_STAGE: first_stage,
        ORDER: 1.0 + random.permutation(count),
        "rm3": rm3 - 8,
    }
    for name in missing:
        del signals[name]
    return of_texts(
        query,
        texts[:count],
        ids=list(map(str, ids)),
        **signals,
    )


def computed(
    family: str,
    candidates: CandidateList,
) -> dict[str, list[float]]:
    """Feature -> values [N]."""
    declared = features.find(family)
    columns = list(declared.columns(candidates))
    values = np.array(columns, dtype=np.float32)
    assert values.shape == (len(declared.names), len(candidates))
    return dict(zip(declared.names, values.tolist(), strict=True))


def assert_naive(family: str, candidates: CandidateList) -> None:
    values = computed(family, candidates)
    expected = NAIVE[family](candidates)
    assert sorted(values) == sorted(expected)
    tolerance = {"rtol": 1e-5, "atol": 1e-4}
    if family == "temporal":  # Densities are computed on a grid.
        tolerance = {"rtol": 2e-3, "atol": 1e-6}
    for name in expected:
        np.testing.assert_allclose(
            values[name],
            expected[name],
            err_msg=name,
            **tolerance,
        )


# With scores and order, with the order alone, with neither
@pytest.mark.parametrize("missing", [(), (FIRST_STAGE,), (FIRST_STAGE, ORDER)])
@pytest.mark.parametrize(
    "query",
    [
        "bbc world service cuts",
        "is the cuts in the water",  # Stop words, and a word whose vector is 0
        "cut cut cuts",  # A stem three times
        "the",
        "",
    ],
)
@pytest.mark.parametrize("family", NAIVE)
def test_features_are_those_of_loops(
    family: str, query: str, missing: Sequence[str]
) -> None:
    assert_naive(family, random_list(query, missing))


@pytest.mark.parametrize("family", NAIVE)
@pytest.mark.parametrize("texts", [["bbc cuts"], [""], ["", " "], ["zzz"] * 3], ids=str)
def test_few_empty_or_equal_posts(
    family: str,
    texts: list[str],
) -> None:
    rm3 = np.full(len(texts), -7.3)
    assert_naive(family, of_texts("bbc water 日本", texts, rm3=rm3))


@pytest.mark.parametrize("family", NAIVE)
def test_a_list_may_be_empty(family: str) -> None:
    values = computed(family, of_texts("bbc water", []))
    assert values
    assert not any(values.values())


def test_no_phrase_continues_in_the_next_post() -> None:
    texts = ["bbc", "world", "cuts bbc", "world cuts"]
    values = computed("phrases", of_texts("bbc world cuts", texts))
    assert values["whole_query"] == [0, 0, 0, 0]
    assert values["pairs"] == [0, 0, 0, 0.5]


def test_no_repetition_continues_in_the_next_post() -> None:
    texts = ["so", "oo", "SoOo", "!!!", "111", "ooo", "www.x.org"]
    values = computed("quality", of_texts("", texts))
    assert values["is_elongated"] == [0, 0, 1, 0, 0, 1, 1]
    assert values["exclamation_marks"] == [0, 0, 0, 3, 0, 0, 0]


def test_no_link_continues_in_the_next_post() -> None:
    # URL -> share of the words of "bbc cuts e"
    shares = {
        "http://a.org/bb": 0,
        "http://c.org/cu": 0,
        "http://cu.ts/é": 0,
        "http://a.org/bbcbbc": 1 / 3,
        "http://cuts.org/?x=bbc": 1 / 3,
        "http://ABC.org/bbc-cut%73/É": 2 / 3,
        "": 0,
    }
    texts = ["x"] * len(shares)
    values = computed(
        "links",
        of_texts("bbc cuts e", texts, urls=list(shares)),
    )
    assert values["query_words"] == pytest.approx(list(shares.values()))
    assert values["has_url"] == [1, 1, 1, 1, 1, 1, 0]


WITHOUT_TIME = [
    "",
    "doc1",
    "-29000000000000000",
    "2e17",
    "²" * 11,
    # Numbers of other collections' posts are smaller.
    "30000000",
    str(10**10 - 1),
    "0" * 5 + str(10**10 - 1),
    str(2**63),
]


@pytest.mark.parametrize("doc_id", WITHOUT_TIME)
def test_other_identifiers_have_no_time(doc_id: str) -> None:
    assert temporal.milliseconds(doc_id) is None


def test_identifiers_contain_their_time() -> None:
    # The first tweet with such an identifier, 2010-11-04 01:43:01
    assert temporal.milliseconds("29700859247") == 1_288_834_981_738
    assert temporal.milliseconds(str(2**63 - 1)) is not None


def test_temporal_features_without_times_are_zero() -> None:
    candidates = random_list("bbc", count=len(WITHOUT_TIME))
    candidates = dataclasses.replace(candidates, doc_ids=WITHOUT_TIME)
    values = computed("temporal", candidates).values()
    assert not np.array(list(values)).any()


def test_evidence_is_scores_if_there_are_any() -> None:
    candidates = random_list("bbc world service cuts")
    expected = scaled(candidates.signals[FIRST_STAGE])
    np.testing.assert_allclose(
        candidates.evidence,
        expected,
        atol=1e-6,
    )


def test_evidence_is_the_order_without_scores() -> None:
    candidates = random_list("bbc", [FIRST_STAGE])
    places = candidates.signals[ORDER]
    expected = 1 - np.log(places) / math.log(70)
    np.testing.assert_allclose(
        candidates.evidence,
        expected,
        atol=1e-6,
    )


def test_evidence_is_the_texts_without_scores_and_order() -> None:
    candidates = random_list("bbc world service cuts", [FIRST_STAGE, ORDER])
    expected = naive_lexical(candidates)["bm25_minmax"]
    np.testing.assert_allclose(
        candidates.evidence,
        expected,
        atol=1e-6,
    )


def test_the_unit_of_scores_changes_nothing() -> None:
    candidates = random_list("bbc world service cuts")
    scores = candidates.signals[FIRST_STAGE] * 250 - 3
    other_unit = dataclasses.replace(
        candidates,
        signals={FIRST_STAGE: scores},
    )
    values = computed("given", candidates)
    other_values = computed("given", other_unit)
    np.testing.assert_allclose(
        list(other_values.values()),
        list(values.values()),
        atol=1e-4,
    )


UNKNOWN = np.full(2, math.nan)


@pytest.mark.parametrize(
    ("family", "candidates"),
    [
        ("signal:rm3", of_texts("bbc", ["a", "b"], rm3=UNKNOWN)),
        ("signal:rm3", of_texts("bbc", ["a", "b"], bm25=np.ones(2))),
        ("meaning:adapted", dataclasses.replace(random_list("bbc cuts"), resources={})),
    ],
)
def test_features_of_missing_signals_and_spaces_are_nan(
    family: str, candidates: CandidateList
) -> None:
    values = computed(family, candidates).values()
    assert np.isnan(list(values)).all()


def test_without_scores_and_order_only_the_size_is_known() -> None:
    signals = {FIRST_STAGE: UNKNOWN, ORDER: UNKNOWN}
    values = computed(
        "given",
        of_texts("bbc", ["a", "b"], **signals),
    )
    assert values.pop("log_size") == pytest.approx([math.log(2)] * 2)
    assert np.isnan(list(values.values())).all()


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
def test_meaning_is_unknown_where_most_words_are(
    name: str,
    query: str,
    texts: list[str],
    is_known: bool,
    monkeypatch: Patch,
) -> None:
    monkeypatch.undo()
    values = computed(f"meaning:{name}", of_texts(query, texts))
    assert np.isnan(values["cosine"]).any() != is_known
    # The list is too short to compare its candidates.
    assert np.isnan(values["cosine_minmax"]).all()


# The source of IDF and the vectors lack these words.
@pytest.fixture
def georgian(monkeypatch: Patch) -> CandidateList:
    monkeypatch.undo()
    posts = ["ტყე ზღვა მთა"] * 40
    posts[3] = "ტყე ზღვა ქარი"
    return of_texts("ქარი ზღვა", posts)


def test_words_of_an_unknown_language_have_the_frequencies_of_the_list(
    georgian: CandidateList,
) -> None:
    assert not georgian.knows_frequencies
    rare_word = 1.0
    common_word = math.log(2) / math.log(41)
    idf = georgian.query_columns.idf.tolist()
    assert idf == pytest.approx([rare_word, common_word])
    assert np.argmax(georgian.bm25) == 3


@pytest.mark.parametrize("family", ["quality", "meaning:general"])
def test_features_of_word_knowledge_are_nan_in_an_unknown_language(
    family: str, georgian: CandidateList
) -> None:
    values = computed(family, georgian)
    if family == "quality":
        values = {"mean_idf": values["mean_idf"]}
    assert np.isnan(list(values.values())).all()


# English frequencies contain most words of other languages in Latin script, as rare
# ones.
@pytest.mark.parametrize(
    ("text", "is_english"),
    [
        ("Storm warning for the whole coast tonight, schools are closed", True),
        ("case for iphone 12 pro max, black, with card holder", True),
        ("Sturmwarnung für die ganze Küste, die Schulen bleiben zu", False),
        ("Alerte à la tempête sur toute la côte, les écoles sont fermées", False),
        ("Aviso de tormenta en toda la costa, las escuelas cierran", False),
    ],
)
def test_english_frequencies_are_used_for_english_alone(
    text: str, is_english: bool, monkeypatch: Patch
) -> None:
    monkeypatch.undo()
    texts = [text] * 40
    candidates = of_texts(
        text[:16],
        texts,
        source=Idf.from_wordfreq(),
    )
    assert candidates.knows_frequencies == is_english


@pytest.mark.parametrize(
    "family", ["lexical", "content", "grams", "feedback", "meaning:general", "given"]
)
def test_a_post_of_a_short_list_has_the_features_that_it_has_alone(
    family: str, monkeypatch: Patch
) -> None:
    monkeypatch.undo()
    query = "bbc world cuts"
    texts = ["bbc cuts", "the world cuts", "storm"]
    together = of_texts(
        query,
        texts,
        **{ORDER: np.arange(3) + 1.0},
    )
    values = computed(family, together)
    for row, text in enumerate(texts):
        alone = computed(
            family,
            of_texts(query, [text], **{ORDER: np.ones(1)}),
        )
        expected = {name: [column[row]] for name, column in values.items()}
        np.testing.assert_equal(alone, expected)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("signal", "signal with the name ''"),
        ("signal:a.b", "with the name 'a.b'"),
        ("hashtag", r"'hashtag'.*hashtags.*overlap"),
        ("links:x", "links takes no parameter"),
        (":rm3", "found the feature family ':rm3', expected one of .*signal:NAME"),
        ("meaning", "meaning:general or meaning:adapted"),
        ("meaning:", "meaning:general or meaning:adapted"),
        ("meaning:generally", "meaning:general or meaning:adapted"),
    ],
)
def test_wrong_names_of_families_are_errors(name: str, message: str) -> None:
    with pytest.raises(RerankerError, match=message):
        features.names_of([name])


def test_hashtags_match_by_their_words() -> None:
    # Post -> share of the words of "bbc cuts" in its hashtags
    shares = {
        "#bbc": 0.5,
        "## bbc ## Cuts": 1,
        "#bbcworld": 0,
        "# bbc_cuts": 1,
        "#BBC bbc": 0.5,
        "bbc cuts": 0,
        "##  9m": 0,
    }
    values = computed(
        "hashtags",
        of_texts("bbc cuts", list(shares)),
    )
    assert values["query_words"] == list(shares.values())
    # All but the last two posts have a hashtag.
    assert values["has_hashtag"] == [1, 1, 1, 1, 1, 0, 0]


TOPICS = [("storms", {"a": 1, "b": 0}), ("heavy storm", {"a": 2}), ("Storm!", {"c": 1})]
JUDGED_TEXTS = {"a": "storm over the coast", "b": "bbc cuts", "c": "lunch", "d": ""}


@pytest.fixture
def judgments(tmp_path: Path) -> Path:
    path = tmp_path / JUDGMENTS
    path.write_bytes(JudgedPosts.of(TOPICS, JUDGED_TEXTS).content())
    return path


def test_judgments_of_other_topics_are_found_by_text(judgments: Path) -> None:
    texts = ["storm over the coast", "bbc cuts", "lunch", "new"]
    candidates = dataclasses.replace(
        of_texts("storm", texts),
        resources={JUDGED: JudgedPosts.read(judgments)},
    )
    values = computed(JUDGED, candidates)
    # The topic "Storm!" is left out: it has the words of the query.
    assert values["relevant"] == [2, 0, 0, 0]
    assert values["other"] == [0, 1, 0, 0]
    cosine, *unknown = values["relevant_cosine"]
    assert 0 < cosine <= 1
    assert np.isnan(unknown).all()
    vectors = general().vectors(["storm", "storms"]).astype(np.float64)
    expected = float(unit(vectors[0]) @ unit(vectors[1]))
    assert values["other_cosine"][1] == pytest.approx(expected, abs=1e-6)


def test_without_judgments_their_features_are_nan() -> None:
    values = computed(
        JUDGED,
        of_texts("storm", ["a", "b"]),
    )
    assert np.isnan(list(values.values())).all()


def test_damaged_judgments_are_an_error(judgments: Path) -> None:
    judgments.write_text("[5]")
    with pytest.raises(RerankerError, match="no judgments that can be read"):
        JudgedPosts.read(judgments)


FAMILIES = [
    name.replace("meaning:SPACE", "meaning:general") for name in features.families()
]


def judged_posts(texts: Sequence[str]) -> JudgedPosts:
    """Posts that were judged relevant and not relevant, all but the first twice."""
    text_of = {str(row): text for row, text in enumerate(texts)}
    later_posts = list(text_of)[1:]
    topics = [
        ("storm", dict.fromkeys(text_of, 1)),
        ("a late bus", dict.fromkeys(text_of, 0)),
        ("lunch", dict.fromkeys(later_posts, 1)),
        ("train", dict.fromkeys(later_posts, 0)),
    ]
    return JudgedPosts.of(topics, text_of)


def pairs_for(family: str) -> Pairs:
    """Usual and awkward pairs with all that a family reads."""
    posts = list(POSTS)
    posts += [(text, text) for text in AWKWARD.values()]
    posts.append(("RT @a: " + POSTS[1][0], ""))
    pairs = all_pairs(
        QUERIES + list(AWKWARD.values()),
        posts,
    )
    random = np.random.default_rng(0)
    ids = random.integers(
        2**54,
        2**54 + 2**46,
        size=len(posts),
    )
    signals = {}
    for name in features.find(family).signals:
        signals[name] = random.random(
            len(pairs),
            dtype=np.float32,
        )
    pairs = dataclasses.replace(
        pairs,
        doc_ids=list(map(str, ids)),
        signals=signals,
    )
    return pairs.with_resources({JUDGED: judged_posts(pairs.texts)})


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_declares_its_features_and_signals(family: str) -> None:
    declared = features.find(family)
    assert declared.names
    assert set(declared.signals) <= {FIRST_STAGE, PRIOR, "NAME", "number:NAME"}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_finite_rounded_and_varies(family: str) -> None:
    pairs = pairs_for(family)
    names, values = features.table(
        pairs,
        [family],
        IDF,
    )
    np.testing.assert_array_equal(
        np.round(values, features.DECIMALS),
        values,
    )
    if family == JUDGED:  # Empty texts have no judgments.
        has_text = [pairs.texts[post] != "" for post in pairs.post_index]
        values = values[has_text]
    assert np.isfinite(values).all()
    for name, column in zip(names, values.T, strict=True):
        if name != "given.log_size":  # All lists have the same size.
            assert np.ptp(column), name


@pytest.mark.parametrize("family", FAMILIES)
def test_no_family_depends_on_the_order_of_pairs(family: str) -> None:
    pairs = pairs_for(family)
    values = features.table(pairs, [family], IDF).values
    order = np.random.default_rng(1).permutation(len(pairs))
    permuted = features.table(pairs.take(order), [family], IDF).values
    np.testing.assert_array_equal(permuted, values[order])


def for_odd_queries(
    pairs: Pairs,
    resources: dict[str, Any],
) -> Pairs:
    """The pairs, with resources for every second query."""
    of_queries: list[dict[str, Any]] = []
    for row in range(len(pairs.queries)):
        of_queries.append(resources if row % 2 else {})
    return dataclasses.replace(pairs, resources=of_queries)


def test_every_query_has_the_frequencies_of_its_collection() -> None:
    pairs = all_pairs()
    families = ["overlap", "quality"]
    other_idf = Idf.from_document_frequencies(
        {"bbc": 9, "the": 5},
        10,
        "own",
    )
    mixed = for_odd_queries(pairs, {FREQUENCIES: other_idf})
    values = features.table(mixed, families, IDF).values
    usual = features.table(pairs, families, IDF).values
    other = features.table(pairs, families, other_idf).values
    is_odd = pairs.query_index % 2 == 1
    np.testing.assert_array_equal(
        values[is_odd],
        other[is_odd],
    )
    np.testing.assert_array_equal(
        values[~is_odd],
        usual[~is_odd],
    )
    assert (usual != other).any()


def test_every_query_has_the_space_of_its_collection() -> None:
    pairs = for_odd_queries(all_pairs(), {ADAPTED: SPACE})
    values = features.table(pairs, ["meaning:adapted"], IDF).values
    is_odd = pairs.query_index % 2 == 1
    assert np.isnan(values[~is_odd]).all()
    assert not np.isnan(values[is_odd]).any()
    rows = np.flatnonzero(is_odd)
    alone = features.table(pairs.take(rows), ["meaning:adapted"], IDF).values
    np.testing.assert_array_equal(alone, values[rows])
