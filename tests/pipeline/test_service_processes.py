"""A model that several processes score."""

import json
import multiprocessing
import os
import shutil
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.processes import descendants, run_python
from helpers.reranking_samples import AWKWARD, POSTS, QUERIES, all_pairs

from pipeline.ranking.build import Source
from pipeline.service import worker
from pipeline.service.requests import RequestError
from pipeline.service.worker import Workers
from rerankers import checkpoint as checkpoints
from rerankers.reranker import Model

EVERY = [*POSTS, *((text, text) for text in AWKWARD.values()), ("", "")]
PAIRS = all_pairs([*QUERIES, *AWKWARD.values()], EVERY)


@pytest.fixture(scope="module")
def checkpoint() -> Model:
    multiprocessing.set_forkserver_preload(["pipeline.service.worker"])
    forkserver.ensure_running()
    return checkpoints.load(checkpoints.find("mp_hcnn"))


def scorer_of(folder: Path, processes: int = 2) -> tuple[Workers, Callable[[], list[int]]]:
    """And its processes: one that has loaded the model, and those that score, a free one first."""
    before = {*descendants(os.getpid())}
    scorer = Workers({"m": Source(folder)}, 1 << 28, processes)
    return scorer, lambda: [pid for pid in descendants(os.getpid()) if pid not in before]


def test_threads_get_their_own_answers(checkpoint: Model) -> None:
    """Those of the checkpoint; an error is of one request only."""
    (scorer, _), expected = scorer_of(checkpoint.directory), checkpoint.score(PAIRS)
    rng = np.random.default_rng(1)
    parts = [np.sort(rng.choice(len(PAIRS), 30, replace=False)) for _ in range(40)]

    def half(number: int) -> list[Any]:
        return [scorer.ask("m", PAIRS.take(part)) for part in parts[number::2]]

    with ThreadPoolExecutor(2) as pool:  # One for each process
        for number, answers in enumerate(pool.map(half, range(2))):
            for part, scores in zip(parts[number::2], answers, strict=True):
                np.testing.assert_allclose(scores, expected[part], rtol=1e-6, atol=4e-6)
    assert scorer.ask("m", PAIRS.take(np.zeros(0, np.int64))).shape == (0,)
    broken = replace(PAIRS, queries=[None] * len(PAIRS.queries))  # type: ignore[list-item]
    with pytest.raises((TypeError, AttributeError)) as raised:
        scorer.ask("m", broken)
    # Where it happened is not lost.
    assert any("in ask" in note for note in raised.value.__notes__)
    np.testing.assert_allclose(scorer.ask("m", PAIRS), expected, atol=4e-6)


def test_processes_end_with_their_scorer(checkpoint: Model) -> None:
    scorer, processes = scorer_of(checkpoint.directory)
    assert len(processes()) == 3
    for process in processes():
        os.kill(process, signal.SIGTERM)  # It is for the service.
    assert scorer.ask("m", PAIRS).shape == (len(PAIRS),)
    del scorer
    end = time.monotonic() + 10
    while processes() and time.monotonic() < end:
        time.sleep(0.01)
    assert not processes()


def test_a_process_that_hangs_is_replaced(
    checkpoint: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "ANSWER", 2.0)
    scorer, processes = scorer_of(checkpoint.directory)
    expected = scorer.ask("m", PAIRS)
    for _ in range(2):
        os.kill(processes()[1], signal.SIGSTOP)
        started = time.monotonic()
        # More than fits into the pipe to it.
        large = replace(PAIRS, texts=[*PAIRS.texts[:-1], "x" * 1_000_000])
        assert len(scorer.ask("m", large)) == len(PAIRS)
        np.testing.assert_allclose(scorer.ask("m", PAIRS), expected, rtol=1e-6, atol=4e-6)
        assert time.monotonic() - started < 10


@pytest.mark.slow
def test_a_process_that_dies_again_and_again_is_started_ever_later(
    checkpoint: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    scorer, processes = scorer_of(checkpoint.directory, 1)
    starts, fork = [], worker.Workers.fork

    def broken(template: Workers) -> object:
        started = fork(template)
        starts.append(started[1])
        os.kill(started[1], signal.SIGKILL)
        return started

    monkeypatch.setattr(worker.Workers, "fork", broken)
    os.kill(processes()[1], signal.SIGKILL)
    end = time.monotonic() + 2
    while time.monotonic() < end:
        with pytest.raises(RequestError) as raised:
            scorer.ask("m", PAIRS)
        assert (raised.value.kind, raised.value.retry) == ("unready", 1)
    assert len(starts) <= 4  # after 0, 0.25, 0.75 and 1.75 s
    monkeypatch.undo()
    time.sleep(2.5)
    assert scorer.ask("m", PAIRS).shape == (len(PAIRS),)


def test_a_changed_folder_is_no_part_of_the_answers(tmp_path: Path) -> None:
    """Not before it is loaded as a whole."""
    folder = tmp_path / "model"
    shutil.copytree(checkpoints.find("mp_hcnn"), folder)
    scorer, processes = scorer_of(folder)
    expected = scorer.ask("m", PAIRS)
    config = json.loads((folder / "config.json").read_text())
    checkpoints.write_config(folder, config | {"provenance": "another"})
    os.kill(processes()[1], signal.SIGKILL)
    np.testing.assert_allclose(scorer.ask("m", PAIRS), expected, rtol=1e-6, atol=4e-6)
    for process in processes():
        os.kill(process, signal.SIGKILL)
    time.sleep(0.3)
    with pytest.raises(RequestError, match="is being replaced"):
        scorer.ask("m", PAIRS)


TREES = """
import sys
import pipeline.service.app, pipeline.service.log
from pipeline.ranking.build import Source
from pipeline.service.worker import Scorer
from rerankers.checkpoint import find
Scorer({"w": Source(find("window"))}, 1000)
print({"torch", "pandas", "sklearn"} & {*sys.modules})
"""


def test_trees_are_served_without_pytorch() -> None:
    assert run_python("-c", TREES).stdout == "set()\n"
