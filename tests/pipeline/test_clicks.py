"""Click logs: the position-based model, the judgments and the command."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Command
from helpers.index_samples import table, write_lines

from tweetrerank.indexes.data_error import DataError
from tweetrerank.pipeline.collections.click_log import (
    ClickLog,
    fit,
    judgments,
    read_click_log,
)
from tweetrerank.pipeline.collections.topics import query_id, read_topics
from tweetrerank.pipeline.collections.trec import read_qrels

DOCS, POSITIONS = 12, 10
BIAS = 1 / np.arange(1, POSITIONS + 1) ** 0.7


def fitted(pair: Any, click: Any) -> Any:
    """The model of a log of these entries alone."""
    position = np.broadcast_to(np.arange(POSITIONS), click.shape).ravel()
    return fit(
        ClickLog(pair.ravel(), position, click.ravel(), click.ravel(), [], [], 0, 0, [])
    )


@pytest.mark.parametrize("noise", [0.3, 1.0])
def test_a_simulated_log_is_recovered(noise: float) -> None:
    """Clicks on rankings by the true attractiveness, with noise."""
    random = np.random.default_rng(1)
    attractiveness = random.beta(0.4, 1.6, (40, DOCS))
    query = random.integers(40, size=20_000)
    scores = attractiveness[query] + noise * random.standard_normal((20_000, DOCS))
    shown = np.argsort(-scores)[:, :POSITIONS]
    click = (
        random.random(shown.shape) < 0.9 * BIAS * attractiveness[query[:, None], shown]
    )
    examination, found, _ = fitted(query[:, None] * DOCS + shown, click)
    assert np.abs(examination - BIAS).max() < 0.05
    # The first position, here examined in 90 % of the impressions, is the unit.
    expected = 0.9 * attractiveness.ravel()
    assert np.corrcoef(found, expected)[0, 1] > 0.98
    assert found.mean() == pytest.approx(expected.mean(), abs=0.02)


@pytest.mark.parametrize("impressions", [3000, 20_000])
def test_clicks_by_mistake_do_not_add_up_to_relevance(impressions: int) -> None:
    """One relevant post a query, clicked by 7 of 10 who look at it; others by 1 of 20."""
    random = np.random.default_rng(1)
    relevant = random.integers(3, size=50)
    query = random.integers(50, size=impressions)
    rates = np.where(relevant[:, None] == np.arange(POSITIONS), 0.7, 0.05)
    click = random.random((impressions, POSITIONS)) < BIAS * rates[query]
    pair = query[:, None] * POSITIONS + np.arange(POSITIONS)
    found = fitted(pair, click)[2].reshape(-1, POSITIONS) >= 0.5
    assert found[np.arange(50), relevant].mean() > 0.95 and found.sum() < 55


def record(query: Any, shown: Any, clicked: Any, **others: Any) -> dict[str, Any]:
    return {"query": query, "shown": shown, "clicked": clicked, **others}


def log_of(path: Path, *impressions: tuple[str, str, str]) -> ClickLog:
    """Query, posts and clicked posts, one letter each."""
    records = [
        record(query, [*shown], [*clicked]) for query, shown, clicked in impressions
    ]
    return read_click_log(write_lines(path / "l", records))


def test_grades_follow_the_estimate(tmp_path: Path) -> None:
    log = log_of(tmp_path, ("x", "abcde", "bd"), ("X ", "fg", ""))
    relevance = np.array([0.1, 0.6, 0.4, 0.9, 0.4, 0.4, 0.4])
    # e is below the last click; f and g were shown without any.
    assert judgments(log, relevance) == {
        query_id("x"): {"a": 0, "b": 1, "c": 0, "d": 1}
    }
    log = log_of(tmp_path, ("x", "abc", "abc"), ("x", "abcd", "abd"), ("y", "ab", "b"))
    relevance = np.array([0.9, 0.8, 0.4, 0.95, 0.6, 0.5])
    grades = judgments(log, relevance)
    assert grades[query_id("x")] == {"a": 2, "b": 1, "c": 0, "d": 1}
    # One skip of a post that is better than average by its place decides nothing.
    assert grades[query_id("y")] == {"b": 1}


RECORDS = [
    record("Storm  damage", ["17", "4", "9"], ["4"], session="s1", time="now", start=5),
    record("storm\tdamage", ["4", 17, "9"], ["4", "4"]),
    record("storm damage", ["4", "17"], [4]),
    record("STORM damage", [], []),
    record("nobody clicks", ["4"], []),
    record("élan", ["a-1", "b"], ["b"], query_id=7),
    record("ÉLAN", ["a-1", "b"], []),
]


@pytest.mark.parametrize("name", ["log.jsonl", "log.jsonl.gz"])
def test_command_writes_what_the_readers_read(
    name: str, tmp_path: Path, command: Command
) -> None:
    log, new = (
        write_lines(tmp_path / name, [*RECORDS[:3], "", *RECORDS[3:]]),
        tmp_path / "new",
    )
    result = command("clicks", log, "--output", new / "qrels.txt.gz", code=0)
    storm = query_id("storm damage")
    assert read_qrels(new / "qrels.txt.gz") == {
        storm: {"4": 2, "17": 0},
        "7": {"b": 1, "a-1": 0},
    }
    # The commonest spelling, or the first.
    topics = [tuple(topic)[:2] for topic in read_topics(new / "qrels.topics.tsv")]
    assert topics == [(storm, "storm damage"), ("7", "élan")]
    for told in (
        "7 impressions, 4 with a click",
        "3 queries, 2 with judgments",
        "6 pairs of query and post, 4 judged: 1 of grade 2, 1 of grade 1, 2 of grade 0",
        "\nposition impressions click rate examination\n1 6 0.333 1.000\n",
    ):
        assert told in re.sub(" +", " ", result.out)
    assert result.err == ""


def test_exports_of_user_behavior_insights(tmp_path: Path) -> None:
    """A search has one vote, however often it is written or clicked."""
    query = {
        "query_id": "s",
        "user_query": "storm",
        "query_response_hit_ids": ["1", "2"],
    }
    events = [
        {
            "query_id": q,
            "action_name": a,
            "event_attributes": {"object": {"object_id": o}},
        }
        for q, a, o in (
            ("s", "click", 2),
            ("s", "CLICK", "2"),
            ("t", "click", "1"),
            ("s", "x", 1),
        )
    ]
    foreign = events[0] | {
        "timestamp": "1730561896000",
        "event_attributes": {"object": ["2"]},
    }
    login = {"action_name": "login", "timestamp": 1730561896000}
    write_lines(tmp_path / "ubi_events.jsonl.gz", [login, *events, foreign])
    queries = [query, query, {"_source": query | {"query_id": "u"}}]
    write_lines(tmp_path / "ubi_queries.jsonl", queries)
    log = read_click_log(tmp_path)
    assert (log.impressions, log.with_click) == (2, 1)
    assert log.click.tolist() == [False, True, False, False]
    assert [note.partition(": ")[2] for note in log.notes] == [
        "found 'null', expected an id; the line is passed over",
        "'list' object has no attribute 'get'; the line is passed over",
        "found a page of a search once more; the line is passed over",
        "found clicks of 1 unknown searches",
    ]


@pytest.mark.parametrize(
    "row", table("bad_clicks.jsonl"), ids=lambda row: row["message"]
)
def test_lines_in_another_form_are_passed_over(
    row: dict[str, Any], tmp_path: Path
) -> None:
    right, times = record("y", ["1"], ["1"], query_id=1), 5 if row["line"] == "{" else 1
    log = write_lines(tmp_path / "log", [right, *[row["line"]] * times])
    found = read_click_log(log)
    assert (found.impressions, len(found.notes)) == (1, min(times, 4))
    assert found.notes[0].startswith(f"{log}:2: ") and row["message"] in found.notes[0]
    if times == 5:
        assert found.notes[-1] == f"{log}: 5 lines in all were passed over"


def test_ids_of_queries(tmp_path: Path) -> None:
    named = [record(text, ["1"], ["1"], query_id=1) for text in "xy"]
    named.insert(0, record("Ｓtorm damage", ["1"], ["1"]))
    log = read_click_log(write_lines(tmp_path / "log", named))
    storm = query_id("storm damage")
    assert storm == "q1bffdc61d5a2f7a0"
    assert [topic.query_id for topic in log.topics] == [storm, "1", query_id("y")]
    assert "1 query_ids are another query's" in log.notes[0]


def test_no_id_becomes_another_line_of_judgments(
    tmp_path: Path, command: Command
) -> None:
    log = write_lines(tmp_path / "log", [record("x\ny", *[["1 0 2 2\n3", "2"]] * 2)])
    done = command("clicks", log, "--output", tmp_path / "qrels.txt")
    assert "found 1 ids with blanks" in done.err
    assert read_qrels(tmp_path / "qrels.txt") == {query_id("x y"): {"2": 1}}
    assert len((tmp_path / "qrels.topics.tsv").read_text().splitlines()) == 1


def test_logs_that_cannot_be_used(tmp_path: Path) -> None:
    damaged, empty = write_lines(tmp_path / "log.jsonl.gz", RECORDS), tmp_path / "empty"
    damaged.write_bytes(damaged.read_bytes()[:-9])
    with pytest.raises(DataError, match=r"log\.jsonl\.gz: cannot be read"):
        read_click_log(damaged)
    empty.mkdir()
    for path in (tmp_path / "missing", empty):
        with pytest.raises(DataError, match="found no JSON lines"):
            read_click_log(path)
