"""Click logs, a model of clicks, and the judgments that follow from both.

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
for Unbiased Learning to Rank in Personal Search" (WSDM 2018), section 4. There α is a number for
each pair, which overfits few impressions, or a regression. Here α is integrated out, on a grid. Its
prior has two kinds of pairs, each with a Beta distribution: posts that users want, and those that
are clicked by mistake. Expectation maximisation fits θ, the means of both and the share of the
first kind. The ranking that was shown puts attractive posts first. So that θ does not take the
blame, the share is one for each fifth of the pairs by the score of the model that ranked them;
without scores one for each rounded mean position of a pair (Mundlak, Econometrica 1978, section 2).
Pairs shown at several positions tell θ from α; without any, θ stays near its start, 1 / k. A pair
is relevant if α is above the geometric mean of both kinds' means. θ of the first position is 1.
"""

from __future__ import annotations

import fileinput
import hashlib
import json
import math
import unicodedata
import zlib
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from indexes.posts import is_doc_id, short_json, well_formed
from pipeline.collections.topics import Topic
from pipeline.collections.trec import Qrels
from pipeline.command.errors import DataError

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Booleans = npt.NDArray[np.bool_]

HASHED = "hmac:"  # At the start of a query that serve --log has hashed
MOST_START = 100_000  # Posts before a page
MOST_TOLD = 3  # Lines that are passed over, with the reason
WRONG = (ValueError, TypeError, AttributeError, RecursionError)  # Of a record in another form

RELEVANT, HIGHLY_RELEVANT = 0.5, 0.9  # Least probabilities of grades 1 and 2
ROUNDS = 300  # Most rounds of expectation maximisation
TOLERANCE = 1e-4  # The fit ends when no examination, nor the prior, changes by more in a round
SHARE_STRENGTH = 10  # Pairs that all groups count for in the share of wanted posts of one group
GROUPS = 5  # Of pairs by their scores; ten gave judgments as good
HIGHEST_MEAN = 0.9  # Of a kind: where clicked posts alone are shown, one click would be certainty
BLOCK = 8192  # Patterns whose posteriors are in memory
# Bins of equal width in t, where α = sin² t: the posterior's width in t is 1/(2√n) after n
# examined impressions, whatever α is. 128 bins are exact to about 10,000.
EDGES: Floats = np.sin(np.linspace(0, np.pi / 2, 129)) ** 2
NODES: Floats = np.sin((np.arange(128) + 0.5) * np.pi / 2 / 128) ** 2


class Search(NamedTuple):
    """A page of results: file and line, the record, and the ids of its posts in their order."""

    where: str
    record: Mapping[str, Any]
    shown: list[str]
    clicked: set[str]


class LogReader:
    """Reads the searches of a log with their clicks; ``notes`` tell what is left out.

    Lines in another form are passed over, as are further copies of a page: a search has one vote.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.notes, self._passed = path, list[str](), 0
        self._files = [path] if path.is_file() else sorted(path.glob("*.jsonl*"))
        if not self._files:
            raise DataError(f"{path}: found no JSON lines (.jsonl), expected those of serve --log")

    def __iter__(self) -> Iterator[Search]:
        clicks: dict[str, set[str]] = {}
        for _, line in self._lines():
            with suppress(*WRONG):
                event = read_event(json.loads(line)) if b'"action' in line else None
                if event and event["object_id"] and is_click(event["action"]):
                    clicks.setdefault(event["search_id"], set()).add(event["object_id"])
        unknown, seen = {*clicks}, set[int]()
        for where, line in self._lines():
            try:
                if read_event(record := json.loads(line)):
                    continue
                search = read_search(where, record, clicks)
                if (search_id := search.record.get("search_id")) is not None:
                    if (page := hash((search_id, search.record.get("start")))) in seen:
                        raise ValueError("found a page of a search once more")
                    seen.add(page)
                    unknown.discard(search_id)
            except WRONG as error:
                self.pass_over(where, error)
                continue
            yield search
        if self._passed > MOST_TOLD:
            self.notes.append(f"{self.path}: {self._passed:,} lines in all were passed over")
        if unknown:
            self.notes.append(f"{self.path}: found clicks of {len(unknown):,} unknown searches")

    def pass_over(self, where: str, problem: object) -> None:
        """Count a line that is not used."""
        self._passed += 1
        if self._passed <= MOST_TOLD:
            self.notes.append(f"{where}: {problem}; the line is passed over")

    def _lines(self) -> Iterator[tuple[str, bytes]]:
        with fileinput.FileInput(
            self._files, mode="rb", openhook=fileinput.hook_compressed
        ) as lines:
            try:
                for line in filter(bytes.strip, lines):
                    yield f"{lines.filename()}:{lines.filelineno()}", line
            except (EOFError, zlib.error, OSError) as error:
                raise DataError(f"{lines.filename()}: cannot be read: {error}") from None


def is_click(action: str) -> bool:
    """Whether an action of UBI's events says that a result was worth opening."""
    return action.lower().endswith("click") or action.lower() in ("add_to_cart", "purchase")


def read_event(record: Any) -> dict[str, Any] | None:
    """Ids of search and object, and the action; None if it is no event; raises one of WRONG."""
    if not isinstance(record, dict):
        raise ValueError(f"found {short_json(record)}, expected a JSON object")
    record = record.get("_source", record)
    if "action_name" in record:
        named = (record.get("event_attributes") or {}).get("object") or {}
        own = {"action": record["action_name"], "search_id": record.get("query_id")}
        record = own | {"object_id": named.get("object_id")}
    elif "action" not in record:
        return None
    for key in ("search_id", "action"):
        if not isinstance(record.get(key), str):
            raise ValueError(f'found {short_json(record.get(key))} under "{key}", expected a text')
    object_id = record.get("object_id")
    object_id = None if object_id is None else _id(object_id)
    return {"search_id": record["search_id"], "action": record["action"], "object_id": object_id}


def read_search(where: str, record: dict[str, Any], clicks: Mapping[str, set[str]]) -> Search:
    """The search of a record; raises one of WRONG."""
    record = record.get("_source", record)
    if "user_query" in record:
        own = {"search_id": record.get("query_id"), "query": record["user_query"]}
        record = own | {"shown": record.get("query_response_hit_ids")}
    shown, query = _ids(record, "shown"), record.get("query")
    if not (isinstance(query, str) and query.split()):
        raise ValueError(f'found {short_json(query)} under "query", expected a text')
    if len({*shown}) < len(shown):
        raise ValueError('found a post twice under "shown"')
    if (search_id := record.get("search_id")) is None:
        name, clicked = record.get("query_id"), {*_ids(record, "clicked")}
        if name is not None and not is_doc_id(_id(name)):
            raise ValueError(f"found query_id {name!r}, expected one word")
        if others := clicked - {*shown}:
            raise ValueError(f"found a click on {min(others)!r}, expected one of the shown posts")
        return Search(where, {"query": query, "query_id": name}, shown, clicked)
    start, time = record.get("start") or 0, record.get("time") or 0
    if not (isinstance(start, int) and 0 <= start < MOST_START and isinstance(time, int | float)):
        raise ValueError('found no numbers under "time" and "start"')
    for key, kind in (("objects", str), ("scores", int | float), ("teams", int)):
        if (values := record.get(key)) and [isinstance(v, kind) for v in values] != [True] * len(
            shown
        ):
            raise ValueError(f'found other values under "{key}", expected one for each post')
    objects = clicks.get(search_id, set())
    # Clicks may name either: few applications know UBI's object_id_field.
    names = zip(shown, record.get("objects") or shown, strict=True)
    clicked = {doc_id for doc_id, name in names if doc_id in objects or name in objects}
    return Search(where, {**record, "start": start, "time": time}, shown, clicked)


def _ids(record: Mapping[str, Any], key: str) -> list[str]:
    if not isinstance(values := record.get(key), list):
        raise ValueError(f'found {short_json(values)} under "{key}", expected a list of ids')
    return [*map(_id, values)]


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
    score: Floats  # [entries], by the model that ranked the post; NaN if unknown
    pairs: list[tuple[int, str]]  # Number of a topic, and doc_id
    topics: list[Topic]  # In the order of their first impressions
    impressions: int
    with_click: int
    notes: list[str]  # On what is left out


def read_click_log(path: Path) -> ClickLog:
    """Read a log; raises DataError for hashed queries, and for a log without a click.

    Texts that differ in case, white space or Unicode's form of a letter are one query, shown in its
    commonest spelling.
    """
    reader, impressions, with_click = LogReader(path), 0, 0
    spellings: dict[str, Counter[str]] = {}  # Of normalized texts
    names: dict[str, str] = {}  # Normalized text -> query_id of the log, and back
    owners: dict[str, str] = {}
    pairs: dict[tuple[str, str], int] = {}
    entries = array("d")
    for where, record, shown, clicked in reader:
        if record["query"].startswith(HASHED):
            problem = "found hashed queries, expected texts; log them by serve --log-queries plain"
            raise DataError(f"{path}: {problem} (models are compared without)")
        text = normalize(record["query"])
        if (name := record.get("query_id")) is not None:
            if (owners.get(str(name), text), names.get(text, str(name))) != (text, str(name)):
                reader.pass_over(where, f"found query_id {name}, expected one for each query")
                continue
            owners[str(name)], names[text] = text, str(name)
        spelling = " ".join(well_formed(record["query"]).split())
        spellings.setdefault(text, Counter())[spelling] += 1
        scores = record.get("scores") or [math.nan] * len(shown)
        last = max((k for k, doc_id in enumerate(shown) if doc_id in clicked), default=-1)
        for place, (doc_id, score) in enumerate(zip(shown, scores, strict=True)):
            pair, click = pairs.setdefault((text, doc_id), len(pairs)), doc_id in clicked
            position = record.get("start", 0) + place
            entries.extend((pair, position, click, place < last and not click, score))
        impressions, with_click = impressions + 1, with_click + bool(clicked)
    if not with_click:
        problem = f"{path}: found {impressions:,} impressions and no click, expected one or more"
        raise DataError("\n  ".join([problem, *reader.notes]))
    if blank := [doc_id for _, doc_id in pairs if not is_doc_id(doc_id)]:
        problem = f"found {len(blank):,} ids with blanks, such as {short_json(blank[0])}"
        reader.notes.append(f"{path}: {problem}; these posts are not judged")
    numbers = {text: number for number, text in enumerate(spellings)}
    topics = [
        Topic(names.get(text) or query_id(text), found.most_common(1)[0][0])
        for text, found in spellings.items()
    ]
    table = np.array(entries).reshape(-1, 5)
    whole, is_so = table[:, :2].astype(np.int64), table[:, 2:4] > 0
    columns = whole[:, 0], whole[:, 1], is_so[:, 0], is_so[:, 1], table[:, 4]
    keys = [(numbers[text], doc_id) for text, doc_id in pairs]
    return ClickLog(*columns, keys, topics, impressions, with_click, reader.notes)


def judgments(log: ClickLog, relevance: Floats) -> Qrels:
    """Grades by query_id in the log's order, as the help of ``pipeline.clicks`` says."""
    clicks = np.bincount(log.pair, weights=log.click)
    skipped = np.bincount(log.pair, weights=log.skipped) > 0
    judged = (clicks > 0) | (skipped & (relevance < RELEVANT))
    highly = (clicks > 1) & (relevance >= HIGHLY_RELEVANT)
    grades = np.where(clicks > 0, np.where(highly, 2, relevance >= RELEVANT), 0)
    qrels: Qrels = {topic.query_id: {} for topic in log.topics}
    for pair in np.flatnonzero(judged):
        number, doc_id = log.pairs[pair]
        if is_doc_id(doc_id):
            qrels[log.topics[number].query_id][doc_id] = int(grades[pair])
    return {query_id: of_query for query_id, of_query in qrels.items() if of_query}


def normalize(text: str) -> str:
    """The form in which texts of one query are the same."""
    return " ".join(unicodedata.normalize("NFKC", well_formed(text)).casefold().split())


def query_id(normalized: str) -> str:
    """Id of a normalized text: the same in all logs."""
    return f"q{hashlib.sha256(normalized.encode()).hexdigest()[:16]}"


class ClickModel(NamedTuple):
    """A fitted position-based model."""

    examination: Floats  # [positions], of the first position 1
    attractiveness: Floats  # [pairs], posterior mean of the click rate at the first position
    relevance: Floats  # [pairs], probability that the post is one that users want


class _Evidence(NamedTuple):
    """Pairs with the same clicks, skips and group, counted once; most have one impression."""

    clicks: Floats  # [patterns]
    skips: Any  # [patterns, positions], sparse
    group: Integers  # [patterns]
    pairs: Integers  # [patterns], number of pairs
    pattern: Integers  # [pairs]


def fit(log: ClickLog, strength: float) -> ClickModel:
    """The model of a log; ``strength`` of both kinds' Beta distributions, in impressions."""
    shown, clicked = np.bincount(log.position), np.bincount(log.position, weights=log.click)
    evidence = _evidence(log)
    pairs = np.bincount(evidence.group, weights=evidence.pairs)  # [groups]
    # Neither 0 nor 1, which expectation maximisation never leaves.
    examination = 1 / np.arange(1.0, len(shown) + 1)
    mean = clicked.sum() / (shown * examination).sum()
    means = np.clip([mean / 2, 3 * mean], TOLERANCE, HIGHEST_MEAN)
    shares = np.full(len(pairs), 0.25)
    for _ in range(ROUNDS):
        examined, found = _expectation(evidence, examination, means, shares, strength)
        old = np.concatenate((examination, means, shares))
        examination = (clicked + examined) / np.maximum(shown, 1)
        examination[0] = 1
        wanted = evidence.pairs * found[2]
        high, both = evidence.pairs @ found[3], evidence.pairs @ found[0]
        of_mistakes, of_wanted = (both - high) / (pairs.sum() - wanted.sum()), high / wanted.sum()
        means = np.clip([of_mistakes, of_wanted], TOLERANCE, HIGHEST_MEAN)
        sums = np.bincount(evidence.group, weights=wanted, minlength=len(pairs))
        prior = SHARE_STRENGTH * wanted.sum() / pairs.sum()
        shares = (sums + prior) / (pairs + SHARE_STRENGTH)
        if np.abs(np.concatenate((examination, means, shares)) - old).max() < TOLERANCE:
            break
    _, found = _expectation(evidence, examination, means, shares, strength)
    return ClickModel(examination, *found[:2, evidence.pattern])


def _evidence(log: ClickLog) -> _Evidence:
    from scipy.sparse import csr_array

    times = np.bincount(log.pair)
    group: Integers = np.rint(np.bincount(log.pair, log.position) / times).astype(np.int64)
    if not np.isnan(log.score).any():
        mean = np.bincount(log.pair, log.score) / times
        limits = np.quantile(mean, np.arange(1, GROUPS) / GROUPS)
        group = np.searchsorted(limits, mean, side="right")
    clicks, is_skip = np.bincount(log.pair, log.click).astype(np.float64), ~log.click
    cells = np.ones(is_skip.sum()), (log.pair[is_skip], log.position[is_skip])
    skips = csr_array(cells, shape=(len(times), int(log.position.max()) + 1))
    # One number for each pattern: two share one with a probability of about 2**-52.
    random = np.random.default_rng(0).random(skips.shape[1] + 2)
    numbers = skips @ random[2:] + clicks * random[0] + group * random[1]
    _, first, pattern, pairs = np.unique(numbers, True, True, True)
    return _Evidence(clicks[first], skips[first], group[first], pairs, pattern)


def _expectation(
    evidence: _Evidence, examination: Floats, means: Floats, shares: Floats, strength: float
) -> tuple[Floats, Floats]:
    """Expected examined skips [positions], and what follows for each pattern [4, patterns].

    The mean of α, P(α is above the threshold), P(wanted), and the mean of α where wanted, times P.
    ``means`` are those of α of mistakes and of wanted posts, ``shares`` [groups] of the latter.
    """
    from scipy.special import betainc

    # Masses of bins, not densities: these are infinite at 0 and 1 for weak priors.
    low, high = (np.diff(betainc(m * strength, (1 - m) * strength, EDGES)) for m in means)
    wanted = shares[:, None] * high  # [groups, bins]
    masses = np.maximum(wanted + (1 - shares[:, None]) * low, 1e-300)
    log_prior, wanted = np.log(masses), wanted / masses
    missed = 1 - np.outer(examination, NODES)  # [positions, bins]: P(no click)
    log_missed, log_nodes = np.log(missed), np.log(NODES)
    examined_if_skipped = np.outer(examination, 1 - NODES) / missed
    is_relevant = np.sqrt(means[0] * means[1]) <= NODES
    examined, found = np.zeros(len(examination)), np.empty((4, len(evidence.clicks)))
    for start in range(0, len(evidence.clicks), BLOCK):
        block = slice(start, start + BLOCK)
        skips, group = evidence.skips[block], evidence.group[block]
        logs = log_prior[group] + skips @ log_missed
        logs += np.outer(evidence.clicks[block], log_nodes)
        posterior = np.exp(logs - logs.max(axis=1, keepdims=True))
        posterior /= posterior.sum(axis=1, keepdims=True)  # [block, bins]
        of_wanted = posterior * wanted[group]
        mean, relevant = posterior @ NODES, posterior[:, is_relevant].sum(axis=1)
        found[:, block] = mean, relevant, of_wanted.sum(axis=1), of_wanted @ NODES
        weighted = skips.T @ (posterior * evidence.pairs[block, None])  # [positions, bins]
        examined += (weighted * examined_if_skipped).sum(axis=1)
    return examined, found
