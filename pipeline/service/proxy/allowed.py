"""Decides which indexes and searches may pass, by the lists in ``allowed.json``.

The lists have words of OpenSearch 2 and 3 and Elasticsearch 8 and 9. A word that is
not listed is refused. The lists leave out words that write, that read indexes which
are not checked here, or that run something that an administrator has stored.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cachetools import LRUCache

from tweetrerank.pipeline.service.proxy.json_path import Json, as_list
from tweetrerank.pipeline.service.service_errors import RequestError

DEPTH = 100  # Most levels of objects and lists in a body
ELEMENTS = 100_000  # Most values in a body; a `terms` query alone may have 65,536
_KNOWN = 100_000  # Number of ids that are remembered
_MOST_NAMES = 1000  # Most index names in a request


def _inverted(part: Json) -> Json:
    """Invert an object, from words listed for each key to the key of each word.

    The words are separated by blanks. If one of the values is an object, nothing is
    inverted, and the other values become lists of words.
    """
    words = {key: _listed_words(value) for key, value in part.items()}
    if any(isinstance(value, dict) for value in words.values()):
        return words
    key_of_word: Json = {}
    for key, listed in words.items():
        key_of_word |= dict.fromkeys(listed, key)
    return key_of_word


def _listed_words(value: Json | list[str] | str) -> Json | list[str]:
    """Return the words of a value. An object is returned as it is."""
    if isinstance(value, dict):
        return value
    if isinstance(value, list):
        value = " ".join(value)
    return value.split()


LISTS = json.loads(
    Path(__file__).with_name("allowed.json").read_bytes(), object_hook=_inverted
)
_PARTS: Mapping[str, Mapping[str, str]] = LISTS["parts"]
"""The allowed keys of each part of a search, and for each key the part it holds.

``*`` stands for any other key. A list is the same part as its items. Plain values are
allowed everywhere.
"""


def refused(problem: str) -> RequestError:
    """Return the error for a call or a search that may not pass."""
    message = f"found {problem}, which does not pass here; ask the engine"
    return RequestError("refused", message)


_NAME = re.compile(r'(?![._\-+])[^\x00-\x20\x7f"#,/<>?\\|]{1,255}')
"""The form of index names and patterns that may pass.

System indexes, ``_all``, exclusions and names computed from a date do not have it.
"""


def readable(names: Iterable[str], served: Sequence[str]) -> list[str]:
    """Return names and patterns in the form that the engine gets.

    System indexes are excluded from patterns that could match them. Raises RequestError
    if there are no names, too many, or names that ``served`` does not cover.
    """
    requested = [name.strip() for name in names] or [""]
    if len(requested) > _MOST_NAMES:
        raise RequestError(
            "index",
            f"found {len(requested):,} indexes, expected at most {_MOST_NAMES:,}",
        )
    for name in requested:
        if not _NAME.fullmatch(name) or not _is_served(name, served):
            choices = ", ".join(served)
            raise RequestError(
                "index", f"found the index {name[:100]!r}, expected one of {choices}"
            )
    if any(name.startswith("*") for name in requested):
        # Patterns that begin with a wildcard may also match system indexes.
        requested.append("-.*")
    return requested


def _is_served(name: str, served: Sequence[str]) -> bool:
    """Whether one of the served patterns covers a name.

    A name with a colon is on a remote cluster. Only a pattern with a colon covers it.
    """
    is_remote = ":" in name
    for pattern in served:
        if is_remote and ":" not in pattern:
            continue
        if matches(pattern, name):
            return True
    return False


def matches(pattern: str, name: str) -> bool:
    """Whether a name matches a pattern, in which ``*`` stands for any text.

    If the name is a pattern itself, this says whether every name that matches it also
    matches ``pattern``. The time is linear in the length of the name.
    """
    first, *further = pattern.split("*")
    if not further:
        return pattern == name
    last = further.pop()
    start = len(first)
    end = len(name) - len(last)
    for text in further:
        # Taking the first place of a text leaves most of the name for the next texts.
        place = name.find(text, start, end)
        if place < 0:
            return False
        start = place + len(text)
    return start <= end and name.startswith(first) and name.endswith(last)


def strict(body: bytes) -> Json:
    """Read a JSON object of limited size in which no key is repeated.

    Raises RequestError for anything else, so that the engine cannot read a body in
    another way than the checks here.
    """
    elements = 1
    for separator in (b",", b"[", b"{"):
        elements += body.count(separator)
    if elements > ELEMENTS:
        raise RequestError(
            "many",
            f"found up to {elements:,} values in the body, expected at most "
            f"{ELEMENTS:,}",
        )
    try:
        # NaN and Infinity cannot become whole numbers, which raises a ValueError.
        content = json.loads(
            body.decode("utf-8"), object_pairs_hook=_unique, parse_constant=int
        )
        if not isinstance(content, dict):
            raise ValueError("it is no object")
    except (ValueError, RecursionError) as error:
        problem = f"found no JSON object that can be read: {str(error)[:200]}"
        raise RequestError("json", problem) from None
    return content


def _unique(pairs: list[tuple[str, Any]]) -> Json:
    content = dict(pairs)
    if len(content) < len(pairs):
        raise ValueError("a key is there twice")
    return content


def dumped(content: Any) -> bytes:
    """Return the content as JSON, in ASCII and without blanks."""
    return json.dumps(content, separators=(",", ":")).encode()


class Grammar:
    """Decides whether the body of a call may pass.

    ``served`` has the names and patterns of the indexes that may be searched. The
    grammar remembers the ids of scrolls, points in time and asynchronous searches that
    callers got through this proxy, because only these may be used again.
    """

    def __init__(self, served: Sequence[str]) -> None:
        self._served = served
        self._known: LRUCache[bytes, bool] = LRUCache(_KNOWN)

    def remember(self, members: Mapping[str, Any]) -> None:
        """Allow the ids in a response's members, because they continue its search."""
        for key in ("id", "pit_id", "_scroll_id"):
            name = json.loads(bytes(members.get(key, b"null")))
            if isinstance(name, str):
                self._known[_digest(name)] = True

    def check_ids(self, *values: Any) -> None:
        """Raise RequestError unless the values are remembered ids, or lists of these.

        Empty values are ignored, but at least one value must not be empty.
        """
        names: list[str] = []
        for value in values:
            for item in as_list(value or []):
                names += str(item).split(",")
        if not names or not all(_digest(name) in self._known for name in names):
            raise refused(
                "no id of a search that goes on, or one that did not go out here"
            )

    def check(
        self,
        value: Any,
        part: str = "options",
        inside: str = "the body",
        depth: int = 1,
    ) -> None:
        """Raise RequestError unless everything in a part of a search is allowed.

        ``part`` is the kind of the value, as in ``allowed.json``. ``inside`` names the
        place of the value in messages, and ``depth`` is its level in the body.
        """
        if depth > DEPTH:
            raise RequestError(
                "many",
                f"found more than {DEPTH} levels in the body, expected at most that",
            )
        if isinstance(value, list):
            if part == "filters":
                part = "query"
            for item in value:
                self.check(item, part, inside, depth + 1)
        elif not isinstance(value, dict):
            self._check_plain(value, part)
        elif part == "indices_boost":
            readable(value, self._served)
        else:
            self._check_object(value, part, inside, depth)

    def _check_plain(self, value: Any, part: str) -> None:
        """Check a value that is neither an object nor a list; raises RequestError."""
        if part == "pit":
            self.check_ids(value)
        elif part == "index":
            if "*" in str(value) or "," in str(value):
                raise refused(f"{str(value)[:100]!r} where a look-up names an index")
            readable([str(value)], self._served)

    def _check_object(
        self,
        value: Json,
        part: str,
        inside: str,
        depth: int,
    ) -> None:
        """Check an object's keys, and each value as the part that its key holds."""
        if part == "knn":
            part = "names"  # An object with options for each field
            if isinstance(value.get("field"), str):
                part = "options"
        if part == "lookup" and not value.get("index"):
            raise refused(f"a look-up in {inside} without an index")
        keys = _PARTS[part]
        for key, item in value.items():
            part_of_item = keys.get(key) or keys.get("*")
            if part_of_item is None:
                raise refused(f"the key {key[:100]!r} in {inside}")
            self.check(item, part_of_item, key[:100], depth + 1)


def _digest(name: str) -> bytes:
    return hashlib.blake2b(name.encode("utf-8", "replace"), digest_size=16).digest()
