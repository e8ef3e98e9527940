"""The family ``phrases`` against naive searches."""

import itertools

import pytest
from helpers.feature_lists import computed, of_texts, random_list

from rerankers.features._tables import stem
from rerankers.text.words import STOP_WORDS, words


def trigrams(text: str) -> set[str]:
    line = f" {' '.join(words(text))} "
    return {line[i : i + 3] for i in range(len(line) - 2)}


def shortest_cover(tokens: list[str], wanted: set[str]) -> int:
    spans = itertools.combinations(range(len(tokens) + 1), 2)
    return min(end - begin for begin, end in spans if wanted <= set(tokens[begin:end]))


def expected(query: str, text: str) -> dict[str, float]:
    asked, tokens = [stem(word) for word in words(query)], [stem(word) for word in words(text)]
    content = {stem(word) for word in words(query) if word not in STOP_WORDS} or set(asked)
    pairs, found = set(itertools.pairwise(asked)), content & set(tokens)
    runs = [tokens[i : i + len(asked)] for i in range(len(tokens))] if asked else []
    places = [place for place, token in enumerate(tokens) if token in content]
    ours, theirs = trigrams(query), trigrams(text)
    return {
        "pairs": len(pairs & set(itertools.pairwise(tokens))) / max(1, len(pairs)),
        "whole_query": float(asked in runs),
        "proximity": len(found) / shortest_cover(tokens, found) if found else 0.0,
        "first_place": 1 / (1 + places[0]) if places else 0.0,
        "trigram_jaccard": len(ours & theirs) / max(1, len(ours | theirs)),
        "trigram_share": len(ours & theirs) / max(1, len(ours)),
    }


@pytest.mark.parametrize(
    "query",
    ["bbc world service cuts", "the", "", "cut cut cuts", "is the water in egypt"],
)
def test_features_of_random_lists(query: str) -> None:
    candidates = random_list(query, 80, seed=len(query))
    short = [text for text in candidates.texts if len(words(text)) < 40]
    found = computed("phrases", of_texts(query, *short))
    for row, text in enumerate(short):
        for name, value in expected(query, text).items():
            assert found[name][row] == pytest.approx(value, rel=1e-6), (name, text)


def test_phrases_do_not_cross_posts() -> None:
    found = computed(
        "phrases", of_texts("bbc world cuts", "bbc", "world", "cuts bbc", "world cuts")
    )
    assert found["whole_query"] == [0, 0, 0, 0]
    assert found["pairs"] == [0, 0, 0, 0.5]
