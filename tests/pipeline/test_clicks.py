"""Click logs: the position-based model, the judgments and the command."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Command
from helpers.index_samples import write_lines

from tweetrerank.indexes.data_error import DataError
from tweetrerank.pipeline.collections.click_log import ClickLog, read_click_log
from tweetrerank.pipeline.collections.click_model import fit, judgments
from tweetrerank.pipeline.collections.topics import query_id, read_topics
from tweetrerank.pipeline.collections.trec import read_qrels

case = pytest.param

DOCS = 12
POSITIONS = 10
BIAS = 1 / np.arange(1, POSITIONS + 1) ** 0.7  # P(examined) by position


def fitted(pair: Any, click: Any) -> Any:
    """Fit the model to a log of these entries [impressions, positions] alone."""
    position = np.broadcast_to(np.arange(POSITIONS), click.shape).ravel()
    log = ClickLog(
        pair=pair.ravel(),
        position=position,
        click=click.ravel(),
        skipped=click.ravel(),
        pairs=[],
        topics=[],
        impressions=0,
        with_click=0,
        notes=[],
    )
    return fit(log)


@pytest.mark.parametrize("noise", [0.3, 1.0])
def test_a_simulated_log_is_recovered(noise: float) -> None:
    """Clicks on rankings by the true attractiveness, with noise."""
    random = np.random.default_rng(1)
    attractiveness = random.beta(0.4, 1.6, (40, DOCS))
    query = random.integers(40, size=20_000)
    scores = attractiveness[query] + noise * random.standard_normal((20_000, DOCS))
    page = np.argsort(-scores)[:, :POSITIONS]
    chances = 0.9 * BIAS * attractiveness[query[:, None], page]
    click = random.random(page.shape) < chances
    examination, estimate, _ = fitted(query[:, None] * DOCS + page, click)
    assert np.abs(examination - BIAS).max() < 0.05
    # The first position, here examined in 90 % of the impressions, is the unit.
    expected = 0.9 * attractiveness.ravel()
    assert np.corrcoef(estimate, expected)[0, 1] > 0.98
    assert estimate.mean() == pytest.approx(expected.mean(), abs=0.02)


@pytest.mark.parametrize("impressions", [3000, 20_000])
def test_clicks_by_mistake_do_not_add_up_to_relevance(impressions: int) -> None:
    """Users click on a query's relevant post in 7 of 10 looks, on others in 1 of 20."""
    random = np.random.default_rng(1)
    relevant = random.integers(3, size=50)
    query = random.integers(50, size=impressions)
    rates = np.where(relevant[:, None] == np.arange(POSITIONS), 0.7, 0.05)
    click = random.random((impressions, POSITIONS)) < BIAS * rates[query]
    pair = query[:, None] * POSITIONS + np.arange(POSITIONS)
    _, _, relevance = fitted(pair, click)
    is_relevant = relevance.reshape(-1, POSITIONS) >= 0.5
    assert is_relevant[np.arange(50), relevant].mean() > 0.95
    assert is_relevant.sum() < 55


def search(query: Any, page: Any, clicked: Any, **fields: Any) -> dict[str, Any]:
    """Return the record of a search."""
    return {"query": query, "shown": page, "clicked": clicked} | fields


def log_of(path: Path, impressions: list[tuple[str, str, str]]) -> ClickLog:
    """Return a log of (query, posts, clicked posts), with posts of one letter."""
    records = [
        search(query, list(page), list(clicked)) for query, page, clicked in impressions
    ]
    return read_click_log(write_lines(path / "l", records))


def test_grades_follow_the_estimate(tmp_path: Path) -> None:
    log = log_of(tmp_path, [("x", "abcde", "bd"), ("X ", "fg", "")])
    relevance = np.array([0.1, 0.6, 0.4, 0.9, 0.4, 0.4, 0.4])
    # e is below the last click; the page of f and g has no click.
    expected = {query_id("x"): {"a": 0, "b": 1, "c": 0, "d": 1}}
    assert judgments(log, relevance) == expected


def test_two_clicks_make_a_post_highly_relevant(tmp_path: Path) -> None:
    pages = [("x", "abc", "abc"), ("x", "abcd", "abd"), ("y", "ab", "b")]
    log = log_of(tmp_path, pages)
    relevance = np.array([0.9, 0.8, 0.4, 0.95, 0.6, 0.5])
    grades = judgments(log, relevance)
    assert grades[query_id("x")] == {"a": 2, "b": 1, "c": 0, "d": 1}
    # One skip of a post that is better than its place decides nothing.
    assert grades[query_id("y")] == {"b": 1}


RECORDS = [
    search("Storm  damage", ["17", "4", "9"], ["4"], session="s1", time="now", start=5),
    search("storm\tdamage", ["4", 17, "9"], ["4", "4"]),
    search("storm damage", ["4", "17"], [4]),
    search("STORM damage", [], []),
    search("nobody clicks", ["4"], []),
    search("élan", ["a-1", "b"], ["b"], query_id=7),
    search("ÉLAN", ["a-1", "b"], []),
]

REPORT = """\
7 impressions, 4 with a click
3 queries, 2 with judgments
6 pairs of query and post, 4 judged: 1 of grade 2, 1 of grade 1, 2 of grade 0
"""
TABLE = "\nposition impressions click rate examination\n1 6 0.333 1.000\n"


@pytest.mark.parametrize("name", ["log.jsonl", "log.jsonl.gz"])
def test_command_writes_files_for_the_readers(
    name: str, tmp_path: Path, command: Command
) -> None:
    records: list[Any] = list(RECORDS)
    records.insert(3, "")
    log = write_lines(tmp_path / name, records)
    folder = tmp_path / "new"
    result = command("clicks", log, "--output", folder / "qrels.txt.gz", code=0)
    storm = query_id("storm damage")
    assert read_qrels(folder / "qrels.txt.gz") == {
        storm: {"4": 2, "17": 0},
        "7": {"b": 1, "a-1": 0},
    }
    # The commonest spelling, or the first
    topics = read_topics(folder / "qrels.topics.tsv")
    texts = {topic.query_id: topic.text for topic in topics}
    assert texts == {storm: "storm damage", "7": "élan"}
    output = re.sub(" +", " ", result.out)
    assert REPORT in output
    assert TABLE in output
    assert result.err == ""


def ubi_event(search_id: str, action: str, post: Any) -> dict[str, Any]:
    """Return an event of User Behavior Insights."""
    return {
        "query_id": search_id,
        "action_name": action,
        "event_attributes": {"object": {"object_id": post}},
    }


def test_exports_of_user_behavior_insights(tmp_path: Path) -> None:
    """A search has one vote, however often it is written or clicked."""
    click = ubi_event("s", "click", 2)
    events = [
        {"action_name": "login", "timestamp": 1730561896000},
        click,
        ubi_event("s", "CLICK", "2"),
        ubi_event("t", "click", "1"),
        ubi_event("s", "x", 1),
        click | {"event_attributes": {"object": ["2"]}, "timestamp": "1730561896000"},
    ]
    page = {
        "query_id": "s",
        "user_query": "storm",
        "query_response_hit_ids": ["1", "2"],
    }
    other_page = {"_source": page | {"query_id": "u"}}
    write_lines(tmp_path / "ubi_events.jsonl.gz", events)
    write_lines(tmp_path / "ubi_queries.jsonl", [page, page, other_page])
    log = read_click_log(tmp_path)
    assert (log.impressions, log.with_click) == (2, 1)
    assert log.click.tolist() == [False, True, False, False]
    assert [note.partition(": ")[2] for note in log.notes] == [
        "found 'null', expected an id; the line is passed over",
        "'list' object has no attribute 'get'; the line is passed over",
        "found a page of a search once more; the line is passed over",
        "found clicks of 1 unknown searches",
    ]


MALFORMED = [
    case("{", "Expecting property name", id="no JSON"),
    case('{"query": "\udcff"}', "can't decode byte 0xff", id="no UTF-8"),
    case("[1]", "found '[1]', expected a JSON object", id="array"),
    case(
        {"qeury": "x", "shown": []},
        "found the query 'null', expected a text",
        id="no query",
    ),
    case(
        search("x", "4", []),
        'found \'"4"\' under "shown", expected a list of ids',
        id="text for a list",
    ),
    case(search(" ", [], []), "found the query '\" \"'", id="blank query"),
    case(
        search("x", ["1", "1"], []),
        "found a post twice in the list",
        id="post twice",
    ),
    case(search("x", [True], []), "found 'true', expected an id", id="flag for an id"),
    case(
        search("x", ["1"], ["2"]),
        "found a click on '2', expected one of the shown posts",
        id="click on another post",
    ),
    case(
        search("x", ["1"], [], query_id="a b"),
        "found query_id 'a b', expected one word",
        id="id of two words",
    ),
    case(
        {"query_id": "s", "query_response_hit_ids": ["1"], "start": -1},
        "found the start -1",
        id="negative start",
    ),
    case(
        {"query_id": "s", "query_response_hit_ids": ["1"], "teams": [1, 2]},
        "2 teams of 1 posts",
        id="more teams than posts",
    ),
    case(
        {"query_id": [], "query_response_hit_ids": ["1"]},
        "found '[]', expected an id",
        id="list for an id",
    ),
    case(
        {"query_id": "x" * 512, "query_response_hit_ids": ["1"]},
        "expected an id",
        id="long id",
    ),
    case(
        '{"query": "x", "shown": ["1"], "crc32": 2}',
        "found a changed line, expected the CRC-32",
        id="wrong checksum",
    ),
]


@pytest.mark.parametrize(("line", "problem"), MALFORMED)
def test_malformed_lines_are_skipped(line: Any, problem: str, tmp_path: Path) -> None:
    valid = search("y", ["1"], ["1"], query_id=1)
    path = write_lines(tmp_path / "log", [valid, line])
    log = read_click_log(path)
    assert log.impressions == 1
    assert len(log.notes) == 1
    assert log.notes[0].startswith(f"{path}:2: ")
    assert problem in log.notes[0]


def test_only_the_first_malformed_lines_are_reported(tmp_path: Path) -> None:
    valid = search("y", ["1"], ["1"], query_id=1)
    path = write_lines(tmp_path / "log", [valid] + ["{"] * 5)
    log = read_click_log(path)
    assert log.impressions == 1
    assert len(log.notes) == 4
    assert log.notes[0].startswith(f"{path}:2: Expecting property name")
    assert log.notes[-1] == f"{path}: 5 lines in all were passed over"


def test_ids_of_queries(tmp_path: Path) -> None:
    records = [search("Ｓtorm damage", ["1"], ["1"])]
    records += [search(text, ["1"], ["1"], query_id=1) for text in ("x", "y")]
    log = read_click_log(write_lines(tmp_path / "log", records))
    storm = query_id("storm damage")
    assert storm == "q1bffdc61d5a2f7a0"
    assert [topic.query_id for topic in log.topics] == [storm, "1", query_id("y")]
    assert "1 query_ids are another query's" in log.notes[0]


def test_no_id_becomes_another_line_of_judgments(
    tmp_path: Path, command: Command
) -> None:
    posts = ["1 0 2 2\n3", "2"]
    log = write_lines(tmp_path / "log", [search("x\ny", posts, posts)])
    result = command("clicks", log, "--output", tmp_path / "qrels.txt")
    assert "found 1 ids with blanks" in result.err
    assert read_qrels(tmp_path / "qrels.txt") == {query_id("x y"): {"2": 1}}
    assert len((tmp_path / "qrels.topics.tsv").read_text().splitlines()) == 1


def test_a_truncated_log(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "log.jsonl.gz", RECORDS)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match=r"log\.jsonl\.gz: cannot be read"):
        read_click_log(path)


def test_an_absent_log(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="found no JSON lines"):
        read_click_log(tmp_path / "missing")


def test_a_folder_without_logs(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="found no JSON lines"):
        read_click_log(tmp_path)
