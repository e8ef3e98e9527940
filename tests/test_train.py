"""Training, tuning λ and searching with the result, on a small data folder that is made up."""

import gzip
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from microblog_samples import write_data
from safetensors.numpy import load_file

from pipeline import train as command
from pipeline.collections.trec import read_run
from pipeline.reranking import Candidates
from pipeline.training.folds import folds_of
from pipeline.training.trainer import Trainer
from rerankers.models.sm_cnn import Model as SmCnn
from rerankers.text.vectors import read_vectors

ROOT = Path(__file__).parent.parent
SMALL = ["--epochs", "3", "--steps", "4", "--folds", "2", "--threads", "1"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data"))


def run(
    data: Path, home: Path, *arguments: str | Path, cwd: Path = ROOT, **variables: str
) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ, "TWEETRERANK_HOME": str(home), "TWEETRERANK_DATA": str(data), **variables
    }  # fmt: skip
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True, text=True, env=environment, cwd=cwd,
    )  # fmt: skip


def train(data: Path, home: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    vectors = ["--vectors", str(data / "vectors.txt")]
    return run(data, home, "-m", "pipeline.train", "mp_hcnn", *SMALL, *vectors, *arguments)


def test_folds_hold_every_topic_out_once() -> None:
    query_index = np.repeat(np.arange(11), 3)
    folds = list(folds_of(query_index, 4, seed=1))
    held_out = np.concatenate([np.unique(query_index[fold.held_out]) for fold in folds])
    assert sorted(held_out.tolist()) == list(range(11))
    for fold in folds:
        assert not set(query_index[fold.held_out]) & set(query_index[fold.training])
        assert len(fold.held_out) + len(fold.training) == len(query_index)
    (single,) = folds_of(query_index, 1, seed=1)
    assert len(np.unique(query_index[single.held_out])) == 2


@pytest.fixture(scope="module")
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint folder trained without 2012."""
    home = tmp_path_factory.mktemp("trained")
    result = train(data, home, "--test", "mb12")
    assert result.returncode == 0, result.stderr
    return home / "checkpoints" / "mp_hcnn" / "mb2012"


@pytest.mark.slow
def test_a_checkpoint_of_the_other_years(trained: Path) -> None:
    assert {path.name for path in trained.iterdir()} == {
        "config.json", "model.safetensors", "vocabulary.json", "metrics.json", "held_out.run.gz",
    }  # fmt: skip
    metrics = json.loads((trained / "metrics.json").read_text())
    assert metrics["trained_on"] == ["mb2011", "mb2013"]
    assert metrics["left_out"] == "mb12"
    assert metrics["topics"] == 16
    assert 0 < metrics["validation"]["AP"] <= 1
    held_out = read_run(trained / "held_out.run.gz")
    assert set(held_out) == {str(n) for n in [*range(1, 9), *range(17, 25)]}


@pytest.mark.slow
def test_a_trained_checkpoint_keeps_its_tuned_weight(
    data: Path, trained: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "checkpoints" / "mp_hcnn" / "mb2012"
    shutil.copytree(trained, folder)
    tuned = run(data, tmp_path, ROOT / "scripts" / "tune_lambda.py", "--test", "mb2012",
                "--plot", tmp_path / "curve.png")  # fmt: skip
    assert tuned.returncode == 0, tuned.stderr
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    content = json.loads((folder / "lambda.json").read_text())
    assert content["collections"] == ["mb2011", "mb2013"]
    assert content["checkpoint"] == "mp_hcnn/mb2012"
    assert len(content["curve"]) == 21
    assert "<- chosen" in tuned.stdout
    found = run(data, tmp_path, "-m", "pipeline.search", "--topics", "mb2012", "--candidates",
                "ql", "--output", tmp_path / "run.txt")  # fmt: skip
    assert found.returncode == 0, found.stderr
    assert f"λ = {content['weight']:g} (tuned on mb2011, mb2013; {folder}" in found.stderr
    assert len(read_run(tmp_path / "run.txt")) == 8


@pytest.mark.slow
def test_the_installed_package_is_read_only(data: Path, trained: Path, tmp_path: Path) -> None:
    """The tuned λ of a shipped checkpoint lies in the home folder and is found there first."""
    site, home = tmp_path / "site", tmp_path / "home"
    for package in ("pipeline", "rerankers", "indexes"):
        shutil.copytree(
            ROOT / package, site / package, ignore=shutil.ignore_patterns("checkpoints", "*.pyc")
        )
    shipped = site / "rerankers" / "checkpoints" / "mp_hcnn" / "mb2012"
    shutil.copytree(trained, shipped)
    (shipped / "lambda.json").write_text("not to be read")
    paths = sorted(site.rglob("*"), reverse=True)
    for path in paths:
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = {path: path.stat().st_mtime_ns for path in paths}

    outside = {"PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1"}
    script = ROOT / "scripts" / "tune_lambda.py"
    tuned = run(data, home, script, "--test", "mb2012", cwd=site, **outside)
    assert tuned.returncode == 0, tuned.stderr
    file = home / "lambda" / "mp_hcnn" / "mb2012.json"
    assert tuned.stdout.endswith(f"wrote {file}\n")
    found = run(data, home, "-m", "pipeline.search", "--topics", "mb2012", "--candidates", "ql",
                "--output", tmp_path / "run.txt", cwd=site, **outside)  # fmt: skip
    assert found.returncode == 0, found.stderr
    assert f"(tuned on mb2011, mb2013; {file})" in found.stderr
    assert {path: path.stat().st_mtime_ns for path in site.rglob("*")} == before


@pytest.mark.slow
def test_the_weights_of_the_test_year_do_not_depend_on_its_judgments(
    data: Path, tmp_path: Path
) -> None:
    other = write_data(tmp_path / "other")
    qrels = other / "microblog" / "qrels.microblog2012.txt"
    flipped = qrels.read_text().translate(str.maketrans("01", "01"))
    lines = [line.rsplit(" ", 1) for line in flipped.splitlines()]
    qrels.write_text("".join(f"{head} {1 - int(grade)}\n" for head, grade in lines))
    weights = []
    for name, folder in (("a", data), ("b", other)):
        result = train(folder, tmp_path / name, "--test", "mb2012")
        assert result.returncode == 0, result.stderr
        weights.append(load_file(tmp_path / name / "checkpoints/mp_hcnn/mb2012/model.safetensors"))
    assert weights[0].keys() == weights[1].keys()
    assert all(np.array_equal(weights[0][key], weights[1][key]) for key in weights[0])


@pytest.mark.slow
def test_a_leak_is_refused(data: Path, tmp_path: Path) -> None:
    """Held-out scores that include the test year's topics cannot tune its λ."""
    result = train(data, tmp_path, "--output", tmp_path / "everything")
    assert result.returncode == 0, result.stderr
    tuned = run(data, tmp_path, ROOT / "scripts" / "tune_lambda.py", "--test", "mb2012",
                "--checkpoint", tmp_path / "everything")  # fmt: skip
    assert tuned.returncode == 1
    assert "belong to none of the collections that mb2012 may be tuned on" in tuned.stderr
    warned = run(data, tmp_path, "-m", "pipeline.search", "--topics", "mb2012", "--candidates",
                 "ql", "--checkpoint", tmp_path / "everything", "--output",
                 tmp_path / "run.txt")  # fmt: skip
    assert "was trained on mb2012" in warned.stderr


@pytest.mark.slow
def test_a_damaged_file_of_held_out_scores(data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "held_out.run.gz").write_bytes(gzip.compress(b"1 Q0 2 1 x tag\n"))
    tuned = run(data, tmp_path, ROOT / "scripts" / "tune_lambda.py", "--test", "mb2012",
                "--checkpoint", folder)  # fmt: skip
    assert tuned.returncode == 1
    assert "held_out.run.gz:1" in tuned.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--configuration", "papre"], "expected one of robust, paper"),
        (["--set", "detph=3"], "did you mean 'depth'"),
        (["--epochs", "0", "--learning-rate", "-1"], "--learning-rate: found -1"),
        (["--test", "mb1999"], "mb1999"),
        (["--device", "tpu"], "expected one of auto, cpu, cuda"),
    ],
)
def test_mistakes(arguments: list[str], message: str, data: Path, tmp_path: Path) -> None:
    result = train(data, tmp_path, *arguments)
    assert result.returncode == 2, result.stderr
    assert message in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.slow
def test_a_fusion_is_trained_and_searched_with(data: Path, tmp_path: Path) -> None:
    families = "signal:ql,signal:run_rm3,signal:mp_hcnn,overlap,soft_match"
    result = run(
        data, tmp_path, "-m", "pipeline.train", "fusion", "--test", "mb2012", "--folds", "2",
        "--threads", "1", "--vectors", data / "vectors.txt", "--set", f"families={families}",
        "--set", "minimum_leaf=1", "--set", "trees=5",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "training mp_hcnn on folds of the topics" in result.stderr
    folder = tmp_path / "checkpoints" / "fusion" / "mb2012"
    metrics = json.loads((folder / "metrics.json").read_text())
    assert metrics["trained_on"] == ["mb2011", "mb2013"]
    assert metrics["candidates"] == "the best 1000 of each of ql, run_rm3"
    assert metrics["vectors"] == "vectors.txt"
    # Whose scores it reads has been trained for it, and is with it.
    assert not (tmp_path / "checkpoints" / "mp_hcnn").exists()
    part = json.loads((folder / "mp_hcnn" / "metrics.json").read_text())
    assert part["trained_on"] == metrics["trained_on"]
    assert not list(folder.parent.glob(".*")), "what was kept for --resume is of no use now"

    search = [
        "-m",
        "pipeline.search",
        "--topics",
        "mb2012",
        "--reranker",
        "fusion",
        "--threads",
        "1",
    ]
    found = run(data, tmp_path, *search, "--hits", "5", "--output", tmp_path / "run.txt")
    assert found.returncode == 0, found.stderr
    rows = [line.split()[0] for line in found.stdout.splitlines() if line.split()]
    assert {"ql", "run_rm3", "mp_hcnn", "mean", "fused"} <= set(rows)
    assert {len(scores) for scores in read_run(tmp_path / "run.txt").values()} == {5}

    encoded = run(
        data, tmp_path, "-m", "pipeline.index", "--topics", "mb2012", "--precompute", folder
    )
    assert encoded.returncode == 0, encoded.stderr
    assert encoded.stdout.count("precomputed: ") == 2, "posts for the fusion, and for its MP-HCNN"

    (folder / "mp_hcnn").rename(tmp_path / "elsewhere")
    lacking = run(data, tmp_path, *search)
    assert lacking.returncode == 1
    assert f"{folder}: found no mp_hcnn in this folder" in lacking.stderr

    wrong = run(data, tmp_path, *search, "--method", "rm3", "--lambda", "0.5")
    assert wrong.returncode == 2
    assert "--method" in wrong.stderr and "--lambda" in wrong.stderr


def test_what_a_fusion_trains_has_its_vectors_and_is_told_of_no_run(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class AskedError(Exception):
        """Which vectors a reranker is to be trained with."""

    def train(trainer: Trainer, state_directory: Path) -> None:
        assert trainer.training_set.training.candidates.priors == {}
        assert trainer.settings == command.watched_seldom(SmCnn.training_settings)
        raise AskedError(trainer.options.model, trainer.vectors, state_directory)

    own, given = tmp_path / "own.bin", data / "vectors.txt"
    monkeypatch.setattr("pipeline.vectors.cached_vectors", lambda texts, general, home: own)
    monkeypatch.setattr(Trainer, "train", train)
    for vectors, expected in ((None, own), (given, given)):
        options = command.Options("fusion", test="mb2012", vectors=vectors, data=data)
        with pytest.raises(AskedError) as asked:
            command._Parts(options, "cpu", tmp_path).unseen_scores("sm_cnn", Candidates([], {}, {}))
        assert asked.value.args == ("sm_cnn", expected, tmp_path / "sm_cnn.training")


def test_what_a_fusion_trains_is_watched_seldom() -> None:
    from rerankers.training.settings import Settings

    paper = Settings(steps=10, epochs=235, patience=47)
    found = command.watched_seldom(paper)
    assert (found.steps, found.epochs, found.patience) == (50, 47, 10)
    long = command.watched_seldom(Settings(steps=60, epochs=12, patience=4))
    assert (long.steps, long.epochs, long.patience) == (60, 12, 4)


@pytest.mark.slow
def test_a_fusion_has_no_training_part(data: Path, tmp_path: Path) -> None:
    result = run(data, tmp_path, "-m", "pipeline.train", "fusion", "--collection", "trecqa-raw")
    assert result.returncode == 2
    assert "--collection: fusion ranks what searches find" in result.stderr


@pytest.mark.slow
def test_vectors_of_the_posts_are_written(data: Path, tmp_path: Path) -> None:
    path = tmp_path / "posts.bin"
    arguments = ["-m", "pipeline.vectors", "--size", "6", "--epochs", "2", "--output", path]
    result = run(data, tmp_path, *arguments)
    assert result.returncode == 0, result.stderr
    vectors = read_vectors(path)
    assert vectors.matrix.shape == (len(vectors.words), 6)
    assert f"{len(vectors.words):,} words of" in result.stdout and "vectors" not in result.stderr
    again = run(data, tmp_path, *arguments[:-1], tmp_path / "both.bin", "--concatenate", path)
    assert again.returncode == 0, again.stderr
    both = read_vectors(tmp_path / "both.bin")
    assert both.words == vectors.words and both.matrix.shape == vectors.matrix.shape
    # The same vectors twice are themselves, but for their length and the axes.
    ours = vectors.matrix / np.linalg.norm(vectors.matrix, axis=1, keepdims=True)
    np.testing.assert_allclose(both.matrix @ both.matrix.T, 2 * ours @ ours.T, atol=1e-5)
