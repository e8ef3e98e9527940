"""Text analysis by language: one of Lucene's analyzers, which engines have by name.

English has Anserini's analyzer (lower case, English stop words, Porter stemmer).
Chinese, Japanese and Korean are cut into pairs of adjacent characters. In a local index
so are Thai, Lao, Khmer and Burmese, for which Java lacks a dictionary. The words of any
other language are in lower case without stems.
"""

import re
from collections import Counter
from collections.abc import Iterable
from itertools import islice, pairwise
from typing import Any
from unicodedata import name as name_of
from unicodedata import normalize

from tweetrerank.indexes.jvm import java_class
from tweetrerank.indexes.records import well_formed

ENGLISH = "english"
STANDARD = "standard"  # Analyzer of languages without one
UNDETERMINED = "und"  # Language code of posts whose language is not known


ANALYZERS = {
    "ar": "arabic",
    "bg": "bulgarian",
    "bn": "bengali",
    "ca": "catalan",
    "cs": "czech",
    "da": "danish",
    "de": "german",
    "el": "greek",
    "en": "english",
    "es": "spanish",
    "fa": "persian",
    "fi": "finnish",
    "fr": "french",
    "hi": "hindi",
    "hu": "hungarian",
    "id": "indonesian",
    "it": "italian",
    "ja": "cjk",
    "ko": "cjk",
    "lt": "lithuanian",
    "lv": "latvian",
    "ms": "indonesian",
    "nb": "norwegian",
    "nl": "dutch",
    "pt": "portuguese",
    "ro": "romanian",
    "ru": "russian",
    "sv": "swedish",
    "th": "thai",
    "tr": "turkish",
    "zh": "cjk",
}
"""Language code -> name of its analyzer in OpenSearch and Elasticsearch."""

_SCRIPTS = {
    "CJK": "zh",
    "HIRAGANA": "ja",
    "KATAKANA": "ja",
    "HANGUL": "ko",
    "THAI": "th",
    "ARABIC": "ar",
    "DEVANAGARI": "hi",
    "BENGALI": "bn",
    "GREEK": "el",
    "CYRILLIC": "ru",
    "LATIN": "en",
}
"""First word of a letter's name in Unicode -> the commonest language of the script."""

_PACKAGES = {
    **{name: code for code, name in ANALYZERS.items()},
    "czech": "cz",
    "norwegian": "no",
    "indonesian": "id",
    "cjk": "cjk",
}
"""Name of an analyzer -> its package in Lucene, in most cases the language's code."""

_SAMPLE = 1000  # Posts from which a language is determined

_COMMON = 200
"""Commonest words of a language, which separate it from others of its script."""

_LEAST = 0.04
"""Smallest share of these words among all words that determines a language. Set by hand
on names and keywords of emoji in 110 languages; English posts have 20 % and more."""


def analyzer_name(language: str | None, texts: Iterable[str]) -> str:
    """Return the name of the analyzer of posts in a language.

    ``und`` determines the language from the first of the posts' texts, None from their
    script alone.
    """
    if language in (None, UNDETERMINED):
        sample = " ".join(islice(texts, _SAMPLE)).lower()
        script_language = _by_script(sample)
        if language is None or script_language is None:
            language = script_language
        else:
            language = _by_words(sample, script_language)
    return ANALYZERS.get(language or "", STANDARD)


def analyzer(name: str = ENGLISH) -> Any:
    """Return Lucene's analyzer of this name."""
    if name == ENGLISH:
        return java_class(
            "io.anserini.analysis.DefaultEnglishAnalyzer"
        ).newDefaultInstance()
    if name == "thai":
        name = STANDARD  # Its words are pairs; see `searchable`.
    package = _PACKAGES.get(name, name)
    prefix = name.upper() if name == "cjk" else name.capitalize()
    return java_class(f"org.apache.lucene.analysis.{package}.{prefix}Analyzer")()


def _by_script(sample: str) -> str | None:
    """Return the commonest language of the script of most letters, if it is listed."""
    counts: Counter[str] = Counter()
    for letter, times in Counter(filter(str.isalpha, sample)).items():
        counts[re.split("[ -]", name_of(letter, ""))[0]] += times
    if not counts:
        return "en"
    # Kana separate Japanese from Chinese.
    if (counts["HIRAGANA"] + counts["KATAKANA"]) * 10 > counts["CJK"]:
        counts["HIRAGANA"] += counts["CJK"]
    return _SCRIPTS.get(counts.most_common(1)[0][0])


def _by_words(sample: str, first: str) -> str | None:
    """Return the language of ``first``'s script with the most frequent common words.

    It may lack an analyzer. None if there are several such languages, and the common
    words of all are rare.
    """
    from wordfreq import available_languages, get_frequency_dict
    from wordfreq.transliterate import SR_LATN_TABLE

    words = Counter(re.findall(r"\w+", sample))
    counts = {first: 0}
    for language in available_languages():
        common = list(islice(get_frequency_dict(language, "small"), _COMMON))
        if language == first or _by_script(" ".join(common)) == first:
            counts[language] = sum(words[word] for word in common)
        elif language == "sh" and first == "ru":
            # The list of Serbian is in Latin letters.
            latin = Counter(re.findall(r"\w+", sample.translate(SR_LATN_TABLE)))
            counts[language] = sum(latin[word] for word in common)
    best = max(counts, key=counts.__getitem__)
    is_rare = counts[best] < _LEAST * words.total()
    return None if len(counts) > 1 and is_rare else best


def analyze(text: str, with_analyzer: Any) -> Any:
    """Return the terms of a text, as a Java list."""
    return java_class("io.anserini.analysis.AnalyzerUtils").analyze(
        with_analyzer, searchable(text)
    )


def searchable(text: str) -> str:
    """Return a text as it is analyzed: in normal form C, with words made of pairs.

    Pairs of characters, separated by blanks, stand in for the words of scripts without
    spaces, in which invisible blanks are optional.
    """
    text = well_formed(text)
    if text.isascii():
        return text
    import regex

    letter = r"[\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]"
    pattern = rf"{letter}+(?:\u200b+{letter}+)*"
    return str(regex.sub(pattern, _character_pairs, normalize("NFC", text)))


def _character_pairs(run: Any) -> str:
    """Return the pairs of adjacent characters of a match, each with its marks."""
    import regex

    characters = regex.findall(r"\X", run.group().replace("\u200b", ""))
    pairs = " ".join(map("".join, pairwise(characters)))
    return f" {pairs or ''.join(characters)} "
