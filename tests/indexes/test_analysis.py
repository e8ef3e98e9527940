"""Analyzers of languages, and searches by words of these languages."""

from pathlib import Path

import pytest

from tweetrerank.indexes import lucene_index
from tweetrerank.indexes.analysis import (
    ANALYZERS,
    STANDARD,
    analyze,
    analyzer,
    analyzer_name,
    searchable,
)
from tweetrerank.indexes.lucene_index import LuceneIndex
from tweetrerank.indexes.methods import BM25, Topic
from tweetrerank.indexes.posts import Post

GERMAN = "Die Häuser in der Stadt und auf dem Land sind nicht mehr zu haben."
JAPANESE = "東京タワーの高さは何メートルですか"
HINDI = "क्या आप"
RUSSIAN = "Как пройти в библиотеку?"
SERBIAN = "Дај ми то"
VIETNAMESE = "Tôi không có gì cho bạn"


@pytest.mark.parametrize(
    ("language", "texts", "expected"),
    [
        # The posts' language is specified.
        ("de", [JAPANESE], "german"),
        ("he", [GERMAN], STANDARD),
        # It is to be determined.
        ("und", [GERMAN], "german"),
        ("und", [RUSSIAN], "russian"),
        ("und", [], "english"),
        # It is determined and lacks an analyzer.
        ("und", [VIETNAMESE], STANDARD),
        ("und", [SERBIAN], STANDARD),
        # Only the script counts.
        (None, [GERMAN], "english"),
        (None, [JAPANESE], "cjk"),
        (None, [HINDI], "hindi"),
        (None, ["123 !!"], "english"),
    ],
)
def test_analyzers_of_languages(
    language: str | None, texts: list[str], expected: str
) -> None:
    assert analyzer_name(language, texts) == expected


@pytest.mark.parametrize(
    ("language", "text", "other_text", "query"),
    [
        # Umlauts and stems
        ("de", "Die Größe der Häuser", "Ein Haufen", "großes Haus"),
        # Pairs of characters
        ("ja", "東京タワーの高さ", "京都の寺", "タワー"),
        ("th", "ภาษาไทยน่ารัก", "แมวดำ", "ภาษาไทย"),
        # A combining accent
        ("en", "the cafe\u0301s", "a hose", "café"),
    ],
)
def test_posts_are_found_by_words_of_their_language(
    tmp_path: Path, language: str, text: str, other_text: str, query: str
) -> None:
    posts = [Post("0", text), Post("1", other_text)]
    lucene_index.build(posts, tmp_path / "index", language=language)
    with LuceneIndex.open(tmp_path / "index") as index:
        assert index.manifest.analyzer == ANALYZERS[language]
        run = index.search([Topic("q", query)], BM25())
    assert list(run["q"]) == ["0"]


@pytest.mark.parametrize("name", sorted({*ANALYZERS.values(), STANDARD}))
def test_every_analyzer_exists(name: str) -> None:
    assert list(analyze("x 2011", analyzer(name))) == ["x", "2011"]


def test_thai_words_are_pairs_of_characters() -> None:
    assert searchable("ไ\u200bทย abc") == " ไท ทย  abc"
