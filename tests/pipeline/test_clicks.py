"""Click logs: the position-based model, the judgments and the command."""

import gzip
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from conftest import Command

from pipeline.collections.clicks.log import (
    ClickLog,
    Impression,
    judgments,
    parse_impression,
    query_id,
    read_click_log,
)
from pipeline.collections.clicks.model import fit, groups_by_score
from pipeline.collections.topics import read_topics
from pipeline.collections.trec import read_qrels
from pipeline.command.errors import DataError

DOCS, POSITIONS = 12, 10
BIAS = 1 / np.arange(1, POSITIONS + 1) ** 0.7


class Simulation(NamedTuple):
    """A log, [entries], and the attractiveness [queries, DOCS] that made it."""

    attractiveness: Any
    pair: Any
    position: Any
    click: Any


def simulate(queries: int, impressions: int, noise: float) -> Simulation:
    """Clicks on rankings by the true attractiveness, with noise."""
    random = np.random.default_rng(1)
    attractiveness = random.beta(0.4, 1.6, (queries, DOCS))
    query = random.integers(queries, size=impressions)
    scores = attractiveness[query] + noise * random.standard_normal((impressions, DOCS))
    shown = np.argsort(-scores)[:, :POSITIONS]
    click = random.random(shown.shape) < 0.9 * BIAS * attractiveness[query[:, None], shown]
    position = np.broadcast_to(np.arange(POSITIONS), shown.shape)
    pair = query[:, None] * DOCS + shown
    return Simulation(attractiveness, pair.ravel(), position.ravel(), click.ravel())


@pytest.mark.parametrize("noise", [0.3, 1.0])
def test_a_simulated_log_is_recovered(noise: float) -> None:
    log = simulate(40, 20_000, noise)
    model = fit(log.pair, log.position, log.click)
    assert np.abs(model.examination - BIAS).max() < 0.05
    found = model.attractiveness.reshape(-1, DOCS)
    # The first position, here examined in 90 % of the impressions, is the unit.
    assert np.corrcoef(found.ravel(), 0.9 * log.attractiveness.ravel())[0, 1] > 0.98
    assert model.attractiveness.mean() == pytest.approx(0.9 * log.attractiveness.mean(), abs=0.02)


@pytest.mark.parametrize("impressions", [3000, 20_000])
def test_clicks_by_mistake_do_not_add_up_to_relevance(impressions: int) -> None:
    """One relevant post a query, clicked by 7 of 10 who look at it; others by 1 of 20."""
    random = np.random.default_rng(1)
    relevant = random.integers(3, size=50)
    query = random.integers(50, size=impressions)
    rates = np.where(relevant[:, None] == np.arange(POSITIONS), 0.7, 0.05)
    click = random.random((impressions, POSITIONS)) < BIAS * rates[query]
    position = np.broadcast_to(np.arange(POSITIONS), click.shape)
    model = fit((query[:, None] * POSITIONS + position).ravel(), position.ravel(), click.ravel())
    found = model.relevance.reshape(-1, POSITIONS) >= 0.5
    assert found[np.arange(50), relevant].mean() > 0.95
    assert found.sum() < 55


def test_scores_of_the_ranking_tell_mistakes_in_few_impressions() -> None:
    """As above, 15 impressions a query, half of which have a relevant post; these score higher."""
    random = np.random.default_rng(1)
    relevant = (np.arange(50)[:, None] % 2 == 0) & (
        random.integers(3, size=(50, 1)) == np.arange(10)
    )
    score = relevant + random.normal(0, 0.5, relevant.shape)
    query = np.repeat(np.arange(50), 15)
    click = random.random((750, 10)) < BIAS[:10] * np.where(relevant, 0.7, 0.05)[query]
    position = np.broadcast_to(np.arange(10), click.shape).ravel()
    pair = (query[:, None] * 10 + np.arange(10)).ravel()
    group = groups_by_score(pair, score.ravel()[pair])
    assert group is not None and np.bincount(group).tolist() == [100] * 5
    errors = [
        np.abs(fit(pair, position, click.ravel(), group=group).relevance - relevant.ravel()).mean()
        for group in (group, None)
    ]
    assert errors[0] < 0.7 * errors[1]
    assert groups_by_score(pair, np.where(pair == 3, np.nan, 1.0)) is None


def log_of(*impressions: tuple[str, str, str]) -> ClickLog:
    """Query, posts and clicked posts, one letter each."""
    log = ClickLog()
    for query, shown, clicked in impressions:
        log.add(Impression(query, list(shown), set(clicked)))
    return log


def test_clicked_skipped_above_and_below() -> None:
    log = log_of(("x", "abcde", "bd"), ("X ", "fg", ""))
    relevance = np.array([0.1, 0.6, 0.4, 0.9, 0.4, 0.4, 0.4])
    assert [log.pairs[pair][1] for pair in range(7)] == list("abcdefg")
    # e is below the last click; f and g were shown without any.
    assert judgments(log, relevance) == {query_id("x"): {"a": 0, "b": 1, "c": 0, "d": 1}}


def test_grades_follow_the_estimate() -> None:
    log = log_of(("x", "abc", "abc"), ("x", "abcd", "abd"), ("y", "ab", "b"))
    relevance = np.array([0.9, 0.8, 0.4, 0.95, 0.6, 0.5])
    grades = judgments(log, relevance)
    assert grades[query_id("x")] == {"a": 2, "b": 1, "c": 0, "d": 1}
    # One skip of a post that is better than average by its place decides nothing.
    assert grades[query_id("y")] == {"b": 1}
    assert judgments(log, relevance, 0.85, 0.96)[query_id("x")] == {"a": 1, "b": 0, "c": 0, "d": 1}


def write(path: Path, *records: Any) -> Path:
    """JSON lines; a text is written as it is."""
    lines = [r if isinstance(r, str) else json.dumps(r, ensure_ascii=False) for r in records]
    text = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def record(query: Any, shown: Any, clicked: Any, **others: Any) -> dict[str, Any]:
    return {"query": query, "shown": shown, "clicked": clicked, **others}


RECORDS = [
    record("Storm  damage", ["17", "4", "9"], ["4"], session="s1", time=3),
    record("storm\tdamage", ["4", 17, "9"], ["4", "4"]),
    record("storm damage", ["4", "17"], [4]),
    record("STORM damage", [], []),
    record("nobody clicks", ["4"], []),
    record("élan", ["a-1", "b"], ["b"], query_id=7),
    record("ÉLAN", ["a-1", "b"], []),
]


@pytest.mark.parametrize("name", ["log.jsonl", "log.jsonl.gz"])
def test_command_writes_what_the_readers_read(name: str, tmp_path: Path, command: Command) -> None:
    log = write(tmp_path / name, *RECORDS[:3], "", *RECORDS[3:])
    result = command("clicks", log, "--output", tmp_path / "new" / "qrels.txt.gz")
    assert result.code == 0, result.err
    assert read_qrels(tmp_path / "new" / "qrels.txt.gz") == {
        query_id("storm damage"): {"4": 2, "17": 0},
        "7": {"b": 1, "a-1": 0},
    }
    topics = read_topics(tmp_path / "new" / "qrels.topics.tsv")
    # The commonest spelling, or the first.
    assert [tuple(topic)[:2] for topic in topics] == [
        (query_id("storm damage"), "storm damage"),
        ("7", "élan"),
    ]
    assert "7 impressions, 4 with a click" in result.out
    assert "3 queries, 2 with judgments" in result.out
    assert "6 pairs of query and post, 4 judged: 1 of grade 2, 1 of grade 1, 2 of grade 0" in (
        result.out
    )
    assert re.search(r"^position +impressions +click rate +examination$", result.out, re.M)
    assert re.search(r"^1 +6 +0\.333 +1\.000$", result.out, re.M)
    assert result.err == ""


def test_ids_are_those_of_the_text_in_any_log(tmp_path: Path) -> None:
    assert query_id("storm damage") == "q1bffdc61d5a2f7a0"
    log = read_click_log(write(tmp_path / "log", record("Ｓtorm damage", ["1"], ["1"])))
    assert log.queries[0].topic.query_id == "q1bffdc61d5a2f7a0"


@pytest.mark.parametrize(
    ("line", "messages"),
    [
        ("{", ["expected one JSON object a line"]),
        ("[1]", ["expected a JSON object"]),
        (
            {"qeury": "x", "shown": "4"},
            [
                'found no "query", expected the keys query, shown, clicked; did you mean ',
                "found shown '\"4\"', expected a list of ids",
                'found no "clicked"',
            ],
        ),
        (
            record(" ", ["1", "1", "a b", True], ["2"], query_id="a b"),
            [
                "found query '\" \"', expected a text",
                'found \'"a b"\' under "shown", expected ids',
                "found 'true' under \"shown\"",
                "found '1' 2 times under \"shown\", expected every post once",
                "found a click on '2', expected one of the shown posts",
                "found query_id '\"a b\"', expected a whole number or one word",
            ],
        ),
    ],
)
def test_all_problems_of_a_line_are_named(line: Any, messages: list[str]) -> None:
    with pytest.raises(DataError) as error:
        parse_impression(line if isinstance(line, str) else json.dumps(line), "log:3")
    assert str(error.value).startswith("log:3: ")
    for message in messages:
        assert message in str(error.value)
    assert len(str(error.value).splitlines()) == len(messages)


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([], "found 0 impressions and no click"),
        ([record("x", ["1"], [])], "found 1 impressions and no click"),
        (
            [record("x", ["1"], ["1"], query_id=1), record("y", ["1"], [], query_id=1)],
            ":2: found query_id 1 of another query, 'x' on line 1",
        ),
        (
            [record("x", ["1"], ["1"], query_id=1), record("x", ["1"], [], query_id=2)],
            ":2: found query_id 2 for a query that has 1 on line 1",
        ),
    ],
)
def test_logs_that_cannot_be_used(
    records: list[Any], message: str, tmp_path: Path, command: Command
) -> None:
    log = write(tmp_path / "log.jsonl", *records)
    result = command("clicks", log, "--output", tmp_path / "qrels.txt")
    assert result.code == 1
    assert f"{log}" in result.err
    assert message in result.err
    assert [path.name for path in tmp_path.iterdir()] == ["log.jsonl"]


def test_options_that_do_not_fit_are_named_together(tmp_path: Path, command: Command) -> None:
    log = write(tmp_path / "log.jsonl", *RECORDS)
    files = ["--output", log, "--topics", log]
    result = command("clicks", log, *files, "--relevant", "0.95")
    assert result.code == 2
    assert "--highly-relevant: found 0.9, expected at least 0.95" in result.err
    assert f"--output: found {log}, expected another file than that of log" in result.err
    assert f"--topics: found {log}, expected another file than that of --output" in result.err
