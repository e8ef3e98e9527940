"""Stems of words by Porter's algorithm (1980), with NLTK's extensions."""

import sys
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

_ENDINGS = (
    *("al", "alli", "anci", "ant", "ator", "bli", "e", "ed", "eli", "enci", "ent", "entli", "er"),
    *("ful", "fulli", "ic", "ing", "ion", "ism", "iti", "ll", "logi", "ou", "ousli", "s", "y"),
)
"""Endings of all words that a rule of Porter's or an exception of NLTK's changes."""


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
        package.__path__ = [str(Path(root, folder)) for root in spec.submodule_search_locations]
    try:
        return import_module("nltk.stem.porter")
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "nltk"]:
            del sys.modules[name]


_STEMMER = _porter().PorterStemmer()


@lru_cache(maxsize=200_000)
def stem(word: str) -> str:
    """The stem of a word: ``cuts`` -> ``cut``."""
    small = word.lower()
    # Half of all words, mostly names and numbers, need no call of NLTK.
    return str(_STEMMER.stem(small)) if small.endswith(_ENDINGS) else small
