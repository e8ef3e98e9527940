"""Families of features against naive computations, and the table of features."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from helpers.reranking_samples import AWKWARD, POSTS, QUERIES, all_pairs, encoder, small_model

from rerankers import features
from rerankers.errors import RerankerError
from rerankers.features.judged import JUDGED, JUDGMENTS, JudgedPosts
from rerankers.networks.tokenized import Tokenized
from rerankers.pairs import FIRST_STAGE, PRIOR, Pairs
from rerankers.text.spaces import general
from rerankers.text.words import STOP_WORDS, hashtags, url_text, words

IDF = encoder().idf


def table(pairs: Pairs, *families: str) -> dict[str, list[float]]:
    """Feature -> its values."""
    found = features.table(pairs, families, IDF)
    assert found.values.dtype == np.float32
    assert found.values.shape == (len(pairs), len(found.names))
    return dict(zip(found.names, found.values.T.tolist(), strict=True))


def with_signals(pairs: Pairs, **signals: np.ndarray) -> Pairs:
    return dataclasses.replace(pairs, signals=signals)


def texts_of(pairs: Pairs) -> list[tuple[str, str, str]]:
    return [
        (pairs.queries[query], pairs.texts[post], pairs.urls[post])
        for query, post in zip(pairs.query_index, pairs.post_index, strict=True)
    ]


def lists(texts: list[str], urls: list[str] | None = None, query: str = "bbc cuts") -> Pairs:
    return all_pairs([query], list(zip(texts, urls or [""] * len(texts), strict=True)))


def test_overlap_is_that_of_sets() -> None:
    pairs = all_pairs([*QUERIES, "the water in the water", ""])
    found = table(pairs, "overlap")
    for row, (query, text, _) in enumerate(texts_of(pairs)):
        common = set(words(query)) & set(words(text))
        content = {word for word in common if word not in STOP_WORDS}
        expected = {
            "words": len(common),
            "idf": sum(float(IDF.weights([word])[0]) for word in common),
            "content_words": len(content),
            "content_idf": sum(float(IDF.weights([word])[0]) for word in content),
        }
        for name, value in expected.items():
            assert found[f"overlap.{name}"][row] == pytest.approx(value, rel=1e-5), (query, text)
    assert found["overlap.words"] != found["overlap.content_words"]


def test_query_words_are_found_in_links() -> None:
    pairs = all_pairs()
    found = table(pairs, "links")
    for row, (query, _, url) in enumerate(texts_of(pairs)):
        terms = set(words(query))
        inside = sum(1 for term in terms if url and term in url_text(url))
        assert found["links.has_url"][row] == (1.0 if url else 0.0)
        assert found["links.query_words"][row] == pytest.approx(inside / len(terms))
    assert {0.0, 1.0} < set(found["links.query_words"])


def test_a_word_across_the_border_of_two_links_is_in_neither() -> None:
    found = table(
        lists(["x"] * 3, ["http://a.org/bb", "http://c.org/cu", "http://cu.ts/é"]), "links"
    )
    assert found["links.query_words"] == [0.0, 0.0, 0.0]
    found = table(
        lists(["x"] * 2, ["http://a.org/bbcbbc", "http://cuts.org"], "bbc cuts é"), "links"
    )
    assert found["links.query_words"] == pytest.approx([1 / 3, 1 / 3])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("RT @bbc: World Service #bbc #Cuts!", ["bbc", "Cuts"]),
        ("as the collections have it ## bbc ## smile_safe", ["bbc", "smile_safe"]),
        ("we are #1, item # 2, C# is no tag, nor is &#39; or a#b, ##  34m", []),
        ("#g20 #2011elections #café", ["g20", "2011elections", "café"]),
        ("", []),
    ],
)
def test_hashtags_of_a_text(text: str, expected: list[str]) -> None:
    assert hashtags(text) == expected


def test_hashtags_match_by_their_words() -> None:
    texts = ["bbc cuts", "#bbc", "## bbc ## Cuts", "#bbcworld", "# bbc_cuts", "#BBC bbc", "##  9m"]
    found = table(lists(texts), "hashtags")
    assert found["hashtags.has_hashtag"] == [0, 1, 1, 1, 1, 1, 0]
    assert found["hashtags.query_words"] == [0, 0.5, 1, 0, 1, 0.5, 0]


def test_first_stage_scores_are_normalised_by_topic() -> None:
    """Candidates of two queries are mixed; equal scores share the best rank."""
    scores = np.array([3.0, -1.0, 5.0, 3.0, 9.0, 9.0], dtype=np.float32)
    query_index = np.array([0, 1, 0, 0, 1, 0])
    posts = np.arange(6)
    pairs = Pairs(["a", "b"], list("uvwxyz"), [""] * 6, query_index, posts, {FIRST_STAGE: scores})
    found = table(pairs, "first_stage")
    assert found["first_stage.score"] == scores.tolist()
    for row in range(6):
        mine = [s for s, q in zip(scores, query_index, strict=True) if q == query_index[row]]
        minmax = (scores[row] - min(mine)) / (max(mine) - min(mine))
        rank = 1 + sum(1 for other in mine if other > scores[row])
        assert found["first_stage.minmax"][row] == pytest.approx(minmax)
        assert found["first_stage.reciprocal_rank"][row] == pytest.approx(1 / rank)


FAMILIES = [name.replace("meaning:SPACE", "meaning:general") for name in features.families()]


def judged_posts(texts: Sequence[str]) -> JudgedPosts:
    """Posts that were each judged relevant and not, all but the first for a topic more."""
    known = {str(row): text for row, text in enumerate(texts)}
    most = list(known)[1:]
    topics = [("storm", known, 1), ("a late bus", known, 0), ("lunch", most, 1), ("train", most, 0)]
    return JudgedPosts.of([(t, dict.fromkeys(of, grade)) for t, of, grade in topics], known)


def test_what_judgments_of_other_topics_say(tmp_path: Path) -> None:
    """A post is known by its text; a topic in the query's own words says nothing."""
    texts = {"a": "storm over the coast", "b": "bbc cuts", "c": "lunch"}
    topics = [("storms", {"a": 1, "b": 0}), ("heavy storm", {"a": 2}), ("Storm!", {"c": 1})]
    (tmp_path / JUDGMENTS).write_bytes(JudgedPosts.of(topics, texts | {"d": ""}).content())
    known = JudgedPosts.read(tmp_path / JUDGMENTS)
    pairs = Pairs(["storm"], [*texts.values(), "new"], [""] * 4, np.zeros(4, int), np.arange(4))
    found = table(pairs.with_resources({JUDGED: known}), JUDGED)
    assert found["judged.relevant"] == [2, 0, 0, 0]
    assert found["judged.other"] == [0, 1, 0, 0]
    near, *others = found["judged.relevant_cosine"]
    assert 0 < near <= 1 and np.isnan(others).all()
    assert found["judged.other_cosine"][1] == pytest.approx(cosine("storm", "storms"), abs=1e-6)
    assert np.isnan(table(pairs, JUDGED)["judged.relevant"]).all()
    (tmp_path / JUDGMENTS).write_text("[5]")
    with pytest.raises(RerankerError, match="no judgments that can be read"):
        JudgedPosts.read(tmp_path / JUDGMENTS)


def cosine(one: str, other: str) -> float:
    first, second = general().vectors([one, other])
    return float(first @ second / np.linalg.norm(first) / np.linalg.norm(second))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_finite_and_independent_of_the_order_of_pairs(family: str) -> None:
    found = features.find(family)
    assert found.NAMES and set(found.SIGNALS) <= {FIRST_STAGE, PRIOR, "NAME"}
    posts = [*POSTS, *((text, text) for text in AWKWARD.values())]
    posts.append(("RT @a: " + POSTS[1][0], ""))
    pairs = all_pairs([*QUERIES, *AWKWARD.values()], posts)
    random = np.random.default_rng(0)
    ids = random.integers(2**54, 2**54 + 2**46, size=len(posts))
    pairs = dataclasses.replace(pairs, doc_ids=[str(doc_id) for doc_id in ids])
    signals = {name: random.random(len(pairs), dtype=np.float32) for name in found.SIGNALS}
    pairs = with_signals(pairs, **signals).with_resources({JUDGED: judged_posts(pairs.texts)})
    values = features.table(pairs, [family], IDF).values
    # Nobody knows the judgments of an empty text.
    rows = [n for n, post in enumerate(pairs.post_index) if family != JUDGED or pairs.texts[post]]
    assert np.isfinite(values[rows]).all() and np.ptp(values[rows], axis=0).all()
    order = random.permutation(len(pairs))
    shuffled = dataclasses.replace(
        pairs,
        query_index=pairs.query_index[order],
        post_index=pairs.post_index[order],
        signals={name: value[order] for name, value in signals.items()},
    )
    again = features.table(shuffled, [family], IDF).values
    np.testing.assert_array_equal(again, values[order])


def test_corrupted_pairs_have_no_score_in_a_run() -> None:
    model = small_model("sm_cnn", "static")
    model.feature_families = ("overlap", "first_stage")
    tokenized = Tokenized.from_pairs(all_pairs(), encoder(), model)
    with pytest.raises(RerankerError, match=r"features first_stage; train with another `sampling`"):
        tokenized.with_pairs(np.array([0]), np.array([0]))
