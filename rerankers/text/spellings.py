"""Give words that people spell in several ways one spelling, in any script.

Accents are removed where a word without them is still the same word: in Latin, Greek,
Arabic and Hebrew script, and the stress marks of Cyrillic. A mark is kept if it belongs
to the letter (``が``, ``क्या``, ``й``). All accents of a word are kept if the word has
letters that only Vietnamese has (``bệnh``), because Vietnamese tones distinguish words.
Letters and signs that writers of a script interchange become one (:data:`SPELLINGS`).
"""

import re
import unicodedata
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import regex

UNSPACED_SCRIPTS = (
    r"[\p{Han}\p{Hiragana}\p{Katakana}\u30fc\p{Hangul}"
    r"\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]"
)
"""Pattern of one character of a script that writes no spaces between words."""

# What only Vietnamese words have: a horn, a hook above, a dot below a vowel, or a tone
# next to another mark. Each word is tested by itself, so that a query and a post agree
# on the word whatever their other words are.
_VIETNAMESE = re.compile(
    "[\u031b\u0309]|[aeiouy]\u0323|[\u0302\u0306][\u0300\u0301\u0303]"
)
_WORD = regex.compile(r"[\w\p{M}]+")

# Letters that would lose a mark that belongs to them, with their decomposed forms
_LETTERS = {letter: unicodedata.normalize("NFD", letter) for letter in "йїўѓќ"}
_ACCENT = regex.compile(
    r"[\p{Inherited}\p{Greek}\p{Cyrillic}\p{Hebrew}\p{Arabic}\p{Syriac}]"
)
_CLASSES_OF_LETTERS = (0, 7, 8, 9)
"""Unicode's combining classes of marks that belong to a letter, such as the nukta, the
voicing marks of kana and the virama."""
_TATWEEL = "\u0640"  # Lengthens Arabic words

# Each pair is a letter and its replacement. The first line has letters of Turkish,
# Maltese and Icelandic, and apostrophes. The second has yeh, kaf, heh and teh marbuta
# of Arabic, Persian and Urdu, as in Lucene's normalization filters. The others have
# signs of Indic scripts.
_ALIKE = """
ı i, ħ h, ð d, þ th, ʼ ', ʻ ', ՚ ', ׳ ',
ى ي, ی ي, ک ك, ہ ه, ة ه,
\u0901 \u0902, \u09ce \u09a4\u09cd,
\u0d7a \u0d23\u0d4d, \u0d7b \u0d28\u0d4d, \u0d7c \u0d30\u0d4d,
\u0d7d \u0d32\u0d4d, \u0d7e \u0d33\u0d4d, \u0d7f \u0d15\u0d4d
"""
_ONE_LETTER = dict(map(str.split, _ALIKE.split(",")))

_INVISIBLE = (
    r"\u00ad\u034f\u180b-\u180d\u200c\u200d\u2060"
    r"\ufe00-\ufe0f\U000e0100-\U000e01ef"
)
_TONE = r"[\u0309\u0323]"

SPELLINGS: list[tuple[Any, str | Callable[[Any], str]]] = [
    (regex.compile(pattern, regex.V1), replacement)
    for pattern, replacement in (
        # The non-joiner between the parts of a Persian word becomes a blank, as in
        # Lucene.
        (r"(?<=\p{Arabic})\u200c+(?=\p{Arabic})", " "),
        # Elsewhere invisible characters are dropped: soft hyphens, joiners, variation
        # selectors, and the key around a digit.
        (rf"(?<=\w)[{_INVISIBLE}\u20e3]+", ""),
        (rf"(?<={UNSPACED_SCRIPTS})\u200b+(?={UNSPACED_SCRIPTS})", ""),
        (r"[\p{Nd}--[0-9]]", lambda match: str(unicodedata.digit(match[0], match[0]))),
        (f"[{''.join(_ONE_LETTER)}]", lambda match: _ONE_LETTER[match[0]]),
        ("\u06d5\u0654", "ه"),  # Persian ezafe
        ("եւ", "եվ"),  # The ligature և decomposes to եւ, but its capitals are ԵՎ.
        (r"(?<=\w)[՛՜՞](?=\w)", ""),  # Armenian punctuation, after the stressed vowel
        ("\u093c", ""),  # Nukta of Devanagari
        ("ङ्(?=[क-घ])|ञ्(?=[च-झ])|ण्(?=[ट-ढ])|न्(?=[त-ध])|म्(?=[प-भ])", "\u0902"),
        ("เเ", "แ"),
        # Thai and Lao am: the tone goes before the ring.
        ("([\u0e4d\u0ecd])([\u0e48-\u0e4b\u0ec8-\u0ecb])(?=[\u0e32\u0eb2])", r"\2\1"),
        # Vietnamese: thủy becomes thuỷ.
        (rf"(?:(?<=o){_TONE}[ae]|(?<=u){_TONE}y)(?!\w)", lambda match: match[0][::-1]),
    )
]
"""Patterns and their replacements, for text in lower case and Unicode's form KD.

They reduce several spellings of a word to one. Spellings differ in letters or digits of
equal value, in invisible characters, in optional marks, and in the order of marks.
"""

_HAS_SPELLINGS = re.compile(
    "[^\0-\u00ac\u00ae-\u00ef\u00f1-\u00fd\u00ff-\u0126\u0128-\u0130"
    "\u0132-\u02ba\u02bd-\u0308\u030a-\u0322\u0324-\u034e\u0350-\u052f"
    "\u2010-\u205f\u20a0-\u20bf\u2100-\u2bff\u3000-\u9fff"
    "\U0001f000-\U0001faff]"
)
"""Pattern of a character that some pattern of :data:`SPELLINGS` may match.

Most posts have no such character, so the patterns need not be tried.
"""


def fold(line: str) -> str:
    """Return a line in lower case with one spelling of each word.

    Accents are removed, except from Vietnamese words and where they belong to a letter.
    Styled letters become plain ones. ``line`` must already be in lower case.
    """
    # Styled letters (𝐇, Ⓗ, ™) have a lower case only after decomposition.
    decomposed = unicodedata.normalize("NFKD", line).lower()
    if decomposed.isascii():
        return decomposed
    if _HAS_SPELLINGS.search(decomposed):
        for pattern, replacement in SPELLINGS:
            decomposed = pattern.sub(replacement, decomposed)
    return _composed(decomposed)


def _composed(decomposed: str) -> str:
    """Compose a text in form KD to form C, without accents.

    Words that :data:`_VIETNAMESE` recognises keep their accents, and so do letters that
    a mark belongs to.
    """
    if not _VIETNAMESE.search(decomposed):
        return _without_accents(decomposed)
    return _WORD.sub(
        lambda word: composition(word.group())(word.group()),
        decomposed,
    )


def composition(word: str) -> Callable[[str], str]:
    """Return the function that composes parts of ``word`` from form KD to form C.

    The function removes accents, unless the whole word is Vietnamese.
    """
    if _VIETNAMESE.search(word):
        return _with_accents
    return _without_accents


def _with_accents(decomposed: str) -> str:
    return unicodedata.normalize("NFC", decomposed)


def _without_accents(decomposed: str) -> str:
    for letter, decomposed_letter in _LETTERS.items():
        decomposed = decomposed.replace(decomposed_letter, letter)
    for mark in filter(_is_accent, set(decomposed)):
        decomposed = decomposed.replace(mark, "")
    return unicodedata.normalize("NFC", decomposed)


@lru_cache(maxsize=1000)
def _is_accent(mark: str) -> bool:
    if mark == _TATWEEL:
        return True
    if unicodedata.combining(mark) in _CLASSES_OF_LETTERS:
        return False
    return _ACCENT.match(mark) is not None
