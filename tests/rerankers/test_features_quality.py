"""The family ``quality`` against naive counts."""

import re

import pytest
from helpers.feature_lists import IDF, computed, of_texts, random_list

from rerankers.features._tables import PERSONAL_WORDS
from rerankers.text.words import MAX_CHARACTERS, STOP_WORDS, hashtags, words

pytestmark = pytest.mark.usefixtures("any_list_is_enough")


def share(found: list[bool]) -> float:
    return sum(found) / len(found) if found else 0.0


def expected(text: str) -> dict[str, float]:
    text = text[:MAX_CHARACTERS]
    tokens = words(text)
    idf = [float(IDF.weights([word])[0]) for word in tokens]
    return {
        "words": len(tokens),
        "characters": len(text),
        "hashtags": len(hashtags(text)),
        "is_retweet": float(bool(re.match(r"(?i)\s*rt\b", text))),
        "exclamation_marks": text.count("!"),
        "question_marks": text.count("?"),
        "other_scripts": share([not character.isascii() for character in text]),
        "digits": share([character in "0123456789" for character in text]),
        "is_elongated": float(
            bool(re.search(r"([a-zA-Z])\1\1", re.sub("[A-Z]", lambda m: m[0].lower(), text)))
        ),
        "unknown_words": share([weight == 1.0 for weight in idf]),
        "stop_words": share([word in STOP_WORDS for word in tokens]),
        "mean_idf": sum(idf) / len(idf) if idf else 0.0,
        "personal_words": sum(word in PERSONAL_WORDS for word in tokens),
    }


def test_features_of_random_lists() -> None:
    candidates = random_list("bbc world service cuts", 100)
    found = computed("quality", candidates)
    for row, text in enumerate(candidates.texts):
        for name, value in expected(text).items():
            assert found[name][row] == pytest.approx(value, rel=1e-6), (name, text[:80])


def test_repeated_letters_do_not_cross_posts() -> None:
    found = computed("quality", of_texts("", "so", "oo", "SoOo", "!!!", "111", "ooo", "www.x.org"))
    assert found["is_elongated"] == [0, 0, 1, 0, 0, 1, 1]
    assert found["exclamation_marks"] == [0, 0, 0, 3, 0, 0, 0]
    assert found["digits"] == [0, 0, 0, 0, 1, 0, 0]
