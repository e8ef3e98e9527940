"""Analyze texts by language, with Lucene's analyzers.

Search engines have the same analyzers under the same names. English is analyzed as by
Anserini: in lower case, without English stop words, and with the Porter stemmer.
Chinese, Japanese and Korean are cut into pairs of adjacent characters. A local index
does the same with Thai, Lao, Khmer and Burmese, because Java lacks a dictionary for
them. For a language without an analyzer, words are put into lower case and not stemmed.
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
STANDARD = "standard"  # Analyzer for languages that have none of their own
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
"""Script -> its commonest language. A script is the first word of a letter's name."""

_PACKAGES = {
    **{name: code for code, name in ANALYZERS.items()},
    "czech": "cz",
    "norwegian": "no",
    "indonesian": "id",
    "cjk": "cjk",
}
"""Name of an analyzer -> its package in Lucene, which is mostly the language code."""

_SAMPLE = 1000  # Number of posts from which a language is determined

_COMMON = 200
"""Number of a language's commonest words. They tell it from others of its script."""

_LEAST = 0.04
"""Smallest share of the common words among all words that determines a language.

It was set by hand on the names and keywords of emoji in 110 languages. In English posts
the share is 20 % or more.
"""


def analyzer_name(language: str | None, texts: Iterable[str]) -> str:
    """Return the name of the analyzer for posts in a language.

    If the language is ``und``, it is determined from the words of the first 1,000
    texts. If it is None, only the script of these texts counts. The result is
    :data:`STANDARD` if the language has no analyzer or cannot be determined.
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
    """Return Lucene's analyzer with this name, as an object of Java."""
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
    """Return the commonest language of the script that most letters belong to.

    The result is "en" for a text without letters, and None for a script that is not in
    :data:`_SCRIPTS`.
    """
    counts: Counter[str] = Counter()
    for letter, times in Counter(filter(str.isalpha, sample)).items():
        counts[re.split("[ -]", name_of(letter, ""))[0]] += times
    if not counts:
        return "en"
    # Kana distinguish Japanese from Chinese, because both use Chinese characters.
    if (counts["HIRAGANA"] + counts["KATAKANA"]) * 10 > counts["CJK"]:
        counts["HIRAGANA"] += counts["CJK"]
    return _SCRIPTS.get(counts.most_common(1)[0][0])


def _by_words(sample: str, first: str) -> str | None:
    """Return the language whose commonest words are most frequent in a sample.

    ``first`` is the commonest language of the sample's script. The languages compared
    are those of the same script. The result may be a language without an analyzer. It
    is None if several languages were compared and the common words of all are rare.
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
            # wordfreq lists Serbian words in Latin letters.
            latin = Counter(re.findall(r"\w+", sample.translate(SR_LATN_TABLE)))
            counts[language] = sum(latin[word] for word in common)
    best = max(counts, key=counts.__getitem__)
    is_rare = counts[best] < _LEAST * words.total()
    return None if len(counts) > 1 and is_rare else best


def analyze(text: str, with_analyzer: Any) -> Any:
    """Return the terms of a text as a Java list. ``with_analyzer`` is a Java object."""
    return java_class("io.anserini.analysis.AnalyzerUtils").analyze(
        with_analyzer, searchable(text)
    )


def searchable(text: str) -> str:
    """Return a text in the form that is passed to an analyzer.

    The text is in Unicode's normal form C, without unpaired surrogates. Thai, Lao,
    Khmer and Burmese are written without spaces between words. Their characters are
    replaced by pairs of adjacent characters, separated by blanks. Zero-width spaces,
    which may separate words of these scripts, are ignored.
    """
    text = well_formed(text)
    if text.isascii():
        return text
    import regex

    letter = r"[\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]"
    pattern = rf"{letter}+(?:\u200b+{letter}+)*"
    return str(regex.sub(pattern, _character_pairs, normalize("NFC", text)))


def _character_pairs(run: Any) -> str:
    """Return the pairs of adjacent characters of a match, separated by blanks.

    A character keeps its combining marks. A single character is returned alone.
    """
    import regex

    characters = regex.findall(r"\X", run.group().replace("\u200b", ""))
    pairs = " ".join(map("".join, pairwise(characters)))
    return f" {pairs or ''.join(characters)} "
