"""The command pipeline.train, and searches with what it wrote, on small made-up data folders."""

import gzip
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from conftest import Command
from helpers.data_samples import write_answers, write_microblog
from safetensors.numpy import load_file

from pipeline import train as command
from pipeline import tune
from pipeline.collections import named
from pipeline.collections.trec import read_run
from pipeline.command.options import parse_arguments
from pipeline.errors import DataError, UsageError
from pipeline.evaluation.measures import evaluate, mean
from pipeline.training.training_set import load_answers
from pipeline.training.tuning import HeldOut
from rerankers import checkpoint
from rerankers.networks.models.bag_of_words import Bilinear

pytestmark = pytest.mark.slow


def settings(*changes: str) -> list[str]:
    return [word for change in changes for word in ("--set", change)]


SMALL = [*settings("training.epochs=3", "training.steps=4"), "--folds", "2"]
FILES = {"config.json", "model.safetensors", "vocabulary.json", "metrics.json", "held_out.run.gz"}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_microblog(tmp_path_factory.mktemp("data"))


def train(data: Path, *arguments: str | Path) -> None:
    """Run the command in this process."""
    common = ["--vectors", data / "vectors.txt", "--data", data, "--device", "cpu"]
    texts = [str(argument) for argument in (*arguments, *common)]
    command.main(parse_arguments(command.Options, "train", None, texts))


@pytest.fixture
def pipeline(command: Command, data: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Commands that read the made-up data folder."""
    monkeypatch.setenv("TWEETRERANK_DATA", str(data))
    return command


SEARCH = ["search", "--topics", "mb2012"]


def metrics_of(folder: Path) -> dict:
    return json.loads((folder / "metrics.json").read_text())


@pytest.fixture(scope="module")
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint folder trained without 2012."""
    folder = tmp_path_factory.mktemp("trained") / "mp_hcnn" / "mb2012"
    train(data, "mp_hcnn", *SMALL, "--test", "mb12", "--output", folder)
    return folder


def test_weights_are_independent_of_the_test_years_judgments(trained: Path, tmp_path: Path) -> None:
    other = write_microblog(tmp_path / "other")
    qrels = other / "microblog" / "qrels.microblog2012.txt"
    lines = [line.rsplit(" ", 1) for line in qrels.read_text().splitlines()]
    qrels.write_text("".join(f"{head} {1 - int(grade)}\n" for head, grade in lines))
    train(other, "mp_hcnn", *SMALL, "--test", "mb2012", "--output", tmp_path / "again")
    first, second = (load_file(f / "model.safetensors") for f in (trained, tmp_path / "again"))
    assert first.keys() == second.keys()
    assert all(np.array_equal(first[key], second[key]) for key in first)


def test_a_checkpoint_of_the_other_years_keeps_its_tuned_weight(
    pipeline: Command, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert {path.name for path in trained.iterdir()} == FILES
    assert [path.name for path in trained.parent.iterdir()] == ["mb2012"]
    metrics, others = metrics_of(trained), ["mb2011", "mb2013", "mb2014"]
    assert (metrics["trained_on"], metrics["left_out"]) == (others, "mb2012")
    assert metrics["topics"] == 24 and 0 < metrics["validation"]["AP"] <= 1
    held_out = read_run(trained / "held_out.run.gz")
    assert set(held_out) == {str(n) for n in [*range(1, 9), *range(17, 33)]}

    folder = tmp_path / "home" / "checkpoints" / "mp_hcnn" / "mb2012"
    shutil.copytree(trained, folder)
    tune.main(tune.Options(test="mb2012"))
    content = json.loads((folder / "lambda.json").read_text())
    assert (content["collections"], content["checkpoint"]) == (others, "mp_hcnn/mb2012")
    assert len(content["curve"]) == 21
    assert "<- chosen" in capsys.readouterr().out
    mixed = ["--candidates", "ql", "--reranker", "mp_hcnn", "--output", tmp_path / "run.txt"]
    found = pipeline(*SEARCH, *mixed, code=0)
    assert f"λ = {content['weight']:g} (tuned on mb2011, mb2013, mb2014; {folder}" in found.err
    assert len(read_run(tmp_path / "run.txt")) == 8


def test_windows_are_drawn_from_a_part_of_the_topics(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Anew for each first stage; and the model has a calibration by topics held out in folds."""
    lists = []
    for topics in (1, 4):
        folder = tmp_path / str(topics)
        small = settings(f"topics={topics}", "trees=3", "minimum_leaf=1")
        train(data, "window", "--test", "mb12", *small, "--folds", "2", "--output", folder)
        assert json.loads((folder / "lambda.json").read_text())["calibration"]
        assert json.loads((folder / "config.json").read_text())["config"]["topics"] == topics
        lists.append(metrics_of(folder)["topics"])
    assert "AP of folds is over the lists of the training, windows and" in capsys.readouterr().out
    # A window of each first stage, a set and one batch or more.
    assert 3 * 7 <= lists[0] < 3 * 8 * 4 <= lists[1]


def test_leaked_topics_are_refused_or_warned_of(
    pipeline: Command, data: Path, tmp_path: Path
) -> None:
    everything = tmp_path / "everything"
    train(data, "mp_hcnn", *SMALL, "--output", everything)
    output = ("--output", tmp_path / "run.txt")
    warned = pipeline(*SEARCH, "--candidates", "ql", "--checkpoint", everything, *output)
    assert "was trained on mb2012" in warned.err
    scores = everything / "held_out.run.gz"
    for content, message in (
        (scores.read_bytes(), "none of the collections that mb2012 may be tuned on"),
        (gzip.compress(b"1 Q0 2 1 x tag\n"), r"held_out.run.gz:1"),
        (None, r"held_out.run.gz: .*pipeline.train MODEL --test mb2012"),
    ):
        scores.unlink()
        if content:
            scores.write_bytes(content)
        with pytest.raises(DataError, match=message):
            HeldOut.read(everything, "mb2012", data)


def test_checkpoint_of_a_training_part(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Held-out scores and figures are those of the development part."""
    answers = write_answers(tmp_path / "answers")
    small = [*SMALL[:4], *settings("training.batch_pairs=8")]
    train(answers, "bigram", "--collection", "trecqa-raw", *small)
    printed = capsys.readouterr()
    assert "training bigram on trecqa-raw" in printed.err
    folder = tmp_path / "home" / "checkpoints" / "bigram" / "trecqa-raw"
    assert {path.name for path in folder.iterdir()} == FILES

    metrics = metrics_of(folder)
    expected = {"trained_on": ["trecqa-raw"], "left_out": None, "folds": None}
    expected |= {"topics": 8, "candidates": "given candidates"}
    assert expected.items() <= metrics.items()
    history = metrics["histories"]["training"]
    assert [set(epoch) for epoch in history] == [{"training_loss", "validation_map"}] * 3
    best = max(range(3), key=lambda epoch: (history[epoch]["validation_map"], -epoch))
    assert metrics["epochs"] == best + 1

    loaded = checkpoint.load(folder, "bigram")
    assert isinstance(loaded.model, Bilinear) and bool(loaded.model.is_fitted)
    assert {"storm", "library", "where"} <= set(loaded.encoder.vocabulary.known)
    development = load_answers(named.find_answers("trecqa-raw", answers).part("dev"))
    scores = loaded.score(development.candidates.pairs())
    held_out = read_run(folder / "held_out.run.gz")
    keys = development.candidates.keys()
    assert [held_out[query_id][doc_id] for query_id, doc_id in keys] == pytest.approx(
        scores, rel=1e-4, abs=1e-5
    )
    figure = mean(evaluate(development.qrels, held_out, ["AP"])["AP"])
    assert list(metrics["validation"]["by_fold"]) == ["development"]
    assert metrics["validation"]["AP"] == pytest.approx(figure, abs=1e-4)
    assert f"development: AP {figure:.4f} on the development part" in printed.out


BAD_USAGE = {
    "mp_hcn": "model: found 'mp_hcn', expected one of",
    "mp_hcnn --configuration papre": "expected one of robust, small, paper",
    "mp_hcnn --set detph=3": "did you mean 'depth'",
    "mp_hcnn --set training.epochs=0": "found 0, expected one epoch or more",
    "mp_hcnn --set training.epochs=-1 --set training.learning_rate=-1": (
        r"learning_rate: found -1\.0, expected a number above 0; setting epochs: found -1"
    ),
    "bigram --test mb2012 --collection trecqa-raw": "found both",
    "bigram --set training.sampling=pairs --set training.loss=pairwise": (
        "setting sampling: found pairs with the loss pairwise"
    ),
    "bigram --collection trecqa": "a collection of questions with given answers",
    "bigram --test wikiqa": "--collection wikiqa",
    "bigram --test mb2012 --development drawn": "found no --collection",
    "sm_cnn --collection trecqa-raw --train-on mb2011": "--collection: found with --train-on",
    "sm_cnn --top 30": "--top: found without --prior-runs",
    "sm_cnn --test mb2012 --train-on mb2011 mb12": (
        "found mb2012, expected some of mb2011, mb2013, mb2014, the judged collections"
    ),
    "fusion --collection trecqa-raw": "--collection: fusion ranks what searches find",
    "fusion --train-on trecqa-raw": "found no other collection to train on",
    "lambdamart --test mb2012 --set training.epochs=3": (
        r"--set training\.epochs=3: found for lambdamart.*--set"
    ),
}


@pytest.mark.parametrize("arguments", BAD_USAGE)
def test_bad_usage(data: Path, tmp_path: Path, arguments: str) -> None:
    with pytest.raises(UsageError, match=BAD_USAGE[arguments]):
        train(data, *arguments.split())
    assert not (tmp_path / "home" / "checkpoints").exists()
