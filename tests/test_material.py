"""What models are trained on, and training on a part of a collection with given candidates."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import answer_samples
import microblog_samples
import numpy as np
import pytest

from indexes.posts import Post
from pipeline.collections import named
from pipeline.collections.topics import Topic
from pipeline.collections.trec import Run, read_run
from pipeline.command.errors import DataError, UsageError
from pipeline.evaluation.measures import evaluate, mean
from pipeline.reranking import Candidates, RunRetriever, priors_of
from pipeline.training.training_set import (
    JudgedCandidates,
    answer_training_set,
    load_answers,
    load_training_data,
    microblog_training_set,
)
from rerankers import checkpoint
from rerankers.base import FIRST_STAGE, PRIOR
from rerankers.models._bilinear import Bilinear


@pytest.fixture(scope="module")
def microblog(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made-up years whose second run has other ranks, and lacks some posts and a topic."""
    folder = microblog_samples.write_data(tmp_path_factory.mktemp("microblog"), topics=4, posts=6)
    path = folder / "microblog" / "runs" / "run.microblog2011.RM3.txt"
    kept = []
    for line in path.read_text().splitlines():
        query_id, _, doc_id, rank, _, _ = line.split()
        if query_id != "3" and rank != "2":
            kept.append(f"{query_id} Q0 {doc_id} {rank} {int(rank) // 2} rm3\n")
    path.write_text("".join(kept))
    return folder


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return answer_samples.write_data(tmp_path_factory.mktemp("answers"))


def worth(rank: int) -> float:
    return 1 / math.log(rank + 1)


def test_a_prior_is_the_mean_over_runs() -> None:
    """Posts and topics that a run does not have are worth 0 there."""
    first = {"1": {"a": 3.0, "b": 2.0, "c": 1.0}, "2": {"x": 0.5}}
    second = {"1": {"c": 0.9, "a": 0.1}, "3": {"y": 1.0}}
    priors = priors_of([first, second])
    assert priors["1"] == pytest.approx(
        {"a": (worth(1) + worth(2)) / 2, "b": worth(2) / 2, "c": (worth(3) + worth(1)) / 2}
    )
    assert priors["2"] == pytest.approx({"x": worth(1) / 2})
    assert priors["3"] == pytest.approx({"y": worth(1) / 2})
    assert set(priors) == {"1", "2", "3"}
    assert priors_of([]) == {}


def test_priors_rank_as_trec_eval_does() -> None:
    """Equal scores by growing id, read backwards; scores in single precision."""
    run = {"1": {"10": 2.0, "9": 2.0, "a": 1.0, "b": 1.0 + 1e-12, "z": 2.5}}
    order = ["z", "9", "10", "b", "a"]
    expected = {doc_id: worth(rank) for rank, doc_id in enumerate(order, start=1)}
    assert priors_of([run])["1"] == pytest.approx(expected)
    other = {"1": {"10": 2.0, "9": 2.0, "a": 1.0 + 1e-12, "b": 1.0, "z": 2.5}}
    assert priors_of([other]) == priors_of([run])


TOPICS = [Topic("1", "storm"), Topic("2", "nothing found"), Topic("3", "library")]
POSTS = {name: Post(name, f"text of {name}", f"http://{name}.example.org") for name in "cab"}
RUN: Run = {"3": {"b": 0.0}, "1": {"a": 0.5, "b": 0.75}}


@pytest.mark.parametrize(
    ("priors", "expected"),
    [
        (None, [worth(2), worth(1), worth(1)]),
        ({}, [0.0, 0.0, 0.0]),
        ({"1": {"b": 0.25, "other": 9.0}, "4": {"a": 1.0}}, [0.0, 0.25, 0.0]),
    ],
)
def test_pairs_of_candidates(priors: Run | None, expected: list[float]) -> None:
    """In the order of the topics, with the priors that are given or those of the run's ranks."""
    candidates = Candidates(TOPICS, RUN, POSTS, priors)
    pairs = candidates.pairs()
    assert candidates.keys() == [("1", "a"), ("1", "b"), ("3", "b")]
    found = [
        (pairs.queries[query], pairs.texts[post], pairs.urls[post])
        for query, post in zip(pairs.query_index, pairs.post_index, strict=True)
    ]
    assert found == [
        ("storm", "text of a", "http://a.example.org"),
        ("storm", "text of b", "http://b.example.org"),
        ("library", "text of b", "http://b.example.org"),
    ]
    assert pairs.signals[PRIOR].dtype == pairs.signals[FIRST_STAGE].dtype == np.float32
    assert pairs.signals[PRIOR].tolist() == pytest.approx(expected)
    assert pairs.signals[FIRST_STAGE].tolist() == [0.5, 0.75, 0.0]
    assert [pairs.doc_ids[post] for post in pairs.post_index] == ["a", "b", "b"]


def test_scores_of_other_rankers_come_with_the_pairs() -> None:
    """Unknown where a ranker lacks the post, or the topic; of other posts and topics, nothing."""
    rm3: Run = {"1": {"b": 2.5, "c": 9.0}, "3": {"b": -1.0}, "9": {"a": 1.0}}
    candidates = Candidates(TOPICS, RUN, POSTS, {}, {"rm3": rm3, "bm25": {}})
    signals = candidates.pairs().signals
    assert set(signals) == {FIRST_STAGE, PRIOR, "rm3", "bm25"}
    np.testing.assert_array_equal(signals["rm3"], np.array([np.nan, 2.5, -1.0], np.float32))
    assert signals["rm3"].dtype == np.float32
    assert np.isnan(signals["bm25"]).all() and len(signals["bm25"]) == 3
    assert signals[FIRST_STAGE].tolist() == [0.5, 0.75, 0.0]
    assert set(Candidates(TOPICS, RUN, POSTS).pairs().signals) == {FIRST_STAGE, PRIOR}


def test_candidates_of_a_run_have_the_priors_of_their_ranks() -> None:
    run = {"1": {"a": 1.0, "b": 3.0, "c": 2.0}}
    found = RunRetriever(run, lambda doc_ids: {d: POSTS[d] for d in doc_ids}, "a run").search(
        TOPICS, hits=2
    )
    priors = found.pairs().signals[PRIOR]
    assert dict(zip(found.keys(), priors.tolist(), strict=True)) == pytest.approx(
        {("1", "b"): worth(1), ("1", "c"): worth(2)}
    )


def lines(path: Path) -> list[list[str]]:
    return [line.split() for line in path.read_text().splitlines()]


@pytest.mark.parametrize(
    ("test", "name", "years"),
    [
        ("mb2012", "mb2012", (2011, 2013)),
        ("mb13", "mb2013", (2011, 2012)),
        ("mb2014", "mb2014", (2011, 2012, 2013)),
        (None, "all", (2011, 2012, 2013)),
    ],
)
def test_microblog_material(
    microblog: Path, test: str | None, name: str, years: tuple[int, ...]
) -> None:
    training_set = microblog_training_set(test, microblog)
    assert (training_set.name, training_set.development, training_set.minimum_count) == (
        name,
        None,
        2,
    )
    assert training_set.trained_on == [f"mb{year}" for year in years]
    folder, keys, relevant = microblog / "microblog", [], []
    for year in years:
        judged = {
            (query_id, doc_id): grade
            for query_id, _, doc_id, grade in lines(folder / f"qrels.microblog{year}.txt")
        }
        for query_id, _, doc_id, *_ in lines(folder / f"trec-{year}" / "id.txt"):
            keys.append((query_id, doc_id))
            relevant.append(judged[query_id, doc_id] == "1")
    data = training_set.training
    assert data.candidates.keys() == keys
    assert data.relevant().tolist() == relevant
    assert 0 < sum(relevant) < len(relevant) == 24 * len(years)
    everything = [
        text
        for year in (2011, 2012, 2013, 2014)
        for text in (folder / f"trec-{year}" / "b.toks").read_text().splitlines()
    ]
    assert sorted(training_set.texts) == sorted(everything)


def test_priors_of_training_pairs_are_means_over_the_official_runs(microblog: Path) -> None:
    """The first topic's six posts: RM3 lacks the second and has ties, later ids first."""
    data = microblog_training_set("mb2012", microblog).training
    pairs, keys = data.candidates.pairs(), data.candidates.keys()
    found = dict(zip(keys, pairs.signals[PRIOR].tolist(), strict=True))
    # Scores rank // 2: 0 for 1, 1 for 3, 2 for 4 and 5, 3 for 6.
    second = {6: 1, 5: 2, 4: 3, 3: 4, 1: 5}
    for rank, (_, doc_id) in enumerate(keys[:6], start=1):
        expected = (worth(rank) + (worth(second[rank]) if rank in second else 0.0)) / 2
        assert found["1", doc_id] == pytest.approx(expected)
    third = [prior for (query_id, _), prior in found.items() if query_id == "3"]
    assert third == pytest.approx([worth(rank) / 2 for rank in range(1, 7)])
    last = [prior for (query_id, _), prior in found.items() if query_id == "12"]
    assert last == pytest.approx([worth(rank) for rank in range(1, 7)])


def test_unjudged_years_cannot_be_trained_on(microblog: Path) -> None:
    with pytest.raises(DataError, match="mb2014 has no judgments here and cannot be trained on"):
        load_training_data([named.find("mb2014", microblog)])
    with pytest.raises(UsageError, match="--collection trecqa-raw"):
        microblog_training_set("trecqa-raw", microblog)


MEASURES = ["AP", "RR"]

# Collection -> folders of its parts.
FOLDERS = {
    "trecqa-raw": ["trecqa/train", "trecqa/raw-dev", "trecqa/raw-test"],
    "trecqa-clean": ["trecqa/train", "trecqa/clean-dev", "trecqa/clean-test"],
    "wikiqa": ["wikiqa/train", "wikiqa/dev", "wikiqa/test"],
}


def assert_is_part(data: JudgedCandidates, folder: Path) -> None:
    """All answers in the order of the file, with their labels and without priors."""
    pairs = data.candidates.pairs()
    found = [
        (pairs.queries[query], pairs.texts[post])
        for query, post in zip(pairs.query_index, pairs.post_index, strict=True)
    ]
    questions, texts = ((folder / name).read_text().splitlines() for name in ("a.toks", "b.toks"))
    assert found == list(zip(questions, texts, strict=True))
    labels = (folder / "sim.txt").read_text().split()
    assert data.relevant().tolist() == [label == "1" for label in labels]
    assert not pairs.signals[PRIOR].any()


@pytest.mark.parametrize("name", FOLDERS)
def test_answer_material(answers: Path, name: str) -> None:
    training_set = answer_training_set(named.find_answers(name, answers))
    train, development, test = (answers / folder for folder in FOLDERS[name])
    assert (training_set.name, training_set.trained_on) == (name, [name])
    assert training_set.minimum_count == 1
    assert_is_part(training_set.training, train)
    assert training_set.development is not None
    assert_is_part(training_set.development, development)
    texts = set()
    for folder in (train, development, test):
        for file in ("a.toks", "b.toks"):
            texts |= set((folder / file).read_text().splitlines())
    assert set(training_set.texts) == texts


def test_a_part_without_labels_is_not_trained_on(answers: Path) -> None:
    with pytest.raises(DataError, match="wikiqa has no judgments of its test part"):
        load_answers(named.find_answers("wikiqa", answers))


def run(data: Path, home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"TWEETRERANK_HOME": str(home), "TWEETRERANK_DATA": str(data)}
    return subprocess.run(
        [sys.executable, "-m", "pipeline.train", *arguments, "--vectors",
         str(data / "vectors.txt"), "--threads", "1"],
        capture_output=True, text=True, env=environment,
    )  # fmt: skip


@pytest.mark.slow
def test_training_on_a_part(answers: Path, tmp_path: Path) -> None:
    """The checkpoint, and its figures of the development part, from that part's own scores."""
    small = ["--epochs", "3", "--steps", "4", "--batch-pairs", "8"]
    result = run(answers, tmp_path, "bigram", "--collection", "trecqa-raw", *small)
    assert result.returncode == 0, result.stderr
    assert "training bigram on trecqa-raw" in result.stderr
    folder = tmp_path / "checkpoints" / "bigram" / "trecqa-raw"
    assert {path.name for path in folder.iterdir()} == {
        "config.json", "model.safetensors", "vocabulary.json", "metrics.json", "held_out.run.gz",
    }  # fmt: skip
    assert [path.name for path in folder.parent.iterdir()] == ["trecqa-raw"]

    metrics = json.loads((folder / "metrics.json").read_text())
    assert (metrics["trained_on"], metrics["left_out"]) == (["trecqa-raw"], None)
    assert (metrics["topics"], metrics["candidates"]) == (8, "given candidates")
    assert metrics["folds"] is None
    history = metrics["histories"]["training"]
    assert len(history) == 3
    assert all(set(epoch) == {"training_loss", "validation_map"} for epoch in history)
    best = max(range(3), key=lambda epoch: (history[epoch]["validation_map"], -epoch))
    assert metrics["epochs"] == best + 1

    loaded = checkpoint.load(folder, "bigram")
    assert isinstance(loaded.model, Bilinear) and bool(loaded.model.is_fitted)
    assert {"storm", "library", "where"} <= set(loaded.encoder.vocabulary.known)
    development = load_answers(named.find_answers("trecqa-raw", answers).part("dev"))
    scores = loaded.score(development.candidates.pairs())
    held_out = read_run(folder / "held_out.run.gz")
    for (query_id, doc_id), score in zip(development.candidates.keys(), scores, strict=True):
        assert held_out[query_id][doc_id] == pytest.approx(score, rel=1e-4, abs=1e-5)
    figure = mean(evaluate(development.qrels, held_out, ["AP"])["AP"])
    assert list(metrics["validation"]["by_fold"]) == ["development"]
    assert metrics["validation"]["AP"] == pytest.approx(figure, abs=1e-4)
    assert f"development: AP {figure:.4f} on the development part" in result.stdout


@pytest.mark.slow
def test_the_epoch_of_the_best_mrr_is_kept(answers: Path, tmp_path: Path) -> None:
    """Nothing is fitted after training, so the figures of the history are those of the scores."""
    small = ["--configuration", "plain", "--epochs", "4", "--steps", "3", "--select", "mrr"]
    result = run(answers, tmp_path, "bigram", "--collection", "trecqa-raw", *small)
    assert result.returncode == 0, result.stderr
    folder = tmp_path / "checkpoints" / "bigram" / "trecqa-raw"
    metrics = json.loads((folder / "metrics.json").read_text())
    history = metrics["histories"]["training"]
    figures = [epoch["validation_mrr"] for epoch in history]
    assert metrics["epochs"] == figures.index(max(figures)) + 1
    development = load_answers(named.find_answers("trecqa-raw", answers).part("dev"))
    held_out = read_run(folder / "held_out.run.gz")
    found = {name: mean(evaluate(development.qrels, held_out, [name])[name]) for name in MEASURES}
    assert found["RR"] == pytest.approx(max(figures))
    assert found["AP"] == pytest.approx(metrics["validation"]["AP"], abs=1e-4)
    assert found["RR"] != pytest.approx(found["AP"], abs=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--test", "mb2012", "--collection", "trecqa-raw"], "--test and --collection: found both"),
        (["--collection", "trecqa-raw", "--sampling", "pairs", "--loss", "pairwise"],
         "setting sampling: found pairs with the loss pairwise"),
        (["--collection", "trecqa"], "expected a collection of questions with given answers"),
        (["--test", "wikiqa"], "--collection wikiqa"),
        (["--collection", "wikiqa", "--sampling", "hardest"], "expected one of random, max, mix"),
        (["--collection", "wikiqa", "--margin", "0"], "--margin: found 0"),
    ],
)  # fmt: skip
def test_mistakes(answers: Path, tmp_path: Path, arguments: list[str], message: str) -> None:
    result = run(answers, tmp_path, "bigram", *arguments)
    assert result.returncode == 2, result.stderr
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "checkpoints").exists()
