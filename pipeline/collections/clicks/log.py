"""Click logs, and the judgments that follow from them.

A log has one impression a line, a JSON object: ``query``, the text; ``shown``, ids of posts from
the first position on; ``clicked``, ids of the clicked ones, possibly none. An optional ``query_id``
names the topic; else the id is made of the text. Other keys are ignored. Texts that differ in case,
white space or Unicode's form of a letter are one query, shown in its commonest spelling.
"""

from __future__ import annotations

import hashlib
import math
import unicodedata
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from indexes.lines import numbered_lines, short
from indexes.posts import is_doc_id, parsed, short_json, well_formed
from pipeline.collections.topics import Topic
from pipeline.collections.trec import Qrels
from pipeline.command.errors import DataError
from pipeline.command.options import did_you_mean

if TYPE_CHECKING:  # It needs SciPy.
    from pipeline.collections.clicks.model import Booleans, Floats, Integers

KEYS = ("query", "shown", "clicked")


class Impression(NamedTuple):
    """One list of results: posts from the position ``start`` on, and which of them were clicked.

    ``is_interleaved``: whether coins have chosen the positions. ``scores``: of the shown posts, by
    the model that ranked them; none where they are not known.
    """

    query: str
    shown: list[str]
    clicked: set[str]
    query_id: str | None = None
    start: int = 0
    is_interleaved: bool = False
    scores: Sequence[float] = ()


@dataclass
class Query:
    """A query's spellings, and the query_id that the log gives it, with its line."""

    normalized: str
    spellings: Counter[str] = field(default_factory=Counter)
    given_id: str | None = None
    line: int = 0

    @property
    def topic(self) -> Topic:
        """The commonest spelling, of equally common ones the first; an id of the text if none."""
        return Topic(
            self.given_id or query_id(self.normalized), self.spellings.most_common(1)[0][0]
        )


class ClickLog:
    """Posts as they were shown, one entry for a post in an impression.

    Attributes:
        queries: in the order of their first impressions.
        pairs: [pairs], number of a query and a doc_id.
        impressions: with a click or without.
        impressions_with_click: the former.
    """

    def __init__(self) -> None:
        self.queries: list[Query] = []
        self.pairs: list[tuple[int, str]] = []
        self.impressions = self.impressions_with_click = 0
        self._numbers: dict[str, int] = {}
        self._pairs: dict[tuple[int, str], int] = {}
        self._pair, self._position = array("q"), array("q")
        self._click, self._above, self._chance = array("b"), array("b"), array("b")
        self._score = array("d")

    def add(self, impression: Impression) -> Query:
        """Add an impression; its query."""
        normalized = normalize(impression.query)
        number = self._numbers.setdefault(normalized, len(self.queries))
        if number == len(self.queries):
            self.queries.append(Query(normalized))
        query = self.queries[number]
        query.spellings[" ".join(well_formed(impression.query).split())] += 1
        clicks = [doc_id in impression.clicked for doc_id in impression.shown]
        last = max((k for k, click in enumerate(clicks) if click), default=-1)
        self._score.extend(impression.scores or [math.nan] * len(clicks))
        for place, (doc_id, click) in enumerate(zip(impression.shown, clicks, strict=True)):
            pair = self._pairs.setdefault((number, doc_id), len(self.pairs))
            if pair == len(self.pairs):
                self.pairs.append((number, doc_id))
            self._pair.append(pair)
            self._position.append(impression.start + place)
            self._click.append(click)
            self._above.append(place < last and not click)
            self._chance.append(impression.is_interleaved)
        self.impressions += 1
        self.impressions_with_click += last >= 0
        return query

    @property
    def pair(self) -> Integers:
        """[entries], index in ``pairs``."""
        return np.array(self._pair, np.int64)

    @property
    def position(self) -> Integers:
        """[entries], from 0."""
        return np.array(self._position, np.int64)

    @property
    def click(self) -> Booleans:
        """[entries], whether the post was clicked."""
        return np.array(self._click, np.bool_)

    @property
    def skipped_above_click(self) -> Booleans:
        """[entries], whether the post was not clicked, but one below it."""
        return np.array(self._above, np.bool_)

    @property
    def is_interleaved(self) -> Booleans:
        """[entries], whether coins have chosen the position."""
        return np.array(self._chance, np.bool_)

    @property
    def score(self) -> Floats:
        """[entries], of the post by the model that ranked it; NaN if it is not known."""
        return np.array(self._score, np.float64)

    @property
    def pairs_at_several_positions(self) -> int:
        """Number of pairs that were not always shown at the same position."""
        lowest = np.full(len(self.pairs), np.iinfo(np.int64).max)
        highest = np.zeros(len(self.pairs), np.int64)
        np.minimum.at(lowest, self.pair, self.position)
        np.maximum.at(highest, self.pair, self.position)
        return int((highest > lowest).sum())


def read_click_log(
    path: Path | str, progress: Callable[[int], object] = lambda _: None
) -> ClickLog:
    """Read a log, plain or compressed (``.gz``, ``.bz2``); blank lines are skipped.

    Raises:
        DataError: a line has another form, with all its problems; a query_id has two texts or a
            text two query_ids; there is no click in the log.
    """
    log = ClickLog()
    owners: dict[str, Query] = {}
    for number, line in numbered_lines(path, DataError):
        if not line.strip():
            continue
        impression = parse_impression(line, f"{path}:{number}")
        query = log.add(impression)
        if impression.query_id is not None:
            _name(query, impression.query_id, owners, str(path), number)
        progress(1)
    return with_clicks(log, str(path), 'post under "clicked"')


def with_clicks(log: ClickLog, name: str, expected: str) -> ClickLog:
    """The log; raises DataError if there is no click in it."""
    if not log.impressions_with_click:
        raise DataError(
            f"{name}: found {log.impressions:,} impressions and no click, expected at least one "
            f"{expected}: without clicks there is nothing to judge by"
        )
    return log


def judgments(
    log: ClickLog, relevance: Floats, relevant: float = 0.5, highly_relevant: float = 0.9
) -> Qrels:
    """Grades of the pairs that the log says something about, by query_id in the log's order.

    A clicked post has grade 1 if the probability of its relevance ([pairs], see
    :class:`~pipeline.collections.clicks.model.ClickModel`) is at least ``relevant``, 2 if it is at
    least ``highly_relevant`` after two clicks or more, else 0. A post that was only skipped above
    a click has grade 0 if it is below ``relevant``; else the skips are too few to judge it.
    Others are not judged: nobody has looked at them for sure.
    """
    clicks = np.bincount(log.pair, weights=log.click)
    skipped = np.bincount(log.pair, weights=log.skipped_above_click) > 0
    judged = (clicks > 0) | (skipped & (relevance < relevant))
    highly = (clicks > 1) & (relevance >= highly_relevant)
    grades = np.where(clicks > 0, np.where(highly, 2, relevance >= relevant), 0)
    query_ids = [query.topic.query_id for query in log.queries]
    qrels: Qrels = {}
    for pair in np.flatnonzero(judged):
        number, doc_id = log.pairs[pair]
        qrels.setdefault(query_ids[number], {})[doc_id] = int(grades[pair])
    order = (query_id for query_id in query_ids if query_id in qrels)
    return {query_id: qrels[query_id] for query_id in order}


def normalize(text: str) -> str:
    """The form in which texts of one query are the same."""
    return " ".join(unicodedata.normalize("NFKC", well_formed(text)).casefold().split())


def query_id(normalized: str) -> str:
    """Id of a normalized text: the same in all logs."""
    return f"q{hashlib.sha256(normalized.encode()).hexdigest()[:16]}"


def parse_impression(line: str, where: str) -> Impression:
    """Parse one line; all its problems are in one error."""
    record = parsed(line, where, DataError)
    problems = [
        f'found no "{key}", expected the keys {", ".join(KEYS)}'
        + did_you_mean(key, [name for name in record if name not in KEYS])
        for key in KEYS
        if key not in record
    ]
    query = record.get("query")
    if "query" in record and not (isinstance(query, str) and query.split()):
        problems.append(f"found query {short_json(query)}, expected a text")
    shown, clicked = (_ids(record, key, problems) for key in ("shown", "clicked"))
    problems += [
        f'found {short(doc_id)} {times} times under "shown", expected every post once'
        for doc_id, times in Counter(shown).items()
        if times > 1
    ]
    if isinstance(record.get("shown"), list):
        problems += [
            f"found a click on {short(doc_id)}, expected one of the shown posts"
            for doc_id in dict.fromkeys(clicked)
            if doc_id not in shown
        ]
    name = _id(given) if (given := record.get("query_id")) is not None else None
    if given is not None and name is None:
        problems.append(f"found query_id {short_json(given)}, expected a whole number or one word")
    if problems:
        raise DataError(f"{where}: " + "\n  ".join(problems))
    return Impression(str(query), shown, set(clicked), name)


def _ids(record: dict[str, Any], key: str, problems: list[str]) -> list[str]:
    """The ids under this key; what is none is added to the problems."""
    values = record.get(key, [])
    if not isinstance(values, list):
        problems.append(f"found {key} {short_json(values)}, expected a list of ids")
        return []
    ids = []
    for value in values:
        if (doc_id := _id(value)) is None:
            problems.append(
                f'found {short_json(value)} under "{key}", expected ids: whole numbers or texts '
                "without spaces"
            )
        else:
            ids.append(doc_id)
    return ids


def _id(value: Any) -> str | None:
    if isinstance(value, str) and is_doc_id(value):
        return value
    # In Python JSON's true and false are integers.
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else None


def _name(query: Query, given: str, owners: dict[str, Query], path: str, number: int) -> None:
    """Give the query its id; raise DataError if one of the two has another partner."""
    owner = owners.setdefault(given, query)
    if owner is query and query.given_id in (None, given):
        if query.given_id is None:
            query.given_id, query.line = given, number
        return
    line = query.line if owner is query else owner.line
    found = (
        f"query_id {given} for a query that has {query.given_id} on line {line}"
        if owner is query
        else f"query_id {given} of another query, {short(owner.normalized)} on line {line}"
    )
    raise DataError(
        f"{path}:{number}: found {found}, expected one query_id for each query; "
        "leave the key out where it names searches and not queries"
    )
