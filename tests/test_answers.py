"""Answer-selection collections: reading them, and ranking the answers that they give."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Command, Result
from data_samples import write_answers
from reranking_samples import encoder, small_model

from indexes.errors import CollectionError
from indexes.pairs import Answer, read_answer_folder
from indexes.posts import Post
from pipeline import checkpoints
from pipeline.collections import named
from pipeline.collections.locations import home_directory
from pipeline.collections.trec import ranked, read_run
from pipeline.command.errors import DataError, UsageError
from rerankers import checkpoint

Run = Callable[..., Result]
NAMES = ["trecqa-raw", "trecqa-clean", "wikiqa"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_answers(tmp_path_factory.mktemp("data"))


FILES: dict[str, list[str]] = {
    "a.toks": ["first ?", "first, again ?", "second ?"],
    "b.toks": ["one .", "", "one ."],
    "id.txt": ["32.1", "32.1", "32.10"],
    "sim.txt": ["1", "0", "0"],
}


def folder_of(folder: Path, **changed: list[str] | None) -> Path:
    folder.mkdir(exist_ok=True)
    for name, lines in {**FILES, **{k.replace("_", "."): v for k, v in changed.items()}}.items():
        if lines is not None:
            (folder / name).write_text("".join(f"{line}\n" for line in lines))
    return folder


def test_answers_are_counted_where_only_questions_have_ids(tmp_path: Path) -> None:
    assert list(read_answer_folder(folder_of(tmp_path))) == [
        Answer("32.1", "first ?", Post("32.1-0", "one ."), 1),
        Answer("32.1", "first, again ?", Post("32.1-1", ""), 0),
        Answer("32.10", "second ?", Post("32.10-0", "one ."), 0),
    ]


def test_answers_with_ids_of_their_own_and_without_labels(tmp_path: Path) -> None:
    ids = ["Q11-D11-0", "Q11-D11-3", "Q2-D0-0"]
    answers = list(read_answer_folder(folder_of(tmp_path, id_txt=ids, sim_txt=None)))
    assert [answer.query_id for answer in answers] == ["Q11", "Q11", "Q2"]
    assert [answer.post.doc_id for answer in answers] == ids
    assert [answer.relevance for answer in answers] == [None] * 3


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"b_toks": None}, r"found no b\.toks; expected"),
        ({"b_toks": ["one", "two"]}, r"b\.toks: found 2 lines, expected as many"),
        ({"sim_txt": ["1"] * 4}, r"a\.toks: found 3 lines, expected as many"),
        ({"sim_txt": ["1", "2", "0"]}, r"sim\.txt:2: found '2', expected 0 or 1"),
        ({"sim_txt": ["1", "0", ""]}, r"sim\.txt:3: found '', expected 0 or 1"),
        ({"id_txt": ["1", " ", "2"]}, r"id\.txt:2: found '', expected one word: the id of a"),
        ({"id_txt": ["1", "-D1-0", "2"]}, r"id\.txt:2: found '-D1-0', expected one word"),
        ({"id_txt": ["1", "1", "1 Q0 7 1 2 x"]}, r"id\.txt:3: found '1 Q0 7 1 2 x', expected one"),
        (
            {"id_txt": ["Q1-0", "Q1-1", "Q1-0"]},
            r"id\.txt:3: found the answer 'Q1-0' again, .* the first is on line 1",
        ),
    ],
)
def test_bad_folders(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(CollectionError, match=message):
        list(read_answer_folder(folder_of(tmp_path, **changed)))


def test_the_test_part_is_found(data: Path) -> None:
    found = named.find("trecqa-raw", data)
    assert found.index_directory is None
    assert dict(found.runs) == {}
    assert found.measures == ("AP", "RR")
    assert found.missing() == []
    topics = found.topics
    assert [topic.query_id for topic in topics] == ["3.1", "3.2", "3.3", "3.4"]
    assert topics[0].text.startswith("where is the library ")
    run = found.given_candidates
    assert run is not None
    assert [(query_id, len(scores)) for query_id, scores in run.items()] == [
        ("3.1", 6), ("3.2", 7), ("3.3", 5), ("3.4", 6)
    ]  # fmt: skip
    assert {score for scores in run.values() for score in scores.values()} == {0.0}
    assert list(run["3.1"])[:2] == ["3.1-0", "3.1-1"]
    doc_ids = [doc_id for scores in run.values() for doc_id in scores]
    assert [post.doc_id for post in found.posts()] == doc_ids


def test_questions_without_a_relevant_answer_are_not_judged(data: Path) -> None:
    raw, clean = (named.find(name, data) for name in NAMES[:2])
    qrels = raw.qrels
    assert qrels is not None
    assert list(qrels) == ["3.1", "3.2", "3.3"]
    assert list(qrels["3.1"].values()).count(1) == 2
    assert len(qrels["3.1"]) == 6
    assert clean.qrels == qrels
    assert len(clean.topics) == 3


@pytest.mark.parametrize("name", NAMES)
def test_parts(name: str, data: Path) -> None:
    collection = named.find_answers(name, data)
    train, dev, test = (collection.part(part) for part in ("train", "dev", "test"))
    assert test == collection
    assert {part.name for part in (train, dev, test)} == {name}
    assert len(train.topics) == 8
    questions = [{topic.query_id for topic in part.topics} for part in (train, dev, test)]
    assert len(set.union(*questions)) == sum(map(len, questions))
    for part in (train, dev):
        judged = part.qrels
        assert judged
        assert set(judged) <= set(part.given_candidates)
    with pytest.raises(UsageError, match="found the part 'valid', expected one of train, dev"):
        collection.part("valid")


def test_both_kinds_of_trecqa_share_the_training_part(data: Path) -> None:
    raw, clean = (named.find_answers(name, data).part("train") for name in NAMES[:2])
    assert list(raw.posts()) == list(clean.posts())


def test_absent_labels_are_told(data: Path) -> None:
    test = named.find("wikiqa", data)
    assert test.missing() == []
    assert test.qrels is None
    assert "wikiqa has no judgments of its test part here" in test.missing_judgments
    assert str(data / "wikiqa" / "test" / "sim.txt") in test.missing_judgments


def test_missing_data_says_how_to_fetch_it(tmp_path: Path) -> None:
    collection = named.find("trecqa-clean", tmp_path)
    assert len(collection.missing()) == 3
    reads = [
        lambda: collection.topics,
        lambda: collection.given_candidates,
        lambda: list(collection.posts()),
    ]
    for read in reads:
        with pytest.raises(DataError, match=r"a\.toks and 2 more not found(.|\n)*trecqa-clean"):
            read()


def test_an_empty_folder(tmp_path: Path) -> None:
    empty: dict[str, list[str] | None] = {name.replace(".", "_"): [] for name in FILES}
    (tmp_path / "wikiqa").mkdir()
    folder_of(tmp_path / "wikiqa" / "test", **empty)
    with pytest.raises(DataError, match="found no answer, expected at least one"):
        _ = named.find("wikiqa", tmp_path).topics


def test_only_these_collections_have_given_answers() -> None:
    for name in ("mb2012", "sample", "trecqa"):
        with pytest.raises(UsageError, match=f"found '{name}', expected a collection of questions"):
            named.find_answers(name)
    with pytest.raises(UsageError, match="did you mean 'wikiqa'"):
        named.find_answers("wikiq")


@pytest.mark.parametrize("name", NAMES)
def test_they_are_not_left_out_of_microblog_training(name: str) -> None:
    with pytest.raises(UsageError, match=rf"pipeline\.train MODEL --collection {name}"):
        named.training_collections(name)


def test_their_checkpoint_is_not_one_for_tweets(tmp_path: Path) -> None:
    # Shipped: mp_hcnn for every microblog collection and for all of them together.
    assert checkpoints.default_directory("mp_hcnn", "mine").name == "all"
    with pytest.raises(DataError) as error:
        checkpoints.default_directory("mp_hcnn", "trecqa-raw")
    assert "`python -m pipeline.train mp_hcnn --collection trecqa-raw`" in str(error.value)
    own = home_directory() / "checkpoints" / "mp_hcnn" / "trecqa-raw"
    own.mkdir(parents=True)
    (own / "config.json").write_text("{}")
    assert checkpoints.default_directory("mp_hcnn", "trecqa-raw") == own


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home folder with a small checkpoint for each collection, trained on it as it says."""
    folder = tmp_path_factory.mktemp("home")
    for name in NAMES:
        checkpoint.save(
            folder / "checkpoints" / "mp_hcnn" / name, "mp_hcnn",
            small_model("mp_hcnn", "robust"), encoder(), {"trained_on": [name]},
        )  # fmt: skip
    return folder


# The small checkpoints' frequencies are made up, so the source is to be named.
IDF = ["--idf", "wordfreq"]


@pytest.fixture
def run(command: Command, home: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command with the home folder of this file."""
    monkeypatch.setenv("TWEETRERANK_HOME", str(home))
    return command


@pytest.mark.slow
def test_nothing_needs_java(home: Path, data: Path, tmp_path: Path) -> None:
    arguments = ["--topics", "trecqa-raw", *IDF, "--data", data, "--output", tmp_path / "run"]
    result = subprocess.run(
        [sys.executable, "-m", "pipeline.search", *map(str, arguments)],
        capture_output=True,
        text=True,
        env=os.environ | {"TWEETRERANK_HOME": str(home), "JAVA_HOME": "/nowhere"},
    )
    assert result.returncode == 0, result.stderr


def test_answers_are_ranked_by_the_model_alone(
    run: Run, home: Path, data: Path, tmp_path: Path
) -> None:
    result = run(
        "search", "--topics", "trecqa-raw", *IDF, "--data", data, "--output", tmp_path / "run"
    )
    assert result.code == 0, result.err
    assert "λ = 1 (nothing to mix: the candidates are given without scores)" in result.err
    # What it was trained on is another part of the collection.
    assert "was trained on" not in result.err
    lines = result.out.splitlines()
    assert lines[0] == "trecqa-raw, 3 judged topics"
    assert lines[1].split() == ["AP", "RR"]
    assert [line.rsplit(maxsplit=2)[0] for line in lines[2:4]] == [
        "first stage (given, by id)", "neural (mp_hcnn)"
    ]  # fmt: skip
    ranking = read_run(tmp_path / "run")
    assert {q: len(scores) for q, scores in ranking.items()} == {
        "3.1": 6, "3.2": 7, "3.3": 5, "3.4": 6
    }  # fmt: skip
    assert not (home / "indexes").exists()


def test_evaluation_has_the_collections_measures(run: Run, data: Path, tmp_path: Path) -> None:
    run(
        "search",
        "--topics",
        "trecqa-raw",
        "--reranker",
        "none",
        "--data",
        data,
        "--output",
        tmp_path / "run",
    )
    arguments = ["evaluate", "trecqa-raw", tmp_path / "run", "--data", data]
    result = run(*arguments)
    assert result.code == 0, result.err
    assert result.out.splitlines()[1].split() == ["AP", "RR"]
    result = run(*arguments, "-m", "P@1")
    assert result.out.splitlines()[1].split() == ["P@1"]
    result = run("evaluate", "wikiqa", tmp_path / "run", "--data", data)
    assert result.code == 1
    assert "wikiqa has no judgments of its test part here" in result.err


def test_without_a_model_the_ids_decide(run: Run, data: Path, tmp_path: Path) -> None:
    result = run(
        "search",
        "--topics",
        "wikiqa",
        "--reranker",
        "none",
        "--data",
        data,
        "--output",
        tmp_path / "run",
    )
    assert result.code == 0, result.err
    assert "wikiqa has no judgments of its test part here" in result.out
    for scores in read_run(tmp_path / "run").values():
        order = [doc_id for doc_id, _ in ranked(scores)]
        assert order == sorted(order, reverse=True)


def test_a_run_of_ones_own_is_mixed(run: Run, data: Path, tmp_path: Path) -> None:
    given = tmp_path / "given"
    given.write_text("3.1 Q0 3.1-0 1 9 x\n3.1 Q0 3.1-5 2 8 x\n3.2 Q0 3.2-1 1 7 x\n")
    arguments = ["--topics", "trecqa-raw", *IDF, "--data", data, "--candidates", given]
    result = run("search", *arguments, "--hits", "1", "--output", tmp_path / "run")
    assert result.code == 0, result.err
    assert f"first stage ({given})" in result.out
    assert "interpolated" in result.out
    assert "λ = 0.5 (not tuned: choose one by --lambda)" in result.err
    assert {q: list(s) for q, s in read_run(tmp_path / "run").items()} == {
        "3.1": ["3.1-0"], "3.2": ["3.2-1"]
    }  # fmt: skip
    given.write_text("3.1 Q0 3.1-9 1 9 x\n")
    result = run("search", *arguments, "--output", tmp_path / "run")
    assert result.code == 1
    assert "not in the collection (3.1-9)" in result.err


def test_a_weight_that_is_given_counts(run: Run, data: Path, tmp_path: Path) -> None:
    result = run(
        "search",
        "--topics",
        "trecqa-raw",
        *IDF,
        "--data",
        data,
        "--lambda",
        "0.25",
        "--output",
        tmp_path / "run",
    )
    assert result.code == 0, result.err
    assert "λ = 0.25 (given)" in result.err
    assert "interpolated" in result.out


def test_nothing_says_how_to_search(run: Run, data: Path, tmp_path: Path) -> None:
    result = run(
        "search",
        "--topics",
        "trecqa-raw",
        "--data",
        data,
        "--method",
        "ql",
        "--mu",
        "5",
        "--parameter",
        "mu=1",
        "--index",
        tmp_path,
        "--hits",
        "5",
        "--idf",
        "index",
        "--output",
        tmp_path / "run",
    )
    assert result.code == 2, result.err
    for flag in ("--method", "--mu", "--parameter", "--index", "--hits"):
        assert f"  {flag}: trecqa-raw is not searched, its candidates are given" in result.err
    assert "--idf index: trecqa-raw has no index" in result.err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", NAMES)
def test_there_is_no_index_to_build(name: str, run: Run, data: Path, tmp_path: Path) -> None:
    for more in ([], ["--index", tmp_path / "index"]):
        result = run("index", "--collection", name, "--data", data, *more)
        assert result.code == 2, result.err
        assert f"found {name}, expected a collection whose posts are searched" in result.err
        assert not (tmp_path / "index").exists()


def test_an_untrained_model_says_how_to_train_it(
    command: Command, tmp_path: Path, data: Path
) -> None:
    result = command("search", "--topics", "wikiqa", "--data", data, "--output", tmp_path / "run")
    assert result.code == 1
    assert "python -m pipeline.train mp_hcnn --collection wikiqa" in result.err


def test_the_samples_are_the_same_every_time(data: Path, tmp_path: Path) -> None:
    again = write_answers(tmp_path)
    for path in data.rglob("*.*"):
        if path.is_file():
            assert (again / path.relative_to(data)).read_bytes() == path.read_bytes()


def test_the_real_collections(data_dir: Path) -> None:
    if named.find("trecqa-raw", data_dir).missing():
        pytest.skip("no TrecQA in the data folder")
    raw, clean = (named.find(name, data_dir) for name in NAMES[:2])
    assert (len(list(raw.posts())), len(list(clean.posts()))) == (1517, 1442)
    raw_qrels, clean_qrels = raw.qrels, clean.qrels
    assert raw_qrels is not None
    assert clean_qrels is not None
    assert (len(raw.topics), len(raw_qrels)) == (95, 89)
    assert (len(clean.topics), len(clean_qrels)) == (68, 68)
    assert set(clean_qrels) <= set(raw_qrels)
    train = named.find_answers("trecqa-raw", data_dir).part("train")
    assert (len(train.topics), len(list(train.posts()))) == (93, 4718)


def test_the_real_wikiqa(data_dir: Path) -> None:
    wikiqa = named.find_answers("wikiqa", data_dir)
    if wikiqa.missing():
        pytest.skip("no WikiQA in the data folder")
    counts = [len(wikiqa.part(part).topics) for part in ("train", "dev", "test")]
    assert counts == [873, 126, 243]
    assert len(list(wikiqa.posts())) == 2351
    assert next(wikiqa.posts()).doc_id == "Q0-D0-0"
