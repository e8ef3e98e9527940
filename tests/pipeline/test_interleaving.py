"""Rankings that interleave the posts of two models."""

import asyncio
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import Patch

from tweetrerank.pipeline.collections.click_log import CHALLENGER, CHAMPION
from tweetrerank.pipeline.service.json_log import LOG
from tweetrerank.pipeline.service.log import SearchLog
from tweetrerank.pipeline.service.proxy.answer import Hit
from tweetrerank.pipeline.service.proxy.ask import Candidates, Ubi
from tweetrerank.pipeline.service.proxy.interleaving import (
    LoggedSearch,
    Ranked,
    team_draft,
)
from tweetrerank.pipeline.service.request_record import Record
from tweetrerank.pipeline.service.service_errors import RequestError

# Team draft

FIRST = [0, 1, 2, 3, 4, 5]
SECOND = [0, 1, 5, 4, 3, 2]


def test_team_draft() -> None:
    drafts = [team_draft(FIRST, SECOND, str(seed)) for seed in range(400)]
    for order, teams in drafts:
        assert sorted(order) == FIRST
        assert teams[:2] == [0, 0]
        assert {order[2], order[3]} == {2, 5}
        assert teams.count(CHAMPION) == teams.count(CHALLENGER) == 2
    # Users who click without reading prefer nobody.
    assert 150 < [order[2] for order, _ in drafts].count(5) < 250


def test_each_team_adds_its_best_remaining_row() -> None:
    ranking_of_team = {CHAMPION: FIRST, CHALLENGER: SECOND}
    for seed in range(50):
        order, teams = team_draft(FIRST, SECOND, str(seed))
        for place in range(2, 6):
            above = order[:place]
            ranking = ranking_of_team[teams[place]]
            assert order[place] == next(row for row in ranking if row not in above)


def test_equal_seeds_give_equal_drafts() -> None:
    assert team_draft(FIRST, SECOND, "x") == team_draft(FIRST, SECOND, "x")


def test_equal_rankings_have_no_teams() -> None:
    assert team_draft(FIRST, FIRST, "x") == (FIRST, [0] * 6)


# A logged search

DEFAULT = SimpleNamespace(name="mp_hcnn", version="1")
OTHER = SimpleNamespace(name="window", version="2")
SAME_VERSION = SimpleNamespace(name="window", version="1")
HITS = [Hit(index_name="posts", doc_id=f"id {row}") for row in range(6)]


class Scored:
    """Scores of the hits, which rank them in an order."""

    def __init__(self, order: Sequence[int]) -> None:
        self.order = list(order)

    def best(self) -> list[tuple[int, str]]:
        return [(row, f"0.{9 - rank}") for rank, row in enumerate(self.order)]


def logged_search(
    log: SearchLog,
    model: Any = DEFAULT,
    challenger: Any = OTHER,
    client_id: str | None = None,
    named_model: str | None = None,
    start: int = 0,
) -> LoggedSearch:
    candidates = Candidates(
        query="storm",
        start=start,
        size=3,
        depth=6,
        fields={},
        added=(),
        place=0,
        bodies=(b"", b""),
        model=named_model,
        weight=None,
        ubi=Ubi(client_id) if client_id else None,
    )
    models: Any = SimpleNamespace(default=DEFAULT, challenger=challenger)
    return LoggedSearch(log, models, model, candidates)


@pytest.mark.parametrize(
    ("options", "share", "has_challenger"),
    [
        pytest.param({}, 1, True, id="first page"),
        pytest.param(
            {"client_id": "mine", "start": 3}, 1, True, id="known further page"
        ),
        pytest.param({"start": 3}, 1, False, id="further page of an unknown search"),
        pytest.param({}, 0, False, id="not drawn"),
        pytest.param({"challenger": None}, 1, False, id="no challenger"),
        pytest.param({"challenger": SAME_VERSION}, 1, False, id="the same model"),
        pytest.param({"named_model": "mp_hcnn"}, 1, False, id="model of the caller"),
        pytest.param({"model": OTHER}, 1, False, id="model of an index"),
    ],
)
def test_searches_with_a_challenger(
    tmp_path: Path,
    options: dict[str, Any],
    share: float,
    has_challenger: bool,
) -> None:
    with closing(SearchLog(tmp_path, share=share)) as log:
        challenger = logged_search(log, **options).challenger
    assert challenger == (OTHER if has_challenger else None)


def test_ids_of_searches(tmp_path: Path) -> None:
    with closing(SearchLog(tmp_path)) as log:
        signed = f"mine.{log.digest('mine')}"
        assert logged_search(log, client_id="mine").search_id == "mine"
        assert logged_search(log, client_id=signed).search_id == "mine"
        new_ids = {logged_search(log).search_id for _ in range(10)}
    assert len(new_ids) == 10
    assert {len(search_id) for search_id in new_ids} == {32}


def new_record() -> Record:
    return Record("request-1", "POST", "/posts/_search")


def rank(search: LoggedSearch, results: dict[str, Any], record: Record) -> Ranked:
    """The ranking by results of models: orders, or errors."""
    records: list[Record] = []

    async def score(model: Any, of_model: Record) -> Any:
        of_model.documents += 6
        records.append(of_model)
        result = results[model.name]
        if isinstance(result, Exception):
            raise result
        return Scored(result)

    ranked = asyncio.run(search.rank(score, record, HITS))
    assert records[0] is record
    assert record.documents == 6  # The challenger's work is not counted.
    return ranked


@pytest.fixture
def log(tmp_path: Path) -> Any:
    """A log, all of whose searches are drawn, and which writes what it is given."""
    opened = SearchLog(tmp_path, share=1)
    entries: list[dict[str, Any]] = []
    write = opened.search

    def search(entry: dict[str, Any], *arguments: Any) -> str:
        entries.append(dict(entry))
        return write(entry, *arguments)

    opened.search = search  # type: ignore[method-assign]
    opened.entries = entries  # type: ignore[attr-defined]
    with closing(opened):
        yield opened


def test_an_interleaved_page(log: Any) -> None:
    search = logged_search(log, client_id="mine", start=1)
    results = {"mp_hcnn": FIRST, "window": SECOND}
    ranked = rank(search, results, new_record())
    order, teams = team_draft(FIRST, SECOND, "mine")
    # The scores descend: they are the champion's.
    scores = ["0.9", "0.8", "0.7", "0.6", "0.5", "0.4"]
    assert list(ranked.rows) == list(zip(order, scores, strict=True))
    assert ranked.search_id == f"mine.{log.digest('mine')}"
    assert ranked.ext == {
        "tweetrerank": {"search_id": ranked.search_id},
        "ubi": {"query_id": "mine"},
    }
    [entry] = log.entries
    assert entry.pop("time") > 0
    assert entry == {
        "query_id": "mine",
        "index": "posts",
        "model": "mp_hcnn",
        "version": "1",
        "start": 1,
        "query_response_hit_ids": [f"id {row}" for row in order[1:4]],
        "challenger": "2",
        "teams": teams[1:4],
    }


def test_a_page_without_a_challenger(log: Any) -> None:
    search = logged_search(log, challenger=None)
    ranked = rank(search, {"mp_hcnn": SECOND}, new_record())
    assert list(ranked.rows) == Scored(SECOND).best()
    assert ranked.ext == {"tweetrerank": {"search_id": ranked.search_id}}
    [entry] = log.entries
    assert entry["query_response_hit_ids"] == ["id 0", "id 1", "id 5"]
    assert entry["challenger"] is None
    assert entry["teams"] is None


def test_a_challenger_that_fails(
    log: Any,
    monkeypatch: Patch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The page is the champion's, and the failure is reported."""
    monkeypatch.setattr(LOG, "propagate", True)
    results = {"mp_hcnn": FIRST, "window": ValueError("no scores")}
    ranked = rank(logged_search(log), results, new_record())
    assert list(ranked.rows) == Scored(FIRST).best()
    [entry] = log.entries
    assert entry["teams"] is None
    [record] = caplog.records
    assert "the challenger fails: no scores" in record.getMessage()


def test_a_champion_that_fails(log: Any) -> None:
    problem = RequestError("overload", "too many requests wait")
    results = {"mp_hcnn": problem, "window": SECOND}
    with pytest.raises(RequestError, match="too many requests wait"):
        rank(logged_search(log), results, new_record())
    assert log.entries == []
