"""Words, hashtags and character trigrams of posts, queries and URLs.

Posts arrive raw (``RT @bbc: cuts to come http://t.co/x #bbc``) or tokenized by the Stanford
tokenizer, as in the published test collections (``-LRB-``, ``## bbc``, ``@names``, ``@url``); both
give the same words. As in Rao et al. (2019, section 4.3) mentions are removed, hashtags are words
and there is no stemming. The paper drops every character outside ASCII; here other scripts are
kept. Accents are folded in scripts where a word without them is the same word (Latin, Greek,
Arabic, Hebrew, stress in Cyrillic), but not where a mark is a letter (``が``, ``क्या``, ``й``), nor
in words with letters that only Vietnamese has, where a tone tells one word from another (``bệnh``).
Letters and signs that writers of a script use for one another are one (:data:`SPELLINGS`).
Scripts without spaces give pairs of adjacent characters, as Lucene's CJKAnalyzer does:
``東京タワー`` -> ``東京 京タ タワ ワー``.
"""

import itertools
import re
import string
import unicodedata
from collections.abc import Callable, Sequence
from functools import cache, lru_cache, partial
from typing import Any, NamedTuple
from urllib.parse import unquote

import numpy as np
import regex

from tweetrerank.rerankers.text.ragged import Ragged

TRIGRAM_CLASSES = 40
"""Character classes of trigrams: letters, digits, ``#`` and three classes for all other characters.
With so few each trigram has its own identifier (40³ = 64,000), without a vocabulary."""
TRIGRAM_COUNT = TRIGRAM_CLASSES**3

URL_PLACEHOLDER = "<url>"  # URL of a post without one (Rao et al. 2019, section 3.1)
MAX_CHARACTERS = 1000
"""Longer texts are cut: three times the length of a long post. Bounds the work for one post."""
END = "\0"  # Marks the end of each text in a list of tokens

# Not the module re, whose letters are those of another version of Unicode.
TOKEN = regex.compile(r"\w+(?:['’]\w+)*|\0")
_UNSPACED_SCRIPTS = r"[\p{Han}\p{Hiragana}\p{Katakana}\u30fc\p{Hangul}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]"
_UNSPACED = regex.compile(_UNSPACED_SCRIPTS)
_SPACED = rf"[\w--{_UNSPACED_SCRIPTS}]"
_RUN = regex.compile(rf"{_SPACED}+(?:['’]{_SPACED}+)*|({_UNSPACED_SCRIPTS}+)", regex.V1)
_CHARACTER = regex.compile(r"\X")  # With its marks
# The same for ASCII, many times faster: non-word characters become spaces, then str.split().
_APOSTROPHE_ALONE = re.compile(r"'(?!\w)|'(?<!\w')")
_WORD_CHARACTERS = set(string.ascii_letters + string.digits + "_'" + END)
_TO_SPACES = str.maketrans(
    {c: " " for c in map(chr, range(128)) if c not in _WORD_CHARACTERS}
)
# The Stanford tokenizer's names for brackets, and its escapes.
BRACKETS = re.compile(r"-(?:LRB|RRB|LCB|RCB|LSB|RSB)-|\\")
# Here and below each alternative begins with a literal: the search skips text without it quickly.
MENTION_OR_LINK = re.compile(r"https?://\S+|www\.\S+|@\w+")
# The Stanford tokenizer's cuts: at the apostrophe of bbc|'s, and before the n of do|n't.
CLITIC = re.compile(r"['’](?<=\w['’])(?=(?:s|re|ve|ll|d|m)\b)")
NEGATION = re.compile(r"n(?<=\wn)(?=['’]t\b)")
ELONGATION = re.compile(r"([^\W\d])\1{2,}")
# ``#tag`` in raw posts, ``## tag`` and ``# tag`` in the published test collections. There two
# spaces (``##  50million``) stand for a pound sign. A hashtag is never all digits.
_HASHTAG = regex.compile(r"(?<![\w&])#{1,2} ?(\w*[^\W\d_]\w*)")
_DIGIT = re.compile(r"\d")
SCHEME = re.compile(r"^[a-z][a-z0-9+.-]*://(?:www\.)?")

# Articles, pronouns and determiners; question words and auxiliaries; prepositions; conjunctions and
# adverbs; parts of split contractions.
_STOP_WORDS = """
a an the i me my mine myself we us our ours ourselves you your yours yourself yourselves he him his
himself she her hers herself it its itself they them their theirs themselves one this that these
those such some any no each every either neither all both few more most other another own same
who whom whose which what when where why how am is are was were be been being have has had having do
does did doing will would shall should can could may might must
about above after against among around as at before behind below between by down during for from in
into of off on onto out over per since through to toward under until up upon with within without
and but or nor if because while although though than then so again also here just not now only there
too very once further s t d m ll re ve n't
"""
STOP_WORDS = frozenset(_STOP_WORDS.split())
"""English function words in the form that :func:`words` returns: lower case, contractions split."""


def words(text: str) -> list[str]:
    """Words of a post or query in lower case, without mentions, links and punctuation.

    A letter that is repeated three times or more is written twice (``sooooo`` -> ``soo``).
    """
    return [shortened(token) for token in tokens_of([text])[:-1]]


def tokens_of(texts: Sequence[str]) -> list[str]:
    """Words of all texts before :func:`shortened`, with :data:`END` after each text.

    The texts are joined and tokenized at once, several times faster than one after the other.
    """
    # Between texts a line end acts as the end of a text does: it is white space.
    lines = _plain("\n".join([*map(_line, texts), ""])).split("\n")[:-1]
    tokens: list[str] = []
    for is_ascii, some in itertools.groupby(lines, str.isascii):
        text = f" {END} ".join([*some, ""])
        if is_ascii:
            tokens += _APOSTROPHE_ALONE.sub(" ", text).translate(_TO_SPACES).split()
        else:
            found = TOKEN.findall(text)
            is_cut = _UNSPACED.search(text) is not None
            tokens += (
                itertools.chain.from_iterable(map(_cut, found)) if is_cut else found
            )
    return tokens


def _cut(token: str) -> list[str]:
    """The words of a token of :data:`TOKEN`."""
    if not _UNSPACED.search(token):
        return [token]
    token = ELONGATION.sub(r"\1\1", token)
    return [token[start:end] for start, end in places_in(token)]


def places_in(token: str) -> list[tuple[int, int]]:
    """Start and end of the words of a token: pairs of characters in runs without spaces."""
    if not _UNSPACED.search(token):
        return [(0, len(token))]
    places: list[tuple[int, int]] = []
    for run in _RUN.finditer(token):
        start, end = run.span()
        ends = [match.end() for match in _CHARACTER.finditer(token, start, end)]
        is_pairs = run.group(1) and len(ends) > 1
        places += (
            zip([start, *ends], ends[1:], strict=False) if is_pairs else [(start, end)]
        )
    return places


@lru_cache(maxsize=200_000)
def shortened(token: str) -> str:
    """The token with letters repeated at most twice, and with one kind of apostrophe."""
    if token.isascii() and len(set(token)) > len(token) - 2:  # No letter three times
        return token
    return ELONGATION.sub(r"\1\1", token).replace("’", "'")


def _line(text: str) -> str:
    """The text on one line, cut to :data:`MAX_CHARACTERS`."""
    # Like END its substitute is neither a letter nor white space, so that a link goes on over it.
    return text[:MAX_CHARACTERS].replace("\n", " ").replace(END, "\1")


def _plain(text: str) -> str:
    """Lower case without accents, bracket names, mentions and links; contractions split."""
    text = MENTION_OR_LINK.sub(" ", BRACKETS.sub(" ", text)).lower()
    if not text.isascii():
        lines = text.split("\n")
        # Styled letters (𝐇, Ⓗ, ™) have a lower case only after decomposition.
        plain = (
            x if x.isascii() else unicodedata.normalize("NFKD", x).lower()
            for x in lines
        )
        text = "\n".join([x if x.isascii() else compose(_spelled(x)) for x in plain])
    text = text.replace("_", " ")
    return NEGATION.sub(" n", CLITIC.sub(" ", text))


def _spelled(decomposed: str) -> str:
    if not _HAS_SPELLINGS.search(decomposed):
        return decomposed
    for pattern, replacement in SPELLINGS:
        decomposed = pattern.sub(replacement, decomposed)
    return decomposed


def compose(decomposed: str) -> str:
    """Normal form C of a text in form KD, without the accents of its words."""
    if not _VIETNAMESE.search(decomposed):
        return _without_accents(decomposed)
    return _WORD.sub(lambda word: composition(word.group())(word.group()), decomposed)


def composition(word: str) -> Callable[[str], str]:
    """A function from parts of a word in form KD to form C; it keeps the accents of Vietnamese."""
    return (
        partial(unicodedata.normalize, "NFC")
        if _VIETNAMESE.search(word)
        else _without_accents
    )


def _without_accents(decomposed: str) -> str:
    for letter, parts in _LETTERS.items():
        decomposed = decomposed.replace(parts, letter)
    for mark in filter(_is_accent, set(decomposed)):
        decomposed = decomposed.replace(mark, "")
    return unicodedata.normalize("NFC", decomposed)


# Horn, hook above, dot below a vowel, a tone beside another mark: not in other languages' letters.
# Each word by itself: a query and a post must agree, and some have no such letter.
_VIETNAMESE = re.compile(
    "[\u031b\u0309]|[aeiouy]\u0323|[\u0302\u0306][\u0300\u0301\u0303]"
)
_WORD = regex.compile(r"[\w\p{M}]+")
# Letters of their own that decomposition takes for accented ones
_LETTERS = {letter: unicodedata.normalize("NFD", letter) for letter in "йїўѓќ"}
_ACCENT = regex.compile(
    r"[\p{Inherited}\p{Greek}\p{Cyrillic}\p{Hebrew}\p{Arabic}\p{Syriac}]"
)
_TATWEEL = "\u0640"  # Lengthens Arabic words
_ALIKE = """
ı i, ħ h, ð d, þ th, ʼ ', ʻ ', ՚ ', ׳ ',
ى ي, ی ي, ک ك, ہ ه, ة ه,
\u0901 \u0902, \u09ce \u09a4\u09cd, \u0d7a \u0d23\u0d4d, \u0d7b \u0d28\u0d4d, \u0d7c \u0d30\u0d4d,
\u0d7d \u0d32\u0d4d, \u0d7e \u0d33\u0d4d, \u0d7f \u0d15\u0d4d
"""
# Letters of Turkish, Maltese and Icelandic; apostrophes; yeh, kaf, heh and teh marbuta of Arabic,
# Persian and Urdu, as Lucene's normalization filters have them; signs of Indic scripts.
_ONE_LETTER = dict(map(str.split, _ALIKE.split(",")))
_INVISIBLE = (
    r"\u00ad\u034f\u180b-\u180d\u200c\u200d\u2060\ufe00-\ufe0f\U000e0100-\U000e01ef"
)
_TONE = r"[\u0309\u0323]"
SPELLINGS: list[tuple[Any, str | Callable[[Any], str]]] = [
    (regex.compile(pattern, regex.V1), replacement)
    for pattern, replacement in (
        # Between the parts of a Persian word a blank, as in Lucene
        (r"(?<=\p{Arabic})\u200c+(?=\p{Arabic})", " "),
        # In other words nothing: soft hyphens, joiners, selectors of a form, keys around digits
        (rf"(?<=\w)[{_INVISIBLE}\u20e3]+", ""),
        (rf"(?<={_UNSPACED_SCRIPTS})\u200b+(?={_UNSPACED_SCRIPTS})", ""),
        (r"[\p{Nd}--[0-9]]", lambda match: str(unicodedata.digit(match[0], match[0]))),
        (f"[{''.join(_ONE_LETTER)}]", lambda match: _ONE_LETTER[match[0]]),
        ("\u06d5\u0654", "ه"),  # Persian ezafe
        ("եւ", "եվ"),  # Capitals of the ligature in the first
        (r"(?<=\w)[՛՜՞](?=\w)", ""),  # Armenian punctuation, after the stressed vowel
        ("\u093c", ""),  # Nukta of Devanagari
        ("ङ्(?=[क-घ])|ञ्(?=[च-झ])|ण्(?=[ट-ढ])|न्(?=[त-ध])|म्(?=[प-भ])", "\u0902"),
        ("เเ", "แ"),
        # The tone before the ring of Thai and Lao am
        ("([\u0e4d\u0ecd])([\u0e48-\u0e4b\u0ec8-\u0ecb])(?=[\u0e32\u0eb2])", r"\2\1"),
        # Vietnamese: thủy and thuỷ
        (rf"(?:(?<=o){_TONE}[ae]|(?<=u){_TONE}y)(?!\w)", lambda match: match[0][::-1]),
    )
]
"""Patterns in lower case and form KD, and replacements that leave one of several spellings of a
word: letters and digits of one value, invisible characters, optional marks, orders of marks."""
_HAS_SPELLINGS = re.compile(
    "[^\0-\u00ac\u00ae-\u00ef\u00f1-\u00fd\u00ff-\u0126\u0128-\u0130\u0132-\u02ba\u02bd-\u0308\u030a-\u0322"
    "\u0324-\u034e\u0350-\u052f\u2010-\u205f\u20a0-\u20bf\u2100-\u2bff\u3000-\u9fff\U0001f000-\U0001faff]"
)
"""A look ahead: characters of most posts, of which no pattern matches any, are left out."""
_OF_LETTERS = (
    0,
    7,
    8,
    9,
)  # Unicode's combining classes of nukta, kana's voicing, virama


@lru_cache(maxsize=1000)
def _is_accent(mark: str) -> bool:
    of_kind = unicodedata.combining(mark) not in _OF_LETTERS
    return mark == _TATWEEL or (of_kind and _ACCENT.match(mark) is not None)


class Reading(NamedTuple):
    """How texts become terms: by default as here, else as in the code of Rao et al. (2019)."""

    tokens: str = "words"
    """:func:`words`, or ``treebank``: :func:`treebank_words`, punctuation and mentions included."""
    trigrams: str = (
        "words"  # Of each of the ``words``, or of the whole ``text``, across words
    )
    urls: str = "path"  # :func:`url_text`, or ``code``: :func:`url_of_code`


# Values of each field of a :class:`Reading`
CHOICES = {
    "tokens": ("words", "treebank"),
    "trigrams": ("words", "text"),
    "urls": ("path", "code"),
}


def treebank_words(text: str) -> list[str]:
    """Tokens of NLTK's Treebank tokenizer, in lower case and ASCII."""
    return _treebank().tokenize(ascii_text(text))


def ascii_text(text: str) -> str:
    """Lower case without accents and without characters outside ASCII, single spaces."""
    decomposed = unicodedata.normalize("NFD", text[:MAX_CHARACTERS].replace(END, " "))
    return " ".join(decomposed.encode("ascii", "ignore").decode().lower().split())


@cache
def _treebank() -> Any:
    from nltk.tokenize.treebank import (
        TreebankWordTokenizer,
    )  # NLTK takes two seconds to load.

    return TreebankWordTokenizer()


def hashtags(text: str) -> list[str]:
    """Hashtags of a post, without their ``#``."""
    text = text[:MAX_CHARACTERS]
    return _HASHTAG.findall(text) if "#" in text else []


def mask_digits(word: str) -> str:
    """The word with every digit replaced by 0: ``1971`` -> ``0000``."""
    return _DIGIT.sub("0", word)


def url_text(url: str) -> str:
    """Host and path of a URL in lower case, without scheme, ``www.``, query and fragment.

    Without a URL: :data:`URL_PLACEHOLDER`.
    """
    if not url:
        return URL_PLACEHOLDER
    url = unquote(url[:MAX_CHARACTERS].strip()).lower()
    url = SCHEME.sub("", url).partition("?")[0].partition("#")[0].rstrip("/")
    return url or URL_PLACEHOLDER


LINK_OF_CODE, URL_LENGTH = "http://www.abc.com", 120


def url_of_code(url: str) -> str:
    """A URL as the code of Rao et al. (2019) cuts it, in lower case.

    Its query goes, or else its last character; then its first seven, ``http://``; and all but the
    last :data:`URL_LENGTH`. A post without a URL has :data:`LINK_OF_CODE`.
    """
    url = url[:MAX_CHARACTERS].strip() or LINK_OF_CODE
    return ascii_text(url[7 : url.find("?")])[-URL_LENGTH:]


def url_trigrams(urls: Sequence[str], form: str = "path") -> Ragged:
    """:func:`character_trigrams` of each URL in one of the forms of :attr:`Reading.urls`."""
    read = url_text if form == "path" else url_of_code
    return character_trigrams([read(url) for url in urls])


def character_trigrams(texts: Sequence[str]) -> Ragged:
    """Identifiers (int32) of the trigrams of each ``#text#``: ``hello`` -> ``#he hel ell llo lo#``.

    A text has as many trigrams as bytes of UTF-8.
    """
    encoded = [f"#{text}#".encode(errors="replace") for text in texts]
    classes = _CLASSES[np.frombuffer(b"".join(encoded), dtype=np.uint8)]
    sizes = np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded))
    trigrams = (
        classes[:-2] * TRIGRAM_CLASSES + classes[1:-1]
    ) * TRIGRAM_CLASSES + classes[2:]
    # Trigrams that begin at the last two bytes of a text reach into the next one.
    is_inside = np.ones(len(classes), dtype=np.bool_)
    ends = np.cumsum(sizes)
    is_inside[ends - 1] = is_inside[ends - 2] = False
    return Ragged.from_lengths(trigrams[is_inside[: len(trigrams)]], sizes - 2)


# Byte -> class: 0 for #, 1–26 letters, 27–36 digits, 37–39 all others
_CLASSES = np.full(256, 39, dtype=np.int32)
for _class, _bytes in enumerate(
    [*f"#{string.ascii_lowercase}{string.digits}", "./:", "-_ +,"]
):
    _CLASSES[[*_bytes.encode()]] = _class
SPACE = int(_CLASSES[ord(" ")])
