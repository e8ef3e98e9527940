"""The command ``rerank``, and the figures of its report."""

import csv
import datetime
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
from conftest import Command, Patch
from helpers.data_samples import write_microblog

from tweetrerank.pipeline import train
from tweetrerank.pipeline.collections import named
from tweetrerank.pipeline.collections.trec import Run, ranked, read_run, write_run
from tweetrerank.pipeline.command.options import parse_arguments
from tweetrerank.pipeline.evaluation.measures import evaluate, mean

pytestmark = pytest.mark.slow  # a model is trained for these tests

RERANKED = Path("runs/reranked")


class Output(NamedTuple):
    lines: list[str]  # stdout
    errors: str


Rerank = Callable[..., Output]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made-up years with more posts a topic than P@30 counts.

    2014 has no judgments.
    """
    folder = write_microblog(tmp_path_factory.mktemp("data"), topics=6, posts=40)
    (folder / "microblog" / "qrels.microblog2014.txt").unlink()
    return folder


def train_small(data: Path, options: str = "") -> None:
    line = "sm_cnn --test mb2012 --folds 1 --set filters=4 --threads 1"
    line += " --set training.steps=2 --set training.epochs=1"
    line += f" --data {data} --vectors {data / 'vectors.txt'} {options}"
    train.main(parse_arguments(train.Options, "train", None, line.split()))


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
    """Reranks runs by sm_cnn in an empty folder."""
    monkeypatch.setenv("TWEETRERANK_HOME", str(home))
    monkeypatch.setenv("TWEETRERANK_DATA", str(data))
    monkeypatch.chdir(tmp_path)

    def call(line: str, topics: str = "mb2012", code: int = 0) -> Output:
        options = f"--device cpu --reranker sm_cnn --topics {topics}"
        result = command(f"rerank {options} {line}", code=code)
        return Output(result.out.splitlines(), result.err)

    return call


def official() -> Run:
    return read_run(named.find("mb2012").runs["ql"])


def write_backwards() -> Run:
    """Write the official run upside down to ``mine.gz``."""
    run = {}
    for query_id, scores in official().items():
        run[query_id] = {doc_id: -score for doc_id, score in scores.items()}
    write_run(Path("mine.gz"), run, "mine")
    return run


def posts_of(run: Run) -> dict[str, set[str]]:
    return {query_id: set(scores) for query_id, scores in run.items()}


def ranking_of(run: Run) -> dict[str, list[str]]:
    return {
        query_id: [doc_id for doc_id, _ in ranked(scores)]
        for query_id, scores in run.items()
    }


# The report


class Reranked(NamedTuple):
    """Runs by name, and the reports about them."""

    before: Mapping[str, Run]
    after: Mapping[str, Run]
    output: Output
    table: Mapping[str, Mapping[str, str]]  # Rows of the CSV file


@pytest.fixture
def reranked(rerank: Rerank) -> Reranked:
    before = {"ql": official(), "mine.gz": write_backwards()}
    output = rerank("ql mine.gz --report report.csv")
    after = {
        "ql": read_run(RERANKED / "ql.sm_cnn"),
        "mine.gz": read_run(RERANKED / "mine.sm_cnn.gz"),
    }
    with Path("report.csv").open(encoding="utf-8") as stream:
        table = {line["run"]: line for line in csv.DictReader(stream)}
    return Reranked(before, after, output, table)


def test_several_runs_from_files_to_report(reranked: Reranked) -> None:
    names = {path.name for path in RERANKED.iterdir()}
    assert names == {"ql.sm_cnn", "mine.sm_cnn.gz"}
    assert "wrote 2 runs to runs/reranked" in reranked.output.errors
    # The model reads the ranks: the scores of the same posts depend on their order.
    assert reranked.after["ql"] != reranked.after["mine.gz"]
    title = "mb2012, 6 judged topics, 2 runs reranked by sm_cnn, λ = 0.3 (given)"
    assert reranked.output.lines[0] == title
    for name, run in reranked.after.items():
        assert posts_of(run) == posts_of(reranked.before[name])
        assert reranked.table[name]["checkpoint"] == "sm_cnn/mb2012"
        assert reranked.table[name]["date"] == datetime.date.today().isoformat()
    for name in ("ql", "mine.gz"):
        for measure, column in (("P@30", 1), ("AP", 4)):
            check_figures(reranked, name, measure, column)


def check_figures(reranked: Reranked, name: str, measure: str, column: int) -> None:
    """Compare both reports with figures computed here."""
    qrels = named.find("mb2012").qrels or {}
    before = mean(evaluate(qrels, reranked.before[name])[measure])
    after = mean(evaluate(qrels, reranked.after[name])[measure])
    lines = reranked.output.lines
    cells = next(line for line in lines if line.startswith(name)).split()
    row = reranked.table[name]
    assert float(row[measure]) == pytest.approx(before)
    assert float(row[f"{measure} reranked"]) == pytest.approx(after)
    assert float(cells[column].rstrip("▲△▼▽")) == round(before, 4)
    assert float(cells[column + 1].rstrip("▲△▼▽")) == round(after, 4)


def test_without_judgments_there_are_runs_and_no_report(
    rerank: Rerank, home: Path
) -> None:
    small = home / "checkpoints" / "sm_cnn" / "mb2012"
    line = f"ql --report report.csv --checkpoint {small}"
    (message,) = rerank(line, topics="mb2014").lines
    assert message.startswith("no report: mb2014 has no judgments here")
    assert len(read_run(RERANKED / "ql.sm_cnn")) == 6
    assert not Path("report.csv").exists()


# Rankings


def test_runs_are_reranked_as_a_search_does_it(
    rerank: Rerank, command: Command
) -> None:
    write_backwards()
    rerank("rm3 mine.gz")
    options = "--candidates mine.gz --reranker sm_cnn --output one --lambda 0.3"
    command(f"search --topics mb2012 {options}", code=0)
    run = read_run(RERANKED / "mine.sm_cnn.gz")
    assert list(run.items()) == list(read_run("one").items())


def test_without_the_model_s_share_the_order_stays(rerank: Rerank) -> None:
    output = rerank("ql --lambda 0 --output here")
    expected = ranking_of(official())
    ranking = ranking_of(read_run("here/ql.sm_cnn"))
    assert {query_id: ranking[query_id] for query_id in expected} == expected
    assert output.lines[0].endswith("sm_cnn, λ = 0 (given)")
    assert output.lines[2].split()[3::3] == ["+0.0%", "+0.0%", "+0"]


def test_what_is_left_out_is_told(rerank: Rerank) -> None:
    run = official()
    gone = next(iter(run))
    del run[gone]
    write_run(Path("mine"), run, "mine")
    errors = rerank("mine --hits 5").errors
    assert f"mine: judged topics without a result, counted as 0 (1): {gone}" in errors
    assert "mine: 5 topics have more than 5 posts; only the first 5 are" in errors
    written = read_run(RERANKED / "mine.sm_cnn")
    assert gone not in written
    assert [len(scores) for scores in written.values()] == [5] * 5


# Posts without a text


def unknown_posts() -> Run:
    """Three posts for each topic that the collection lacks."""
    run = {}
    for query_id in official():
        run[query_id] = {f"{query_id}0{n}": 100.0 - n for n in range(3)}
    return run


@pytest.fixture
def mixed_run(rerank: Rerank) -> Run:
    """Write the official run with unknown posts at its top to ``mine``."""
    run = unknown_posts()
    for query_id, scores in official().items():
        run[query_id] |= scores
    write_run(Path("mine"), run, "mine")
    return run


def test_posts_without_a_text_are_an_error(rerank: Rerank, mixed_run: Run) -> None:
    errors = rerank("ql mine", code=1).errors
    assert "18 of its 158 posts are not in the collection" in errors
    assert "--skip-unknown" in errors


def test_posts_without_a_text_can_be_left_out(rerank: Rerank, mixed_run: Run) -> None:
    errors = rerank("ql mine --skip-unknown").errors
    note = "18 of its 158 posts are not in the collection; left out before and"
    assert f"mine: {note}" in errors
    run = read_run(RERANKED / "mine.sm_cnn")
    assert posts_of(run) == posts_of(official())
    # The model reads the ranks that the posts have in the whole run.
    assert run != read_run(RERANKED / "ql.sm_cnn")


def test_a_run_without_any_text(rerank: Rerank) -> None:
    write_run(Path("none"), unknown_posts(), "none")
    errors = rerank("none --skip-unknown", code=1).errors
    assert "18 of its 18 posts are not in the collection" in errors


# A model without a prior


@pytest.mark.parametrize(("weight", "is_noted"), [("1", True), ("0.5", False)])
def test_a_model_that_does_not_read_ranks(
    rerank: Rerank, data: Path, weight: str, is_noted: bool
) -> None:
    train_small(data, "--set prior=false --output blind")
    errors = rerank(f"ql --checkpoint blind --lambda {weight}").errors
    assert ("does not read the ranks" in errors) == is_noted
