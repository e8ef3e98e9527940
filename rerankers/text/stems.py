"""Stems of words by Porter's algorithm (1980), with NLTK's extensions."""

import sys
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any

_ENDINGS_OF_STEPS = {
    "_step1a": ("s",),
    "_step1b": ("ed", "ing"),
    "_step1c": ("y",),
    "_step2": (
        *(
            "tional",
            "enci",
            "anci",
            "izer",
            "bli",
            "alli",
            "entli",
            "eli",
            "ousli",
            "ization",
        ),
        *(
            "ation",
            "ator",
            "alism",
            "iveness",
            "fulness",
            "ousness",
            "aliti",
            "iviti",
            "biliti",
        ),
        *("fulli", "logi"),
    ),
    "_step3": ("icate", "ative", "alize", "iciti", "ical", "ful", "ness"),
    "_step4": (
        *(
            "al",
            "ance",
            "ence",
            "er",
            "ic",
            "able",
            "ible",
            "ant",
            "ement",
            "ment",
            "ent",
        ),
        *("ion", "ou", "ism", "ate", "iti", "ous", "ive", "ize"),
    ),
    "_step5a": ("e",),
    "_step5b": ("ll",),
}
"""Endings of the words that each step of NLTK's stemmer changes, its exceptions included."""

_ENDINGS = tuple(chain.from_iterable(_ENDINGS_OF_STEPS.values()))


def _porter() -> ModuleType:
    """NLTK's module of the stemmer, without the packages around it.

    These import pandas, scikit-learn and SciPy: two seconds and 120 MiB. Empty ones take their
    place meanwhile, so that a later import of NLTK is a whole one.
    """
    if "nltk" in sys.modules:
        return import_module("nltk.stem.porter")
    spec = find_spec("nltk")
    assert spec and spec.submodule_search_locations
    for name, folder in (("nltk", "."), ("nltk.stem", "stem")):
        sys.modules[name] = package = ModuleType(name)
        package.__path__ = [
            str(Path(root, folder)) for root in spec.submodule_search_locations
        ]
    try:
        return import_module("nltk.stem.porter")
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "nltk"]:
            del sys.modules[name]


def _stemmer() -> Any:
    """NLTK's stemmer, whose steps pass words with other endings unread: a third of the time."""
    stemmer = _porter().PorterStemmer()

    def guarded(
        step: Callable[[str], str], endings: tuple[str, ...]
    ) -> Callable[[str], str]:
        return lambda word: step(word) if word.endswith(endings) else word

    for name, endings in _ENDINGS_OF_STEPS.items():
        setattr(stemmer, name, guarded(getattr(stemmer, name), endings))
    return stemmer


_STEMMER = _stemmer()


@lru_cache(maxsize=200_000)
def stem(word: str) -> str:
    """The stem of a word: ``cuts`` -> ``cut``."""
    small = word.lower()
    # Half of all words, mostly names and numbers, need no call of NLTK.
    return str(_STEMMER.stem(small)) if small.endswith(_ENDINGS) else small
