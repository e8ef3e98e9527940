#!/usr/bin/env python3
"""Simulate users of a judged collection, and what the loop learns from their clicks.

    python scripts/simulate_clicks.py --part test --collection politifact-tweets-train
    python scripts/simulate_clicks.py --part nights --seeds 3
    python scripts/simulate_clicks.py --part nights --engine http://localhost:9200
    python scripts/simulate_clicks.py --part cost

Users look for a topic that is drawn at random, and see ten posts. Those of the cascade model read
from the top, and mostly leave after a click on a relevant post; those of the position-based model
look at place k with the probability 1/k. Both click on seven of ten relevant posts that they look
at, and on one of twenty others. Half of the users are of each kind.

test: how often a challenger is promoted in a week of 20,000 searches, a fifth of them interleaved,
by its difference from the champion in AP, and after how many clicked searches. Its ranking is the
champion's with noise, better or worse by a part of the true judgments.
nights: AP on topics that nobody searched for, of the served model, of the challenger that has
learned from the clicks until the 1st, 3rd and 7th night, and of a model that was trained on the
true judgments of the same topics. Each night's challenger takes part in a fifth of the next day's
searches, and is served from the evening on if it has won. The model that is served first, and that
all trainings extend, is that of the microblog years without 2012. With --engine the searches and
clicks are requests to a service before it.
cost: time of a logged search that the log takes, on its way to the answer.
"""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from indexes.engines.client import Engine
from pipeline.collections.collection import SearchedCollection
from pipeline.collections.named import find
from pipeline.collections.own import read_collection
from pipeline.collections.trec import Qrels, Run, ranked
from pipeline.command.errors import DataError
from pipeline.command.options import non_negative_int, option, positive_int, run_command
from pipeline.command.ranking import addresses
from pipeline.command.runtime import print_table
from pipeline.compare import Options as CompareOptions
from pipeline.compare import main as compare
from pipeline.evaluation.measures import Evaluator, mean
from pipeline.learn import Options as LearnOptions
from pipeline.learn import main as learn
from pipeline.loop.comparison import Comparison
from pipeline.loop.interleaving import credit, is_drawn, team_draft
from pipeline.loop.log import LogWriter, write_serving
from pipeline.training.task import Options as TrainOptions
from pipeline.training.task import train

if TYPE_CHECKING:
    from pipeline.collections.topics import Topic

WEEK = 20_000
SHARE = 0.2
LEVEL = 0.95
SHOWN = 10
CLICK, MISTAKE, LEAVE = 0.7, 0.05, 0.8
DIFFERENCES = (-0.03, -0.01, 0.0, 0.01, 0.03, 0.05)
NIGHTS = (1, 3, 7)
SEARCHED = 0.7  # Share of the topics that users search for

UNSEEN = "mb2012"
"""The shipped model that has seen neither its judgments nor those of collections of other kinds."""

FOLDS = 2  # Of the trainings, whose own figures are not looked at


@dataclass(frozen=True)
class Options:
    """The part, the collection, and how much of it."""

    part: str = option("what to simulate", required=True, choices=("test", "nights", "cost"))
    collection: str = option(
        "judged collection", default="politifact-tweets-train", metavar="NAME|FILE"
    )
    weeks: int = option("simulated weeks of each challenger", default=100, parse=positive_int)
    searches: int = option("searches of a week", default=WEEK, parse=positive_int)
    seed: int = option("seed of all users", default=1, parse=non_negative_int)
    seeds: int = option("how many seeds, for nights", default=1, parse=positive_int)
    engine: str | None = option(
        "OpenSearch that the nights' searches go to, through a service",
        parse=addresses,
        metavar="URL",
    )
    threads: int | None = option("CPU threads (default: all cores)", parse=positive_int)
    data: Path | None = option("data folder (default: $TWEETRERANK_DATA)", parse=Path)


def main(options: Options) -> None:
    """Simulate one part."""
    {"test": weeks, "nights": nights, "cost": cost}[options.part](options)


def clicks(relevant: Sequence[bool], users: random.Random) -> list[int]:
    """The clicked places of a page, from 0."""
    is_cascade, found = users.random() < 0.5, []
    for place, is_relevant in enumerate(relevant):
        if not is_cascade and users.random() * (place + 1) > 1:
            continue
        if users.random() < (CLICK if is_relevant else MISTAKE):
            found.append(place)
            if is_cascade and is_relevant and users.random() < LEAVE:
                break
    return found


def _collection(options: Options) -> tuple[SearchedCollection, Qrels]:
    collection = find(options.collection, options.data)
    assert isinstance(collection, SearchedCollection)
    assert collection.training_qrels
    return collection, collection.training_qrels


# --- The test -------------------------------------------------------------------------------------


def weeks(options: Options) -> None:
    """Promotions of challengers by their difference in AP."""
    import numpy as np

    from pipeline.ranking.build import ranker

    collection, qrels = _collection(options)
    found = ranker(collection, "none").rank(collection.training_topics, 100).run
    found = {q: scores for q, scores in found.items() if any(qrels.get(q, {}).values())}
    qrels = {q: qrels[q] for q in found}
    evaluator = Evaluator(qrels, ["AP"])

    def ap(run: Run) -> float:
        return mean(evaluator(run)["AP"].values())

    noise = np.random.default_rng(options.seed)
    sizes = {q: noise.standard_normal(len(scores)) for q, scores in found.items()}

    def changed(part: float) -> Run:
        """The ranking with noise, and a part of the truth."""
        return {
            q: {
                doc_id: score / (np.std([*scores.values()]) or 1)
                + 0.3 * float(sizes[q][row])
                + part * (qrels[q].get(doc_id, 0) > 0)
                for row, (doc_id, score) in enumerate(scores.items())
            }
            for q, scores in found.items()
        }

    base, rows = ap(found), []
    for difference in DIFFERENCES:
        challenger = changed(_solved(lambda part: ap(changed(part)) - base, difference))
        stops, seen = [], []
        for week in range(options.weeks):
            users = random.Random(options.seed * 10_000 + week)
            stop, clicked = _week(found, challenger, qrels, users, int(options.searches * SHARE))
            stops.append(stop)
            seen.append(clicked)
        reached = [stop for stop in stops if stop is not None]
        median = np.median([stop or np.inf for stop in stops])
        rows.append(
            (
                f"{ap(challenger) - base:+.3f}",
                f"{len(reached)} of {len(stops)}",
                f"{median:.0f}",
                f"{np.mean(seen):.0f}",
            )
        )
        print(rows[-1], file=sys.stderr)
    print(f"{collection.name}: {len(qrels)} topics, AP of the champion {base:.4f}")
    print_table(("AP", "promoted", "median clicked searches", "clicked searches a week"), rows)


def _solved(value: Callable[[float], float], target: float) -> float:
    """The argument at which a rising function has a value."""
    low, high = -4.0, 4.0
    for _ in range(25):
        middle = (low + high) / 2
        low, high = (middle, high) if value(middle) < target else (low, middle)
    return low


def _week(
    champion: Run, challenger: Run, qrels: Qrels, users: random.Random, searches: int
) -> tuple[int | None, int]:
    """Clicked searches until promotion (None if there is none), and those of the whole week."""
    topics = [*champion]
    rows = {q: {doc_id: row for row, doc_id in enumerate(champion[q])} for q in topics}
    orders = {
        # More posts than the page has do not change it.
        q: [
            [rows[q][doc_id] for doc_id, _ in ranked(run[q])[: 2 * SHOWN]]
            for run in (champion, challenger)
        ]
        for q in topics
    }
    ids = {q: [*champion[q]] for q in topics}
    state, clicked, stop = Comparison(), 0, None
    for _ in range(searches):
        q = users.choice(topics)
        order, teams = team_draft(*orders[q], str(users.random()))
        shown = [ids[q][row] for row in order[:SHOWN]]
        at = clicks([qrels[q].get(doc_id, 0) > 0 for doc_id in shown], users)
        if not at:
            continue
        clicked += 1
        state = state.after([credit(shown, teams[:SHOWN], {shown[place] for place in at})])
        if stop is None and clicked % 10 == 0 and state.is_agreed(LEVEL):
            stop = clicked
    return stop, clicked


# --- Nights ---------------------------------------------------------------------------------------


def nights(options: Options) -> None:
    """AP on topics that nobody searched for, after nights of learning; of several seeds."""
    import numpy as np

    from rerankers import checkpoint

    collection, qrels = _collection(options)
    unseen, figures = checkpoint.SHIPPED / "window" / UNSEEN, []
    for seed in range(options.seed, options.seed + options.seeds):
        with TemporaryDirectory() as name:
            folder = Path(name)
            # Neither the served model nor the one that trainings extend has seen the judgments.
            shutil.copytree(unseen, folder / "checkpoints" / "window" / "all")
            checkpoint.SHIPPED = folder / "checkpoints"
            os.environ["TWEETRERANK_HOME"] = name
            figures.append(_World(folder, collection, qrels, seed, options).nights())
        print(f"seed {seed}: {figures[-1]}", file=sys.stderr)
    values = np.array([[*of_seed.values()] for of_seed in figures])
    gains = values - values[:, :1]
    # Of the mean gain: a seed in which the judgments themselves teach little would decide the rest.
    shares = gains / gains[:, -1].mean()
    print(f"{collection.name}, seeds {options.seed} to {seed}: mean and standard deviation")
    rows = zip(figures[0], values.T, shares.T, strict=True)
    print_table(
        ("model", "AP", "share of the gain"),
        [
            (label, f"{ap.mean():.4f} ± {ap.std():.4f}", f"{share.mean():.0%} ± {share.std():.0%}")
            for label, ap, share in rows
        ],
    )


class _World:
    """A collection whose users search for some topics and leave others to measure models on."""

    def __init__(
        self,
        folder: Path,
        collection: SearchedCollection,
        qrels: Qrels,
        seed: int,
        options: Options,
    ) -> None:
        self.folder, self.qrels, self.seed, self.options = folder, qrels, seed, options
        topics = [t for t in collection.training_topics if any(qrels[t.query_id].values())]
        random.Random(seed).shuffle(topics)
        count = round(len(topics) * SEARCHED)
        self.searched, self.held_out = topics[:count], topics[count:]
        posts = ({"id": p.doc_id, "text": p.text, "url": p.url} for p in collection.posts())
        _write(folder / "posts.jsonl", map(json.dumps, posts))
        _write(folder / "topics.tsv", (f"{t.query_id}\t{t.text}" for t in topics))
        engine = [f'engine = "{options.engine}"'] if options.engine else []
        self.file = folder / "simulated.toml"
        _write(self.file, ['posts = ["posts.jsonl"]', 'topics = "topics.tsv"', *engine])
        self.own, self.log = read_collection(self.file), folder / "log"
        if self.own.engine:
            self.own.build_engine_index()

    def nights(self) -> dict[str, float]:
        """Model -> AP."""
        figures, total = {"served": self._ap(None)}, self.options.searches
        of_truth = self._ap(self._judged())
        with closing(_Service(self) if self.options.engine else _Log(self)) as shown:
            for night in range(1, NIGHTS[-1] + 1):
                self._search(shown, range((night - 1) * total // 7, night * total // 7))
                if self.challenger.exists():
                    self._compare()
                self._learn()
                shown.reload()
                if night in NIGHTS:
                    figures[f"night {night}"] = self._ap(self._newest())
                    print(f"AP {figures}, at best {of_truth:.4f}", file=sys.stderr)
        if self.own.engine:
            Engine.connect(self.own.engine).request("DELETE", f"/{self.own.engine.index}")
        return figures | {"trained on the judgments": of_truth}

    def _search(self, shown: _Log | _Service, numbers: range) -> None:
        """Searches of users who click."""

        def search(number: int) -> None:
            users = random.Random(f"{self.seed} {number}")
            topic = users.choice(self.searched)
            search_id, doc_ids = shown.search(topic.text)
            grades = self.qrels[topic.query_id]
            for place in clicks([grades.get(doc_id, 0) > 0 for doc_id in doc_ids], users):
                shown.click(search_id, doc_ids[place], place)

        started = time.perf_counter()
        with ThreadPoolExecutor(shown.clients) as clients:
            [*clients.map(search, numbers)]
        shown.flush()
        taken = time.perf_counter() - started
        print(f"{len(numbers):,} searches, {len(numbers) / taken:.0f} a second", file=sys.stderr)

    @property
    def challenger(self) -> Path:
        """Where the model of the last night is."""
        return self.folder / "challenger"

    def _newest(self) -> Path | None:
        """The challenger or, where there is none, the served model."""
        from pipeline.ranking.build import best_source

        return self.challenger if self.challenger.exists() else best_source(self.own).folder

    def _compare(self) -> None:
        """Serve the challenger if users prefer it."""
        try:
            compare(CompareOptions(self.log, level=LEVEL, promote=True))
        except DataError as error:
            print(error, file=sys.stderr)

    def _learn(self) -> None:
        how = LearnOptions(
            self.log,
            collection=str(self.file),
            output=self.challenger,
            replace=True,
            folds=FOLDS,
            threads=self.options.threads,
        )
        try:
            learn(how)
        except DataError as error:  # There are too few searches to compare models on.
            print(error, file=sys.stderr)

    def _judged(self) -> Path:
        """A model that is trained on the true judgments of the searched topics."""
        topics, judged = self.folder / "judged.tsv", self.folder / "judged.txt"
        _write(topics, (f"{t.query_id}\t{t.text}" for t in self.searched))
        grades = [
            (t.query_id, *item) for t in self.searched for item in self.qrels[t.query_id].items()
        ]
        _write(judged, (f"{query_id} 0 {doc_id} {grade}" for query_id, doc_id, grade in grades))
        truth = dataclasses.replace(self.own, topics_path=topics, qrels_path=judged)
        output, threads = self.folder / "judged", self.options.threads
        how = TrainOptions(
            model="window",
            output=output,
            folds=FOLDS,
            threads=threads,
            forget_topics=True,  # As learn does.
        )
        return train(how, truth)

    def _ap(self, folder: Path | None) -> float:
        """On the held-out topics, of the served model or that of a folder."""
        held_out = {t.query_id: self.qrels[t.query_id] for t in self.held_out}
        return mean(Evaluator(held_out, ["AP"])(self.rank(self.held_out, folder))["AP"].values())

    def rank(self, topics: Sequence[Topic], folder: Path | None = None) -> Run:
        """The ranking of the served model, or of that of a folder."""
        from pipeline.ranking.build import ranker

        return ranker(self.own, "window", checkpoint=folder).rank(topics, 100).run


class _Log:
    """Shows what a service would, and writes the log that it would."""

    clients = 1

    def __init__(self, world: _World) -> None:
        self._world = world
        world.log.mkdir()
        write_serving(world.log, world.challenger, str(world.file), None)
        names = ("searches", "events")
        self._files = [(world.log / f"{name}-simulated.jsonl").open("w") for name in names]
        self.reload()

    def reload(self) -> None:
        """Show what is served now, and its challenger in some searches."""
        from pipeline.ranking.build import Source, best_source

        sources = [best_source(self._world.own)]
        sources += [Source(self._world.challenger)] if self._world.challenger.exists() else []
        self._shown = [(source.version, self._rankings(source.folder)) for source in sources]

    def _rankings(self, folder: Path) -> dict[str, dict[str, float]]:
        """Text of a query -> id of a post -> score, best first."""
        run = self._world.rank(self._world.searched, folder)
        return {t.text: dict(ranked(run.get(t.query_id, {}))) for t in self._world.searched}

    def search(self, text: str) -> tuple[str, list[str]]:
        """The id of the search, and the posts of the page."""
        search_id = uuid.uuid4().hex
        (version, rankings), *rivals = self._shown
        scores = [*rankings[text].values()]
        ids, teams, rival = [*rankings[text]], None, None
        order = [*range(len(ids))]
        if rivals and is_drawn(search_id, SHARE):
            [(rival, of_rival)] = rivals
            row_of = {doc_id: row for row, doc_id in enumerate(ids)}
            theirs = [row_of[doc_id] for doc_id in of_rival[text]]
            order, teams = team_draft(order, theirs, search_id)
            teams = teams[:SHOWN]
        page = [ids[row] for row in order[:SHOWN]]
        served = {"version": version, "challenger": rival, "teams": teams}
        shown = {"ids": ids, "scores": scores, "shown": page, "start": 0}
        self._add(0, search_id, query=text, **shown, **served)
        return search_id, page

    def click(self, search_id: str, doc_id: str, place: int) -> None:
        """Log a click on a post."""
        self._add(1, search_id, action="click", object_id=doc_id, position=place + 1)

    def flush(self) -> None:
        """Let others read everything."""
        for file in self._files:
            file.flush()

    def close(self) -> None:
        """End the log."""
        for file in self._files:
            file.close()

    def _add(self, file: int, search_id: str, **fields: Any) -> None:
        record = {"search_id": search_id, "time": time.time(), **fields}
        self._files[file].write(json.dumps(record) + "\n")


class _Service:
    """Searches through the proxy of a service, which logs them; the last night's model challenges.

    Args:
        world: whose collection is in an engine.
    """

    clients = 8

    def __init__(self, world: _World) -> None:
        import requests

        assert world.own.engine
        self._lines, self._session = world.folder / "service.log", requests.Session()
        self._session.trust_env = False  # No other proxy.
        command = [sys.executable, "-m", "pipeline.serve", "--port", "0", "--collection"]
        command += [str(world.file), "--log", str(world.log), "--log-queries", "plain"]
        command += ["--challenger", str(world.challenger), "--share", str(SHARE)]
        with self._lines.open("w") as stream:
            self._process = subprocess.Popen(command, stderr=stream)
        self._url = self._wait("serving ").rpartition(" ")[2]
        self._path = f"{self._url}/{world.own.engine.index}/_search"

    def search(self, text: str) -> tuple[str, list[str]]:
        """The id of the search, and the posts of the page."""
        body = {"query": {"match": {"contents": text}}, "size": SHOWN}
        answer = self._session.post(self._path, json=body)
        answer.raise_for_status()
        doc_ids = [hit["_id"] for hit in answer.json()["hits"]["hits"]]
        return answer.headers["x-search-id"], doc_ids

    def click(self, search_id: str, doc_id: str, place: int) -> None:
        """Post a click on a post."""
        where = {"object": {"object_id": doc_id}, "position": {"ordinal": place + 1}}
        event = {"action_name": "click", "query_id": search_id, "event_attributes": where}
        self._session.post(f"{self._url}/events", json=event).raise_for_status()

    def flush(self) -> None:
        """Wait until everything is written."""
        time.sleep(1)

    def reload(self) -> None:
        """Let the service see what is served now, and its challenger."""
        self._process.send_signal(signal.SIGHUP)
        time.sleep(1)
        self._wait("challenger: loaded")

    def close(self) -> None:
        """End the service."""
        self._process.terminate()
        self._process.wait()

    def _wait(self, text: str) -> str:
        """The first message that begins with a text."""
        while self._process.poll() is None:
            for line in self._lines.read_text().splitlines():
                message: str = json.loads(line).get("message", "")  # Requests have none.
                if message.startswith(text):
                    return message
            time.sleep(0.1)
        raise DataError(f"the service has ended: {self._lines.read_text()}")


def _write(path: Path, lines: Iterable[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines))


# --- Cost -----------------------------------------------------------------------------------------


def cost(options: Options) -> None:
    """What the log adds to a search of a window of 100, whose scores take no time here."""
    import numpy as np
    from orjson import Fragment

    from pipeline.service.formats import ScoreRequest, ScoreResponse
    from pipeline.service.http.models import Models
    from pipeline.service.http.requests import Limits
    from pipeline.service.http.service import Service
    from pipeline.service.loop.searches import Loop
    from pipeline.service.proxy.search import Hit, Window
    from pipeline.service.record import Record

    rows = range(100)
    first = [20 - row / 7 for row in rows]
    wanted = ScoreRequest("storm damage on the coast", ["text"] * 100, [""] * 100, first)
    scores = [Fragment(f"{1 - row / 101:.12f}") for row in rows]

    class Instant(Service):
        async def score(self, *arguments: Any, **options: Any) -> ScoreResponse:
            return ScoreResponse(wanted, "window", "neural", scores, [*rows])

    ids = [str(10**17 + 7919 * row) for row in rows]
    hits = [Hit(0, 0, {"_id": ids[row], "_score": first[row], "_index": "a"}) for row in rows]
    window = Window(wanted.query, 0, SHOWN, ["contents"], None, [], None, b"", None)
    service = Instant(Models(["window"], 10**6), Limits(), 1)

    async def seconds(loop: Loop) -> AsyncIterator[float]:
        for _ in range(options.searches):
            started = time.perf_counter()
            record = Record("", "POST", "")
            await loop.rank(wanted, service.models.default, record, 0, window, hits)
            yield time.perf_counter() - started
            await asyncio.sleep(0.001)

    async def measured(loop: Loop) -> Any:
        return np.array([taken async for taken in seconds(loop)]) * 1000

    gc.freeze()  # As in the service.
    with TemporaryDirectory() as folder:
        log = LogWriter(Path(folder))
        for label, loop in (("without log", Loop(service)), ("with log", Loop(service, log))):
            taken = asyncio.run(measured(loop))
            parts = ", ".join(f"p{p:g} {np.percentile(taken, p):.3f}" for p in (50, 95, 99))
            print(f"{label}: ms a search {parts}")
        log.close()
        print(f"{log.written:,} lines written, {log.dropped:,} dropped")


if __name__ == "__main__":
    run_command(Options, main, "scripts/simulate_clicks.py", __doc__)
