"""Find the stems of words by Porter's algorithm (1980) with NLTK's extensions."""

import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any

_STEP_2 = """
tional enci anci izer bli alli entli eli ousli ization
ation ator alism iveness fulness ousness aliti iviti biliti fulli logi
"""
_STEP_4 = """
al ance ence er ic able ible ant ement ment ent
ion ou ism ate iti ous ive ize
"""
_ENDINGS_OF_STEPS = {
    "_step1a": ("s",),
    "_step1b": ("ed", "ing"),
    "_step1c": ("y",),
    "_step2": tuple(_STEP_2.split()),
    "_step3": ("icate", "ative", "alize", "iciti", "ical", "ful", "ness"),
    "_step4": tuple(_STEP_4.split()),
    "_step5a": ("e",),
    "_step5b": ("ll",),
}
"""Name of each step of NLTK's stemmer -> endings of all words that the step may change.
"""

_ENDINGS = tuple(chain.from_iterable(_ENDINGS_OF_STEPS.values()))


def _porter() -> ModuleType:
    """Import NLTK's stemmer module without the packages that contain it.

    The packages import pandas, scikit-learn and SciPy, which takes two seconds and
    120 MiB. Empty packages take their place during the import. Afterwards they are
    removed, so that a later import of NLTK gets all of it.
    """
    if "nltk" in sys.modules:
        return import_module("nltk.stem.porter")
    spec = find_spec("nltk")
    assert spec and spec.submodule_search_locations
    _put_empty_package("nltk", spec.submodule_search_locations)
    stem_folders = [
        str(Path(folder, "stem")) for folder in spec.submodule_search_locations
    ]
    _put_empty_package("nltk.stem", stem_folders)
    try:
        return import_module("nltk.stem.porter")
    finally:
        for name in list(sys.modules):
            if name.partition(".")[0] == "nltk":
                del sys.modules[name]


def _put_empty_package(name: str, folders: Sequence[str]) -> None:
    package = ModuleType(name)
    package.__path__ = list(folders)
    sys.modules[name] = package


Step = Callable[[str], str]


def _only_for(endings: tuple[str, ...], step: Step) -> Step:
    """Return the step in a form that leaves words without one of the endings alone."""

    def guarded(word: str) -> str:
        if word.endswith(endings):
            return step(word)
        return word

    return guarded


def _stemmer() -> Any:
    """Return NLTK's stemmer, with steps that skip the words they cannot change.

    This way stemming takes a third of the time.
    """
    stemmer = _porter().PorterStemmer()
    for name, endings in _ENDINGS_OF_STEPS.items():
        setattr(stemmer, name, _only_for(endings, getattr(stemmer, name)))
    return stemmer


_STEMMER = _stemmer()


@lru_cache(maxsize=200_000)
def stem(word: str) -> str:
    """Return the stem of a word in lower case: ``Cuts`` -> ``cut``."""
    lower = word.lower()
    # Half of all words, mostly names and numbers, do not need NLTK.
    if not lower.endswith(_ENDINGS):
        return lower
    return str(_STEMMER.stem(lower))
