"""Matches of MP-HCNN between a query and a post, and their places in the original texts."""

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

TEXTS, URLS = ([post[part] for post in POSTS] for part in (0, 1))

# What is hard to keep apart: marks, names, links, brackets, styles, and letters that change length.
AWKWARD_LETTERS = """
a Z ooo é e\u0301 İ ß ﬁ ½ Ⓗ ™ Σ … _ ' ’ n't 's @ @bob # http://t.co/x www. -LRB- \\ \U0001f602
\u200d ع ガ 한 7 %C3%BC %20 % / ?
"""
pieces = st.lists(st.sampled_from([*AWKWARD_LETTERS.split(), " ", "\n", "\0"])).map(
    "".join
)
texts = st.one_of(st.text(), pieces, st.sampled_from([*AWKWARD.values()]))


def test_words_are_found_where_they_were_written() -> None:
    for text, expected in (
        (
            "RT @bbc: Cuts http://t.co/x #BBC!",
            {"rt": "RT", "cuts": "Cuts", "bbc": "BBC"},
        ),
        ("sooooo gooood", {"soo": "sooooo", "good": "gooood"}),
        ("café MÜNCHEN", {"cafe": "café", "munchen": "MÜNCHEN"}),
        ("\U0001f602lol\U0001f602 \U0001f1ea\U0001f1ec ok", {"lol": "lol", "ok": "ok"}),
        ("ﬁne ½ İstanbul", {"fine": "ﬁne", "1": "½", "2": "½", "istanbul": "İstanbul"}),
        ("don't a_b it’s", {key: key for key in ("do", "n't", "a", "b", "it", "s")}),
        ("\U0001d407\U0001d422!", {"hi": "\U0001d407\U0001d422"}),
    ):
        assert {
            word.text: text[slice(*word.place)] for word in find_words(text)
        } == expected


@settings(max_examples=40, deadline=None)
@given(texts)
def test_the_words_found_are_the_words_read(text: str) -> None:
    found = find_words(text)
    assert [word.text for word in found] == words(text)
    for word in found:
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
    assert [written[letters.index(letter)] for letter in "ü "] == ["%C3%BC", "%20"]
    assert find_url("") == find_url("http://") == ("", [])


CHANGES = {"similarity": "dot", "use_url_trigrams": False}  # Of "robust"


@pytest.mark.parametrize(
    ("configuration", "changes"),
    [
        ("robust", {}),
        ("paper", {}),
        ("paper", {"normalization": "none"}),
        ("robust", CHANGES),
    ],
)
def test_matches_are_those_the_model_pools(
    configuration: str, changes: dict[str, Any]
) -> None:
    unweighted = {
        **changes,
        "idf_weights": False,
    }  # The paper's features are scaled by IDF.
    model: Any = small_model("mp_hcnn", configuration, **unweighted)
    rows = np.arange(len(TEXTS))
    pairs = Pairs([QUERIES[0]], TEXTS, URLS, np.zeros_like(rows), rows)
    with torch.no_grad():
        pooled = Tokenized.from_pairs(pairs, encoder(), model).compared(model, rows)
    found = find_matches(model, encoder(), QUERIES[0], TEXTS, URLS)
    assert set(found[0].matches) == set(pooled) - {"url_presence"}
    for row, matches_of_post in enumerate(found):
        for name, matches in matches_of_post.matches.items():
            assert len(matches) == model.config.depth + 1
            for level, of_level in enumerate(matches):
                best = pooled[name][row, :, 2 * level].numpy()
                np.testing.assert_allclose(of_level.best(), best, atol=1e-5)


def test_a_term_has_the_shade_of_its_best_phrase() -> None:
    similarity = np.array([[0.1, 0.9, 0.2, 0.0], [0.3, 0.1, 0.1, 0.5]], np.float32)
    word, phrase = Matches(similarity, 1), Matches(similarity, 2)
    assert word.post_terms() == pytest.approx([0.3, 0.9, 0.2, 0.5])
    # The phrase at 1 is of the words 1 and 2; the last one is of the last word alone.
    assert phrase.post_terms() == pytest.approx([0.3, 0.9, 0.9, 0.5])
    empty = Matches(np.zeros((2, 0), np.float32), 1)
    assert (empty.best().tolist(), empty.post_terms().tolist()) == ([0, 0], [])
    assert Matches(np.zeros((0, 3), np.float32), 1).post_terms().tolist() == [0, 0, 0]
