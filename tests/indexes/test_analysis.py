"""Analyzers by language, and the language of posts that name none."""

import pytest

import indexes
from indexes.analysis import ANALYZERS, STANDARD, analyze, analyzer, analyzer_name, searchable
from indexes.manifest import IndexManifest
from indexes.methods import BM25, Topic
from indexes.posts import Post

GERMAN = ["Die Häuser in der Stadt und auf dem Land sind nicht mehr zu haben."]
JAPANESE = ["東京タワーの高さは何メートルですか"]


@pytest.mark.parametrize(
    ("language", "texts", "expected"),
    [
        ("de", JAPANESE, "german"),
        ("he", GERMAN, STANDARD),
        ("und", GERMAN, "german"),
        (None, GERMAN, "english"),  # Only the script is read.
        (None, JAPANESE, "cjk"),
        ("und", ["Как пройти в библиотеку?"], "russian"),
        (None, ["क्या आप"], "hindi"),
        (None, ["123 !!"], "english"),
        ("und", [], "english"),
    ],
)
def test_analyzers_of_languages(language: str | None, texts: list[str], expected: str) -> None:
    assert analyzer_name(language, texts) == expected


@pytest.mark.parametrize(
    ("language", "posts", "query"),
    [
        ("de", ["Die Größe der Häuser", "Ein Haufen"], "großes Haus"),
        ("ja", ["東京タワーの高さ", "京都の寺"], "タワー"),
        ("th", ["ภาษาไทยน่ารัก", "แมวดำ"], "ภาษาไทย"),
        ("en", ["the houses", "a hose"], "house"),
    ],
)
def test_posts_are_found_by_words_of_their_language(
    language: str, posts: list[str], query: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("indexes") / "index"
    indexes.build([Post(str(n), t) for n, t in enumerate(posts)], folder, language=language)
    assert IndexManifest.read(folder).analyzer == ANALYZERS[language]
    with indexes.open_index(folder) as index:
        assert list(index.search([Topic("1", query)], BM25())["1"]) == ["0"]


def test_every_analyzer_is_there() -> None:
    for name in {*ANALYZERS.values(), STANDARD}:
        assert list(analyze("x 2011", analyzer(name))) == ["x", "2011"]
    assert searchable("ไทย abc") == " ไท ทย  abc"
