"""Stems of words by Porter's algorithm, as NLTK has it: ``cuts`` -> ``cut``.

M. F. Porter: *An algorithm for suffix stripping*, Program, 1980; with the exceptions and the five
changed rules of NLTK's ``PorterStemmer``, several times as fast as it.
"""

from functools import lru_cache


def _rules(text: str) -> dict[str, str]:
    """``ending:replacement`` of each rule."""
    rules = (rule.partition(":") for rule in text.split())
    return {ending: replacement for ending, _, replacement in rules}


_EXCEPTIONS = _rules(
    """
    skies:sky sky:sky dying:die lying:lie tying:tie news:news innings:inning inning:inning
    outings:outing outing:outing cannings:canning canning:canning howe:howe proceed:proceed
    exceed:exceed succeed:succeed
    """
)
_STEP_1A = _rules("sses:ss ies:i ss:ss s:")
_STEP_2 = _rules(
    """
    ational:ate tional:tion enci:ence anci:ance izer:ize bli:ble alli:al entli:ent eli:e ousli:ous
    ization:ize ation:ate ator:ate alism:al iveness:ive fulness:ful ousness:ous aliti:al iviti:ive
    biliti:ble fulli:ful logi:log
    """
)
_STEP_3 = _rules("icate:ic ative: alize:al iciti:ic ical:ic ful: ness:")
_STEP_4 = _rules(
    """
    al: ance: ence: er: ic: able: ible: ant: ement: ment: ent: ion: ou: ism: ate: iti: ous: ive:
    ize:
    """
)


@lru_cache(maxsize=200_000)
def stem(word: str) -> str:
    """The stem of a word."""
    word = word.lower()
    if word in _EXCEPTIONS:
        return _EXCEPTIONS[word]
    if len(word) <= 2:
        return word
    if word[-1] == "s":
        word = f"{word[0]}ie" if len(word) == 4 and word[1:] == "ies" else _cut(word, _STEP_1A)
    word = _without_past(word)
    if word[-1:] == "y" and len(word) > 2 and _shape(word)[-2] == "c":
        word = f"{word[:-1]}i"
    while word[-4:] == "alli" and _measure(word[:-4]):
        word = word[:-2]
    # The l of this ending counts as one of the rest.
    least = -1 if word[-4:] == "logi" and _measure(word[:-3]) else 0
    word = _cut(_cut(word, _STEP_2, least), _STEP_3, 0)
    if word[-3:] != "ion" or word[-4:-3] in ("s", "t"):
        word = _cut(word, _STEP_4, 1)
    if word[-1:] == "e":
        measure = _measure(word[:-1])
        if measure > 1 or (measure == 1 and not _is_short(word[:-1])):
            word = word[:-1]
    return word[:-1] if word[-2:] == "ll" and _measure(word[:-1]) > 1 else word


def _without_past(word: str) -> str:
    """Step 1b: without ``ed`` and ``ing``."""
    if word[-3:] == "ied":
        return word[:-1] if len(word) == 4 else word[:-2]
    if word[-3:] == "eed":
        return word[:-1] if _measure(word[:-3]) else word
    size = 2 if word[-2:] == "ed" else 3 if word[-3:] == "ing" else 0
    rest = word[: len(word) - size]
    if not size or "v" not in _shape(rest):
        return word
    if rest[-2:] in ("at", "bl", "iz"):
        return f"{rest}e"
    if rest[-1:] == rest[-2:-1] and _shape(rest)[-1] == "c":
        return rest if rest[-1] in "lsz" else rest[:-1]
    return f"{rest}e" if _is_short(rest) and _measure(rest) == 1 else rest


def _cut(word: str, endings: dict[str, str], least: int = -1) -> str:
    """The word with its longest ending replaced, if the rest's measure is above ``least``."""
    if not word.endswith(tuple(endings)):
        return word
    size = next(size for size in range(min(7, len(word)), 0, -1) if word[-size:] in endings)
    rest = word[:-size]
    return rest + endings[word[-size:]] if _measure(rest) > least else word


class _Letters(dict[int, int]):
    def __missing__(self, code: int) -> int:
        return ord("c")


_LETTERS = _Letters(str.maketrans("abcdefghijklmnopqrstuvwxyz", "vcccvcccvcccccvcccccvcccyc"))


def _shape(word: str) -> str:
    """``c`` for each consonant and ``v`` for each vowel."""
    shape = word.translate(_LETTERS)
    while (place := shape.find("y")) >= 0:
        is_vowel = place and shape[place - 1] == "c"
        shape = f"{shape[:place]}{'v' if is_vowel else 'c'}{shape[place + 1 :]}"
    return shape


def _measure(word: str) -> int:
    """Porter's m: vowels that a consonant follows."""
    return _shape(word).count("vc")


def _is_short(word: str) -> bool:
    """Porter's *o: the word ends in consonant, vowel and consonant other than w, x and y."""
    shape = _shape(word)
    return (shape[-3:] == "cvc" and word[-1] not in "wxy") or shape == "vc"
