"""Training sets, the command ``train``, and searches with its models."""

import gzip
import math
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from conftest import Capture, Command, Patch
from helpers.data_samples import write_microblog, write_part
from safetensors.numpy import load_file

from tweetrerank.indexes.data_error import DataError
from tweetrerank.pipeline import train as command
from tweetrerank.pipeline import tune
from tweetrerank.pipeline.collections import named
from tweetrerank.pipeline.collections.topics import Topic
from tweetrerank.pipeline.collections.trec import read_run, write_run
from tweetrerank.pipeline.command.options import parse_arguments
from tweetrerank.pipeline.evaluation.measures import evaluate, mean
from tweetrerank.pipeline.ranking.retrievers import Candidates
from tweetrerank.pipeline.training import training_set as sets
from tweetrerank.pipeline.training.cross_validation import HeldOut
from tweetrerank.pipeline.training.validation import split_topics
from tweetrerank.rerankers import checkpoint
from tweetrerank.rerankers.networks.models.bag_of_words import Bilinear
from tweetrerank.rerankers.pairs import PRIOR

YEARS = (2011, 2012, 2013)  # Years with judgments


@pytest.fixture(scope="module")
def microblog(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made-up years; 2014 has no judgments."""
    folder = write_microblog(tmp_path_factory.mktemp("microblog"), topics=4, posts=6)
    (folder / "microblog" / "qrels.microblog2014.txt").unlink()
    return folder


def rows(path: Path) -> list[list[str]]:
    """The fields of a file's lines."""
    return [line.split() for line in path.read_text().splitlines()]


def test_microblog_training_set(microblog: Path) -> None:
    """A year without judgments contributes its texts alone."""
    training_set = sets.microblog_training_set(None, microblog)
    assert training_set.trained_on == [f"mb{year}" for year in YEARS]
    folder = microblog / "microblog"
    keys = []
    relevant = []
    for year in YEARS:
        grades = {}
        for query_id, _, doc_id, grade in rows(folder / f"qrels.microblog{year}.txt"):
            grades[query_id, doc_id] = grade
        for row in rows(folder / f"trec-{year}" / "id.txt"):
            key = (row[0], row[2])
            keys.append(key)
            relevant.append(grades[key] == "1")
    data = training_set.training
    assert data.candidates.keys() == keys
    assert data.relevant().tolist() == relevant
    assert 0 < sum(relevant) < len(relevant) == 24 * len(YEARS)
    texts = []
    for year in (*YEARS, 2014):
        texts += (folder / f"trec-{year}" / "b.toks").read_text().splitlines()
    assert sorted(training_set.texts) == sorted(texts)


class PriorRuns:
    """Runs of the first topic of mb2011: a bad one, two good ones, a foreign one."""

    def __init__(self, microblog: Path, folder: Path) -> None:
        qrels = named.find("mb2011", microblog).qrels or {}
        topic, grades = next(iter(qrels.items()))
        self.answers = [doc_id for doc_id, grade in grades.items() if grade == 1]
        self.others = [doc_id for doc_id, grade in grades.items() if grade == 0]
        self.paths: list[Path] = []
        self._folder = folder
        self._write("worst", topic, self.others)
        self._write("good", topic, [self.answers[0], self.others[0]])
        self._write("best", topic, self.answers[::-1])
        self._write("of another year", "9", ["1"])

    def _write(self, name: str, query_id: str, doc_ids: Sequence[str]) -> None:
        scores = {doc_id: -float(rank) for rank, doc_id in enumerate(doc_ids)}
        path = self._folder / name
        write_run(path, {query_id: scores}, "t")
        self.paths.append(path)


def test_priors_can_be_means_over_the_best_runs(
    microblog: Path, tmp_path: Path
) -> None:
    runs = PriorRuns(microblog, tmp_path)
    training_set = sets.microblog_training_set(
        "mb2012", microblog, ["mb11"], runs.paths, top=2
    )
    assert training_set.trained_on == ["mb2011"]
    candidates = training_set.training.candidates
    priors = candidates.pairs().signals[PRIOR].tolist()
    found_priors = {}
    for (_, doc_id), prior in zip(candidates.keys(), priors, strict=True):
        if prior:
            found_priors[doc_id] = prior
    assert len(runs.answers) > 1
    expected = {
        doc_id: 0.5 / math.log(rank)
        for rank, doc_id in enumerate(runs.answers[::-1], start=2)
    }
    expected[runs.answers[0]] += 0.5 / math.log(2)
    expected[runs.others[0]] = 0.5 / math.log(3)
    assert found_priors == pytest.approx(expected)
    with pytest.raises(DataError, match="no results for the topics of mb2013 in"):
        sets.microblog_training_set(None, microblog, ["mb2013"], runs.paths[:3])


def test_right_answers_among_those_of_other_questions(answers: Path) -> None:
    part = named.find_answers("trecqa-raw", answers).part("train")
    question_of = {}  # Right answer -> its question
    for query_id, grades in (part.qrels or {}).items():
        for doc_id, grade in grades.items():
            if grade:
                question_of[doc_id] = query_id
    drawn = sets.draw_answers(part, repeats=2)
    assert len(drawn.candidates.topics) == 2 * len(question_of)
    others = []
    for topic in drawn.candidates.topics:
        question = topic.query_id.partition("/")[0]
        (answer,) = drawn.qrels[topic.query_id]
        candidates = set(drawn.candidates.run[topic.query_id])
        assert question_of[answer] == question
        assert len(candidates) == 6
        others.append(candidates - {answer})
        assert question not in {question_of[doc_id] for doc_id in others[-1]}
    assert others[0] != others[1]
    assert sets.draw_answers(part, repeats=2).candidates.run == drawn.candidates.run


def test_a_development_part_has_three_draws_of_each_right_answer(answers: Path) -> None:
    collection = named.find_answers("wikiqa", answers)
    training_set = sets.answer_training_set(collection, draws=True)
    assert training_set.development
    expected = sets.draw_answers(collection.part("dev"), 3)
    assert training_set.development.qrels == expected.qrels


def test_answers_without_judgments_are_refused(answers: Path) -> None:
    message = r"wikiqa has no judgments here .* training needs them"
    with pytest.raises(DataError, match=message):
        sets.load_answers(named.find_answers("wikiqa", answers))


def test_too_few_right_answers_are_refused(tmp_path: Path) -> None:
    few = [
        ("Q1-1", "who", "a", 1),
        ("Q1-2", "who", "b", 0),
        ("Q2-1", "where", "c", 1),
    ]
    write_part(tmp_path / "wikiqa" / "dev", few)
    message = r"found 1 right answers besides those of question Q1"
    with pytest.raises(DataError, match=message):
        sets.draw_answers(named.find_answers("wikiqa", tmp_path).part("dev"))


def test_every_tenth_post_that_nobody_was_shown_is_trained_on() -> None:
    run = {"q": {str(number): 0.0 for number in range(1000)}}
    candidates = Candidates([Topic("q", "storm")], run, {})
    qrels = {"q": {"3": 1, "4": 0}}
    all_rows = np.arange(1000)
    judged_only = sets.JudgedCandidates(candidates, qrels, judged_only=True)
    trained_on = judged_only.to_train(all_rows)
    assert {3, 4} <= set(trained_on.tolist())
    assert 70 < len(trained_on) < 130
    assert len(sets.JudgedCandidates(candidates, qrels).to_train(all_rows)) == 1000


def test_a_share_of_every_group_of_topics_is_held_out() -> None:
    groups = ["a"] * 10 + ["b"] * 10
    (held_out,) = split_topics(np.arange(20), 1, 1, 0.2, groups)
    assert held_out[:10].sum() == held_out[10:].sum() == 2


FOLDS = "--folds 2"
STEPS = "--set training.epochs=3 --set training.steps=4"
SMALL = f"{FOLDS} {STEPS}"
FILES = {
    "config.json",
    "model.safetensors",
    "vocabulary.json",
    "metrics.json",
    "held_out.run.gz",
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_microblog(tmp_path_factory.mktemp("data"))


def train(data: Path, line: str, output: Path | None = None) -> None:
    """Run the command with a line of arguments."""
    words = f"{line} --vectors {data}/vectors.txt --data {data} --device cpu".split()
    if output:
        words += ["--output", str(output)]
    command.main(parse_arguments(command.Options, "train", None, words))


@pytest.fixture
def search(command: Command, data: Path, monkeypatch: Patch) -> Command:
    """The command ``search`` for mb2012 of the made-up data folder."""
    monkeypatch.setenv("TWEETRERANK_DATA", str(data))
    return partial(command, "search", "--topics", "mb2012", "--candidates", "ql")


@pytest.fixture(scope="module")
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "mp_hcnn" / "mb2012"
    train(data, f"mp_hcnn {SMALL} --test mb12", folder)
    return folder


@pytest.mark.slow
def test_weights_are_independent_of_the_test_years_judgments(
    trained: Path, tmp_path: Path
) -> None:
    other = write_microblog(tmp_path / "other")
    qrels = other / "microblog" / "qrels.microblog2012.txt"
    lines = []
    for line in qrels.read_text().splitlines():
        head, grade = line.rsplit(" ", 1)
        lines.append(f"{head} {1 - int(grade)}\n")
    qrels.write_text("".join(lines))
    again = tmp_path / "again"
    train(other, f"mp_hcnn {SMALL} --test mb2012", again)
    expected = load_file(trained / "model.safetensors")
    weights = load_file(again / "model.safetensors")
    assert weights.keys() == expected.keys()
    assert all(np.array_equal(weights[key], expected[key]) for key in expected)


@pytest.mark.slow
def test_a_checkpoint_of_the_other_years_keeps_its_tuned_weight(
    search: Command, trained: Path, tmp_path: Path, capsys: Capture
) -> None:
    assert {path.name for path in trained.iterdir()} == FILES
    assert [path.name for path in trained.parent.iterdir()] == ["mb2012"]
    others = ["mb2011", "mb2013", "mb2014"]
    metrics = checkpoint.read_json(trained / "metrics.json")
    assert metrics["trained_on"] == others
    assert metrics["left_out"] == "mb2012"
    assert metrics["topics"] == 24
    assert 0 < metrics["validation"]["AP"] <= 1
    topics = set(range(1, 33)) - set(range(9, 17))
    held_out = read_run(trained / "held_out.run.gz")
    assert set(held_out) == set(map(str, topics))
    folder = tmp_path / "home" / "checkpoints" / "mp_hcnn" / "mb2012"
    shutil.copytree(trained, folder)
    tune.main(tune.Options(test="mb2012"))
    content = checkpoint.read_json(folder / "lambda.json")
    assert content["collections"] == others
    assert content["checkpoint"] == "mp_hcnn/mb2012"
    assert len(content["curve"]) == 21
    assert "<- chosen" in capsys.readouterr().out
    output = tmp_path / "run.txt"
    result = search("--reranker", "mp_hcnn", "--output", output, code=0)
    origin = f"tuned on mb2011, mb2013, mb2014; {folder}"
    assert f"λ = {content['weight']:g} ({origin}" in result.err
    assert len(read_run(output)) == 8


@pytest.mark.slow
def test_windows_of_a_part_of_the_topics(
    data: Path, tmp_path: Path, capsys: Capture
) -> None:
    """They are drawn for each first stage. Held-out topics calibrate the model."""
    lists = []
    for topics in (1, 4):
        folder = tmp_path / str(topics)
        small = f"--set topics={topics} --set trees=3 --set minimum_leaf=1"
        train(data, f"window {FOLDS} {small} --test mb12", folder)
        lists.append(checkpoint.read_json(folder / "metrics.json")["topics"])
        assert checkpoint.read_json(folder / "lambda.json")["calibration"]
        written = checkpoint.read_json(folder / "config.json")
        assert written["config"]["topics"] == topics
        # Such posts come from pools, whose frequencies are not the collection's.
        assert written["idf"] == "wordfreq:en"
    printed = capsys.readouterr().out
    assert "AP of folds is over the lists of the training, windows and" in printed
    # A window of each first stage, a set and one batch or more.
    assert 3 * 7 <= lists[0] < 3 * 8 * 4 <= lists[1]


@pytest.fixture(scope="module")
def everything(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model trained on all years."""
    folder = tmp_path_factory.mktemp("everything") / "everything"
    train(data, f"mp_hcnn {SMALL}", folder)
    return folder


@pytest.mark.slow
def test_a_search_warns_of_topics_in_the_training(
    search: Command, everything: Path, tmp_path: Path
) -> None:
    result = search("--checkpoint", everything, "--output", tmp_path / "run.txt")
    assert "was trained on mb2012" in result.err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(
            gzip.compress(b"1 Q0 2 1 x tag\n"), r"held_out.run.gz:1", id="no score"
        ),
        pytest.param(
            None, r"held_out.run.gz: .*pipeline.train MODEL --test mb2012", id="no file"
        ),
    ],
)
def test_held_out_scores_of_no_use(
    content: bytes | None, message: str, data: Path, tmp_path: Path
) -> None:
    if content:
        (tmp_path / "held_out.run.gz").write_bytes(content)
    with pytest.raises(DataError, match=message):
        HeldOut.read(tmp_path, "mb2012", data)


@pytest.mark.slow
def test_held_out_scores_of_a_training_on_all_years(
    data: Path, everything: Path
) -> None:
    message = "none of the collections that mb2012 may be tuned on"
    with pytest.raises(DataError, match=message):
        HeldOut.read(everything, "mb2012", data)


@pytest.mark.slow
def test_checkpoint_of_a_training_part(
    answers: Path, tmp_path: Path, capsys: Capture
) -> None:
    """Held-out scores and figures are those of the development part."""
    small = f"{STEPS} --set training.batch_pairs=8"
    train(answers, f"bigram --collection trecqa-raw {small}")
    printed = capsys.readouterr()
    assert "training bigram on trecqa-raw" in printed.err
    folder = tmp_path / "home" / "checkpoints" / "bigram" / "trecqa-raw"
    assert {path.name for path in folder.iterdir()} == FILES
    metrics = checkpoint.read_json(folder / "metrics.json")
    assert metrics["trained_on"] == ["trecqa-raw"]
    assert metrics["left_out"] is None
    assert metrics["folds"] is None
    assert metrics["topics"] == 8
    assert metrics["candidates"] == "given candidates"
    history = metrics["histories"]["training"]
    assert len(history) == 3
    assert all(set(epoch) == {"training_loss", "validation_map"} for epoch in history)
    figures = [epoch["validation_map"] for epoch in history]
    assert metrics["epochs"] == figures.index(max(figures)) + 1
    loaded = checkpoint.load(folder, "bigram")
    assert isinstance(loaded.model, Bilinear)
    assert bool(loaded.model.is_fitted)
    assert {"storm", "library", "where"} <= set(loaded.encoder.vocabulary.known)
    part = named.find_answers("trecqa-raw", answers).part("dev")
    development = sets.load_answers(part)
    held_out = read_run(folder / "held_out.run.gz")
    keys = development.candidates.keys()
    saved = [held_out[query_id][doc_id] for query_id, doc_id in keys]
    scores = loaded.score(development.candidates.pairs())
    np.testing.assert_allclose(saved, scores, rtol=1e-4, atol=1e-5)
    figure = mean(evaluate(development.qrels, held_out, ["AP"])["AP"])
    assert list(metrics["validation"]["by_fold"]) == ["development"]
    assert metrics["validation"]["AP"] == pytest.approx(figure, abs=1e-4)
    assert f"development: AP {figure:.4f} on the development part" in printed.out
