"""A model that several processes score."""

import json
import multiprocessing
import os
import shutil
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain
from multiprocessing import forkserver
from pathlib import Path

import numpy as np
import pytest
from helpers.processes import descendants, run_python
from helpers.reranking_samples import AWKWARD, POSTS, QUERIES, all_pairs

from pipeline.service import worker
from pipeline.service.errors import RequestError
from pipeline.service.worker import Loaded, Source, Workers
from rerankers import checkpoint as checkpoints
from rerankers.checkpoint import version_of
from rerankers.reranker import Model

EVERY = [*POSTS, *((text, text) for text in AWKWARD.values()), ("", "")]
PAIRS = all_pairs([*QUERIES, *AWKWARD.values()], EVERY)


@pytest.fixture(scope="module")
def checkpoint() -> Model:
    multiprocessing.set_forkserver_preload(["pipeline.service.worker"])
    forkserver.ensure_running()
    return checkpoints.load(checkpoints.find("mp_hcnn"))


@pytest.fixture(scope="module")
def scorer(checkpoint: Model) -> Iterator[Workers]:
    scorer = scorer_of(checkpoint.directory)
    yield scorer
    del scorer


def scorer_of(folder: Path, processes: int = 2) -> Workers:
    scorer = Workers({"m": Source(folder, version_of(folder))}, 1 << 28, processes)
    scorer.start()
    return scorer


def test_scores_are_those_of_the_checkpoint(checkpoint: Model, scorer: Workers) -> None:
    for _ in range(2):
        np.testing.assert_allclose(scorer.score(0, "m", PAIRS), checkpoint.score(PAIRS), atol=4e-6)


def test_threads_get_their_own_answers(scorer: Workers) -> None:
    expected = scorer.score(0, "m", PAIRS)
    rng = np.random.default_rng(1)
    parts = [np.sort(rng.choice(len(PAIRS), 30, replace=False)) for _ in range(40)]
    with ThreadPoolExecutor(2) as pool:  # One for each process
        halves = (range(number, 40, 2) for number in range(2))
        answers = pool.map(
            lambda half: [(n, scorer.score(n % 2, "m", PAIRS.take(parts[n]))) for n in half], halves
        )
        for number, scores in chain.from_iterable(answers):
            rows = parts[number]
            np.testing.assert_allclose(scores, expected[rows], rtol=1e-6, atol=4e-6)
    assert scorer.score(0, "m", PAIRS.take(np.zeros(0, np.int64))).shape == (0,)


def test_an_error_is_of_one_request_only(scorer: Workers) -> None:
    expected = scorer.score(0, "m", PAIRS)
    broken = replace(PAIRS, queries=[None] * len(PAIRS.queries), memo={})  # type: ignore[list-item]
    with pytest.raises((TypeError, AttributeError)) as raised:
        scorer.score(0, "m", broken)
    # Where it happened is not lost.
    assert any("in score" in note for note in raised.value.__notes__)
    np.testing.assert_allclose(scorer.score(0, "m", PAIRS), expected, rtol=1e-6, atol=4e-6)


def test_processes_end_with_their_scorer(checkpoint: Model) -> None:
    before = {*descendants(os.getpid())}
    scorer = scorer_of(checkpoint.directory)
    started = {*descendants(os.getpid())} - before
    assert len(started) == 3  # with the one that has loaded the model
    for process in started:
        os.kill(process, signal.SIGTERM)  # It is for the service.
    assert scorer.score(0, "m", PAIRS).shape == (len(PAIRS),)
    del scorer
    end = time.monotonic() + 10
    while started & {*descendants(os.getpid())} and time.monotonic() < end:
        time.sleep(0.01)
    assert not started & {*descendants(os.getpid())}


def first_that_scores(others: set[int]) -> int:
    """The first free process, which scores; it follows the one that has loaded the model."""
    return [pid for pid in descendants(os.getpid()) if pid not in others][1]


def test_a_process_that_hangs_is_replaced(
    checkpoint: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "ANSWER", 1.0)
    others = {*descendants(os.getpid())}
    scorer = scorer_of(checkpoint.directory)
    expected = scorer.score(0, "m", PAIRS)
    for _ in range(2):
        os.kill(first_that_scores(others), signal.SIGSTOP)
        started = time.monotonic()
        # More than fits into the pipe to it.
        large = replace(PAIRS, texts=[*PAIRS.texts[:-1], "x" * 1_000_000], memo={})
        assert len(scorer.score(0, "m", large)) == len(PAIRS)
        np.testing.assert_allclose(scorer.score(0, "m", PAIRS), expected, rtol=1e-6, atol=4e-6)
        assert time.monotonic() - started < 10


@pytest.mark.slow
def test_a_process_that_dies_again_and_again_is_started_ever_later(
    checkpoint: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = {*descendants(os.getpid())}
    scorer = scorer_of(checkpoint.directory, 1)
    starts, fork = [], worker.Workers.fork

    def broken(template: Workers) -> object:
        started = fork(template)
        starts.append(started[1])
        os.kill(started[1], signal.SIGKILL)
        return started

    monkeypatch.setattr(worker.Workers, "fork", broken)
    os.kill(first_that_scores(others), signal.SIGKILL)
    end = time.monotonic() + 2
    while time.monotonic() < end:
        with pytest.raises(RequestError) as raised:
            scorer.score(0, "m", PAIRS)
        assert (raised.value.kind, raised.value.retry) == ("unready", 1)
    assert len(starts) <= 4  # after 0, 0.25, 0.75 and 1.75 s
    monkeypatch.undo()
    time.sleep(2.5)
    assert scorer.score(0, "m", PAIRS).shape == (len(PAIRS),)


def test_a_changed_folder_is_no_part_of_the_answers(tmp_path: Path) -> None:
    """Not before it is loaded as a whole."""
    folder = tmp_path / "model"
    shutil.copytree(checkpoints.find("mp_hcnn"), folder)
    before = {*descendants(os.getpid())}
    scorer = scorer_of(folder)
    expected = scorer.score(0, "m", PAIRS)
    config = json.loads((folder / "config.json").read_text())
    checkpoints.write_config(folder, config | {"provenance": "another"})
    _, worker, _ = (pid for pid in descendants(os.getpid()) if pid not in before)
    os.kill(worker, signal.SIGKILL)
    np.testing.assert_allclose(scorer.score(0, "m", PAIRS), expected, rtol=1e-6, atol=4e-6)
    for process in (pid for pid in descendants(os.getpid()) if pid not in before):
        os.kill(process, signal.SIGKILL)
    time.sleep(0.3)
    with pytest.raises(RequestError, match="is being replaced"):
        scorer.score(0, "m", PAIRS)


def test_a_checkpoint_that_a_process_cannot_load(checkpoint: Model, tmp_path: Path) -> None:
    """Is told; others are loaded."""
    whole = Source(checkpoint.directory, version_of(checkpoint.directory))
    loaded = Workers({"none": Source(tmp_path, ""), "m": whole}, 1 << 20, 2).start()
    assert "found no readable JSON" in str(loaded["none"])
    assert isinstance(loaded["m"], Loaded)
    assert (loaded["m"].name, loaded["m"].reads_given) == ("mp_hcnn", True)


def test_trees_are_served_without_pytorch() -> None:
    code = "import pipeline.service.app, pipeline.service.log, pipeline.service.worker as w; "
    code += (
        "from pathlib import Path; from rerankers.checkpoint import find, version_of; import sys; "
    )
    code += "f = find('window'); w.load_all({'w': w.Source(f, version_of(f))}, 1000); "
    code += "print({'torch', 'pandas', 'sklearn'} & {*sys.modules})"
    assert run_python("-c", code).stdout == "set()\n"
