"""Click logs, the judgments that follow from them, and the model of clicks behind these.

A log is a file of JSON lines, plain or ``.gz``, or a folder of them: searches with their clicks, or
searches and events in the form of OpenSearch's User Behavior Insights, as of ``serve --log``::

    {"query": "storm", "shown": ["17", "4"], "clicked": ["4"]}
    {"query_id": "a1", "user_query": "storm", "query_response_hit_ids": ["17", "4"], …}
    {"query_id": "a1", "action_name": "click", "event_attributes": {"object": {"object_id": "4"}}}

Position-based model (Chuklin, Markov & de Rijke, "Click Models for Web Search", 2015, sections 3.3
and 4.3; Wang et al., WSDM 2018, section 4): a post d shown for a query q at position k is clicked
if its position is examined and the post attracts, P(click) = θ_k · α_qd. α is integrated out, on a
grid; its prior has two kinds of pairs, each with a Beta distribution: wanted posts, and those that
are clicked by mistake. Expectation maximisation fits θ (1 at the first position), the means of both
and the share of wanted posts, one for each rounded mean position of pairs: the ranking puts
attractive posts first, and θ must not take the blame (Mundlak, Econometrica 1978, section 2). Pairs
shown at several positions tell θ from α; without any, θ stays near its start, 1 / k. A pair is
relevant if α is above the geometric mean of both kinds' means.
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
from tweetrerank.pipeline.collections.trec import Qrels
from tweetrerank.pipeline.text import table_lines

Floats = npt.NDArray[np.float64]

CHAMPION, CHALLENGER = 1, 2  # Teams of an interleaved search; 0 is none
CLICK = re.compile(
    r".*click|add_to_cart|purchase", re.I | re.S
)  # UBI's actions of satisfied users
MOST_START, MOST_NAME = (
    100_000,
    512,
)  # Posts before a page; characters of an id or an action
MOST_TOLD = 3  # Lines that are passed over, with the reason
WRONG = (
    ValueError,
    TypeError,
    AttributeError,
    RecursionError,
)  # Of a record in another form
TABLES = """CREATE TABLE clicks (search, post, PRIMARY KEY (search, post)) WITHOUT ROWID;
CREATE TABLE pages (search, start, PRIMARY KEY (search, start)) WITHOUT ROWID"""
CLICKED, SHOWN = (
    f"INSERT OR IGNORE INTO {table} VALUES (?, ?)" for table in ("clicks", "pages")
)
UNKNOWN = "SELECT count(DISTINCT search) FROM clicks WHERE search NOT IN (SELECT search FROM pages)"

RELEVANT, HIGHLY_RELEVANT = 0.5, 0.9  # Least probabilities of grades 1 and 2
ROUNDS = 300  # Most rounds of expectation maximisation
TOLERANCE = 1e-4  # The fit ends when no parameter changes by more in a round
SHARE_STRENGTH = (
    10  # Pairs that all groups count for in the share of wanted posts of one group
)
HIGHEST_MEAN = (
    0.9  # Of a kind: where clicked posts alone are shown, one click would be certainty
)
BLOCK = 8192  # Patterns whose posteriors are in memory
STRENGTH = 10  # Impressions that both kinds' Beta distributions count for
# Bins of equal width in t, where α = sin² t: the posterior's width in t is 1/(2√n) after n
# examined impressions, whatever α is. 128 bins are exact to about 10,000.
EDGES: Floats = np.sin(np.linspace(0, np.pi / 2, 129)) ** 2
NODES: Floats = np.tile(np.sin((np.arange(128) + 0.5) * np.pi / 2 / 128) ** 2, 2)
"""α of the bins of mistakes, then of those of wanted posts."""
WANTED: Floats = np.repeat((0.0, 1.0), 128)


def read_searches(path: Path, notes: list[str]) -> Iterator[dict[str, Any]]:
    """The searches of a log, as ``serve --log`` writes them, with the set "clicked".

    Lines in another form and further copies of a page are passed over. ``notes`` get what is left
    out. Raises DataError for files that cannot be read.
    """
    files = [path] if path.is_file() else sorted(path.glob("*.jsonl*"))
    if not files:
        raise DataError(
            f"{path}: found no JSON lines (.jsonl), expected those of serve --log"
        )
    with closing(
        sqlite3.connect("")
    ) as known:  # On the disk: logs may be larger than memory.
        known.executescript(TABLES)
        for _, line in _lines(files):
            with suppress(*WRONG):
                event = (
                    read_event(parsed_line(line)) if b'"action_name"' in line else None
                )
                if event and event[2] and CLICK.fullmatch(event[1]):
                    known.execute(CLICKED, event[::2])
        passed = 0
        for where, line in _lines(files):
            try:
                if not read_event(record := parsed_line(line)):
                    yield _read_search(record.get("_source", record), known)
            except WRONG as error:
                passed += 1
                notes += [f"{where}: {error}; the line is passed over"] * (
                    passed <= MOST_TOLD
                )
        unknown = known.execute(UNKNOWN).fetchone()[0]
    if passed > MOST_TOLD:
        notes.append(f"{path}: {passed:,} lines in all were passed over")
    if unknown:
        notes.append(f"{path}: found clicks of {unknown:,} unknown searches")


def _lines(files: Sequence[Path]) -> Iterator[tuple[str, bytes]]:
    """Lines that are not blank, and their places; raises DataError."""
    with fileinput.FileInput(
        files, openhook=fileinput.hook_compressed, mode="rb"
    ) as lines:
        try:
            for line in filter(bytes.strip, lines):
                yield f"{lines.filename()}:{lines.filelineno()}", line
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"{lines.filename()}: cannot be read ({error})") from None


def checked_line(record: Mapping[str, Any]) -> bytes:
    """A line of a log: a JSON object whose last value is the CRC-32 of the others."""
    text = json.dumps(record).encode()
    return b'%s, "crc32": %d}\n' % (text[:-1], zlib.crc32(text))


def parsed_line(line: bytes) -> Any:
    """The value of a line of a log; raises ValueError if its CRC-32, if there is one, differs."""
    text, is_checked, crc32 = line.rstrip().rpartition(b', "crc32": ')
    if is_checked and crc32 != b"%d}" % zlib.crc32(text + b"}"):
        raise ValueError("found a changed line, expected the CRC-32 that it names")
    return json.loads(line)


def read_event(record: Any) -> tuple[str, str, str] | None:
    """Search, action and post of an event; None for a search. Raises :data:`WRONG`."""
    if not isinstance(record, dict):
        raise ValueError(f"found {short_json(record)}, expected a JSON object")
    if "action_name" not in (record := record.get("_source", record)):
        return None
    named = ((record.get("event_attributes") or {}).get("object") or {}).get(
        "object_id"
    )
    search_id, action = _id(record.get("query_id")), _id(record["action_name"])
    return search_id, action, "" if named is None else _id(named)


def _read_search(record: dict[str, Any], known: sqlite3.Connection) -> dict[str, Any]:
    """A search with its clicks; raises :data:`WRONG`."""
    is_own = "query_response_hit_ids" not in record
    shown = _ids(record, "shown" if is_own else "query_response_hit_ids")
    if len({*shown}) < len(shown):
        raise ValueError("found a post twice in the list, expected it once")
    query = record.get("query" if is_own else "user_query")
    if (is_own or query is not None) and not (isinstance(query, str) and query.split()):
        raise ValueError(f"found the query {short_json(query)}, expected a text")
    if is_own:
        name, clicked = record.get("query_id"), {*_ids(record, "clicked")}
        if name is not None and not is_doc_id(name := _id(name)):
            raise ValueError(f"found query_id {name!r}, expected one word")
        if others := clicked - {*shown}:
            raise ValueError(
                f"found a click on {min(others)!r}, expected one of the shown posts"
            )
        return {
            "query": query,
            "shown": shown,
            "start": 0,
            "topic": name,
            "clicked": clicked,
        }
    search_id, start = _id(record.get("query_id")), record.get("start") or 0
    teams, moment = (
        record.get("teams") or [0] * len(shown),
        float(record.get("time") or 0),
    )
    if start not in range(MOST_START) or len(teams) != len(shown):
        raise ValueError(
            f"found the start {start!r}, {len(teams)} teams of {len(shown)} posts"
        )
    if not known.execute(SHOWN, (search_id, start)).rowcount:
        raise ValueError("found a page of a search once more")
    clicks = known.execute("SELECT post FROM clicks WHERE search = ?", (search_id,))
    own = {"query_id": search_id, "query": query or "", "shown": shown, "start": start}
    own |= {
        "time": moment,
        "teams": teams,
        "clicked": {post for (post,) in clicks} & {*shown},
    }
    return record | {"topic": None} | own


def _ids(record: Mapping[str, Any], key: str) -> list[str]:
    if not isinstance(values := record.get(key), list):
        raise ValueError(
            f'found {short_json(values)} under "{key}", expected a list of ids'
        )
    return [*map(_id, values)]


def _id(value: Any) -> str:
    # In Python JSON's true and false are integers.
    if (
        isinstance(value, str | int)
        and not isinstance(value, bool)
        and len(f"{value}") < MOST_NAME
    ):
        return str(value)
    raise ValueError(f"found {short_json(value)}, expected an id")


class ClickLog(NamedTuple):
    """Posts as they were shown, one entry for a post in an impression."""

    pair: npt.NDArray[np.int64]  # [entries], index in ``pairs``
    position: npt.NDArray[np.int64]  # [entries], from 0
    click: npt.NDArray[np.bool_]  # [entries]
    skipped: npt.NDArray[np.bool_]  # [entries], not clicked, but a post below it
    pairs: list[tuple[int, str]]  # Index in ``topics``, and doc_id
    topics: list[Topic]  # In the order of their first impressions
    impressions: int
    with_click: int
    notes: list[str]  # On what is left out


def read_click_log(path: Path) -> ClickLog:
    """Read a log; raises DataError for hashed queries, and for a log without a click.

    Texts that differ in case, white space or Unicode's form of a letter are one query, shown in its
    commonest spelling.
    """
    notes, impressions, with_click, misnamed = list[str](), 0, 0, 0
    numbers: dict[str, int] = {}  # Of normalized texts
    spellings = defaultdict[int, Counter[str]](Counter)
    names, texts = (
        dict[str, str](),
        dict[str, str](),
    )  # Normalized text -> query_id, and back
    pairs: dict[tuple[int, str], int] = {}
    entries = array("q")
    for search in read_searches(path, notes):
        if not search["query"]:
            problem = "found searches without their queries, expected serve --log-queries plain"
            raise DataError(f"{path}: {problem} (models are compared without)")
        text, shown, clicked = (
            normalize(search["query"]),
            search["shown"],
            search["clicked"],
        )
        if (name := search["topic"]) and texts.setdefault(name, text) == text:
            names.setdefault(text, name)
        misnamed += name not in (None, names.get(text))
        number = numbers.setdefault(text, len(numbers))
        spellings[number][" ".join(well_formed(search["query"]).split())] += 1
        last = max(
            (k for k, doc_id in enumerate(shown) if doc_id in clicked), default=-1
        )
        for place, doc_id in enumerate(shown):
            pair, click = (
                pairs.setdefault((number, doc_id), len(pairs)),
                doc_id in clicked,
            )
            entries.extend(
                (pair, search["start"] + place, click, place < last and not click)
            )
        impressions, with_click = impressions + 1, with_click + bool(clicked)
    if misnamed:
        notes.append(
            f"{path}: {misnamed:,} query_ids are another query's; texts name such queries"
        )
    if not with_click:
        problem = f"{path}: found {impressions:,} impressions and no click, expected one or more"
        raise DataError("\n  ".join([problem, *notes]))
    if blank := [doc_id for _, doc_id in pairs if not is_doc_id(doc_id)]:
        problem = f"found {len(blank):,} ids with blanks, which are not judged"
        notes.append(f"{path}: {problem}, such as {short_json(blank[0])}")
    common = [of.most_common(1)[0][0] for of in spellings.values()]
    ids = [names.get(text) or query_id(text) for text in numbers]
    table = np.array(entries, np.int64).reshape(-1, 4).T
    columns = table[0], table[1], table[2] > 0, table[3] > 0
    return ClickLog(
        *columns, [*pairs], [*map(Topic, ids, common)], impressions, with_click, notes
    )


def judgments(log: ClickLog, relevance: Floats) -> Qrels:
    """Grades by query_id, as the help of ``pipeline.clicks`` says."""
    clicks = np.bincount(log.pair, log.click)
    judged = (clicks > 0) | (
        (np.bincount(log.pair, log.skipped) > 0) & (relevance < RELEVANT)
    )
    highly = (clicks > 1) & (relevance >= HIGHLY_RELEVANT)
    grades = np.where(clicks > 0, np.where(highly, 2, relevance >= RELEVANT), 0)
    qrels: Qrels = {}
    for (number, doc_id), grade, is_judged in zip(
        log.pairs, grades, judged, strict=True
    ):
        if is_judged and is_doc_id(doc_id):
            qrels.setdefault(log.topics[number].query_id, {})[doc_id] = int(grade)
    return qrels


def fit(log: ClickLog) -> tuple[Floats, Floats, Floats]:
    """Examination of positions; mean of α, and probability that it is wanted, of pairs."""
    from scipy.sparse import csr_array
    from scipy.special import betainc, softmax

    shown, clicked = np.bincount(log.position), np.bincount(log.position, log.click)
    times, clicks = np.bincount(log.pair), np.bincount(log.pair, log.click)
    group = np.rint(np.bincount(log.pair, log.position) / times).astype(np.int64)
    cells = np.where(log.click, 0.0, 1.0), (log.pair, log.position)
    skips = csr_array(cells, shape=(len(times), len(shown)))
    # Most pairs have one impression: patterns of clicks and skips are counted. A random number
    # stands for each; two share one with a probability of about 2**-52.
    random = np.random.default_rng(0).random(len(shown) + 2)
    numbers = skips @ random[2:] + clicks * random[0] + group * random[1]
    _, first, pattern, times = np.unique(numbers, True, True, True)
    clicks, skips, group, pairs = (
        clicks[first],
        skips[first],
        group[first],
        np.bincount(group),
    )
    # Neither 0 nor 1, which expectation maximisation never leaves.
    examination = 1 / np.arange(1.0, len(shown) + 1)
    mean = clicked.sum() / (shown * examination).sum()
    means = np.clip([mean / 2, 3 * mean], TOLERANCE, HIGHEST_MEAN)
    shares, old = np.full(len(pairs), 0.25), np.array(np.inf)
    for done in range(ROUNDS + 1):
        # Masses of bins, not densities: these are infinite at 0 and 1 for weak priors.
        low, high = (
            np.diff(betainc(m * STRENGTH, (1 - m) * STRENGTH, EDGES)) for m in means
        )
        masses = np.hstack(
            (np.outer(1 - shares, low), np.outer(shares, high))
        )  # [groups, bins]
        missed = 1 - np.outer(examination, NODES)  # [positions, bins]: P(no click)
        is_relevant = np.sqrt(means[0] * means[1]) <= NODES
        sums = np.stack((NODES, is_relevant, WANTED, NODES * WANTED), axis=1)
        found, skipped = np.empty((len(first), 4)), np.zeros(missed.shape)
        for start in range(0, len(first), BLOCK):
            of = slice(start, start + BLOCK)
            logs = np.log(np.maximum(masses, 1e-300))[group[of]] + skips[of] @ np.log(
                missed
            )
            posterior = softmax(logs + np.outer(clicks[of], np.log(NODES)), axis=1)
            found[of] = posterior @ sums
            skipped += skips[of].T @ (posterior * times[of, None])
        now = np.concatenate((examination, means, shares))
        if done == ROUNDS or np.abs(now - old).max() < TOLERANCE:
            break
        examined = (skipped * (1 - NODES) / missed).sum(axis=1) * examination
        examination, old = (clicked + examined) / np.maximum(shown, 1), now
        examination[0] = 1
        both, _, wanted, high = found.T * times
        means = np.array(
            [(both - high).sum() / (times - wanted).sum(), high.sum() / wanted.sum()]
        )
        means = np.clip(means, TOLERANCE, HIGHEST_MEAN)
        prior = SHARE_STRENGTH * wanted.sum() / times.sum()
        shares = (np.bincount(group, wanted) + prior) / (pairs + SHARE_STRENGTH)
    return examination, *found[pattern, :2].T


def report(log: ClickLog, examination: Floats, qrels: Qrels) -> str:
    """Counts of a log and of its judgments, and a table of positions."""
    grades = Counter(grade for judged in qrels.values() for grade in judged.values())
    by_grade = ", ".join(f"{grades[grade]:,} of grade {grade}" for grade in (2, 1, 0))
    places = np.unique(np.column_stack((log.pair, log.position)), axis=0)
    moved = (np.bincount(places[:, 0]) > 1).sum()
    shown, clicked = np.bincount(log.position), np.bincount(log.position, log.click)
    first = np.arange(min(len(shown), 11))  # Positions below the tenth are one row.
    columns = (
        np.add.reduceat(values, first)
        for values in (shown, clicked, shown * examination)
    )
    rows = [
        (f"{place}", f"{count:,}", f"{clicks / count:.3f}", f"{looks / count:.3f}")
        for place, count, clicks, looks in zip(first + 1, *columns, strict=True)
    ]
    if len(shown) > len(rows):
        rows[-1] = (f"{len(rows)}-{len(shown)}", *rows[-1][1:])
    lines = [
        f"{log.impressions:,} impressions, {log.with_click:,} with a click",
        f"{len(log.topics):,} queries, {len(qrels):,} with judgments",
        f"{len(log.pairs):,} pairs of query and post, {grades.total():,} judged: {by_grade}",
        f"{moved:,} pairs at several positions; without any, examination is about 1 / k\n",
        *table_lines(("position", "impressions", "click rate", "examination"), rows),
    ]
    return "\n".join(lines)
