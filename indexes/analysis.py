"""Text analysis by language: one of Lucene's analyzers, which search engines have by name.

English has Anserini's (lower case, English stop words, Porter stemmer). Chinese, Japanese and
Korean have pairs of adjacent characters; so, in a local index, have Thai, Lao, Khmer and Burmese,
for which Java lacks a dictionary. Another language without an analyzer has words in lower case
without stems.
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

ENGLISH, STANDARD = "english", "standard"  # Names of analyzers
UNDETERMINED = "und"  # Language code of posts whose language is not known


def _table(pairs: str) -> dict[str, str]:
    return dict(map(str.split, pairs.split(",")))


ANALYZERS = _table("""
ar arabic, bg bulgarian, bn bengali, ca catalan, cs czech, da danish, de german, el greek,
en english, es spanish, fa persian, fi finnish, fr french, hi hindi, hu hungarian,
id indonesian, it italian, ja cjk, ko cjk, lt lithuanian, lv latvian, ms indonesian,
nb norwegian, nl dutch, pt portuguese, ro romanian, ru russian, sv swedish, th thai,
tr turkish, zh cjk
""")
"""Language code -> name of its analyzer in OpenSearch and Elasticsearch."""

# First word of a letter's name in Unicode -> the commonest language of the script
_SCRIPTS = _table("""
CJK zh, HIRAGANA ja, KATAKANA ja, HANGUL ko, THAI th, ARABIC ar, DEVANAGARI hi, BENGALI bn,
GREEK el, CYRILLIC ru, LATIN en
""")

_SAMPLE = 1000  # Posts by which a language is found
_COMMON = (
    200  # Commonest words of a language by which it is told from others of its script
)
_LEAST = 0.04
"""Share of these among all words, below which the language is none of those known. Set by hand on
names and keywords of emoji in 110 languages; English posts have 20 % and more."""


def analyzer_name(language: str | None, texts: Iterable[str]) -> str:
    """Name of the analyzer of posts in a language; ``und`` finds it by the first of the posts'
    texts, None by their script alone."""
    if language in (None, UNDETERMINED):
        sample = " ".join(islice(texts, _SAMPLE)).lower()
        first = _by_script(sample)
        language = _by_words(sample, first) if language and first else first
    return ANALYZERS.get(language or "", STANDARD)


def analyzer(name: str = ENGLISH) -> Any:
    """Lucene's analyzer of a name."""
    if name == ENGLISH:
        return java_class(
            "io.anserini.analysis.DefaultEnglishAnalyzer"
        ).newDefaultInstance()
    if name == "thai":
        name = STANDARD  # Of pairs; see `searchable`
    # Packages have the name of a language's code, but for some.
    packages = {known: code for code, known in ANALYZERS.items()}
    packages |= _table("czech cz, norwegian no, indonesian id, cjk cjk")
    kind = name.upper() if name == "cjk" else name.capitalize()
    return java_class(
        f"org.apache.lucene.analysis.{packages.get(name, name)}.{kind}Analyzer"
    )()


def _by_script(sample: str) -> str | None:
    """The commonest language of the script of most letters; None of no known one."""
    counts: Counter[str] = Counter()
    for letter, times in Counter(filter(str.isalpha, sample)).items():
        counts[re.split("[ -]", name_of(letter, ""))[0]] += times
    # Kana tells Japanese from Chinese.
    if (counts["HIRAGANA"] + counts["KATAKANA"]) * 10 > counts["CJK"]:
        counts["HIRAGANA"] += counts["CJK"]
    return _SCRIPTS.get(counts.most_common(1)[0][0]) if counts else "en"


def _by_words(sample: str, first: str) -> str | None:
    """The language with the same script as ``first`` whose common words are the most frequent,
    also one without an analyzer; None of several if they are rare."""
    from wordfreq import available_languages, get_frequency_dict
    from wordfreq.transliterate import SR_LATN_TABLE

    words, found = Counter(re.findall(r"\w+", sample)), {first: 0}
    for language in available_languages():
        common = [*islice(get_frequency_dict(language, "small"), _COMMON)]
        if language == first or _by_script(" ".join(common)) == first:
            found[language] = sum(words[word] for word in common)
        elif (
            language == "sh" and first == "ru"
        ):  # Serbian, whose list is in Latin letters
            latin = Counter(re.findall(r"\w+", sample.translate(SR_LATN_TABLE)))
            found[language] = sum(latin[word] for word in common)
    best = max(found, key=found.__getitem__)
    is_rare = found[best] < _LEAST * words.total()
    return None if len(found) > 1 and is_rare else best


def analyze(text: str, with_analyzer: Any) -> Any:
    """The terms of a text, as a Java list."""
    return java_class("io.anserini.analysis.AnalyzerUtils").analyze(
        with_analyzer, searchable(text)
    )


def searchable(text: str) -> str:
    """A text as it is analyzed: in normal form C, and with blanks between the pairs of scripts
    without spaces, in which invisible blanks are optional."""
    text = well_formed(text)
    if text.isascii():
        return text
    import regex

    def pairs(run: Any) -> str:
        letters = regex.findall(
            r"\X", run.group().replace("\u200b", "")
        )  # Each with its marks
        return f" {' '.join(map(''.join, pairwise(letters))) or ''.join(letters)} "

    letter = r"[\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]"
    return str(
        regex.sub(rf"{letter}+(?:\u200b+{letter}+)*", pairs, normalize("NFC", text))
    )
