"""Text analysis by language: one of Lucene's analyzers, which search engines have by name.

English has Anserini's (lower case, English stop words, Porter stemmer). Chinese, Japanese and
Korean have pairs of adjacent characters; so, in a local index, have Thai, Lao, Khmer and Burmese,
for which Java lacks a dictionary. Another language without an analyzer has words in lower case
without stems.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from functools import cache
from itertools import islice, pairwise
from typing import Any

from indexes.jvm import java_class
from indexes.records import well_formed

ENGLISH, STANDARD, UNDETERMINED = "english", "standard", "und"
"""Names of two analyzers, and the language code of posts whose language is not known."""

_CJK, _THAI = "cjk", "thai"


def _table(pairs: str) -> dict[str, str]:
    """The dictionary of pairs ``key value, …``."""
    return dict(map(str.split, pairs.split(",")))


ANALYZERS = _table("""
ar arabic, bg bulgarian, bn bengali, ca catalan, cs czech, da danish, de german, el greek,
en english, es spanish, fa persian, fi finnish, fr french, hi hindi, hu hungarian,
id indonesian, it italian, ja cjk, ko cjk, lt lithuanian, lv latvian, ms indonesian,
nb norwegian, nl dutch, pt portuguese, ro romanian, ru russian, sv swedish, th thai,
tr turkish, zh cjk
""")
"""Language code -> name of its analyzer in OpenSearch and Elasticsearch."""

_PACKAGES = _table("czech cz, norwegian no, indonesian id, cjk cjk")
"""Lucene's packages of analyzers that have another name than the language's code."""

_SCRIPTS = _table("""
CJK zh, HIRAGANA ja, KATAKANA ja, HANGUL ko, THAI th, ARABIC ar, DEVANAGARI hi, BENGALI bn,
GREEK el, CYRILLIC ru, LATIN en
""")
"""First word of a letter's name in Unicode -> the commonest language of the script."""

_SAMPLE = 1000  # Posts by which a language is found
_COMMON = 200  # Commonest words of a language by which it is told from others of its script


def analyzer_name(language: str | None, texts: Iterable[str]) -> str:
    """Name of the analyzer of posts in a language.

    Args:
        language: its code; ``und`` finds it by the posts, None by the script of the posts alone.
        texts: of the posts, of which the first ones are read.
    """
    if language in (None, UNDETERMINED):
        sample = " ".join(islice(texts, _SAMPLE)).lower()
        first = _by_script(sample)
        language = _by_words(sample, first) if language and first else first
    return ANALYZERS.get(language or "", STANDARD)


def analyzer(name: str = ENGLISH) -> Any:
    """Lucene's analyzer of a name."""
    if name == ENGLISH:
        return java_class("io.anserini.analysis.DefaultEnglishAnalyzer").newDefaultInstance()
    if name == _THAI:
        name = STANDARD  # Of pairs; see `searchable`
    codes = {known: code for code, known in ANALYZERS.items()}
    package = _PACKAGES.get(name) or codes.get(name, name)
    kind = name.upper() if name == _CJK else name.capitalize()
    return java_class(f"org.apache.lucene.analysis.{package}.{kind}Analyzer")()


def _by_script(sample: str) -> str | None:
    """The commonest language of the script of most letters; None of no known one."""
    counts: Counter[str] = Counter()
    for letter, times in Counter(filter(str.isalpha, sample)).items():
        counts[unicodedata.name(letter, "").partition(" ")[0].partition("-")[0]] += times
    # Kana tells Japanese from Chinese.
    kana = counts["HIRAGANA"] + counts["KATAKANA"]
    if kana * 10 > counts["CJK"]:
        counts["HIRAGANA"] += counts["CJK"]
    return _SCRIPTS.get(counts.most_common(1)[0][0]) if counts else "en"


def _by_words(sample: str, first: str) -> str:
    """The language with the same script as ``first`` whose common words are the most frequent."""
    from wordfreq import available_languages, get_frequency_dict

    words, best = Counter(re.findall(r"\w+", sample)), (0, first)
    for language in [code for code in (first, *ANALYZERS) if code in available_languages()]:
        common = [*islice(get_frequency_dict(language, "small"), _COMMON)]
        if language == first or _by_script(" ".join(common)) == first:
            found = sum(words[word] for word in common)
            best = max(best, (found, language), key=lambda pair: pair[0])
    return best[1]


def analyze(text: str, with_analyzer: Any) -> Any:
    """The terms of a text, as a Java list."""
    analyzers = java_class("io.anserini.analysis.AnalyzerUtils")
    return analyzers.analyze(with_analyzer, searchable(text))


def searchable(text: str) -> str:
    """A text as it is analyzed: with blanks between the pairs of scripts without spaces."""
    text = well_formed(text)
    return text if text.isascii() else _patterns()[0].sub(_pairs, text)


@cache
def _patterns() -> tuple[Any, Any]:
    """A run of a script without spaces, and a letter with its marks."""
    import regex

    return regex.compile(r"[\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]+"), regex.compile(r"\X")


def _pairs(run: Any) -> str:
    letters = _patterns()[1].findall(run.group())
    pairs = [first + second for first, second in pairwise(letters)]
    return f" {' '.join(pairs or letters)} "
