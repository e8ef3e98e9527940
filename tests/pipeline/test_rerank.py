"""The command ``python -m pipeline.rerank``, and the figures that its report is made of."""

import csv
import datetime
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Command, Patch
from helpers.data_samples import write_microblog

from tweetrerank.pipeline import train
from tweetrerank.pipeline.collections import named
from tweetrerank.pipeline.collections.trec import Run, ranked, read_run, write_run
from tweetrerank.pipeline.command.options import parse_arguments
from tweetrerank.pipeline.evaluation.measures import evaluate, mean

pytestmark = pytest.mark.slow  # a model is trained for these tests
Rerank = Callable[..., tuple[list[str], str]]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made-up years with more posts a topic than P@30 counts; 2014 has no judgments."""
    folder = write_microblog(tmp_path_factory.mktemp("data"), topics=6, posts=40)
    (folder / "microblog" / "qrels.microblog2014.txt").unlink()
    return folder


def train_small(data: Path, *more: object) -> None:
    words = "sm_cnn --test mb2012 --folds 1 --set filters=4 --threads 1"
    words += f" --set training.steps=2 --set training.epochs=1 --data {data}"
    words = [*words.split(), "--vectors", *map(str, (data / "vectors.txt", *more))]
    train.main(parse_arguments(train.Options, "train", None, words))


@pytest.fixture(scope="module")
def home(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    with Patch.context() as patch:
        patch.setenv("TWEETRERANK_HOME", str(folder))
        train_small(data)
    return folder


@pytest.fixture
def rerank(
    command: Command, data: Path, home: Path, tmp_path: Path, monkeypatch: Patch
) -> Rerank:
    """Reranks runs of mb2012 in an empty folder; gives lines of stdout, and stderr."""
    monkeypatch.setenv("TWEETRERANK_HOME", str(home))
    monkeypatch.setenv("TWEETRERANK_DATA", str(data))
    monkeypatch.chdir(tmp_path)
    options = ("--device", "cpu", "--reranker", "sm_cnn", "--topics")

    def call(
        *runs: str | Path, topics: str = "mb2012", code: int = 0
    ) -> tuple[list[str], str]:
        done = command("rerank", *options, topics, *runs, code=code)
        return done.out.splitlines(), done.err

    return call


def official() -> Run:
    return read_run(named.find("mb2012").runs["ql"])


def write_backwards() -> Run:
    """Write the official run upside down to ``mine.gz``."""
    run = {
        q: {d: -score for d, score in scores.items()}
        for q, scores in official().items()
    }
    write_run(Path("mine.gz"), run, "mine")
    return run


def posts_of(run: Run) -> dict[str, set[str]]:
    return {query_id: set(scores) for query_id, scores in run.items()}


def test_several_runs_from_files_to_report(rerank: Rerank) -> None:
    before, folder = (
        {"ql": official(), "mine.gz": write_backwards()},
        Path("runs/reranked"),
    )
    output, errors = rerank("ql", "mine.gz", "--report", "report.csv")
    assert {path.name for path in folder.iterdir()} == {"ql.sm_cnn", "mine.sm_cnn.gz"}
    assert "wrote 2 runs to runs/reranked" in errors
    after = {
        "ql": read_run(folder / "ql.sm_cnn"),
        "mine.gz": read_run(folder / "mine.sm_cnn.gz"),
    }
    # The ranks of the run are read: the same posts in another order are scored otherwise.
    assert after["ql"] != after["mine.gz"]
    qrels = named.find("mb2012").qrels or {}
    with Path("report.csv").open(encoding="utf-8") as stream:
        lines = {line["run"]: line for line in csv.DictReader(stream)}
    assert (
        output[0]
        == "mb2012, 6 judged topics, 2 runs reranked by sm_cnn, λ = 0.3 (given)"
    )
    for name in after:
        assert posts_of(after[name]) == posts_of(before[name])
        shown = next(line for line in output if line.startswith(name)).split()
        for measure, column in (("P@30", 1), ("AP", 4)):
            for suffix, run, offset in (("", before, 0), (" reranked", after, 1)):
                expected = mean(evaluate(qrels, run[name])[measure])
                assert float(lines[name][measure + suffix]) == pytest.approx(expected)
                assert float(shown[column + offset].rstrip("▲△▼▽")) == round(
                    expected, 4
                )
        assert lines[name]["checkpoint"] == "sm_cnn/mb2012"
        assert lines[name]["date"] == datetime.date.today().isoformat()


def test_runs_are_reranked_as_a_search_does_it(
    rerank: Rerank, command: Command
) -> None:
    write_backwards()
    rerank("rm3", "mine.gz")
    alone = "--topics mb2012 --candidates mine.gz --reranker sm_cnn --output one --lambda 0.3"
    command("search", *alone.split(), code=0)
    found = read_run("runs/reranked/mine.sm_cnn.gz")
    assert [*found.items()] == [*read_run("one").items()]
    # Without the model's share the order stays.
    output, _ = rerank("ql", "--lambda", "0", "--output", "here")
    found, expected = read_run("here/ql.sm_cnn"), official()
    for query_id, scores in expected.items():
        assert [d for d, _ in ranked(found[query_id])] == [d for d, _ in ranked(scores)]
    assert output[0].endswith("sm_cnn, λ = 0 (given)")
    assert output[2].split()[3::3] == ["+0.0%", "+0.0%", "+0"]


def test_what_is_left_out_is_told(rerank: Rerank) -> None:
    run = official()
    gone = next(iter(run))
    write_run(
        Path("mine"), {q: scores for q, scores in run.items() if q != gone}, "mine"
    )
    _, errors = rerank("mine", "--hits", "5")
    assert f"mine: judged topics without a result, counted as 0 (1): {gone}" in errors
    assert "mine: 5 topics have more than 5 posts; only the first 5 are" in errors
    written = read_run("runs/reranked/mine.sm_cnn")
    assert gone not in written and [*map(len, written.values())] == [5] * 5


def test_posts_without_a_text_can_be_left_out(rerank: Rerank) -> None:
    run = official()
    strange = {q: {f"{q}0{n}": 100.0 - n for n in range(3)} for q in run}
    write_run(
        Path("mine"), {q: strange[q] | scores for q, scores in run.items()}, "mine"
    )
    _, errors = rerank("ql", "mine", code=1)
    assert (
        "18 of its 158 posts are not in the collection" in errors
        and "--skip-unknown" in errors
    )
    _, errors = rerank("ql", "mine", "--skip-unknown")
    assert (
        "mine: 18 of its 158 posts are not in the collection; left out before and"
        in errors
    )
    ours, plain = (read_run(f"runs/reranked/{name}.sm_cnn") for name in ("mine", "ql"))
    assert posts_of(ours) == posts_of(run)
    # The model reads the ranks that the posts have in the whole run.
    assert ours != plain
    write_run(Path("none"), strange, "none")
    _, errors = rerank("none", "--skip-unknown", code=1)
    assert "18 of its 18 posts are not in the collection" in errors


def test_without_judgments_there_are_runs_and_no_report(
    rerank: Rerank, home: Path
) -> None:
    small = home / "checkpoints" / "sm_cnn" / "mb2012"
    (line,), _ = rerank(
        "ql", "--report", "report.csv", "--checkpoint", small, topics="mb2014"
    )
    assert line.startswith("no report: mb2014 has no judgments here")
    assert (
        len(read_run("runs/reranked/ql.sm_cnn")) == 6
        and not Path("report.csv").exists()
    )


def test_a_model_that_does_not_read_ranks(rerank: Rerank, data: Path) -> None:
    train_small(data, "--set", "prior=false", "--output", "blind")
    for weight, told in (("1", True), ("0.5", False)):
        _, errors = rerank("ql", "--checkpoint", "blind", "--lambda", weight)
        assert ("does not read the ranks" in errors) == told
