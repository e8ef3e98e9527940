"""Read click logs, which record searches, the posts on their pages, and clicks.

A log is a file of JSON lines, which may end in ``.gz``, or a folder of such files. A
line is either a search with its clicks, or a search or an event in the form of
OpenSearch's User Behavior Insights (UBI). ``serve --log`` writes the latter form::

    {"query": "storm", "shown": ["17", "4"], "clicked": ["4"]}
    {"query_id": "a1", "user_query": "storm", "query_response_hit_ids": ["17", "4"], …}
    {"query_id": "a1", "action_name": "click",
     "event_attributes": {"object": {"object_id": "4"}}}
"""

import fileinput
import json
import re
import sqlite3
import zlib
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tweetrerank.indexes.data_error import DataError
from tweetrerank.indexes.records import is_doc_id, short_json, well_formed
from tweetrerank.pipeline.collections.topics import Topic, normalize, query_id

CHAMPION = 1
CHALLENGER = 2
"""Teams of the posts of an interleaved search. A post of no team has 0."""

# Names of UBI's actions that count as a click
CLICK = re.compile(r".*click|add_to_cart|purchase", re.IGNORECASE | re.DOTALL)
MOST_START = 100_000  # Largest number of posts before a page
MOST_NAME = 512  # An id or an action has fewer characters than this
MOST_NOTES = 3  # Number of skipped lines that are reported one by one
WRONG = (ValueError, TypeError, AttributeError, RecursionError)
"""The errors that a malformed record may raise."""

_TABLES = """
CREATE TABLE clicks (search, post, PRIMARY KEY (search, post)) WITHOUT ROWID;
CREATE TABLE pages (search, start, PRIMARY KEY (search, start)) WITHOUT ROWID;
"""
_ADD_CLICK = "INSERT OR IGNORE INTO clicks VALUES (?, ?)"
_ADD_PAGE = "INSERT OR IGNORE INTO pages VALUES (?, ?)"
_CLICKED_POSTS = "SELECT post FROM clicks WHERE search = ?"
_COUNT_UNKNOWN = """
SELECT count(DISTINCT search) FROM clicks
WHERE search NOT IN (SELECT search FROM pages)
"""


def read_searches(path: Path, notes: list[str]) -> Iterator[dict[str, Any]]:
    """Yield the searches of a log, each with the set of its clicked posts.

    A search is a dictionary. Its keys include those of the record in the log, and
    ``clicked`` has the clicked posts. Malformed lines and further copies of a page are
    skipped, and ``notes`` gets messages about them. Raises DataError if there is no
    file or a file cannot be read.
    """
    files = [path] if path.is_file() else sorted(path.glob("*.jsonl*"))
    if not files:
        raise DataError(
            f"{path}: found no JSON lines (.jsonl), expected those of serve --log"
        )
    # The database is on the disk, because logs may be larger than memory.
    with closing(sqlite3.connect("")) as database:
        database.executescript(_TABLES)
        _store_clicks(files, database)
        skipped = 0
        for where, line in _lines(files):
            try:
                record = parsed_line(line)
                if read_event(record) is None:
                    yield _read_search(record.get("_source", record), database)
            except WRONG as error:
                skipped += 1
                if skipped <= MOST_NOTES:
                    notes.append(f"{where}: {error}; the line is passed over")
        unknown = database.execute(_COUNT_UNKNOWN).fetchone()[0]
    if skipped > MOST_NOTES:
        notes.append(f"{path}: {skipped:,} lines in all were passed over")
    if unknown:
        notes.append(f"{path}: found clicks of {unknown:,} unknown searches")


def _store_clicks(files: Sequence[Path], database: sqlite3.Connection) -> None:
    """Store the clicks of UBI's events.

    Malformed lines are skipped here. They are reported when searches are read.
    """
    for _, line in _lines(files):
        if b'"action_name"' not in line:
            continue
        with suppress(*WRONG):
            event = read_event(parsed_line(line))
            if event is None:
                continue
            search_id, action, post = event
            if post and CLICK.fullmatch(action):
                database.execute(_ADD_CLICK, (search_id, post))


def _lines(files: Sequence[Path]) -> Iterator[tuple[str, bytes]]:
    """Yield (``file:line``, line) for each line that is not blank.

    Raises DataError if a file cannot be read.
    """
    with fileinput.FileInput(
        files, openhook=fileinput.hook_compressed, mode="rb"
    ) as lines:
        try:
            for line in filter(bytes.strip, lines):
                yield f"{lines.filename()}:{lines.filelineno()}", line
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"{lines.filename()}: cannot be read ({error})") from None


def checked_line(record: Mapping[str, Any]) -> bytes:
    """Return the line of a record in a log, with its CRC-32 as the last value."""
    text = json.dumps(record).encode()
    return b'%s, "crc32": %d}\n' % (text[:-1], zlib.crc32(text))


def parsed_line(line: bytes) -> Any:
    """Return the value of a line in a log.

    Raises ValueError if the line is not JSON, or if it has a CRC-32 that is wrong.
    """
    text, is_checked, crc32 = line.rstrip().rpartition(b', "crc32": ')
    if is_checked and crc32 != b"%d}" % zlib.crc32(text + b"}"):
        raise ValueError("found a changed line, expected the CRC-32 that it names")
    return json.loads(line)


def read_event(record: Any) -> tuple[str, str, str] | None:
    """Return (search id, action, post id) of an event, or None for a search.

    The post id is "" if the event has none. Raises one of the errors in :data:`WRONG`
    if the record is malformed.
    """
    if not isinstance(record, dict):
        raise ValueError(f"found {short_json(record)}, expected a JSON object")
    record = record.get("_source", record)
    if "action_name" not in record:
        return None
    attributes = record.get("event_attributes") or {}
    post = (attributes.get("object") or {}).get("object_id")
    search_id = _id(record.get("query_id"))
    action = _id(record["action_name"])
    if post is None:
        return search_id, action, ""
    return search_id, action, _id(post)


def _read_search(
    record: dict[str, Any], database: sqlite3.Connection
) -> dict[str, Any]:
    """Return a search with its clicks.

    Raises one of the errors in :data:`WRONG` if the record is malformed.
    """
    if "query_response_hit_ids" in record:
        return _read_ubi_search(record, database)
    return _read_plain_search(record)


def _read_plain_search(record: dict[str, Any]) -> dict[str, Any]:
    """Return the search of a record that names its clicked posts itself."""
    shown = _shown_posts(record, "shown")
    query = record.get("query")
    _check_query(query)
    name = record.get("query_id")
    clicked = set(_ids(record, "clicked"))
    if name is not None:
        name = _id(name)
        if not is_doc_id(name):
            raise ValueError(f"found query_id {name!r}, expected one word")
    not_shown = clicked.difference(shown)
    if not_shown:
        raise ValueError(
            f"found a click on {min(not_shown)!r}, expected one of the shown posts"
        )
    return {
        "query": query,
        "shown": shown,
        "start": 0,
        "topic": name,
        "clicked": clicked,
    }


def _read_ubi_search(
    record: dict[str, Any], database: sqlite3.Connection
) -> dict[str, Any]:
    """Return a page of a search in UBI's form, with the clicks that were stored.

    Raises ValueError if the page was read before.
    """
    shown = _shown_posts(record, "query_response_hit_ids")
    query = record.get("user_query")
    if query is not None:
        _check_query(query)
    search_id = _id(record.get("query_id"))
    start = record.get("start") or 0
    teams = record.get("teams") or [0] * len(shown)
    time = float(record.get("time") or 0)
    if start not in range(MOST_START) or len(teams) != len(shown):
        raise ValueError(
            f"found the start {start!r}, {len(teams)} teams of {len(shown)} posts"
        )
    if not database.execute(_ADD_PAGE, (search_id, start)).rowcount:
        raise ValueError("found a page of a search once more")
    rows = database.execute(_CLICKED_POSTS, (search_id,))
    clicked = {post for (post,) in rows}.intersection(shown)
    search = {
        "topic": None,
        "query_id": search_id,
        "query": query or "",
        "shown": shown,
        "start": start,
        "time": time,
        "teams": teams,
        "clicked": clicked,
    }
    return record | search


def _shown_posts(record: Mapping[str, Any], key: str) -> list[str]:
    shown = _ids(record, key)
    if len(set(shown)) < len(shown):
        raise ValueError("found a post twice in the list, expected it once")
    return shown


def _check_query(query: Any) -> None:
    if not isinstance(query, str) or not query.split():
        raise ValueError(f"found the query {short_json(query)}, expected a text")


def _ids(record: Mapping[str, Any], key: str) -> list[str]:
    values = record.get(key)
    if not isinstance(values, list):
        raise ValueError(
            f'found {short_json(values)} under "{key}", expected a list of ids'
        )
    return [_id(value) for value in values]


def _id(value: Any) -> str:
    # In Python JSON's true and false are integers.
    is_name = isinstance(value, str | int) and not isinstance(value, bool)
    if is_name and len(str(value)) < MOST_NAME:
        return str(value)
    raise ValueError(f"found {short_json(value)}, expected an id")


class ClickLog(NamedTuple):
    """The posts of a log as they were shown, with one entry for each time.

    An impression is one page that was shown for a search.
    """

    pair: npt.NDArray[np.int64]  # [entries], index in ``pairs``
    position: npt.NDArray[np.int64]  # [entries], from 0
    click: npt.NDArray[np.bool_]  # [entries]
    skipped: npt.NDArray[np.bool_]  # [entries], not clicked, unlike a post below
    pairs: list[tuple[int, str]]  # Index in ``topics``, and doc_id
    topics: list[Topic]  # In the order of their first impressions
    impressions: int
    with_click: int
    notes: list[str]  # Skipped lines and other problems


def read_click_log(path: Path) -> ClickLog:
    """Read the searches of a log as one table of impressions.

    Texts count as one query if they differ only in case, in white space, or in
    Unicode's form of a letter. The topic has the commonest spelling. Raises DataError
    if the log has no texts of queries or no click.
    """
    notes: list[str] = []
    queries = _Queries()
    impressions = _Impressions()
    for search in read_searches(path, notes):
        if not search["query"]:
            raise DataError(
                f"{path}: found searches without their queries, expected serve "
                "--log-queries plain (models are compared without)"
            )
        number = queries.add(search["query"], search["topic"])
        impressions.add(number, search)
    if queries.misnamed:
        notes.append(
            f"{path}: {queries.misnamed:,} query_ids are another query's; texts name "
            "such queries"
        )
    if not impressions.with_click:
        problem = (
            f"{path}: found {impressions.count:,} impressions and no click, expected "
            "one or more"
        )
        raise DataError("\n  ".join([problem, *notes]))
    blank = [doc_id for _, doc_id in impressions.pairs if not is_doc_id(doc_id)]
    if blank:
        notes.append(
            f"{path}: found {len(blank):,} ids with blanks, which are not judged, such "
            f"as {short_json(blank[0])}"
        )
    return impressions.log(queries.topics(), notes)


class _Queries:
    """The queries of a log. Queries are the same if their normalized texts are."""

    def __init__(self) -> None:
        self.misnamed = 0  # Number of searches whose query_id belongs to another query
        self._numbers: dict[str, int] = {}  # Normalized text -> number of the query
        self._spellings = defaultdict[int, Counter[str]](Counter)
        self._names: dict[str, str] = {}  # Normalized text -> query_id
        self._texts: dict[str, str] = {}  # query_id -> normalized text

    def add(self, query: str, name: str | None) -> int:
        """Add a search, and return the number of its query, from 0.

        ``name`` is the query_id that the search gives, if any.
        """
        text = normalize(query)
        if name and self._texts.setdefault(name, text) == text:
            self._names.setdefault(text, name)
        self.misnamed += name is not None and name != self._names.get(text)
        number = self._numbers.setdefault(text, len(self._numbers))
        spelling = " ".join(well_formed(query).split())
        self._spellings[number][spelling] += 1
        return number

    def topics(self) -> list[Topic]:
        """Return the topics in the order of their numbers."""
        topics = []
        for text, number in self._numbers.items():
            [(spelling, _)] = self._spellings[number].most_common(1)
            name = self._names.get(text) or query_id(text)
            topics.append(Topic(name, spelling))
        return topics


class _Impressions:
    """The impressions of a log, kept as the columns of :class:`ClickLog`."""

    def __init__(self) -> None:
        self.count = 0
        self.with_click = 0
        self.pairs: dict[tuple[int, str], int] = {}  # (query, doc_id) -> index
        self._entries = array("q")  # Rows of pair, position, click, skipped

    def add(self, number: int, search: Mapping[str, Any]) -> None:
        """Add a search for the query with this number."""
        shown = search["shown"]
        clicked = search["clicked"]
        start = search["start"]
        clicked_places = [
            place for place, doc_id in enumerate(shown) if doc_id in clicked
        ]
        last = max(clicked_places, default=-1)
        pairs = self.pairs
        for place, doc_id in enumerate(shown):
            pair = pairs.setdefault((number, doc_id), len(pairs))
            click = doc_id in clicked
            skipped = place < last and not click
            self._entries.extend((pair, start + place, click, skipped))
        self.count += 1
        self.with_click += bool(clicked)

    def log(self, topics: list[Topic], notes: list[str]) -> ClickLog:
        """Return the log of all impressions."""
        entries = np.array(self._entries, np.int64).reshape(-1, 4)
        pair, position, click, skipped = entries.T
        return ClickLog(
            pair=pair,
            position=position,
            click=click > 0,
            skipped=skipped > 0,
            pairs=list(self.pairs),
            topics=topics,
            impressions=self.count,
            with_click=self.with_click,
            notes=notes,
        )
