"""Families of features against naive loops, and the table of features."""

import dataclasses
import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from conftest import Patch
from helpers.reranking_samples import AWKWARD, POSTS, QUERIES, all_pairs, encoder

from tweetrerank.rerankers import features
from tweetrerank.rerankers.features import feedback, matches, meaning, temporal
from tweetrerank.rerankers.features.candidates import CandidateList
from tweetrerank.rerankers.features.judged import JUDGED, JUDGMENTS, JudgedPosts
from tweetrerank.rerankers.features.text_tables import (
    PERSONAL_WORDS,
    PostTable,
    WordTable,
)
from tweetrerank.rerankers.pairs import FIRST_STAGE, FREQUENCIES, ORDER, PRIOR
from tweetrerank.rerankers.reranker_error import RerankerError
from tweetrerank.rerankers.text.spaces import ADAPTED, WordSpace, general
from tweetrerank.rerankers.text.stems import stem
from tweetrerank.rerankers.text.vocabulary import Idf
from tweetrerank.rerankers.text.words import MAX_CHARACTERS, STOP_WORDS, hashtags, words

Vector = npt.NDArray[np.float64]
IDF = encoder().idf


@pytest.fixture(autouse=True)
def any_list_is_enough(monkeypatch: Patch) -> None:
    """The samples are short: all lists are compared, all words are known; ``undo`` ends this."""
    for name in (
        "candidates.LEAST_KNOWN",
        "meaning.LEAST_KNOWN",
        "candidates.FEWEST_COMPARED",
    ):
        monkeypatch.setattr(f"tweetrerank.rerankers.features.{name}", 0)
    monkeypatch.setattr("tweetrerank.rerankers.features.candidates.RAREST_KNOWN", 2)


def of_letters(
    tokens: Sequence[str],
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Vectors that only depend on the word; that of ``cuts`` is 0, that of ``qx`` is unknown."""
    seeds = [sum(ord(c) * 31**n for n, c in enumerate(token)) for token in tokens]
    rows = [np.random.default_rng(seed).normal(size=7) for seed in seeds]
    vectors = np.array(rows) * [[token != "cuts"] for token in tokens]
    return vectors.astype(np.float32), np.array(
        [token != "qx" for token in tokens], np.float32
    )


SPACE = WordSpace(7, of_letters)


def of_texts(
    query: str,
    *texts: str,
    urls: Any = (),
    ids: Any = (),
    source: Idf = IDF,
    **signals: Vector,
) -> CandidateList:
    """Candidates with these texts, and with word vectors of the collection."""
    table = WordTable(source)
    posts = PostTable.read(texts, urls or [""] * len(texts), table)
    known = {name: values.astype(np.float32) for name, values in signals.items()}
    return CandidateList(query, posts, ids, known, table, {ADAPTED: SPACE}, texts)


def random_list(query: str, *left_out: str, count: int = 70) -> CandidateList:
    """Posts of random words of the samples and some awkward ones, without the signals named. Scores
    have one decimal, so that some are equal; 30 % of the posts have no score of ``rm3``."""
    random = np.random.default_rng(len(query))
    known = [word for text, _ in POSTS for word in text.split()]
    lengths = random.integers(1, 14, size=count)
    texts = [" ".join(random.choice(known, size=length)) for length in lengths]
    # Two days, at 2^22 to the millisecond.
    ids = random.integers(2**54, 2**54 + 172_800_000 * 2**22, size=count)
    first, rm3 = random.normal(size=(2, count)).round(1)
    rm3[random.random(count) < 0.3] = math.nan
    signals = {
        FIRST_STAGE: first,
        ORDER: 1.0 + random.permutation(count),
        "rm3": rm3 - 8,
    }
    kept = {name: values for name, values in signals.items() if name not in left_out}
    return of_texts(
        query, *[*AWKWARD.values(), *texts][:count], ids=[*map(str, ids)], **kept
    )


def computed(family: str, candidates: CandidateList) -> dict[str, list[float]]:
    found = features.find(family)
    values = np.array([*found.columns(candidates)], dtype=np.float32)
    assert values.shape == (len(found.names), len(candidates))
    return dict(zip(found.names, values.tolist(), strict=True))


def idf(token: str) -> float:
    return float(IDF.weights([token])[0])


def share(found: Sequence[bool]) -> float:
    return sum(found) / len(found) if found else 0.0


def scaled(values: Any) -> Any:
    low, high = np.nanmin(values), np.nanmax(values)
    return (np.array(values) - low) / (high - low if high > low else math.inf)


def standard(values: Any) -> Any:
    is_equal = np.nanmax(values) == np.nanmin(values)
    return (np.array(values) - np.nanmean(values)) / (
        math.inf if is_equal else np.nanstd(values)
    )


def log_rank(values: Any) -> list[float]:
    better = [sum(other > value + 1e-9 for other in values) for value in values]
    return [math.log(1 + n) + 0 * v for n, v in zip(better, values, strict=True)]


def normalised(values: Any, prefix: str = "") -> dict[str, Any]:
    found = {
        "minmax": scaled(values),
        "z": standard(values),
        "log_rank": log_rank(values),
    }
    return {f"{prefix}{name}": column for name, column in found.items()}


def unit(vector: Vector) -> Vector:
    length = float(np.linalg.norm(vector))
    return vector / length if length else vector


def by_feature(rows: Sequence[dict[str, float]]) -> dict[str, Any]:
    return {name: [row[name] for row in rows] for name in rows[0]}


def centroids(vectors: Sequence[Vector], weights: Any, depth: int) -> list[float]:
    """Product with the centroid of the others among the best, with all of the last one's score."""
    last = sorted(weights)[-min(depth, len(weights))]
    parts = [
        (w + 0.001) * v * (w >= last) for w, v in zip(weights, vectors, strict=True)
    ]
    return [
        float(v @ unit(sum(parts) - part))
        for v, part in zip(vectors, parts, strict=True)
    ]


def naive_overlap(candidates: CandidateList) -> dict[str, Any]:
    common = [
        set(words(candidates.query)) & set(words(text)) for text in candidates.texts
    ]
    sets = {"": common, "content_": [each - STOP_WORDS for each in common]}
    found = {f"{prefix}words": [*map(len, each)] for prefix, each in sets.items()}
    return found | {f"{p}idf": [sum(map(idf, each)) for each in sets[p]] for p in sets}


def naive_first_stage(candidates: CandidateList) -> dict[str, Any]:
    scores = candidates.signal(FIRST_STAGE).tolist()
    ranks = np.exp(-np.array(log_rank(scores)))
    return {"score": scores, "minmax": scaled(scores), "reciprocal_rank": ranks}


def naive_given(candidates: CandidateList) -> dict[str, Any]:
    scores, order = candidates.signals.get(FIRST_STAGE), candidates.signals.get(ORDER)
    found = dict.fromkeys(
        ("minmax", "z", "log_rank"), np.full(len(candidates), math.nan)
    )
    if scores is not None:
        found |= normalised(scores)
    elif order is not None:
        found["log_rank"] = np.log(order)
    found["log_size"] = np.full(len(candidates), math.log(len(candidates)))
    return found | {"rank_share": np.expm1(found["log_rank"]) / len(candidates)}


def naive_lexical(candidates: CandidateList) -> dict[str, Any]:
    """By the formulas; a stem has the IDF of its commonest word in the query."""
    asked = words(candidates.query)
    rarity = {stem(w): min(idf(v) for v in asked if stem(v) == stem(w)) for w in asked}
    posts = [Counter(map(stem, words(text))) for text in candidates.texts]
    mean = max(1.0, sum(post.total() for post in posts) / len(posts))
    bm25, likelihood = [], []
    for post in posts:
        norm = 0.9 * (0.6 + 0.4 * post.total() / mean)
        parts = [rarity[t] * post[t] / (post[t] + norm) for t in rarity]
        bm25.append(sum(parts) / sum(rarity.values()) if rarity else 0.0)
        priors = {
            t: matches.MU * math.exp(-matches.RANGE * rarity[t]) / mean for t in rarity
        }
        smooth = [
            (post[t] + p) / p / (1 + post.total() / matches.MU)
            for t, p in priors.items()
        ]
        likelihood.append(sum(map(math.log, smooth)) / max(1, len(smooth)))
    found = {"bm25": bm25, **normalised(bm25, "bm25_")}
    return found | {"ql": likelihood, **normalised(likelihood, "ql_")}


def naive_content(candidates: CandidateList) -> dict[str, Any]:
    """A word that is no stop word counts as often as the query has it."""
    asked = words(candidates.query)
    rarity = {stem(w): min(idf(v) for v in asked if stem(v) == stem(w)) for w in asked}
    counts = Counter(map(stem, [w for w in asked if w not in STOP_WORDS] or asked))
    posts = [Counter(map(stem, words(text))) for text in candidates.texts]
    mean, bm25 = max(1.0, sum(post.total() for post in posts) / len(posts)), []
    for post in posts:
        norm = 0.9 * (0.6 + 0.4 * post.total() / mean)
        parts = [n * rarity[t] * post[t] / (post[t] + norm) for t, n in counts.items()]
        bm25.append(sum(parts) / (sum(n * rarity[t] for t, n in counts.items()) or 1))
    return {"bm25": bm25, **normalised(bm25)}


def naive_grams(candidates: CandidateList) -> dict[str, Any]:
    asked, posts = (
        grams(candidates.query, 4),
        [grams(text, 4) for text in candidates.texts],
    )
    mean = max(1.0, sum(map(len, posts)) / len(posts))
    holders = {gram: sum(gram in post for post in posts) for gram in asked}
    rarity = {
        g: math.log(1 + (len(posts) - n + 0.5) / (n + 0.5)) for g, n in holders.items()
    }
    bm25 = [
        sum(rarity[gram] for gram in asked & post)
        / (1 + 0.9 * (0.25 + 0.75 * len(post) / mean))
        / (sum(rarity.values()) or 1)
        for post in posts
    ]
    return {"bm25": bm25, **normalised(bm25)}


def grams(text: str, size: int) -> set[str]:
    line = f" {' '.join(words(text))} "
    return {line[i : i + size] for i in range(len(line) - size + 1)}


def shortest_cover(tokens: list[str], wanted: set[str]) -> int:
    best = len(tokens)
    for begin in range(len(tokens)):
        ends = range(begin + 1, min(begin + best, len(tokens)) + 1)
        best = next(
            (end - begin for end in ends if wanted <= {*tokens[begin:end]}), best
        )
    return best


def naive_phrases(candidates: CandidateList) -> dict[str, Any]:
    query = candidates.query
    asked, theirs = [stem(word) for word in words(query)], grams(query, 3)
    content = {stem(word) for word in words(query) if word not in STOP_WORDS} or set(
        asked
    )
    pairs, rows = set(itertools.pairwise(asked)), []
    for text in candidates.texts:
        tokens, ours = [stem(word) for word in words(text)], grams(text, 3)
        found = content & set(tokens)
        runs = [tokens[i : i + len(asked)] for i in range(len(tokens))] if asked else []
        places = [place for place, token in enumerate(tokens) if token in content]
        row = {
            "pairs": len(pairs & set(itertools.pairwise(tokens))) / max(1, len(pairs)),
            "whole_query": float(asked in runs),
            "proximity": len(found) / shortest_cover(tokens, found) if found else 0.0,
            "first_place": 1 / (1 + places[0]) if places else 0.0,
            "trigram_jaccard": len(ours & theirs) / max(1, len(ours | theirs)),
            "trigram_share": len(ours & theirs) / max(1, len(theirs)),
        }
        rows.append(row)
    return by_feature(rows)


def naive_quality(candidates: CandidateList) -> dict[str, Any]:
    rows = []
    for text in (text[:MAX_CHARACTERS] for text in candidates.texts):
        tokens = words(text)
        weights = [idf(word) for word in tokens]
        lower = re.sub("[A-Z]", lambda letter: letter[0].lower(), text)
        row = {
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
        rows.append(row)
    return by_feature(rows)


def naive_temporal(candidates: CandidateList) -> dict[str, Any]:
    if not candidates.doc_ids:
        return dict.fromkeys(features.find("temporal").names, [0.0] * len(candidates))
    hours = np.array([(int(doc_id) >> 22) / 3_600_000 for doc_id in candidates.doc_ids])
    weights, others = (
        scaled(candidates.signal(FIRST_STAGE)) ** 2,
        1 - np.eye(len(hours)),
    )
    found: dict[str, Any] = {"age": np.log1p(max(hours) - hours)}
    found["newer"] = [np.mean(hours > hour) for hour in hours]
    for width in temporal.WIDTHS:
        kernel = others * np.exp(
            -(np.subtract.outer(hours, hours) ** 2) / (2 * width**2)
        )
        density = kernel @ weights / np.maximum(others @ weights, 1e-9)
        found[f"density_{width:.0f}h"] = density
        plain = kernel.sum(axis=1) / others.sum(axis=1)
        found[f"surplus_{width:.0f}h"] = density / np.maximum(plain, 1e-6)
    return found


def naive_feedback(candidates: CandidateList) -> dict[str, Any]:
    posts = [Counter(words(text)) for text in candidates.texts]
    distinct = sorted({word for post in posts for word in post})
    columns = {
        name: column for column, name in enumerate(sorted({*map(stem, distinct)}))
    }
    rarity = {
        name: min(idf(word) for word in distinct if stem(word) == name)
        for name in columns
    }
    whole = np.zeros((len(posts), len(columns)))
    for row, post in enumerate(posts):
        for name, count in Counter(map(stem, post.elements())).items():
            whole[row, columns[name]] = (1 + math.log(count)) * rarity[name]
        whole[row] = unit(whole[row])
    rest = whole.copy()
    rest[
        :, [columns[stem(w)] for w in words(candidates.query) if stem(w) in columns]
    ] = 0.0
    return {
        f"{name}_{depth}": centroids([*vectors], candidates.evidence, depth)
        for name, vectors in (("every", whole), ("rest", rest))
        for depth in feedback.DEPTHS
    }


def naive_meaning(candidates: CandidateList, space: WordSpace) -> dict[str, Any]:
    query, texts, zero = candidates.query, candidates.texts, np.zeros(space.size)

    def vectors(tokens: Sequence[str]) -> list[Vector]:
        return list(space.vectors(tokens).astype(np.float64))

    def total(text: str) -> Vector:
        return unit(sum(vectors(words(text)), zero))

    def weighted(text: str) -> Vector:
        both = zip(words(text), vectors(words(text)), strict=True)
        return unit(sum((idf(token) * unit(vector) for token, vector in both), zero))

    distinct = list(dict.fromkeys(words(query)))
    asked = [word for word in distinct if word not in STOP_WORDS] or distinct
    weights, best = [idf(word) for word in asked], []
    for text in texts:
        post = [unit(vector) for vector in vectors(words(text))]
        best.append(
            [max((unit(q) @ v for v in post), default=0.0) for q in vectors(asked)]
        )
    sums, first = [total(text) for text in texts], candidates.evidence
    cosine = [float(total(query) @ vector) for vector in sums]
    mixed = (scaled(cosine) + first) / 2
    return {
        "cosine": cosine,
        "cosine_minmax": scaled(cosine),
        "cosine_z": standard(cosine),
        "idf_cosine": [float(weighted(query) @ weighted(text)) for text in texts],
        "mean_best": [
            np.average(row, weights=weights) if weights else 0.0 for row in best
        ],
        "least_best": [min(row, default=0.0) for row in best],
        **{f"feedback_{d}": centroids(sums, first, d) for d in meaning.DEPTHS},
        "mixed_feedback": centroids(sums, mixed, 10),
        "mixed_minmax": mixed,
    }


def naive_signal(candidates: CandidateList) -> dict[str, Any]:
    scores = candidates.signals["rm3"].astype(np.float64)
    return {"gap": np.nanmax(scores) - scores, **normalised(scores)}


WITHOUT_NAME = (
    *(
        naive_content,
        naive_feedback,
        naive_first_stage,
        naive_given,
        naive_grams,
        naive_lexical,
    ),
    *(naive_overlap, naive_phrases, naive_quality, naive_temporal),
)
NAIVE: dict[str, Callable[[CandidateList], dict[str, Any]]] = {
    "meaning:adapted": lambda candidates: naive_meaning(candidates, SPACE),
    "meaning:general": lambda candidates: naive_meaning(candidates, general()),
    "signal:rm3": naive_signal,
    **{naive.__name__.removeprefix("naive_"): naive for naive in WITHOUT_NAME},
}


def assert_naive(family: str, candidates: CandidateList) -> None:
    wanted, found = NAIVE[family](candidates), computed(family, candidates)
    assert sorted(found) == sorted(wanted)
    # Densities are computed on a grid.
    close = (
        {"rtol": 2e-3, "atol": 1e-6}
        if family == "temporal"
        else {"rtol": 1e-5, "atol": 1e-4}
    )
    for feature, values in wanted.items():
        np.testing.assert_allclose(found[feature], values, err_msg=feature, **close)


# Words that come twice, a word whose vector is 0, stop words with others or alone, no words.
@pytest.mark.parametrize(
    "query",
    ["bbc world service cuts", "is the cuts in the water", "cut cut cuts", "the", ""],
)
@pytest.mark.parametrize("family", NAIVE)
def test_features_are_those_of_loops(family: str, query: str) -> None:
    for left_out in ((), (FIRST_STAGE,), (FIRST_STAGE, ORDER)):
        assert_naive(family, random_list(query, *left_out))


@pytest.mark.parametrize("family", NAIVE)
@pytest.mark.parametrize("texts", [["bbc cuts"], [""], ["", " "], ["zzz"] * 3], ids=str)
def test_few_empty_or_equal_posts(family: str, texts: list[str]) -> None:
    assert_naive(
        family, of_texts("bbc water 日本", *texts, rm3=np.full(len(texts), -7.3))
    )
    nothing = computed(family, of_texts("bbc water"))
    assert nothing and not any(nothing.values())


def test_posts_are_told_apart() -> None:
    """No phrase, repeated letter or link goes on in the next post."""
    posts = of_texts("bbc world cuts", "bbc", "world", "cuts bbc", "world cuts")
    found = computed("phrases", posts)
    assert (found["whole_query"], found["pairs"]) == ([0] * 4, [0, 0, 0, 0.5])
    found = computed(
        "quality", of_texts("", "so", "oo", "SoOo", "!!!", "111", "ooo", "www.x.org")
    )
    assert found["is_elongated"] == [0, 0, 1, 0, 0, 1, 1]
    assert found["exclamation_marks"] == [0, 0, 0, 3, 0, 0, 0]
    urls = [
        "http://a.org/bb",
        "http://c.org/cu",
        "http://cu.ts/é",
        "http://a.org/bbcbbc",
    ]
    urls += ["http://cuts.org/?x=bbc", "http://ABC.org/bbc-cut%73/É", ""]
    found = computed("links", of_texts("bbc cuts e", *"xxxxxxx", urls=urls))
    assert found["query_words"] == pytest.approx([0, 0, 0, 1 / 3, 1 / 3, 2 / 3, 0])
    assert found["has_url"] == [1] * 6 + [0]


def test_times_of_identifiers() -> None:
    milliseconds = temporal.milliseconds
    assert (
        milliseconds("29700859247") == 1_288_834_981_738
    )  # the first, 2010-11-04 01:43:01
    assert milliseconds(str(2**63 - 1)) is not None
    # Numbers of other collections' posts are smaller.
    numbers = ["30000000", str(10**10 - 1), "0" * 5 + str(10**10 - 1), str(2**63)]
    unknown = ["", "doc1", "-29000000000000000", "2e17", "²" * 11, *numbers]
    assert {*map(milliseconds, unknown)} == {None}
    candidates = dataclasses.replace(
        random_list("bbc", count=len(unknown)), doc_ids=unknown
    )
    assert not np.array([*computed("temporal", candidates).values()]).any()


def test_evidence_is_the_best_that_is_known() -> None:
    whole = random_list("bbc world service cuts")
    np.testing.assert_allclose(
        whole.evidence, scaled(whole.signals[FIRST_STAGE]), atol=1e-6
    )
    # The unit of scores says nothing.
    other = {FIRST_STAGE: whole.signals[FIRST_STAGE] * 250 - 3}
    again = computed("given", dataclasses.replace(whole, signals=other))
    for name, values in computed("given", whole).items():
        np.testing.assert_allclose(again[name], values, atol=1e-4)
    by_place = random_list("bbc", FIRST_STAGE)
    place = by_place.signals[ORDER]
    np.testing.assert_allclose(
        by_place.evidence, 1 - np.log(place) / math.log(70), atol=1e-6
    )
    by_text = random_list("bbc world service cuts", FIRST_STAGE, ORDER)
    np.testing.assert_allclose(
        by_text.evidence, naive_lexical(by_text)["bm25_minmax"], atol=1e-6
    )


def test_missing_scores_and_spaces_are_nan() -> None:
    unknown = np.full(2, math.nan)
    for family, candidates in (
        ("signal:rm3", of_texts("bbc", "a", "b", rm3=unknown)),
        ("signal:rm3", of_texts("bbc", "a", "b", bm25=unknown + 1)),
        ("meaning:adapted", dataclasses.replace(random_list("bbc cuts"), resources={})),
    ):
        assert np.isnan([*computed(family, candidates).values()]).all()
    given = of_texts("bbc", "a", "b", **{FIRST_STAGE: unknown, ORDER: unknown})
    *others, size = computed("given", given).values()
    assert np.isnan(others).all() and size == pytest.approx([math.log(2)] * 2)


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
    name: str, query: str, texts: list[str], is_known: bool, monkeypatch: Patch
) -> None:
    monkeypatch.undo()
    found = computed(f"meaning:{name}", of_texts(query, *texts))
    assert np.isnan(found["cosine"]).any() != is_known
    assert np.isnan(found["cosine_minmax"]).all()  # In so short a list


def test_words_of_an_unknown_language_have_the_frequencies_of_the_list(
    monkeypatch: Patch,
) -> None:
    """So posts are told apart where the source of IDF and the vectors know nothing."""
    monkeypatch.undo()
    posts = ["ტყე ზღვა " + ("ქარი" if number == 3 else "მთა") for number in range(40)]
    candidates = of_texts("ქარი ზღვა", *posts)
    assert not candidates.knows_frequencies
    expected = [
        1.0,
        math.log(2) / math.log(41),
    ]  # Of the rare word, and of the common one
    assert candidates.query_columns.idf.tolist() == pytest.approx(expected)
    assert np.argmax(candidates.bm25) == 3
    assert np.isnan(computed("quality", candidates)["mean_idf"]).all()
    assert np.isnan([*computed("meaning:general", candidates).values()]).all()


@pytest.mark.parametrize(
    ("text", "is_known"),
    [
        ("Storm warning for the whole coast tonight, schools are closed", True),
        ("case for iphone 12 pro max, black, with card holder", True),
        ("Sturmwarnung für die ganze Küste, die Schulen bleiben zu", False),
        ("Alerte à la tempête sur toute la côte, les écoles sont fermées", False),
        ("Aviso de tormenta en toda la costa, las escuelas cierran", False),
    ],
)
def test_english_frequencies_are_of_english(
    text: str, is_known: bool, monkeypatch: Patch
) -> None:
    """Though they know most words of other languages in Latin script, as rare ones."""
    monkeypatch.undo()
    candidates = of_texts(text[:16], *[text] * 40, source=Idf.from_wordfreq())
    assert candidates.knows_frequencies == is_known


@pytest.mark.parametrize(
    "family", ["lexical", "content", "grams", "feedback", "meaning:general", "given"]
)
def test_short_lists_are_not_compared(family: str, monkeypatch: Patch) -> None:
    """Of a batch, a post has the features that it has alone."""
    monkeypatch.undo()
    query, texts = "bbc world cuts", ["bbc cuts", "the world cuts", "storm"]
    whole = computed(family, of_texts(query, *texts, **{ORDER: np.arange(3) + 1.0}))
    for row, text in enumerate(texts):
        alone = computed(family, of_texts(query, text, **{ORDER: np.ones(1)}))
        for name, values in whole.items():
            np.testing.assert_array_equal(values[row : row + 1], alone[name], name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("signal", "signal with the name ''"),
        ("signal:a.b", "with the name 'a.b'"),
        ("hashtag", r"'hashtag'.*hashtags.*overlap"),
        ("links:x", "links takes no parameter"),
        (":rm3", "found the feature family ':rm3', expected one of .*signal:NAME"),
        *(
            (f"meaning{s}", "meaning:general or meaning:adapted")
            for s in ("", ":", ":generally")
        ),
    ],
)
def test_wrong_names_of_families_are_errors(name: str, message: str) -> None:
    with pytest.raises(RerankerError, match=message):
        features.names_of([name])


def test_hashtags_match_by_their_words() -> None:
    for text, expected in {
        "RT @bbc: World Service #bbc #Cuts!": ["bbc", "Cuts"],
        "as the collections have it ## bbc ## smile_safe": ["bbc", "smile_safe"],
        "we are #1, item # 2, C# is no tag, nor is &#39; or a#b, ##  34m": [],
        "#g20 #2011elections #café": ["g20", "2011elections", "café"],
    }.items():
        assert hashtags(text) == expected
    texts = [
        "bbc cuts",
        "#bbc",
        "## bbc ## Cuts",
        "#bbcworld",
        "# bbc_cuts",
        "#BBC bbc",
        "##  9m",
    ]
    found = computed("hashtags", of_texts("bbc cuts", *texts))
    assert found["has_hashtag"] == [0, 1, 1, 1, 1, 1, 0]
    assert found["query_words"] == [0, 0.5, 1, 0, 1, 0.5, 0]


def judged_posts(texts: Sequence[str]) -> JudgedPosts:
    """Posts that were each judged relevant and not, all but the first for a topic more."""
    known = {str(row): text for row, text in enumerate(texts)}
    most = list(known)[1:]
    topics = [
        ("storm", known, 1),
        ("a late bus", known, 0),
        ("lunch", most, 1),
        ("train", most, 0),
    ]
    return JudgedPosts.of(
        [(t, dict.fromkeys(of, grade)) for t, of, grade in topics], known
    )


def test_what_judgments_of_other_topics_say(tmp_path: Path) -> None:
    """A post is known by its text; a topic in the query's own words says nothing."""
    texts = {"a": "storm over the coast", "b": "bbc cuts", "c": "lunch"}
    topics = [
        ("storms", {"a": 1, "b": 0}),
        ("heavy storm", {"a": 2}),
        ("Storm!", {"c": 1}),
    ]
    (tmp_path / JUDGMENTS).write_bytes(
        JudgedPosts.of(topics, texts | {"d": ""}).content()
    )
    known = JudgedPosts.read(tmp_path / JUDGMENTS)
    unknown = of_texts("storm", *texts.values(), "new")
    found = computed(JUDGED, dataclasses.replace(unknown, resources={JUDGED: known}))
    assert (found["relevant"], found["other"]) == ([2, 0, 0, 0], [0, 1, 0, 0])
    near, *others = found["relevant_cosine"]
    assert 0 < near <= 1 and np.isnan(others).all()
    first, second = map(unit, general().vectors(["storm", "storms"]).astype(np.float64))
    assert found["other_cosine"][1] == pytest.approx(float(first @ second), abs=1e-6)
    assert np.isnan(computed(JUDGED, unknown)["relevant"]).all()
    (tmp_path / JUDGMENTS).write_text("[5]")
    with pytest.raises(RerankerError, match="no judgments that can be read"):
        JudgedPosts.read(tmp_path / JUDGMENTS)


FAMILIES = [
    name.replace("meaning:SPACE", "meaning:general") for name in features.families()
]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_finite_and_independent_of_the_order_of_pairs(
    family: str,
) -> None:
    found = features.find(family)
    assert found.names and set(found.signals) <= {
        FIRST_STAGE,
        PRIOR,
        "NAME",
        "number:NAME",
    }
    posts = [*POSTS, *((text, text) for text in AWKWARD.values())]
    posts.append(("RT @a: " + POSTS[1][0], ""))
    pairs = all_pairs([*QUERIES, *AWKWARD.values()], posts)
    random = np.random.default_rng(0)
    ids = random.integers(2**54, 2**54 + 2**46, size=len(posts))
    signals = {
        name: random.random(len(pairs), dtype=np.float32) for name in found.signals
    }
    pairs = dataclasses.replace(pairs, doc_ids=[*map(str, ids)], signals=signals)
    pairs = pairs.with_resources({JUDGED: judged_posts(pairs.texts)})
    values = features.table(pairs, [family], IDF).values
    np.testing.assert_array_equal(np.round(values, features.DECIMALS), values)
    # Nobody knows the judgments of an empty text.
    rows = [
        n
        for n, post in enumerate(pairs.post_index)
        if family != JUDGED or pairs.texts[post]
    ]
    varies = [
        name != "log_size" for name in found.names
    ]  # All lists are of the same size.
    assert (
        np.isfinite(values[rows]).all() and np.ptp(values[rows], axis=0)[varies].all()
    )
    order = random.permutation(len(pairs))
    again = features.table(pairs.take(order), [family], IDF).values
    np.testing.assert_array_equal(again, values[order])


def test_every_query_has_the_frequencies_of_its_collection() -> None:
    pairs, families = all_pairs(), ["overlap", "quality"]
    own = Idf.from_document_frequencies({"bbc": 9, "the": 5}, 10, "own")
    known = [{FREQUENCIES: own} if row % 2 else {} for row in range(len(pairs.queries))]
    found = features.table(
        dataclasses.replace(pairs, resources=known), families, IDF
    ).values
    expected = [features.table(pairs, families, idf).values for idf in (IDF, own)]
    is_own = (pairs.query_index % 2 == 1)[:, None]
    np.testing.assert_array_equal(found, np.where(is_own, *expected[::-1]))
    assert (expected[0] != expected[1]).any()


def test_every_query_has_the_space_of_its_collection() -> None:
    """Queries of collections with and without one in the same table."""
    pairs = all_pairs()
    spaces = [{ADAPTED: SPACE} if row % 2 else {} for row in range(len(pairs.queries))]
    pairs = dataclasses.replace(pairs, resources=spaces)
    found = features.table(pairs, ["meaning:adapted"], IDF).values
    np.testing.assert_array_equal(
        np.isnan(found).all(axis=1), pairs.query_index % 2 == 0
    )
    np.testing.assert_array_equal(
        np.isnan(found).any(axis=1), pairs.query_index % 2 == 0
    )
    rows = np.flatnonzero(pairs.query_index % 2)
    again = features.table(pairs.take(rows), ["meaning:adapted"], IDF).values
    np.testing.assert_array_equal(again, found[rows])
