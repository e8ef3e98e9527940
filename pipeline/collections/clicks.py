"""Click logs, the judgments that follow from them, and the model of clicks behind these.

A log is a file of JSON lines, plain or ``.gz``, or a folder of them. A line is a search with its
clicks, a search or an event of ``serve --log``, or one of OpenSearch's User Behavior Insights::

    {"query": "storm", "shown": ["17", "4"], "clicked": ["4"]}
    {"search_id": "a1", "query": "storm", "shown": ["17", "4"], …}
    {"search_id": "a1", "action": "click", "object_id": "4", …}
    {"query_id": "a1", "user_query": "storm", "query_response_hit_ids": ["17", "4"], …}
    {"query_id": "a1", "action_name": "click", "event_attributes": {"object": {"object_id": "4"}}}

Position-based model: a post d shown for a query q at position k is clicked if its position is
examined and the post attracts, independently: P(click) = θ_k · α_qd. Chuklin, Markov & de Rijke,
"Click Models for Web Search" (2015), sections 3.3 and 4.3; Wang et al., "Position Bias Estimation
for Unbiased Learning to Rank in Personal Search" (WSDM 2018), section 4. α is integrated out, on a
grid; its prior has two kinds of pairs, each with a Beta distribution: wanted posts, and those that
are clicked by mistake. Expectation maximisation fits θ, the means of both and the share of wanted
posts. The shown ranking puts attractive posts first. So that θ does not take the blame, each
rounded mean position of a pair has a share of its own (Mundlak, Econometrica 1978, section 2).
Pairs shown at several positions tell θ from α; without any, θ stays near its start, 1 / k. A pair
is relevant if α is above the geometric mean of both kinds' means. θ of the first position is 1.
"""

from __future__ import annotations

import fileinput
import json
import re
import zlib
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from indexes.records import is_doc_id, short_json, well_formed
from pipeline.collections.topics import Topic, normalize, query_id
from pipeline.collections.trec import Qrels
from pipeline.errors import DataError

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Booleans = npt.NDArray[np.bool_]

HASHED = "hmac:"  # At the start of a query that serve --log has hashed
CHAMPION, CHALLENGER = 1, 2  # Teams of an interleaved search; 0 is none
CLICK = re.compile(r".*click|add_to_cart|purchase", re.I | re.S)  # UBI's actions of satisfied users
MOST_START = 100_000  # Posts before a page
MOST_TOLD = 3  # Lines that are passed over, with the reason
WRONG = (ValueError, TypeError, AttributeError, RecursionError)  # Of a record in another form

RELEVANT, HIGHLY_RELEVANT = 0.5, 0.9  # Least probabilities of grades 1 and 2
ROUNDS = 300  # Most rounds of expectation maximisation
TOLERANCE = 1e-4  # The fit ends when no parameter changes by more in a round
SHARE_STRENGTH = 10  # Pairs that all groups count for in the share of wanted posts of one group
HIGHEST_MEAN = 0.9  # Of a kind: where clicked posts alone are shown, one click would be certainty
BLOCK = 8192  # Patterns whose posteriors are in memory
# Bins of equal width in t, where α = sin² t: the posterior's width in t is 1/(2√n) after n
# examined impressions, whatever α is. 128 bins are exact to about 10,000.
EDGES: Floats = np.sin(np.linspace(0, np.pi / 2, 129)) ** 2
NODES: Floats = np.sin((np.arange(128) + 0.5) * np.pi / 2 / 128) ** 2


def read_searches(path: Path, notes: list[str]) -> Iterator[dict[str, Any]]:
    """The searches of a log, as ``serve --log`` writes them, with the set "clicked".

    Lines in another form are passed over, as are further copies of a page: a search has one vote.
    ``notes`` get what is left out. Raises DataError for files that cannot be read.
    """
    files = [path] if path.is_file() else sorted(path.glob("*.jsonl*"))
    if not files:
        raise DataError(f"{path}: found no JSON lines (.jsonl), expected those of serve --log")
    clicks, passed = defaultdict[str, set[str]](set), 0
    for _, line in _lines(files):
        with suppress(*WRONG):
            event = read_event(json.loads(line)) if b'"action' in line else {}
            if event and event["object_id"] and CLICK.fullmatch(event["action"]):
                clicks[event["search_id"]].add(event["object_id"])
    unknown, seen = {*clicks}, set[int]()
    names: dict[str, str] = {}  # Normalized text -> query_id of the log, and back
    texts: dict[str, str] = {}
    for where, line in _lines(files):
        try:
            if read_event(record := json.loads(line)):
                continue
            search = _read_search(record, clicks)
            if search_id := search.get("search_id"):
                if (page := hash((search_id, search["start"]))) in seen:
                    raise ValueError("found a page of a search once more")
                seen.add(page)
                unknown.discard(search_id)
            elif name := search["query_id"]:
                text = normalize(search["query"])
                if (names.get(text, name), texts.get(name, text)) != (name, text):
                    raise ValueError(f"found query_id {name}, expected one for each query")
                names[text], texts[name] = name, text
        except WRONG as error:
            passed += 1
            if passed <= MOST_TOLD:
                notes.append(f"{where}: {error}; the line is passed over")
        else:
            yield search
    if passed > MOST_TOLD:
        notes.append(f"{path}: {passed:,} lines in all were passed over")
    if unknown:
        notes.append(f"{path}: found clicks of {len(unknown):,} unknown searches")


def _lines(files: Sequence[Path]) -> Iterator[tuple[str, bytes]]:
    with fileinput.FileInput(files, mode="rb", openhook=fileinput.hook_compressed) as lines:
        try:
            for line in filter(bytes.strip, lines):
                yield f"{lines.filename()}:{lines.filelineno()}", line
        except (EOFError, zlib.error, OSError) as error:
            raise DataError(f"{lines.filename()}: cannot be read: {error}") from None


def read_event(record: Any) -> dict[str, Any]:
    """Ids of search and object, and the action; empty if it is no event; raises one of WRONG."""
    record = _own_form(record)
    if "action" not in record:
        return {}
    event = {key: _checked(record, key, str, "a text") for key in ("search_id", "action")}
    named = record.get("object_id")
    return event | {"object_id": None if named is None else _id(named)}


def _read_search(record: dict[str, Any], clicks: Mapping[str, set[str]]) -> dict[str, Any]:
    record = _own_form(record)
    query, shown = _checked(record, "query", str, "a text"), _ids(record, "shown")
    if not query.split():
        raise ValueError(f'found {short_json(query)} under "query", expected a text')
    if len({*shown}) < len(shown):
        raise ValueError('found a post twice under "shown"')
    search: dict[str, Any] = {"query": query, "shown": shown, "start": 0}
    if (search_id := record.get("search_id")) is None:
        name, clicked = record.get("query_id"), {*_ids(record, "clicked")}
        if name is not None and not is_doc_id(name := _id(name)):
            raise ValueError(f"found query_id {name!r}, expected one word")
        if others := clicked - {*shown}:
            raise ValueError(f"found a click on {min(others)!r}, expected one of the shown posts")
        return search | {"query_id": name, "clicked": clicked}
    defaults = search | {"time": 0, "objects": shown, "teams": [0] * len(shown)}
    record = defaults | {key: value for key, value in record.items() if value}
    if _checked(record, "start", int, "a place") not in range(MOST_START):
        raise ValueError(f'found {record["start"]} under "start", expected a place')
    _checked(record, "time", int | float, "seconds")
    # Clicks may name either: few applications know UBI's object_id_field.
    posts = zip(shown, record["objects"], record["teams"], strict=True)
    objects = clicks.get(search_id, set())
    clicked = {doc_id for doc_id, name, _ in posts if objects & {doc_id, name}}
    return record | {"shown": shown, "clicked": clicked}


def _own_form(record: Any) -> dict[str, Any]:
    """A line of a log with UBI's keys as those of ``serve --log``."""
    if not isinstance(record, dict):
        raise ValueError(f"found {short_json(record)}, expected a JSON object")
    record = record.get("_source", record)
    own = {"search_id": record.get("query_id")}
    if "action_name" in record:
        named = (record.get("event_attributes") or {}).get("object") or {}
        return own | {"action": record["action_name"], "object_id": named.get("object_id")}
    if "user_query" in record:
        shown = record.get("query_response_hit_ids")
        return own | {"query": record["user_query"], "shown": shown}
    return {**record}


def _checked(record: Mapping[str, Any], key: str, kind: Any, expected: str) -> Any:
    if not isinstance(value := record.get(key), kind):
        raise ValueError(f'found {short_json(value)} under "{key}", expected {expected}')
    return value


def _ids(record: Mapping[str, Any], key: str) -> list[str]:
    return [*map(_id, _checked(record, key, list, "a list of ids"))]


def _id(value: Any) -> str:
    # In Python JSON's true and false are integers.
    if isinstance(value, str | int) and not isinstance(value, bool):
        return str(value)
    raise ValueError(f"found {short_json(value)}, expected an id")


class ClickLog(NamedTuple):
    """Posts as they were shown, one entry for a post in an impression."""

    pair: Integers  # [entries], index in ``pairs``
    position: Integers  # [entries], from 0
    click: Booleans  # [entries]
    skipped: Booleans  # [entries], not clicked, but a post below it
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
    notes, impressions, with_click = list[str](), 0, 0
    spellings = defaultdict[str, Counter[str]](Counter)  # Of normalized texts
    names: dict[str, str] = {}  # Normalized text -> query_id
    pairs: dict[tuple[str, str], int] = {}
    entries = array("q")
    for search in read_searches(path, notes):
        if search["query"].startswith(HASHED):
            problem = "found hashed queries, expected texts; log them by serve --log-queries plain"
            raise DataError(f"{path}: {problem} (models are compared without)")
        text, clicked = normalize(search["query"]), search["clicked"]
        names[text] = search.get("query_id") or names.get(text) or query_id(text)
        spellings[text][" ".join(well_formed(search["query"]).split())] += 1
        last = max((k for k, doc_id in enumerate(search["shown"]) if doc_id in clicked), default=-1)
        for place, doc_id in enumerate(search["shown"]):
            pair, click = pairs.setdefault((text, doc_id), len(pairs)), doc_id in clicked
            entries.extend((pair, search["start"] + place, click, place < last and not click))
        impressions, with_click = impressions + 1, with_click + bool(clicked)
    if not with_click:
        problem = f"{path}: found {impressions:,} impressions and no click, expected one or more"
        raise DataError("\n  ".join([problem, *notes]))
    if blank := [doc_id for _, doc_id in pairs if not is_doc_id(doc_id)]:
        problem = f"found {len(blank):,} ids with blanks, such as {short_json(blank[0])}"
        notes.append(f"{path}: {problem}; these posts are not judged")
    topics = [Topic(names[text], of.most_common(1)[0][0]) for text, of in spellings.items()]
    numbers = {text: number for number, text in enumerate(spellings)}
    keys = [(numbers[text], doc_id) for text, doc_id in pairs]
    table = np.array(entries, np.int64).reshape(-1, 4).T
    columns = table[0], table[1], table[2] > 0, table[3] > 0
    return ClickLog(*columns, keys, topics, impressions, with_click, notes)


def judgments(log: ClickLog, relevance: Floats) -> Qrels:
    """Grades by query_id in the log's order, as the help of ``pipeline.clicks`` says."""
    clicks = np.bincount(log.pair, log.click)
    skipped = np.bincount(log.pair, log.skipped) > 0
    judged = (clicks > 0) | (skipped & (relevance < RELEVANT))
    highly = (clicks > 1) & (relevance >= HIGHLY_RELEVANT)
    grades = np.where(clicks > 0, np.where(highly, 2, relevance >= RELEVANT), 0)
    qrels: Qrels = {topic.query_id: {} for topic in log.topics}
    for (number, doc_id), grade, is_judged in zip(log.pairs, grades, judged, strict=True):
        if is_judged and is_doc_id(doc_id):
            qrels[log.topics[number].query_id][doc_id] = int(grade)
    return {name: of_query for name, of_query in qrels.items() if of_query}


def fit(log: ClickLog, strength: float) -> tuple[Floats, Floats, Floats]:
    """Examination of positions; mean of α, and probability that it is wanted, of pairs.

    ``strength`` of both kinds' Beta distributions, in impressions.
    """
    from scipy.sparse import csr_array

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
    group = group[first]
    patterns = clicks[first], skips[first], group, times
    pairs = np.bincount(group, times)  # [groups]
    # Neither 0 nor 1, which expectation maximisation never leaves.
    examination = 1 / np.arange(1.0, len(shown) + 1)
    mean = clicked.sum() / (shown * examination).sum()
    means = np.clip([mean / 2, 3 * mean], TOLERANCE, HIGHEST_MEAN)
    shares, old = np.full(len(pairs), 0.25), np.array(np.inf)
    for done in range(ROUNDS + 1):
        examined, found = _expectation(patterns, examination, means, shares, strength)
        now = np.concatenate((examination, means, shares))
        if done == ROUNDS or np.abs(now - old).max() < TOLERANCE:
            break
        examination, old = (clicked + examined) / np.maximum(shown, 1), now
        examination[0] = 1
        wanted, high, both = times * found[2], times @ found[3], times @ found[0]
        means = np.array([(both - high) / (pairs.sum() - wanted.sum()), high / wanted.sum()])
        means = np.clip(means, TOLERANCE, HIGHEST_MEAN)
        prior = SHARE_STRENGTH * wanted.sum() / pairs.sum()
        shares = (np.bincount(group, wanted) + prior) / (pairs + SHARE_STRENGTH)
    return examination, *found[:2, pattern]


def _expectation(
    patterns: Any, examination: Floats, means: Floats, shares: Floats, strength: float
) -> tuple[Floats, Floats]:
    """Expected examined skips [positions], and what follows for each pattern [4, patterns].

    The mean of α, P(α is above the threshold), P(wanted), and the mean of α where wanted, times P.
    ``means`` are those of α of mistakes and of wanted posts, ``shares`` [groups] of the latter.
    """
    from scipy.special import betainc, softmax

    # Masses of bins, not densities: these are infinite at 0 and 1 for weak priors.
    low, high = (np.diff(betainc(m * strength, (1 - m) * strength, EDGES)) for m in means)
    wanted = shares[:, None] * high  # [groups, bins]
    masses = np.maximum(wanted + (1 - shares[:, None]) * low, 1e-300)
    missed = 1 - np.outer(examination, NODES)  # [positions, bins]: P(no click)
    examined_if_skipped = np.outer(examination, 1 - NODES) / missed
    is_relevant = np.sqrt(means[0] * means[1]) <= NODES
    examined, found = np.zeros(len(examination)), np.empty((4, len(patterns[0])))
    for start in range(0, len(patterns[0]), BLOCK):
        block = slice(start, start + BLOCK)
        clicks, skips, group, pairs = (column[block] for column in patterns)
        logs = np.log(masses)[group] + skips @ np.log(missed) + np.outer(clicks, np.log(NODES))
        posterior = softmax(logs, axis=1)  # [block, bins]
        of_wanted = posterior * (wanted / masses)[group]
        relevant = posterior[:, is_relevant].sum(axis=1)
        found[:, block] = posterior @ NODES, relevant, of_wanted.sum(axis=1), of_wanted @ NODES
        weighted = skips.T @ (posterior * pairs[:, None])  # [positions, bins]
        examined += (weighted * examined_if_skipped).sum(axis=1)
    return examined, found
