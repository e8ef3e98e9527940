"""Named collections, those in forms of others or in memory, and the locations of data."""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Command, Patch
from helpers.batch_samples import write_lines

import indexes
from indexes import CollectionError, Post, QueryLikelihood
from pipeline.collections import named
from pipeline.collections.collection import Collection
from pipeline.collections.topics import Topic
from pipeline.errors import DataError, UsageError


def test_names_and_aliases() -> None:
    folders = {name: named.find(name).index_directory for name in named.names()}
    assert {"sample", "trecqa-raw", "trecqa-clean", "wikiqa"} <= folders.keys()
    # Two years share their tweets.
    assert folders["mb2011"] == folders["mb2012"] != folders["mb2013"] == folders["mb2014"]
    assert named.find("mb11").name == "mb2011"
    with pytest.raises(UsageError, match="did you mean 'mb2012'"):
        named.find("mb20012")


def test_missing_data_says_how_to_fetch_it(tmp_path: Path) -> None:
    collection = named.find("mb2012", tmp_path)
    for read in (lambda: collection.topics, lambda: list(collection.posts())):
        with pytest.raises(DataError, match="tweetrerank fetch mb2012"):
            read()
    assert collection.qrels is None
    assert "mb2012 has no judgments" in collection.missing_judgments
    with pytest.raises(DataError, match="tweetrerank fetch"):
        named.training_collections("mb2012", tmp_path)


def test_posts_of_a_pool_come_once_and_sorted(tmp_path: Path) -> None:
    microblog = tmp_path / "microblog"
    (microblog / "runs").mkdir(parents=True)
    (microblog / "runs" / "run.microblog2011.RM3.txt").touch()
    (microblog / "topics.microblog2011.txt").write_text("1\tquery\n")
    for year, rows in {"2011": "30 c\n9 a\n", "2012": "9 a\n100 d\n30 other\n"}.items():
        ids, texts = zip(*map(str.split, rows.splitlines()), strict=True)
        (folder := microblog / f"trec-{year}").mkdir()
        (folder / "a.toks").write_text("query\n" * len(ids))
        (folder / "b.toks").write_text("".join(f"{text}\n" for text in texts))
        (folder / "id.txt").write_text("".join(f"1 Q0 {name} 1 1.0 x\n" for name in ids))
    posts = named.find("mb2011", tmp_path).posts()
    assert [(post.doc_id, post.text) for post in posts] == [("9", "a"), ("30", "c"), ("100", "d")]


# Forms of others, and values in memory

POSTS = [
    {"_id": "d1", "title": "Harbour", "text": "storm closes the harbour"},
    {"_id": "d2", "title": "", "text": "ferry tickets"},
    {"_id": "d3", "title": "storm", "text": "storm is over"},
]
TEXTS = {"d1": "Harbour storm closes the harbour", "d2": "ferry tickets", "d3": "storm is over"}
QUERIES = {"a": "storm harbour", "b": "ferry tickets", "c": "storm"}


@pytest.fixture
def beir(tmp_path: Path) -> Path:
    """A folder in BEIR's form, with a training and a test part."""
    folder = tmp_path / "harbour"
    (folder / "qrels").mkdir(parents=True)
    write_lines(folder / "corpus.jsonl", POSTS)
    write_lines(folder / "queries.jsonl", [{"_id": q, "text": t} for q, t in QUERIES.items()])
    for part, line in {"test": "a\td1\t2", "train": "b\td2\t1"}.items():
        (folder / "qrels" / f"{part}.tsv").write_text(f"query-id\tcorpus-id\tscore\n{line}\n")
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
    with pytest.raises(DataError, match=r"found no queries\.jsonl, expected one beside corpus"):
        named.open_collection(beir=beir)


def frame(rows: list[dict[str, Any]]) -> Any:
    return importlib.import_module("pandas").DataFrame(rows)


@pytest.mark.parametrize("of", [list, frame], ids=["dictionaries", "frame"])
def test_values_in_memory(of: Callable[[list[dict[str, Any]]], Any]) -> None:
    topics = of([{"qid": q, "query": text} for q, text in QUERIES.items()])
    qrels = of([{"qid": "a", "docno": "d1", "label": 1}, {"qid": "b", "docno": "d2", "label": 0}])
    collection = named.open_collection(posts=of(POSTS), topics=topics, qrels=qrels)
    assert texts_of(collection) == TEXTS
    assert {topic.query_id: topic.text for topic in collection.topics} == QUERIES
    assert collection.qrels == {"a": {"d1": 1}, "b": {"d2": 0}}
    with collection.open_index() as index:
        assert list(index.search(collection.topics, QueryLikelihood())["b"]) == ["d2"]
    # Other topics search the same index, and changed posts are mended; commands see the latest.
    posts = collection.file.with_name("posts.jsonl")
    posts.write_text(posts.read_text().replace("d1", "d7"))
    again = named.open_collection(posts=POSTS, topics={"x": "ferry"}, qrels={"x": {"d2": 1}})
    assert again.index_directory == collection.index_directory and again.index_directory.exists()
    assert texts_of(again) == TEXTS
    assert named.find(str(again.file)).topics == again.topics == [Topic("x", "ferry")]
    assert collection.topics[0].query_id == "a"


def test_topics_in_memory_for_an_index(tmp_path: Path) -> None:
    indexes.build([Post("1", "storm")], tmp_path / "index")
    collection = named.open_collection(
        topics={"a": "storm"}, index=tmp_path / "index", qrels={"a": {"1": 1}}
    )
    assert collection.topics == [Topic("a", "storm")] and collection.qrels == {"a": {"1": 1}}
    assert texts_of(collection) == {"1": "storm"}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"posts": [{"text": "a"}]}, r'posts\[0\]: found the keys "text", expected an id under'),
        ({"posts": ["a"]}, r"posts\[0\]: found '\"a\"', expected a dictionary"),
        ({"topics": {"a": 1}}, r"topics\[0\]: found text '1', expected a text"),
        ({"topics": [{"qid": "a"}]}, r'topics\[0\]: found the keys "qid", expected a text under'),
        ({"qrels": {"a": {"1": "x"}}}, r"qrels\[0\]: found the relevance .*x.*, expected a whole"),
        ({"qrels": {"a": {"1": 0.5}}}, r"qrels\[0\]: found the relevance '0.5', expected a whole"),
        ({"qrels": {}}, "qrels: found no judgment, expected rows"),
        ({"qrels": {"x": {"1": 1}}}, "has judgments for no topic of"),
        ({"topics": None}, "found no topics, expected a file of them"),
    ],
)
def test_malformed_values(values: dict[str, Any], message: str) -> None:
    good = {"posts": [{"id": 1, "text": "a"}], "topics": {"a": "storm"}}
    with pytest.raises((DataError, CollectionError), match=message):
        _ = named.open_collection(**good | values).topics


def test_a_post_with_the_query_s_id_does_not_count(beir: Path, command: Command) -> None:
    """BEIR's figures leave the query itself out."""
    lines = [{"_id": name, "text": "storm in the harbour"} for name in ("q1", "d1")]
    write_lines(beir / "corpus.jsonl", lines)
    write_lines(beir / "queries.jsonl", [{"_id": "q1", "text": "storm harbour"}])
    (beir / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\t1\n")
    run = beir / "run"
    for options in ((), ("--reranker", "none")):
        done = command("search", "--collection", beir, "--output", run, *options)
        assert [line.split()[2] for line in run.read_text().splitlines()] == ["d1"]
        assert "1.0000" in done.out
    run.write_text("q1 Q0 q1 1 2 x\nq1 Q0 d1 2 1 x\n")
    assert "1.0000" in command("evaluate", beir, run, "-m", "AP").out


def test_a_collection_is_named_in_one_way(tmp_path: Path) -> None:
    for values in ({}, {"beir": tmp_path, "posts": []}, {"beir": tmp_path, "ir_dataset": "x"}):
        with pytest.raises(UsageError, match="expected one of name, posts, topics, beir and ir_d"):
            named.open_collection(**values)
    given = named.open_collection("sample", qrels={"1": {"101": 1}})
    assert given.qrels == {"1": {"101": 1}}


def test_data_sets_of_ir_datasets(tmp_path: Path, monkeypatch: Patch) -> None:
    ir_datasets = pytest.importorskip("ir_datasets")
    files = {
        "docs_tsv": "d1\tstorm closes\nd2\tferry\n",
        "queries_tsv": "a\tstorm\n",
        "qrels_trec": "a 0 d1 1\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    dataset = ir_datasets.create_dataset(**{name: str(tmp_path / name) for name in files})
    monkeypatch.setattr(ir_datasets.registry, "_registered", {})
    ir_datasets.registry.register("tests/harbour", dataset)
    for given in (dataset, "tests/harbour", ir_datasets.load("tests/harbour")):
        collection = named.open_collection(ir_dataset=given)
        assert texts_of(collection) == {"d1": "storm closes", "d2": "ferry"}
        assert collection.topics == [Topic("a", "storm")] and collection.qrels == {"a": {"d1": 1}}
    assert collection.name == "tests-harbour"
    with pytest.raises(UsageError, match="did you mean 'tests/harbour'"):
        named.open_collection(ir_dataset="tests/harbor")
