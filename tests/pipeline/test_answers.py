"""Answer-selection collections: reading them, and ranking the answers that they give."""

import sys
from functools import partial
from pathlib import Path

import pytest
from conftest import Command, Patch
from helpers.data_samples import write_answers
from helpers.reranking_samples import network, small_model

from indexes.errors import CollectionError
from indexes.posts import Answer, Post, read_answer_folder
from pipeline.collections import named
from pipeline.collections.trec import ranked, read_run
from pipeline.errors import DataError, UsageError
from pipeline.evaluation.measures import without_relevant
from pipeline.ranking import checkpoints
from rerankers import checkpoint


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made-up collections; WikiQA's test part has no labels."""
    folder = write_answers(tmp_path_factory.mktemp("data"))
    (folder / "wikiqa" / "test" / "sim.txt").unlink()
    return folder


NAMES = ["trecqa-raw", "trecqa-clean", "wikiqa", "trecqa-all-raw", "trecqa-all-clean"]
SIZES = {"3.1": 6, "3.2": 7, "3.3": 5, "3.4": 6}
"""Questions of TrecQA's raw test part -> number of answers."""

FILES: dict[str, list[str]] = {
    "a.toks": ["first ?", "first, again ?", "second ?"],
    "b.toks": ["one .", "", "one ."],
    "id.txt": ["32.1", "32.1", "32.10"],
    "sim.txt": ["1", "0", "0"],
}


def folder_of(folder: Path, **changed: list[str] | None) -> Path:
    for name, lines in {**FILES, **changed}.items():
        if lines is not None:
            (folder / name).write_text("".join(f"{line}\n" for line in lines))
    return folder


def test_answers_are_counted_where_only_questions_have_ids(tmp_path: Path) -> None:
    assert list(read_answer_folder(folder_of(tmp_path))) == [
        Answer("32.1", "first ?", Post("32.1-0", "one ."), 1),
        Answer("32.1", "first, again ?", Post("32.1-1", ""), 0),
        Answer("32.10", "second ?", Post("32.10-0", "one ."), 0),
    ]
    ids = ["Q11-D11-0", "Q11-D11-3", "Q2-D0-0"]
    (tmp_path / "sim.txt").unlink()
    answers = read_answer_folder(folder_of(tmp_path, **{"id.txt": ids, "sim.txt": None}))
    assert [(answer.query_id, answer.post.doc_id, answer.relevance) for answer in answers] == [
        (doc_id.split("-")[0], doc_id, None) for doc_id in ids
    ]


@pytest.mark.parametrize(
    ("name", "lines", "message"),
    [
        ("sim", ["1", "2", "0"], r"sim\.txt:2: found '2', expected 0 or 1"),
        ("id", ["1", " ", "2"], r"id\.txt:2: found '', expected one word: the id of a"),
        ("id", ["1", "1", "1 Q0 7 1 2 x"], r"id\.txt:3: found '1 Q0 7 1 2 x', expected one"),
        ("id", ["Q1-0", "Q1-1", "Q1-0"], r"id\.txt:3: found the answer 'Q1-0' again, .* 1$"),
    ],
)
def test_bad_folders(tmp_path: Path, name: str, lines: list[str], message: str) -> None:
    with pytest.raises(CollectionError, match=message):
        list(read_answer_folder(folder_of(tmp_path, **{f"{name}.txt": lines})))


def test_the_test_part_is_found(data: Path) -> None:
    raw, clean = (named.find(name, data) for name in NAMES[:2])
    assert [topic.query_id for topic in raw.topics] == list(SIZES)
    assert raw.topics[0].text.startswith("where is the library ")
    assert raw.qrels is not None and clean.qrels is not None
    assert {query_id: len(grades) for query_id, grades in raw.qrels.items()} == SIZES
    assert list(raw.qrels["3.1"].values()).count(1) == 2
    # The question without a relevant answer is judged as well.
    assert without_relevant(raw.qrels) == ["3.4"] and len(clean.topics) == 3
    assert raw.qrels == {**clean.qrels, "3.4": raw.qrels["3.4"]}


def test_missing_data_says_how_to_fetch_it(tmp_path: Path, data: Path) -> None:
    collection = named.find("trecqa-clean", tmp_path)
    for read in (lambda: collection.topics, lambda: list(collection.posts())):
        with pytest.raises(DataError, match=r"a\.toks and 2 more not found(.|\n)*trecqa-clean"):
            read()
    # What may not be passed on is put there by hand.
    part = named.find_answers("trecqa-all-raw", tmp_path).part("train")
    with pytest.raises(DataError, match=r"train-all/a\.toks and 2 more not found.*xuchen/jacana"):
        part.require_files()
    test = named.find("wikiqa", data)
    assert not test.missing() and test.qrels is None
    assert str(data / "wikiqa" / "test" / "sim.txt") in test.missing_judgments


def test_only_these_collections_have_given_answers() -> None:
    for name, problem in (
        ("mb2012", "expected a collection of questions"),
        ("trecqa", "expected a collection of questions"),
        ("wikiq", "did you mean 'wikiqa'"),
    ):
        with pytest.raises(UsageError, match=f"found '{name}', .*{problem}"):
            named.find_answers(name)
    with pytest.raises(UsageError, match=r"pipeline\.train MODEL --collection wikiqa"):
        named.training_collections("wikiqa")
    # A checkpoint for tweets is not one for answers.
    assert checkpoints.default_directory("mp_hcnn", "mine").name == "all"
    with pytest.raises(DataError, match=r"pipeline\.train mp_hcnn --collection trecqa-raw`"):
        checkpoints.default_directory("mp_hcnn", "trecqa-raw")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home folder with a small checkpoint for each collection, trained on it as it says."""
    folder = tmp_path_factory.mktemp("home")
    for name in NAMES:
        model = network(small_model("mp_hcnn", "robust"), metrics={"trained_on": [name]})
        checkpoint.save(folder / "checkpoints" / "mp_hcnn" / name, model)
    return folder


@pytest.fixture
def search(command: Command, home: Path, data: Path, tmp_path: Path, monkeypatch: Patch) -> Command:
    """Runs a search with the home and data of this file, without Java; it writes ``run``."""
    monkeypatch.setitem(sys.modules, "jnius", None)
    monkeypatch.setenv("TWEETRERANK_HOME", str(home))
    monkeypatch.setenv("TWEETRERANK_DATA", str(data))
    monkeypatch.chdir(tmp_path)
    # The small checkpoints' frequencies are made up, so the source is to be named.
    return partial(command, "search", "--idf", "wordfreq", "--output", "run", "--topics")


def test_answers_are_ranked_by_the_model_alone(search: Command, home: Path) -> None:
    result = search("trecqa-raw", code=0)
    assert "λ = 1 (nothing to mix: the candidates are given without scores)" in result.err
    # It was trained on another part of the collection.
    assert "was trained on" not in result.err
    lines = result.out.splitlines()
    assert lines[0].startswith("trecqa-raw, 4 judged topics")
    assert lines[0].split()[-3:] == ["AP", "RR", "ms/topic"]
    rows = [line.partition(" -> ")[0].rsplit(maxsplit=3)[0] for line in lines[1:3]]
    assert rows == ["given, by id", "mp_hcnn"]
    assert {q: len(scores) for q, scores in read_run("run").items()} == SIZES
    assert not (home / "indexes").exists()
    result = search("trecqa-raw", "--lambda", "0.25", code=0)
    assert "λ = 0.25 (given)" in result.err
    assert "mp_hcnn + given, by id (λ = 0.25)" in result.out


def test_evaluation_has_the_collections_measures(search: Command, command: Command) -> None:
    result = search("wikiqa", "--reranker", "none", code=0)
    assert "wikiqa has no judgments here" in result.out
    # Without a model the ids decide.
    for scores in read_run("run").values():
        order = [doc_id for doc_id, _ in ranked(scores)]
        assert order == sorted(order, reverse=True)
    assert "wikiqa has no judgments here" in command("evaluate", "wikiqa", "run", code=1).err
    search("trecqa-raw", "--reranker", "none")
    result = command("evaluate", "trecqa-raw", "run", code=0)
    lines = result.out.splitlines()
    assert (lines[0], lines[1].split()) == ("trecqa-raw, 4 judged topics", ["AP", "RR"])
    assert "judged topics without a relevant document, always 0 (1): 3.4" in result.err


def test_a_run_of_ones_own_is_mixed(search: Command) -> None:
    given = Path("given")
    given.write_text("3.1 Q0 3.1-0 1 9 x\n3.1 Q0 3.1-5 2 8 x\n3.2 Q0 3.2-1 1 7 x\n")
    result = search("trecqa-raw", "--candidates", given, "--hits", "1", code=0)
    assert "mp_hcnn + given (λ = 0.5)" in result.out
    assert "λ = 0.5 (not tuned: choose one by --lambda)" in result.err
    assert {q: list(s) for q, s in read_run("run").items()} == {"3.1": ["3.1-0"], "3.2": ["3.2-1"]}
    given.write_text("3.1 Q0 3.1-9 1 9 x\n")
    result = search("trecqa-raw", "--candidates", given, code=1)
    assert "not in the collection (3.1-9)" in result.err


def test_nothing_says_how_to_search(search: Command) -> None:
    options = {"--method": "ql", "--mu": 5, "--parameter": "mu=1", "--index": ".", "--hits": 5}
    words = [word for option in options.items() for word in option]
    result = search("trecqa-raw", *words, code=2)
    for flag in options:
        assert f"  {flag}: trecqa-raw is not searched, its candidates are given" in result.err
    assert not Path("run").exists()


def test_the_real_collections(data_dir: Path) -> None:
    sizes = {}
    for name in NAMES:
        parts = [named.find_answers(name, data_dir).part(p) for p in ("train", "dev", "test")]
        if any(part.missing() for part in parts):
            pytest.skip(f"no {name} in the data folder")
        sizes[name] = [(len(part.topics), len(list(part.posts()))) for part in parts]
    for kind in ("raw", "clean"):
        assert sizes[f"trecqa-all-{kind}"] == [(1229, 53417), *sizes[f"trecqa-{kind}"][1:]]
    assert sizes["trecqa-raw"][::2] == [(93, 4718), (95, 1517)]
    assert sizes["trecqa-clean"][2] == (68, 1442)
    assert [topics for topics, _ in sizes["wikiqa"]] == [873, 126, 243]
    assert sizes["wikiqa"][2][1] == 2351
    raw, clean, wiki = (named.find(name, data_dir).qrels or {} for name in NAMES[:3])
    assert set(clean) <= set(raw)
    found = [(len(qrels), len(without_relevant(qrels))) for qrels in (raw, clean, wiki)]
    assert found == [(95, 6), (68, 0), (243, 0)]
