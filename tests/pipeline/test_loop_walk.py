"""From an empty index to a model that users have promoted, as the README walks."""

import json
import random
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from conftest import Command
from helpers.engine_servers import running
from helpers.service_samples import listening
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from pipeline.collections.collection import SearchedCollection
from pipeline.collections.named import find
from pipeline.collections.topics import Topic
from pipeline.loop.comparison import read_comparison
from pipeline.loop.impressions import read_logged
from pipeline.loop.log import LogWriter, read_promotions, write_serving
from pipeline.ranking.build import best_source
from pipeline.ranking.retrievers import retriever_for
from pipeline.service.app import build
from pipeline.service.http.models import Models
from pipeline.service.http.requests import Limits
from pipeline.service.http.service import Service
from pipeline.service.loop.routes import routes
from pipeline.service.loop.searches import Challenger, Loop
from pipeline.service.proxy.routes import Proxy
from pipeline.service.proxy.search import SearchDefaults
from pipeline.service.proxy.upstream import Upstream

QUERIES = [f"storm{number} on the coast{number}" for number in range(70)]
"""Each is that of twelve posts; four of them are relevant, which users know: they have no link."""


def posts() -> Iterator[dict[str, str]]:
    words = random.Random(3)
    for number in range(len(QUERIES)):
        for row in range(12):
            others = " ".join(words.choices(["rain", "wind", "sea", "ship", "town"], k=4))
            text = f"storm{number} at coast{number} {others}"
            url = "" if row % 3 == 0 else f"http://news.example/storm{number}/{row}"
            yield {"id": f"{number}-{row}", "text": text, "url": url}


def is_relevant(doc_id: str) -> bool:
    return int(doc_id.split("-")[1]) % 3 == 0


def stub(collection: SearchedCollection) -> Starlette:
    """An engine whose hits are those of the collection's own index."""
    topics = [Topic(f"q{row}", text) for row, text in enumerate(QUERIES)]
    found = retriever_for(collection).search(topics, 100)
    hits = {t.text: [*found.run[t.query_id].items()] for t in topics}

    async def search(request: Request) -> JSONResponse:
        body = await request.json()
        shown = [
            {
                "_index": "posts",
                "_id": doc_id,
                "_score": score,
                "_source": {"contents": found.posts[doc_id].text, "url": found.posts[doc_id].url},
            }
            for doc_id, score in hits[body["query"]["match"]["contents"]]
        ]
        return JSONResponse({"took": 1, "hits": {"hits": shown[: body["size"]]}})

    return Starlette(routes=[Route("/posts/_search", search, methods=["POST"])])


class Users:
    """People who search, and click on relevant posts from the top."""

    def __init__(self, client: TestClient, index: str) -> None:
        self._client, self._index, self._random = client, index, random.Random(1)

    def search(self, times: int) -> None:
        for _ in range(times):
            query = self._random.choice(QUERIES)
            body = {"query": {"match": {"contents": query}}, "size": 10}
            answer = self._client.post(f"/{self._index}/_search", json=body)
            assert answer.headers["x-reranked"] == "true", answer.text
            for place, hit in enumerate(answer.json()["hits"]["hits"], start=1):
                if self._random.random() < (0.8 if is_relevant(hit["_id"]) else 0.05):
                    event = {
                        "action_name": "click",
                        "query_id": answer.headers["x-search-id"],
                        "event_attributes": {
                            "object": {"object_id": hit["_id"]},
                            "position": {"ordinal": place},
                        },
                    }
                    assert self._client.post("/events", json=[event]).status_code == 200
                    if is_relevant(hit["_id"]):
                        break


@pytest.mark.slow
@pytest.mark.parametrize(
    "engine", ["stub", pytest.param("opensearch3", marks=pytest.mark.opensearch3)]
)
def test_clicks_make_a_model_that_users_promote(
    engine: str, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, log_folder = tmp_path / "home", tmp_path / "log"
    monkeypatch.setenv("TWEETRERANK_HOME", str(home))
    (tmp_path / "posts.jsonl").write_text("".join(json.dumps(post) + "\n" for post in posts()))
    file, line = tmp_path / "mine.toml", 'posts = ["posts.jsonl"]\n'
    with ExitStack() as stack:
        if engine == "stub":
            file.write_text(line)
            collection, index = find(str(file)), "posts"
            assert isinstance(collection, SearchedCollection)
            url = stack.enter_context(listening(stub(collection)))
        else:
            server = stack.enter_context(running(engine))
            index, url = server.address().index, server.url
            file.write_text(f'{line}engine = "{url}"\nengine_index = "{index}"\n')
            command("index", "--collection", file)
            collection = find(str(file))
            assert isinstance(collection, SearchedCollection)
        challenger = home / "challengers" / collection.key
        models = Models([], 10**7, 1, [collection])
        service = Service(models, Limits(), 2)
        others = []
        if engine != "stub":
            from pipeline.loop.engine import EngineStore

            ubi = server.address(f"{index}-queries")
            others.append(EngineStore(ubi))
        log = LogWriter(log_folder, True, others=others)
        loop = Loop(service, log, Challenger(challenger, 1.0, 10**7, 1))
        write_serving(log_folder, challenger, str(file), None)
        defaults = SearchDefaults(seconds=60, reads_ubi=True)
        app = build(service, [], routes(loop), Proxy(service, Upstream([url]), defaults, loop))
        users = Users(stack.enter_context(TestClient(app)), index)
        shipped = models.default.version
        users.search(500)
        log._queues[0]._flush()

        assert np.isfinite(read_logged(log_folder).score).all()
        command("clicks", log_folder, "--output", tmp_path / "qrels.txt")
        if engine != "stub":
            log._queues[1]._flush()
            server.engine(ubi).request("POST", f"/{index}-*/_refresh")
            assert np.isfinite(read_logged(ubi).score).all()
            own = ("--engine", url, "--log-index", ubi.index)
            command("clicks", *own, "--output", tmp_path / "engine.txt")
            lines = [(tmp_path / f"{n}.txt").read_text().splitlines() for n in ("engine", "qrels")]
            assert sorted(lines[0]) == sorted(lines[1])

        learned = command("learn", log_folder, "--collection", file, "--folds", "2").out
        assert f"wrote {challenger}" in learned, learned
        assert models.default.version == shipped
        again = command("learn", log_folder, "--collection", file).out
        assert "still to be compared" in again

        loop.reload()
        users.search(3)
        log._queues[0]._flush()
        assert "not better at the level" in command("compare", log_folder, "--promote").err
        users.search(80)
        log.close()
        report = command("compare", log_folder).out
        state = read_comparison(log_folder)
        assert state.wins > state.losses
        assert f"{state.wins} " in report
        assert state.is_agreed(0.95), report
        command("compare", log_folder, "--promote")
        assert not challenger.exists()
        models.reload()
        loop.reload()
        assert models.default.version == state.challenger
        assert best_source(collection).folder.is_relative_to(home)

        command("compare", log_folder, "--rollback")
        models.reload()
        assert models.default.version == shipped
        assert "no promotion" in command("compare", log_folder, "--rollback").err
        assert [r["action"] for r in read_promotions(log_folder)] == ["promote", "rollback"]
        assert re.search(r"share of wins [01]\.\d+", report)
