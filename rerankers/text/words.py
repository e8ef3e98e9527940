"""Cut posts, queries and URLs into words, hashtags and character trigrams.

Posts arrive raw (``RT @bbc: cuts to come http://t.co/x #bbc``), or tokenized by the
Stanford tokenizer as in the published test collections (``-LRB-``, ``## bbc``,
``@names``, ``@url``). Both forms give the same words. As in Rao et al. (2019, section
4.3), mentions are removed, hashtags are kept as words, and words are not stemmed.

The paper drops every character outside ASCII. Here other scripts are kept, and each
word gets one spelling (:mod:`tweetrerank.rerankers.text.spellings`). Text in a script
without spaces is cut into pairs of adjacent characters, as in Lucene's CJKAnalyzer:
``東京タワー`` -> ``東京 京タ タワ ワー``.
"""

import itertools
import re
import string
import unicodedata
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
import regex

from tweetrerank.rerankers.text.ragged import Ragged
from tweetrerank.rerankers.text.spellings import UNSPACED_SCRIPTS, fold

TRIGRAM_CLASSES = 40
"""Number of character classes in trigrams: 26 letters, ten digits, ``#``, and three
classes for all other characters.

There are so few classes that each trigram can have its own identifier (40³ = 64,000
identifiers), without a vocabulary.
"""
TRIGRAM_COUNT = TRIGRAM_CLASSES**3

# Stands for the URL of a post that has none (Rao et al. 2019, section 3.1)
URL_PLACEHOLDER = "<url>"

MAX_CHARACTERS = 1000
"""Number of characters to which texts are cut, so that the work for a post is limited.

Even a long post has only a third of it.
"""

END = "\0"  # Mark after each text in a list of tokens
_SEPARATOR = f" {END} "

# The module ``regex`` is used because ``re`` knows the letters of another version of
# Unicode.
TOKEN = regex.compile(r"\w+(?:['’]\w+)*|\0")
_UNSPACED = regex.compile(UNSPACED_SCRIPTS)
_SPACED = rf"[\w--{UNSPACED_SCRIPTS}]"
_RUN = regex.compile(
    rf"{_SPACED}+(?:['’]{_SPACED}+)*|({UNSPACED_SCRIPTS}+)",
    regex.V1,
)
_CHARACTER = regex.compile(r"\X")  # A character together with its marks

# These do the same as TOKEN for ASCII, many times faster: characters that no word has
# become spaces, and then str.split() finds the words.
_APOSTROPHE_ALONE = re.compile(r"'(?!\w)|'(?<!\w')")
_WORD_CHARACTERS = set(string.ascii_letters + string.digits + "_'" + END)
_TO_SPACES = {code: " " for code in range(128) if chr(code) not in _WORD_CHARACTERS}

# The Stanford tokenizer's names of brackets, and its escapes
BRACKETS = re.compile(r"-(?:LRB|RRB|LCB|RCB|LSB|RSB)-|\\")
# Here and below each alternative begins with a literal, because regular expressions
# search fast for a literal.
MENTION_OR_LINK = re.compile(r"https?://\S+|www\.\S+|@\w+")
# The Stanford tokenizer cuts at the apostrophe of bbc|'s and before the n of do|n't.
CLITIC = re.compile(r"['’](?<=\w['’])(?=(?:s|re|ve|ll|d|m)\b)")
NEGATION = re.compile(r"n(?<=\wn)(?=['’]t\b)")
ELONGATION = re.compile(r"([^\W\d])\1{2,}")
# A hashtag is ``#tag`` in raw posts, and ``## tag`` or ``# tag`` in the published test
# collections. There ``##`` with two spaces (``##  50million``) stands for a pound sign.
# A hashtag must contain a letter.
_HASHTAG = regex.compile(r"(?<![\w&])#{1,2} ?(\w*[^\W\d_]\w*)")
_DIGIT = re.compile(r"\d")
SCHEME = re.compile(r"^[a-z][a-z0-9+.-]*://(?:www\.)?")

# In this order: articles, pronouns and determiners; question words and auxiliaries;
# prepositions; conjunctions and adverbs; parts of split contractions
_STOP_WORDS = """
a an the i me my mine myself we us our ours ourselves you your yours yourself
yourselves he him his
himself she her hers herself it its itself they them their theirs themselves one this
that these
those such some any no each every either neither all both few more most other another
own same
who whom whose which what when where why how am is are was were be been being have has
had having do
does did doing will would shall should can could may might must
about above after against among around as at before behind below between by down
during for from in
into of off on onto out over per since through to toward under until up upon with
within without
and but or nor if because while although though than then so again also here just not
now only there
too very once further s t d m ll re ve n't
"""
STOP_WORDS = frozenset(_STOP_WORDS.split())
"""English function words in the form that :func:`words` returns: in lower case, with
contractions split."""


def words(text: str) -> list[str]:
    """Return the words of a post or query in lower case.

    Mentions, links and punctuation are dropped. A letter that occurs three or more
    times in a row is written twice (``sooooo`` -> ``soo``). Only the first
    :data:`MAX_CHARACTERS` characters are read.
    """
    tokens = tokens_of([text])[:-1]
    return [shortened(token) for token in tokens]


def tokens_of(texts: Sequence[str]) -> list[str]:
    """Return the words of all texts in one list, with END after each text.

    The words are not yet :func:`shortened`. Tokenizing the texts together is several
    times faster than one by one.
    """
    if not texts:
        return []
    # The texts are separated by line ends. No word or link can cross these, because
    # they are white space.
    joined = "\n".join(map(_line, texts))
    lines = _plain(joined).split("\n")
    tokens: list[str] = []
    for is_ascii, adjacent_lines in itertools.groupby(lines, str.isascii):
        text = _SEPARATOR.join(adjacent_lines) + _SEPARATOR
        if is_ascii:
            spaced = _APOSTROPHE_ALONE.sub(" ", text)
            spaced = spaced.translate(_TO_SPACES)
            tokens.extend(spaced.split())
        else:
            tokens.extend(_tokens_of_any_script(text))
    return tokens


def _line(text: str) -> str:
    """Return the text on one line, cut to :data:`MAX_CHARACTERS`, without END."""
    # The substitute for END is neither a letter nor white space, just like END. So a
    # link that contains it continues after it.
    line = text[:MAX_CHARACTERS].replace("\n", " ")
    return line.replace(END, "\1")


def _plain(text: str) -> str:
    """Return the text in lower case, without bracket names, mentions and links.

    Each word has one spelling, mostly without accents, and contractions are split.
    """
    text = BRACKETS.sub(" ", text)
    text = MENTION_OR_LINK.sub(" ", text)
    text = text.lower()
    if not text.isascii():
        lines = text.split("\n")
        text = "\n".join([line if line.isascii() else fold(line) for line in lines])
    text = text.replace("_", " ")
    text = CLITIC.sub(" ", text)
    return NEGATION.sub(" n", text)


def _tokens_of_any_script(text: str) -> Iterable[str]:
    tokens: list[str] = TOKEN.findall(text)
    if not _UNSPACED.search(text):
        return tokens
    return itertools.chain.from_iterable(map(_cut, tokens))


def _cut(token: str) -> list[str]:
    """Return the words of a match of :data:`TOKEN`."""
    if not _UNSPACED.search(token):
        return [token]
    token = ELONGATION.sub(r"\1\1", token)
    return [token[start:end] for start, end in places_in(token)]


def places_in(token: str) -> list[tuple[int, int]]:
    """Return (start, end) of each word of a token.

    A run in a script without spaces is cut into overlapping pairs of characters. A
    single character is a word of its own.
    """
    if not _UNSPACED.search(token):
        return [(0, len(token))]
    places: list[tuple[int, int]] = []
    for run in _RUN.finditer(token):
        start, end = run.span()
        borders = [start]
        for character in _CHARACTER.finditer(token, start, end):
            borders.append(character.end())
        is_unspaced = run.group(1) is not None
        if is_unspaced and len(borders) > 2:
            places.extend(zip(borders, borders[2:], strict=False))
        else:
            places.append((start, end))
    return places


@lru_cache(maxsize=200_000)
def shortened(token: str) -> str:
    """Return a token with letters at most twice in a row and with plain apostrophes."""
    # With so many different characters, no letter can occur three times.
    if token.isascii() and len(set(token)) > len(token) - 2:
        return token
    return ELONGATION.sub(r"\1\1", token).replace("’", "'")


class Reading(NamedTuple):
    """Rules by which a model reads texts.

    The defaults are the rules of this module. The other values are the rules of the
    code of Rao et al. (2019).
    """

    tokens: str = "words"
    """``words`` cuts texts by :func:`words`. ``treebank`` cuts them by
    :func:`treebank_words`, which keeps punctuation and mentions."""
    trigrams: str = "words"
    """``words`` takes the trigrams of each word, ``text`` those of the whole text,
    which may cross words.
    """
    urls: str = "path"
    """``path`` reads URLs by :func:`url_text`, ``code`` by :func:`url_of_code`."""


# Values of each field of a :class:`Reading`
CHOICES = {
    "tokens": ("words", "treebank"),
    "trigrams": ("words", "text"),
    "urls": ("path", "code"),
}


def treebank_words(text: str) -> list[str]:
    """Return the tokens of NLTK's Treebank tokenizer for the text in lower-case ASCII.

    The text is that of :func:`ascii_text`.
    """
    return _treebank().tokenize(ascii_text(text))


def ascii_text(text: str) -> str:
    """Return the text in lower-case ASCII, with single spaces and without accents.

    It is cut to :data:`MAX_CHARACTERS`. Characters that have no ASCII form are dropped.
    """
    text = text[:MAX_CHARACTERS].replace(END, " ")
    decomposed = unicodedata.normalize("NFD", text)
    text = decomposed.encode("ascii", "ignore").decode()
    return " ".join(text.lower().split())


@cache
def _treebank() -> Any:
    # Imported here, because NLTK takes two seconds to load.
    from nltk.tokenize.treebank import TreebankWordTokenizer

    return TreebankWordTokenizer()


def hashtags(text: str) -> list[str]:
    """Return the hashtags of a post, without their ``#``."""
    text = text[:MAX_CHARACTERS]
    if "#" not in text:
        return []
    return _HASHTAG.findall(text)


def mask_digits(word: str) -> str:
    """Replace every digit by 0: ``1971`` -> ``0000``."""
    return _DIGIT.sub("0", word)


def url_text(url: str) -> str:
    """Return the host and path of a URL in lower case, with escapes (``%20``) decoded.

    The scheme, ``www.``, the query and the fragment are dropped. If nothing remains or
    there is no URL, the result is :data:`URL_PLACEHOLDER`.
    """
    if not url:
        return URL_PLACEHOLDER
    url = unquote(url[:MAX_CHARACTERS].strip())
    url = SCHEME.sub("", url.lower())
    url, _, _ = url.partition("?")
    url, _, _ = url.partition("#")
    return url.rstrip("/") or URL_PLACEHOLDER


LINK_OF_CODE = "http://www.abc.com"
URL_LENGTH = 120


def url_of_code(url: str) -> str:
    """Return the part of a URL that the code of Rao et al. (2019) reads, in lower case.

    The code drops the first seven characters, which it takes for ``http://``, and the
    query. If there is no query, it drops the last character instead. Of the rest it
    keeps the last :data:`URL_LENGTH` characters. This function does the same, so that
    networks trained like theirs read the same letters; it also converts the URL to
    ASCII (:func:`ascii_text`). Without a URL, :data:`LINK_OF_CODE` is cut.
    """
    url = url[:MAX_CHARACTERS].strip() or LINK_OF_CODE
    text = ascii_text(url[7 : url.find("?")])
    return text[-URL_LENGTH:]


def url_trigrams(urls: Sequence[str], form: str = "path") -> Ragged:
    """Return the :func:`character_trigrams` of each URL.

    ``form`` is a value of :attr:`Reading.urls`, which names how URLs are cut.
    """
    read = url_text if form == "path" else url_of_code
    return character_trigrams([read(url) for url in urls])


def character_trigrams(texts: Sequence[str]) -> Ragged:
    """Return the identifiers (int32) of the character trigrams of each text.

    A text is read as ``#text#``, so ``hello`` has the trigrams ``#he hel … lo#``.
    Trigrams are sequences of bytes: a text has as many as it has bytes in UTF-8.
    """
    encoded = [f"#{text}#".encode(errors="replace") for text in texts]
    content = b"".join(encoded)
    classes = _CLASS_OF_BYTE[np.frombuffer(content, dtype=np.uint8)]
    sizes = np.fromiter(
        map(len, encoded),
        dtype=np.int64,
        count=len(encoded),
    )
    trigrams = classes[:-2] * TRIGRAM_CLASSES + classes[1:-1]
    trigrams = trigrams * TRIGRAM_CLASSES + classes[2:]
    # A trigram that begins at one of the last two bytes of a text would reach into the
    # next text.
    is_inside = np.ones(len(classes), dtype=np.bool_)
    ends = np.cumsum(sizes)
    is_inside[ends - 1] = False
    is_inside[ends - 2] = False
    trigrams = trigrams[is_inside[: len(trigrams)]]
    return Ragged.from_lengths(trigrams, sizes - 2)


def _classes_of_bytes() -> npt.NDArray[np.int32]:
    """Return the class of each byte.

    The class is 0 for ``#``, 1 to 26 for letters, 27 to 36 for digits, 37 for ``.``,
    ``/`` and ``:``, 38 for ``-``, ``_``, ``+``, ``,`` and the space, and 39 for others.
    """
    classes = np.full(
        256,
        39,
        dtype=np.int32,
    )
    singles = f"#{string.ascii_lowercase}{string.digits}"
    for number, characters in enumerate([*singles, "./:", "-_ +,"]):
        classes[list(characters.encode())] = number
    return classes


_CLASS_OF_BYTE = _classes_of_bytes()
SPACE = int(_CLASS_OF_BYTE[ord(" ")])
