"""From raw posts, queries and URLs to words and trigram identifiers.

Posts arrive raw (``RT @bbc: cuts to come http://t.co/x #bbc``) or as the Stanford tokenizer left
them in the published test collections (``-LRB-``, ``## bbc``, ``@names``, ``@url``); both end as
the same words. Following Rao et al. (2019, section 4.3) mentions are removed, hashtags are words
and no stemming is done. Where the paper drops every character outside ASCII, accents are folded
and other scripts are kept, because a post in Arabic must not become an empty one.
"""

import re
import string
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
from nltk import redos

TRIGRAM_CLASSES = 40
"""Letters, digits, ``#``, and three classes for everything else: small enough that each trigram
has an identifier of its own (40³ = 64,000) and no vocabulary of trigrams is needed."""

TRIGRAM_COUNT = TRIGRAM_CLASSES**3

URL_PLACEHOLDER = "<url>"
"""Stands for the URL of a post that has none (Rao et al. 2019, section 3.1)."""

MAX_CHARACTERS = 1000
"""Characters of a text that are read. Three times what a long post has; it bounds the work that
one hostile post can cause."""

END = "\0"
"""Stands after the tokens of each text."""

# What NLTK's RegexpTokenizer of this pattern finds, without its limit of five seconds to a call: a
# collection takes longer, this pattern never backtracks, and the checks took most of the time.
TOKEN = redos.compile(r"\w+(?:['’]\w+)*|\0", timeout=None)
# The same in ASCII, many times quicker: what is no word becomes a space, the rest is split there.
_APOSTROPHE_ALONE = re.compile(r"'(?!\w)|'(?<!\w')")
_KEPT = set(string.ascii_letters + string.digits + "_'" + END)
_NO_WORD = str.maketrans({c: " " for c in map(chr, range(128)) if c not in _KEPT})
# The Stanford tokenizer's names for brackets, and its escapes.
BRACKETS = re.compile(r"-(?:LRB|RRB|LCB|RCB|LSB|RSB)-|\\")
# Choices that begin with a letter, here and below: text without it is passed over quickly.
MENTION_OR_LINK = re.compile(r"https?://\S+|www\.\S+|@\w+")
# Where the Stanford tokenizer cuts: at the apostrophe of bbc|'s, then before the n of do|n't.
CLITIC = re.compile(r"['’](?<=\w['’])(?=(?:s|re|ve|ll|d|m)\b)")
NEGATION = re.compile(r"n(?<=\wn)(?=['’]t\b)")
ELONGATION = re.compile(r"([^\W\d])\1{2,}")
# ``#tag`` as it was written, or ``## tag`` and ``# tag`` as the published test collections have
# it. Two spaces (``##  50million``) stand for a pound sign there, and no hashtag is all digits.
_HASHTAG = re.compile(r"(?<![\w&])#{1,2} ?(\w*[^\W\d_]\w*)")
_DIGIT = re.compile(r"\d")
SCHEME = re.compile(r"^[a-z][a-z0-9+.-]*://(?:www\.)?")


def words(text: str) -> list[str]:
    """The words of a post or query: lower case, without mentions, links and punctuation.

    A letter repeated three times or more is written twice (``sooooo`` -> ``soo``).
    """
    return [shortened(token) for token in tokens_of([text])[:-1]]


def tokens_of(texts: Sequence[str]) -> list[str]:
    """The words of all texts, each followed by :data:`END`; :func:`shortened` is still to come.

    All are read as one text, which is several times quicker than one after the other.
    """
    # Like the end of a text, a line's end is white space and no letter.
    text = _plain("\n".join([*(_line(text) for text in texts), ""])).replace("\n", f" {END} ")
    if text.isascii():
        return _APOSTROPHE_ALONE.sub(" ", text).translate(_NO_WORD).split()
    tokens: list[str] = TOKEN.findall(text)
    return tokens


@lru_cache(maxsize=200_000)
def shortened(token: str) -> str:
    """A token with no letter three times in a row, and with one kind of apostrophe."""
    return ELONGATION.sub(r"\1\1", token).replace("’", "'")


def _line(text: str) -> str:
    """What is read of a text, on one line."""
    # Neither END nor what replaces it is a letter or white space, so a link does not end there.
    return text[:MAX_CHARACTERS].replace("\n", " ").replace(END, "\1")


def _plain(text: str) -> str:
    """Lower case, without brackets' names, mentions and links; contractions cut."""
    text = MENTION_OR_LINK.sub(" ", BRACKETS.sub(" ", text)).lower()
    if not text.isascii():
        lines = text.split("\n")
        text = "\n".join([line if line.isascii() else _fold_accents(line) for line in lines])
    text = text.replace("_", " ")
    return NEGATION.sub(" n", CLITIC.sub(" ", text))


def hashtags(text: str) -> list[str]:
    """The hashtags of a post, without their sign."""
    text = text[:MAX_CHARACTERS]
    return _HASHTAG.findall(text) if "#" in text else []


def mask_digits(word: str) -> str:
    """The word with every digit read as 0: ``1971`` -> ``0000``."""
    return _DIGIT.sub("0", word)


def url_text(url: str) -> str:
    """What a URL says: host and path in lower case, without scheme, ``www.``, query and fragment.

    No URL gives the placeholder.
    """
    url = unquote(url[:MAX_CHARACTERS].strip()).lower()
    url = SCHEME.sub("", url).partition("?")[0].partition("#")[0].rstrip("/")
    return url or URL_PLACEHOLDER


def _fold_accents(text: str) -> str:
    # Styled letters (𝐇, Ⓗ, ™) have a lower case only once they are decomposed.
    decomposed = unicodedata.normalize("NFKD", text).lower()
    return "".join(c for c in decomposed if not unicodedata.combining(c))


def _class_table() -> npt.NDArray[np.int32]:
    """Byte -> class: 0 for #, 1–26 letters, 27–36 digits, 37–39 the rest."""
    table = np.full(256, 39, dtype=np.int32)
    table[ord("#")] = 0
    table[ord("a") : ord("z") + 1] = np.arange(1, 27)
    table[ord("0") : ord("9") + 1] = np.arange(27, 37)
    table[[ord(c) for c in "./:"]] = 37
    table[[ord(c) for c in "-_ +,"]] = 38
    return table


_CLASSES = _class_table()


def string_trigrams(text: str) -> npt.NDArray[np.int32]:
    """Identifiers of the trigrams of ``#text#``, spaces and all: ``[len(text)]`` for ASCII text."""
    return trigrams_of([text])[0]


def word_trigrams(tokens: Sequence[str]) -> npt.NDArray[np.int32]:
    """The trigrams of each word one after the other: ``hello`` -> ``#he hel ell llo lo#``."""
    return trigrams_of(tokens)[0]


def url_trigrams(urls: Sequence[str]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """Trigrams of what each URL says: all of them, and how many each URL has."""
    return trigrams_of([url_text(url) for url in urls])


def trigrams_of(texts: Sequence[str]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """Trigrams of each ``#text#``, one text after the other, and how many each text has."""
    encoded = [f"#{text}#".encode(errors="replace") for text in texts]
    codes = _CLASSES[np.frombuffer(b"".join(encoded), dtype=np.uint8)]
    counts = np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded))
    trigrams = (codes[:-2] * TRIGRAM_CLASSES + codes[1:-1]) * TRIGRAM_CLASSES + codes[2:]
    # The two trigrams that begin with the last two characters of a text reach into the next.
    is_inside = np.ones(len(codes), dtype=np.bool_)
    ends = np.cumsum(counts)
    is_inside[ends - 1] = is_inside[ends - 2] = False
    return trigrams[is_inside[: len(trigrams)]], counts - 2
