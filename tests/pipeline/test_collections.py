"""Collections: named ones, forms of others, values in memory, questions with given answers."""

import sys
from functools import partial
from pathlib import Path
from typing import Any

import pandas
import pytest
from conftest import Command, Patch
from helpers.index_samples import table, write_lines
from helpers.reranking_samples import network, small_model

from tweetrerank.indexes.data_error import DataError
from tweetrerank.indexes.lucene_index import build
from tweetrerank.indexes.methods import QueryLikelihood
from tweetrerank.indexes.posts import Post
from tweetrerank.pipeline.collections import named
from tweetrerank.pipeline.collections.collection import Collection
from tweetrerank.pipeline.collections.sources import Answers, PairFolders
from tweetrerank.pipeline.collections.topics import Topic
from tweetrerank.pipeline.collections.trec import ranked, read_run
from tweetrerank.pipeline.evaluation.measures import without_relevant
from tweetrerank.pipeline.ranking import checkpoints
from tweetrerank.pipeline.usage_error import UsageError
from tweetrerank.rerankers import checkpoint


def test_names_and_aliases() -> None:
    folders = {name: named.find(name).index_directory for name in named.names()}
    assert {"sample", "trecqa-raw", "trecqa-clean", "wikiqa"} <= folders.keys()
    # Two years share their tweets.
    assert (
        folders["mb2011"] == folders["mb2012"] != folders["mb2013"] == folders["mb2014"]
    )
    assert named.find("mb11").name == "mb2011"
    with pytest.raises(UsageError, match="did you mean 'mb2012'"):
        named.find("mb20012")


def test_posts_of_a_pool_come_once_and_sorted(tmp_path: Path) -> None:
    microblog = tmp_path / "microblog"
    files = {
        "runs/run.microblog2011.RM3.txt": "",
        "topics.microblog2011.txt": "1\tquery\n",
    }
    for year, ids, texts, urls in (
        ("2011", ["30", "9"], "c\n\n", "\nhttp://u\n"),
        ("2012", ["9", "100", "30"], "a\nd\nother\n", "\n\n\n"),
    ):
        run = "".join(f"1 Q0 {name} 1 1.0 x\n" for name in ids)
        parts = {
            "a.toks": "query\n" * len(ids),
            "b.toks": texts,
            "url.txt": urls,
            "id.txt": run,
        }
        files |= {f"trec-{year}/{name}": text for name, text in parts.items()}
    for name, text in files.items():
        (microblog / name).parent.mkdir(parents=True, exist_ok=True)
        (microblog / name).write_text(text)
    posts = named.find("mb2011", tmp_path).posts()
    assert [(post.doc_id, post.text) for post in posts] == [
        ("9", "a"),
        ("30", "c"),
        ("100", "d"),
    ]


POSTS = [
    {"_id": "d1", "title": "Harbour", "text": "storm closes the harbour"},
    {"_id": "d2", "title": "", "text": "ferry tickets"},
    {"_id": "d3", "title": "storm", "text": "storm is over"},
]
TEXTS = {
    "d1": "Harbour storm closes the harbour",
    "d2": "ferry tickets",
    "d3": "storm is over",
}
QUERIES = {"a": "storm harbour", "b": "ferry tickets", "c": "storm"}
BAD = table("bad_values.jsonl")
NAMES = ["trecqa-raw", "trecqa-clean", "wikiqa", "trecqa-all-raw", "trecqa-all-clean"]
SIZES = {"3.1": 6, "3.2": 7, "3.3": 5, "3.4": 6}
"""Questions of TrecQA's raw test part -> number of answers."""
FILES = {
    "a.toks": ["first ?", "first, again ?", "second ?"],
    "b.toks": ["one .", "", "one ."],
}
FILES |= {"id.txt": ["32.1", "32.1", "32.10"], "sim.txt": ["1", "0", "0"]}


@pytest.fixture
def beir(tmp_path: Path) -> Path:
    """A folder in BEIR's form, with a training and a test part."""
    folder = tmp_path / "harbour"
    (folder / "qrels").mkdir(parents=True)
    write_lines(folder / "corpus.jsonl", POSTS)
    write_lines(
        folder / "queries.jsonl", [{"_id": q, "text": t} for q, t in QUERIES.items()]
    )
    for part, line in {"test": "a\td1\t2", "train": "b\td2\t1"}.items():
        (folder / "qrels" / f"{part}.tsv").write_text(
            f"query-id\tcorpus-id\tscore\n{line}\n"
        )
    return folder


def texts_of(collection: Collection) -> dict[str, str]:
    return {post.doc_id: post.text for post in collection.posts()}


def test_a_folder_of_beir(beir: Path, tmp_path: Path) -> None:
    collection = named.open_collection(beir=beir)
    assert (collection.name, texts_of(collection)) == ("harbour", TEXTS)
    assert [topic.query_id for topic in collection.topics] == ["a"]
    assert collection.qrels == {"a": {"d1": 2}}
    assert [topic.query_id for topic in collection.training_topics] == ["b"]
    assert collection.training_qrels == {"a": {"d1": 2}, "b": {"d2": 1}}
    assert named.find(str(beir)) == named.open_collection(beir) == collection
    # The same files in an own collection.
    toml = tmp_path / "mine.toml"
    toml.write_text(
        'posts = "harbour/corpus.jsonl"\ntopics = "harbour/queries.jsonl"\n'
        'qrels = "harbour/qrels/test.tsv"\ntrain_qrels = "harbour/qrels/train.tsv"\n'
    )
    own = named.find(str(toml))
    assert (own.topics, own.qrels) == (collection.topics, collection.qrels)
    assert own.training_topics == collection.training_topics
    given = named.open_collection(toml, qrels=beir / "qrels" / "train.tsv")
    assert [topic.query_id for topic in given.topics] == ["b"]
    (beir / "queries.jsonl").unlink()
    with pytest.raises(
        DataError, match=r"found no queries\.jsonl, expected one beside corpus"
    ):
        named.open_collection(beir=beir)


@pytest.mark.parametrize("of", [list, pandas.DataFrame])
def test_values_in_memory(of: Any) -> None:
    topics = of([{"qid": q, "query": text} for q, text in QUERIES.items()])
    qrels = of(
        [
            {"qid": "a", "docno": "d1", "label": 1},
            {"qid": "b", "docno": "d2", "label": 0},
        ]
    )
    collection = named.open_collection(posts=of(POSTS), topics=topics, qrels=qrels)
    assert texts_of(collection) == TEXTS
    assert {topic.query_id: topic.text for topic in collection.topics} == QUERIES
    assert collection.qrels == {"a": {"d1": 1}, "b": {"d2": 0}}
    with collection.open_index() as index:
        assert list(index.search(collection.topics, QueryLikelihood())["b"]) == ["d2"]
    # Other topics search the same index, and changed posts are mended; commands see the latest.
    posts = collection.file.with_name("posts.jsonl")
    posts.write_text(posts.read_text().replace("d1", "d7"))
    again = named.open_collection(
        posts=POSTS, topics={"x": "ferry"}, qrels={"x": {"d2": 1}}
    )
    assert (
        again.index_directory == collection.index_directory
        and again.index_directory.exists()
    )
    assert texts_of(again) == TEXTS
    assert named.find(str(again.file)).topics == again.topics == [Topic("x", "ferry")]
    assert collection.topics[0].query_id == "a"


def test_topics_in_memory_for_an_index(tmp_path: Path) -> None:
    build([Post("1", "storm")], place := tmp_path / "index")
    mine = named.open_collection(
        topics={"a": "storm"}, index=place, qrels={"a": {"1": 1}}
    )
    assert mine.topics == [Topic("a", "storm")] and mine.qrels == {"a": {"1": 1}}
    assert texts_of(mine) == {"1": "storm"}


@pytest.mark.parametrize("row", [row for row in BAD if "values" in row])
def test_malformed_values(row: dict[str, Any]) -> None:
    good = {"posts": [{"id": 1, "text": "a"}], "topics": {"a": "storm"}}
    with pytest.raises((DataError, DataError), match=row["message"]):
        _ = named.open_collection(**good | row["values"]).topics


def test_a_post_with_the_query_s_id_does_not_count(
    beir: Path, command: Command
) -> None:
    """BEIR's figures leave the query itself out."""
    lines = [{"_id": name, "text": "storm in the harbour"} for name in ("q1", "d1")]
    write_lines(beir / "corpus.jsonl", lines)
    write_lines(beir / "queries.jsonl", [{"_id": "q1", "text": "storm harbour"}])
    (beir / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\t1\n")
    run = beir / "run"
    for options in ((), ("--reranker", "none")):
        assert (
            "1.0000"
            in command("search", "--collection", beir, "--output", run, *options).out
        )
        assert [line.split()[2] for line in run.read_text().splitlines()] == ["d1"]
    run.write_text("q1 Q0 q1 1 2 x\nq1 Q0 d1 2 1 x\n")
    assert "1.0000" in command("evaluate", beir, run, "-m", "AP").out


def test_a_collection_is_named_in_one_way(tmp_path: Path) -> None:
    for values in (
        {},
        {"beir": tmp_path, "posts": []},
        {"beir": tmp_path, "ir_dataset": "x"},
    ):
        with pytest.raises(
            UsageError, match="expected one of name, posts, topics, beir and ir_d"
        ):
            named.open_collection(**values)
    assert named.open_collection("sample", qrels={"1": {"101": 1}}).qrels == {
        "1": {"101": 1}
    }


def test_data_sets_of_ir_datasets(tmp_path: Path, monkeypatch: Patch) -> None:
    ir_datasets = pytest.importorskip("ir_datasets")
    files = {"docs_tsv": "d1\tstorm closes\nd2\tferry\n", "queries_tsv": "a\tstorm\n"}
    files["qrels_trec"] = "a 0 d1 1\n"
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    dataset = ir_datasets.create_dataset(
        **{name: str(tmp_path / name) for name in files}
    )
    monkeypatch.setattr(ir_datasets.registry, "_registered", {})
    ir_datasets.registry.register("tests/harbour", dataset)
    for given in (dataset, "tests/harbour", ir_datasets.load("tests/harbour")):
        collection = named.open_collection(ir_dataset=given)
        assert texts_of(collection) == {"d1": "storm closes", "d2": "ferry"}
        assert collection.topics == [Topic("a", "storm")] and collection.qrels == {
            "a": {"d1": 1}
        }
    assert collection.name == "tests-harbour"
    with pytest.raises(UsageError, match="did you mean 'tests/harbour'"):
        named.open_collection(ir_dataset="tests/harbor")


def folder_of(folder: Path, **changed: list[str] | None) -> Path:
    for name, lines in {**FILES, **changed}.items():
        if lines is not None:
            (folder / name).write_text("".join(f"{line}\n" for line in lines))
    return folder


def test_answers_are_counted_where_only_questions_have_ids(tmp_path: Path) -> None:
    answers = Answers({"test": folder_of(tmp_path)})
    assert answers.topics() == [Topic("32.1", "first ?"), Topic("32.10", "second ?")]
    assert answers.qrels() == {
        "32.1": {"32.1-0": 1, "32.1-1": 0},
        "32.10": {"32.10-0": 0},
    }
    assert [post.text for post in answers.posts()] == ["one .", "", "one ."]
    (tmp_path / "sim.txt").unlink()
    ids = ["Q11-D11-0", "Q11-D11-3", "Q2-D0-0"]
    answers = Answers({"test": folder_of(tmp_path, **{"id.txt": ids, "sim.txt": None})})
    assert answers.candidates() == {
        "Q11": dict.fromkeys(ids[:2], 0.0),
        "Q2": {ids[2]: 0.0},
    }


@pytest.mark.parametrize("row", [row for row in BAD if "file" in row])
def test_bad_folders(tmp_path: Path, row: dict[str, Any]) -> None:
    with pytest.raises(DataError, match=row["message"]):
        Answers({"test": folder_of(tmp_path, **{row["file"]: row["lines"]})}).topics()
    with pytest.raises(
        DataError, match=r"id\.txt:1: found '32\.1', expected `query_id Q0 doc_id"
    ):
        PairFolders([folder_of(tmp_path)]).posts()


def test_the_test_part_is_found(answers: Path) -> None:
    raw, clean = (named.find(name, answers) for name in NAMES[:2])
    assert [topic.query_id for topic in raw.topics] == list(SIZES)
    assert raw.topics[0].text.startswith("where is the library ")
    assert raw.qrels is not None and clean.qrels is not None
    assert {query_id: len(grades) for query_id, grades in raw.qrels.items()} == SIZES
    assert list(raw.qrels["3.1"].values()).count(1) == 2
    # The question without a relevant answer is judged as well.
    assert without_relevant(raw.qrels) == ["3.4"] and len(clean.topics) == 3
    assert raw.qrels == {**clean.qrels, "3.4": raw.qrels["3.4"]}


def test_missing_data_says_how_to_fetch_it(tmp_path: Path, answers: Path) -> None:
    absent = r"a\.toks and 2 more not found"
    microblog, questions = (
        named.find(name, tmp_path) for name in ("mb2012", "trecqa-clean")
    )
    # What may not be passed on is put there by hand.
    part = named.find_answers("trecqa-all-raw", tmp_path).part("train")
    for read, problem in (
        (lambda: microblog.topics, "tweetrerank fetch mb2012"),
        (lambda: [*microblog.posts()], "tweetrerank fetch mb2012"),
        (lambda: questions.topics, rf"{absent}(.|\n)*trecqa-clean"),
        (lambda: [*questions.posts()], rf"{absent}(.|\n)*trecqa-clean"),
        (part.require_files, rf"train-all/{absent}.*xuchen/jacana"),
        (lambda: named.training_collections("mb2012", tmp_path), "tweetrerank fetch"),
    ):
        with pytest.raises(DataError, match=problem):
            read()
    test = named.find("wikiqa", answers)
    assert not test.missing() and microblog.qrels is test.qrels is None
    assert "mb2012 has no judgments" in microblog.missing_judgments
    assert str(answers / "wikiqa" / "test" / "sim.txt") in test.missing_judgments


def test_only_these_collections_have_given_answers() -> None:
    for name, problem in {
        "mb2012": "",
        "trecqa": "",
        "wikiq": ".*did you mean 'wikiqa'",
    }.items():
        problem = f"found '{name}', expected a collection of questions{problem}"
        with pytest.raises(UsageError, match=problem):
            named.find_answers(name)
    with pytest.raises(UsageError, match=r"pipeline\.train MODEL --collection wikiqa"):
        named.training_collections("wikiqa")
    # A checkpoint for tweets is not one for answers.
    assert checkpoints.default_directory("mp_hcnn", "mine").name == "all"
    with pytest.raises(
        DataError, match=r"pipeline\.train mp_hcnn --collection trecqa-raw`"
    ):
        checkpoints.default_directory("mp_hcnn", "trecqa-raw")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    for name in NAMES:
        model = network(
            small_model("mp_hcnn", "robust"), metrics={"trained_on": [name]}
        )
        checkpoint.save(folder / "checkpoints" / "mp_hcnn" / name, model)
    return folder


@pytest.fixture
def search(
    command: Command, home: Path, answers: Path, tmp_path: Path, monkeypatch: Patch
) -> Any:
    """Runs a search with the home and data of this file, without Java; it writes ``run``."""
    monkeypatch.setitem(sys.modules, "jnius", None)
    monkeypatch.setenv("TWEETRERANK_HOME", str(home))
    monkeypatch.setenv("TWEETRERANK_DATA", str(answers))
    monkeypatch.chdir(tmp_path)
    # The small checkpoints' frequencies are made up, so the source is to be named.
    return partial(
        command, "search", "--idf", "wordfreq", "--output", "run", "--topics"
    )


def test_answers_are_ranked_by_the_model_alone(search: Command, home: Path) -> None:
    result = search("trecqa-raw", code=0)
    assert (
        "λ = 1 (nothing to mix: the candidates are given without scores)" in result.err
    )
    # It was trained on another part of the collection.
    assert "was trained on" not in result.err
    lines = result.out.splitlines()
    assert lines[0].startswith("trecqa-raw, 4 judged topics")
    assert lines[0].split()[-3:] == ["AP", "RR", "ms/topic"]
    rows = [line.partition(" -> ")[0].rsplit(maxsplit=3)[0] for line in lines[1:3]]
    assert rows == ["given, by id", "mp_hcnn"] and not (home / "indexes").exists()
    assert {q: len(scores) for q, scores in read_run("run").items()} == SIZES
    result = search("trecqa-raw", "--lambda", "0.25", code=0)
    assert (
        "λ = 0.25 (given)" in result.err
        and "mp_hcnn + given, by id (λ = 0.25)" in result.out
    )


def test_evaluation_has_the_collections_measures(
    search: Command, command: Command
) -> None:
    result = search("wikiqa", "--reranker", "none", code=0)
    # Without a model the ids decide.
    for scores in read_run("run").values():
        assert [d for d, _ in ranked(scores)] == sorted(scores, reverse=True)
    for told in (result.out, command("evaluate", "wikiqa", "run", code=1).err):
        assert "wikiqa has no judgments here" in told
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
    assert {q: list(s) for q, s in read_run("run").items()} == {
        "3.1": ["3.1-0"],
        "3.2": ["3.2-1"],
    }
    given.write_text("3.1 Q0 3.1-9 1 9 x\n")
    result = search("trecqa-raw", "--candidates", given, code=1)
    assert "not in the collection (3.1-9)" in result.err


def test_the_real_collections(data_dir: Path) -> None:
    sizes = {}
    for name in NAMES:
        parts = [
            named.find_answers(name, data_dir).part(p) for p in ("train", "dev", "test")
        ]
        if any(part.missing() for part in parts):
            pytest.skip(f"no {name} in the data folder")
        sizes[name] = [(len(part.topics), len(list(part.posts()))) for part in parts]
    for kind in ("raw", "clean"):
        assert sizes[f"trecqa-all-{kind}"] == [
            (1229, 53417),
            *sizes[f"trecqa-{kind}"][1:],
        ]
    assert sizes["trecqa-raw"][::2] == [(93, 4718), (95, 1517)]
    assert sizes["trecqa-clean"][2] == (68, 1442)
    assert [topics for topics, _ in sizes["wikiqa"]] == [873, 126, 243]
    assert sizes["wikiqa"][2][1] == 2351
    raw, clean, wiki = (named.find(name, data_dir).qrels or {} for name in NAMES[:3])
    assert set(clean) <= set(raw)
    found = [(len(qrels), len(without_relevant(qrels))) for qrels in (raw, clean, wiki)]
    assert found == [(95, 6), (68, 0), (243, 0)]
