"""Matches of MP-HCNN between a query and a post, and their places in the texts."""

from typing import Any

import numpy as np
import pytest
import torch
from helpers.reranking_samples import AWKWARD, POSTS, QUERIES, encoder, small_model
from hypothesis import given, settings
from hypothesis import strategies as st

from tweetrerank.rerankers.networks.inputs import Tokenized
from tweetrerank.rerankers.networks.models._mp_hcnn_matches import Matches, find_matches
from tweetrerank.rerankers.pairs import Pairs
from tweetrerank.rerankers.text.spans import find_url, find_words, trigram_spans
from tweetrerank.rerankers.text.words import character_trigrams, url_text, words

TEXTS = [text for text, _ in POSTS]
URLS = [url for _, url in POSTS]

# Marks, names, links, brackets, styles, and letters that change length
AWKWARD_LETTERS = """
a Z ooo é e\u0301 İ ß ﬁ ½ Ⓗ ™ Σ … _ ' ’ n't 's @ @bob # http://t.co/x www. -LRB- \\
\U0001f602 \u200d ع ガ 한 7 %C3%BC %20 % / ?
"""
letters = st.sampled_from([*AWKWARD_LETTERS.split(), " ", "\n", "\0"])
pieces = st.lists(letters).map("".join)
texts = st.one_of(st.text(), pieces, st.sampled_from(list(AWKWARD.values())))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            "RT @bbc: Cuts http://t.co/x #BBC!",
            {"rt": "RT", "cuts": "Cuts", "bbc": "BBC"},
            id="names and links are no words",
        ),
        pytest.param(
            "sooooo gooood",
            {"soo": "sooooo", "good": "gooood"},
            id="elongations are shortened",
        ),
        pytest.param(
            "café MÜNCHEN",
            {"cafe": "café", "munchen": "MÜNCHEN"},
            id="accents are removed",
        ),
        pytest.param(
            "\U0001f602lol\U0001f602 \U0001f1ea\U0001f1ec ok",
            {"lol": "lol", "ok": "ok"},
            id="emoji take two code units",
        ),
        pytest.param(
            "ﬁne ½ İstanbul",
            {"fine": "ﬁne", "1": "½", "2": "½", "istanbul": "İstanbul"},
            id="a letter becomes two",
        ),
        pytest.param(
            "don't a_b it’s",
            {
                "do": "do",
                "n't": "n't",
                "a": "a",
                "b": "b",
                "it": "it",
                "s": "s",
            },
            id="words are cut",
        ),
        pytest.param(
            "\U0001d407\U0001d422!",
            {"hi": "\U0001d407\U0001d422"},
            id="mathematical letters",
        ),
    ],
)
def test_places_of_words(text: str, expected: dict[str, str]) -> None:
    written = {word.text: text[slice(*word.place)] for word in find_words(text)}
    assert written == expected


@settings(max_examples=40, deadline=None)
@given(texts)
def test_the_words_found_are_the_words_read(text: str) -> None:
    traced = find_words(text)
    assert [word.text for word in traced] == words(text)
    for word in traced:
        assert len(word.spans) == len(word.text)
        assert all(0 <= start <= end <= len(text) for start, end in word.spans)
        assert list(word.spans) == sorted(word.spans)
        trigrams = trigram_spans(word.spans, word.text)
        assert len(trigrams) == len(character_trigrams([word.text]).values)


@settings(max_examples=80, deadline=None)
@given(texts.map(lambda text: f"http://{text}") | texts)
def test_the_letters_of_a_url_are_those_read(url: str) -> None:
    letters, spans = find_url(url)
    assert (letters or "<url>") == url_text(url)
    assert len(spans) == len(letters)
    trigrams = character_trigrams([letters]).values if letters else []
    assert len(trigram_spans(spans, letters)) == len(trigrams)


def test_places_in_a_url() -> None:
    url = " HTTP://www.Example.com/M%C3%BCnchen%20ja?q=1"
    letters, spans = find_url(url)
    assert letters == "example.com/münchen ja"
    written = [url[start:end] for start, end in spans]
    assert written[:7] == list("Example")
    assert written[letters.index("ü")] == "%C3%BC"
    assert written[letters.index(" ")] == "%20"


@pytest.mark.parametrize("url", ["", "http://"])
def test_an_empty_url_has_no_places(url: str) -> None:
    assert find_url(url) == ("", [])


@pytest.mark.parametrize(
    ("configuration", "changes"),
    [
        ("robust", {}),
        ("robust", {"similarity": "dot", "use_url_trigrams": False}),
        ("paper", {}),
        ("paper", {"normalization": "none"}),
    ],
)
def test_matches_are_those_the_model_pools(
    configuration: str,
    changes: dict[str, Any],
) -> None:
    # The paper scales features by IDF.
    unweighted = changes | {"idf_weights": False}
    model: Any = small_model("mp_hcnn", configuration, **unweighted)
    rows = np.arange(len(TEXTS))
    pairs = Pairs([QUERIES[0]], TEXTS, URLS, np.zeros_like(rows), rows)
    tokenized = Tokenized.from_pairs(pairs, encoder(), model)
    with torch.no_grad():
        pooled = tokenized.interactions_of(model, rows)
    matched = find_matches(model, encoder(), QUERIES[0], TEXTS, URLS)
    assert set(matched[0].matches) == set(pooled) - {"url_presence"}
    for row, pair in enumerate(matched):
        for name, levels in pair.matches.items():
            assert len(levels) == model.config.depth + 1
            for depth, level in enumerate(levels):
                maxima = pooled[name][row, :, 2 * depth].numpy()
                np.testing.assert_allclose(level.best(), maxima, atol=1e-5)


SIMILARITY = np.array([[0.1, 0.9, 0.2, 0.0], [0.3, 0.1, 0.1, 0.5]], np.float32)


@pytest.mark.parametrize(
    ("length", "expected"),
    [
        pytest.param(1, [0.3, 0.9, 0.2, 0.5], id="words"),
        # The phrase at 1 is of the words 1 and 2; the last one is of the last word.
        pytest.param(2, [0.3, 0.9, 0.9, 0.5], id="phrases of two words"),
    ],
)
def test_a_term_has_the_shade_of_its_best_phrase(
    length: int,
    expected: list[float],
) -> None:
    assert Matches(SIMILARITY, length).post_terms() == pytest.approx(expected)


def test_an_empty_post_has_no_matches() -> None:
    empty = Matches(np.zeros((2, 0), np.float32), 1)
    assert empty.best().tolist() == [0, 0]
    assert empty.post_terms().tolist() == []


def test_an_empty_query_matches_no_term() -> None:
    empty = Matches(np.zeros((0, 3), np.float32), 1)
    assert empty.post_terms().tolist() == [0, 0, 0]
