"""The command ``python -m pipeline.rerank``, and the figures that its report is made of."""

import csv
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from data_samples import write_microblog

from pipeline import rerank, search
from pipeline.collections import named
from pipeline.collections.trec import Run, ranked, read_run, write_run
from pipeline.command.options import run_command
from pipeline.evaluation.measures import evaluate, mean

pytestmark = pytest.mark.slow  # a model is trained for these tests

Command = Callable[..., tuple[int, list[str], str]]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made-up collections with more posts a topic than P@30 counts."""
    return write_microblog(tmp_path_factory.mktemp("data"), topics=6, posts=40)


def python(home: Path, data: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"TWEETRERANK_HOME": str(home), "TWEETRERANK_DATA": str(data)}
    return subprocess.run(
        [sys.executable, *map(str, arguments)], capture_output=True, text=True, env=environment
    )


@pytest.fixture(scope="module")
def home(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home folder with a small model that has not seen mb2012."""
    folder = tmp_path_factory.mktemp("home")
    trained = python(
        folder, data, "-m", "pipeline.train", "sm_cnn", "--test", "mb2012", "--folds", "1",
        "--steps", "2", "--epochs", "1", "--set", "filters=4", "--vectors", data / "vectors.txt",
        "--threads", "1",
    )  # fmt: skip
    assert trained.returncode == 0, trained.stderr
    return folder


@pytest.fixture
def command(
    data: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Command:  # fmt: skip
    """Runs the command in an empty folder; gives exit code, lines of stdout, stderr."""
    monkeypatch.setenv("TWEETRERANK_HOME", str(home))
    monkeypatch.setenv("TWEETRERANK_DATA", str(data))
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str, module: str = "rerank") -> tuple[int, list[str], str]:
        called = {"rerank": rerank, "search": search}[module]
        with pytest.raises(SystemExit) as left:
            run_command(
                called.Options, called.main, f"python -m pipeline.{module}", None,
                [*arguments, "--device", "cpu"],
            )  # fmt: skip
        output, errors = capsys.readouterr()
        assert isinstance(left.value.code, int)
        return left.value.code, output.splitlines(), errors

    return call


def official() -> Run:
    return read_run(named.find("mb2012").runs["ql"])


def backwards(run: Run) -> Run:
    return {
        query_id: {d: -score for d, score in scores.items()} for query_id, scores in run.items()
    }


def orders(run: Run) -> dict[str, list[str]]:
    return {query_id: [d for d, _ in ranked(scores)] for query_id, scores in run.items()}


def test_several_runs_from_files_to_report(command: Command, tmp_path: Path) -> None:
    write_run(tmp_path / "mine.gz", backwards(official()), "mine")
    code, output, errors = command(
        "--topics", "mb2012", "ql", "mine.gz", "--report", "report.csv"
    )  # fmt: skip
    assert code == 0, errors
    folder = tmp_path / "runs" / "reranked"
    assert {path.name for path in folder.iterdir()} == {"ql.sm_cnn", "mine.sm_cnn.gz"}
    assert "wrote 2 runs to runs/reranked" in errors
    after = {"ql": read_run(folder / "ql.sm_cnn"), "mine.gz": read_run(folder / "mine.sm_cnn.gz")}
    before = {"ql": official(), "mine.gz": backwards(official())}
    for name in after:
        assert {q: set(s) for q, s in after[name].items()} == {
            q: set(s) for q, s in before[name].items()
        }
    # The ranks of the run are read: the same posts in another order are scored otherwise.
    assert after["ql"] != after["mine.gz"]

    qrels = named.find("mb2012").qrels
    assert qrels is not None
    with (tmp_path / "report.csv").open(encoding="utf-8") as stream:
        lines = {line["run"]: line for line in csv.DictReader(stream)}
    assert output[0] == "mb2012, 6 judged topics, 2 runs reranked by sm_cnn (λ = 1)"
    for name in after:
        shown = next(line for line in output if line.startswith(name)).split()
        for measure, column in (("P@30", 1), ("AP", 4)):
            for suffix, run, offset in (("", before, 0), (" reranked", after, 1)):
                expected = mean(evaluate(qrels, run[name])[measure])
                assert float(lines[name][measure + suffix]) == pytest.approx(expected)
                assert float(shown[column + offset].rstrip("▲△▼▽")) == round(expected, 4)
        assert lines[name]["checkpoint"].endswith("sm_cnn/mb2012")


def test_each_run_is_reranked_as_a_search_does_it(command: Command, tmp_path: Path) -> None:
    write_run(tmp_path / "mine", backwards(official()), "mine")
    for weight in ("1", "0.3"):
        code, _, errors = command(
            "--topics", "mb2012", "rm3", "mine", "--lambda", weight, "--normalize", "zscore"
        )
        assert code == 0, errors
        code, _, errors = command(
            "--topics", "mb2012", "--candidates", "mine", "--reranker", "sm_cnn", "--lambda",
            weight, "--normalize", "zscore", "--output", "one", module="search",
        )  # fmt: skip
        assert code == 0, errors
        together, alone = read_run("runs/reranked/mine.sm_cnn"), read_run("one")
        assert orders(together) == orders(alone)
        assert together == alone


def test_without_the_models_share_the_order_stays(command: Command) -> None:
    code, output, _ = command("--topics", "mb2012", "ql", "--lambda", "0", "--output", "here")
    assert code == 0
    assert orders(read_run("here/ql.sm_cnn")) == orders(official())
    assert output[0].endswith("(λ = 0, minmax)")
    assert output[2].split()[3::3] == ["+0.0%", "+0.0%", "+0"]


def test_what_is_left_out_is_told(command: Command, tmp_path: Path) -> None:
    run = official()
    gone = next(iter(run))
    write_run(tmp_path / "mine", {q: scores for q, scores in run.items() if q != gone}, "mine")
    code, _, errors = command("--topics", "mb2012", "mine", "--hits", "5")
    assert code == 0
    assert f"mine: judged topics without a result, counted as 0 (1): {gone}" in errors
    assert "mine: 5 topics have more than 5 posts; only the first 5 are" in errors
    written = read_run("runs/reranked/mine.sm_cnn")
    assert [len(scores) for scores in written.values()] == [5] * 5
    assert gone not in written


def test_posts_without_a_text_can_be_left_out(command: Command, tmp_path: Path) -> None:
    run = official()
    strange = {q: {f"{q}0{n}": 100.0 - n for n in range(3)} for q in run}
    write_run(tmp_path / "mine", {q: strange[q] | scores for q, scores in run.items()}, "mine")
    code, _, errors = command("--topics", "mb2012", "ql", "mine")
    assert code == 1
    assert "18 of its 158 posts are not in the collection" in errors
    assert "--skip-unknown" in errors
    code, _, errors = command("--topics", "mb2012", "ql", "mine", "--skip-unknown")
    assert code == 0
    assert "mine: 18 of its 158 posts are not in the collection; left out before and" in errors
    folder = tmp_path / "runs" / "reranked"
    ours, plain = read_run(folder / "mine.sm_cnn"), read_run(folder / "ql.sm_cnn")
    assert {q: set(scores) for q, scores in ours.items()} == {q: set(s) for q, s in run.items()}
    # The model reads the ranks that the posts have in the whole run.
    assert ours != plain
    write_run(tmp_path / "none", strange, "none")
    code, _, errors = command("--topics", "mb2012", "none", "--skip-unknown")
    assert code == 1
    assert "18 of its 18 posts are not in the collection" in errors


def test_without_judgments_there_are_runs_and_no_report(command: Command, home: Path) -> None:
    code, output, errors = command(
        "--topics", "mb2014", "ql", "--report", "report.csv", "--checkpoint",
        str(home / "checkpoints" / "sm_cnn" / "mb2012"),
    )  # fmt: skip
    assert code == 0, errors
    assert len(output) == 1
    assert output[0].startswith("no report: mb2014 has no judgments here")
    assert len(read_run("runs/reranked/ql.sm_cnn")) == 6
    assert not Path("report.csv").exists()


def test_a_model_that_does_not_read_ranks(command: Command, data: Path, tmp_path: Path) -> None:
    trained = python(
        tmp_path, data, "-m", "pipeline.train", "sm_cnn", "--test", "mb2012", "--folds", "1",
        "--steps", "1", "--epochs", "1", "--set", "filters=4", "--set", "prior=false",
        "--vectors", data / "vectors.txt", "--output", tmp_path / "blind",
    )  # fmt: skip
    assert trained.returncode == 0, trained.stderr
    for weight, told in (("1", True), ("0.5", False)):
        code, _, errors = command(
            "--topics", "mb2012", "ql", "--checkpoint", "blind", "--lambda", weight
        )
        assert code == 0
        assert ("does not read the ranks" in errors) == told


@pytest.mark.parametrize(
    ("arguments", "problems"),
    [
        ([], ["runs is missing"]),
        (["no1", "no2"], ["there is no file no1, nor has mb2012", "there is no file no2"]),
        (["mine", "other/mine"], ["mine and another that would be written to"]),
        (["mine", "other/../mine"], ["more than once"]),
        (["ql", "rm3", "ql"], ["more than once"]),
        (["mine", "mine.sm_cnn", "--output", "."], ["mine.sm_cnn is one of the runs"]),
        (["mine", "--report", "mine"], ["--report: found mine, which is a run"]),
        (["ql", "--output", "o", "--report", "o/ql.sm_cnn"], ["--report: found o/ql.sm_cnn"]),
        (["ql", "--output", "mine"], ["--output: found the file mine, expected a folder"]),
        (["ql", "--reranker", "none", "--index", "x"], ["--index: found it", "found 'none'"]),
        (["ql", "--reranker", "bert"], ["found 'bert', expected one of"]),
        (["ql", "--lambda", "2"], ["--lambda: found 2"]),
    ],
)
def test_mistakes(
    arguments: list[str], problems: list[str], command: Command, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    for name in ("mine", "other/mine", "mine.sm_cnn"):
        write_run(tmp_path / name, official(), "mine")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    code, output, errors = command("--topics", "mb2012", *arguments)
    assert (code, output) == (2, [])
    for problem in problems:
        assert problem in errors
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("9 Q0 42 1 1.0 t\n", "1 of its 1 posts are not in the collection (42)"),
        ("1 Q0 12012001 1 1.0 t\n", "found results for 1, expected some for the topics 7, 8, 9"),
        ("9 Q0 12012001 1 nan t\n", "bad:1: found the score 'nan'"),
    ],
)
def test_a_bad_run_is_refused_before_any_is_written(
    content: str, message: str, command: Command, tmp_path: Path
) -> None:
    (tmp_path / "bad").write_text(content)
    code, output, errors = command("--topics", "mb2012", "ql", "bad")
    assert (code, output) == (1, [])
    assert message in errors
    assert "Traceback" not in errors
    assert not (tmp_path / "runs").exists()


def test_without_a_checkpoint_it_is_said_how_to_train_one(command: Command) -> None:
    code, _, errors = command("--topics", "mb2013", "ql")
    assert code == 1
    assert "python -m pipeline.train sm_cnn --test mb2013" in errors


def test_topics_and_posts_of_ones_own(data: Path, home: Path, tmp_path: Path) -> None:
    (tmp_path / "posts.jsonl").write_text(
        '{"id": "a", "text": "storm at the harbour"}\n{"id": "b", "text": "coffee, lol"}\n'
    )
    (tmp_path / "topics.tsv").write_text("1\tstorm harbour\n")
    (tmp_path / "qrels").write_text("1 0 a 1\n1 0 b 0\n")
    (tmp_path / "run").write_text("1 Q0 b 1 2.0 t\n1 Q0 a 2 1.0 t\n")
    index = tmp_path / "index"
    built = python(
        home, data, "-m", "pipeline.index", "--posts", tmp_path / "posts.jsonl", "--index", index
    )
    assert built.returncode == 0, built.stderr
    done = python(
        home, data, "-m", "pipeline.rerank", "--topics", tmp_path / "topics.tsv", "--index", index,
        "--qrels", tmp_path / "qrels", tmp_path / "run", "--output", tmp_path / "out",
        "--checkpoint", home / "checkpoints" / "sm_cnn" / "mb2012",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("topics, 1 judged topics, 1 runs reranked by sm_cnn")
    assert set(read_run(tmp_path / "out" / "run.sm_cnn")["1"]) == {"a", "b"}
