"""Users' collections, described by a file, in place of a named one."""

import dataclasses
import json
import random
import shlex
from collections.abc import Iterator
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Capture, Command
from helpers.index_samples import write_lines

from tweetrerank.indexes.data_error import DataError
from tweetrerank.indexes.engines.address import EngineAddress
from tweetrerank.indexes.jvm import java_class, start
from tweetrerank.pipeline import tune
from tweetrerank.pipeline.collections.collection import Collection
from tweetrerank.pipeline.collections.index_place import IndexPlace
from tweetrerank.pipeline.collections.named import SAMPLE, find, open_collection
from tweetrerank.pipeline.collections.topics import Topic
from tweetrerank.pipeline.collections.trec import read_qrels
from tweetrerank.pipeline.defaults import (
    DEFAULT_FUSION,
    DEFAULT_MEASURES,
    DEFAULT_WINDOW,
)
from tweetrerank.pipeline.ranking.build import best_source, default_reranker
from tweetrerank.pipeline.ranking.checkpoints import load_model
from tweetrerank.pipeline.ranking.frequencies import file_of, named_frequencies
from tweetrerank.pipeline.ranking.interpolation import Tuning
from tweetrerank.pipeline.ranking.retrievers import retriever_for
from tweetrerank.pipeline.training.cross_validation import FEWEST
from tweetrerank.pipeline.training.training_set import own_training_set
from tweetrerank.rerankers.checkpoint import find as find_model
from tweetrerank.rerankers.checkpoint import load, write_config
from tweetrerank.rerankers.features.judged import JUDGED
from tweetrerank.rerankers.reranker import Reranker

case = pytest.param

MONDAY = {"1": "storm closes the harbour", "2": "harbour festival opens on friday"}
TUESDAY = {"3": "ferry tickets sold out", "4": "the storm is over"}

POSTS = 'posts = ["posts-*.jsonl"]\n'
TOPICS = 'topics = "topics.tsv"\n'
QRELS = 'qrels = "qrels.txt"\n'
TOML = POSTS + TOPICS + QRELS
ENGINE = 'engine = "http://a"\n'


def write_posts(path: Path, texts: dict[str, str]) -> None:
    write_lines(path, [{"id": doc_id, "text": text} for doc_id, text in texts.items()])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A collection of four posts and two topics."""
    folder = tmp_path / "my posts"
    folder.mkdir()
    write_posts(folder / "posts-monday.jsonl", MONDAY)
    write_posts(folder / "posts-tuesday.jsonl", TUESDAY)
    (folder / "topics.tsv").write_text("a\tstorm harbour\nb\tferry tickets\n")
    (folder / "qrels.txt").write_text("a 0 1 1\na 0 2 0\nb 0 3 1\n")
    (folder / "harbour.toml").write_text(TOML)
    return folder


@pytest.fixture
def toml(folder: Path) -> Path:
    return folder / "harbour.toml"


def topic_ids(topics: list[Topic]) -> list[str]:
    return [topic.query_id for topic in topics]


def doc_ids(collection: Collection) -> list[str]:
    return [post.doc_id for post in collection.posts()]


def test_file_describes_a_collection(toml: Path) -> None:
    collection = find(str(toml))
    assert collection.name == "harbour"
    assert topic_ids(collection.topics) == ["a", "b"]
    assert doc_ids(collection) == ["1", "2", "3", "4"]
    assert collection.qrels == {"a": {"1": 1, "2": 0}, "b": {"3": 1}}


def test_file_without_judgments(folder: Path, toml: Path) -> None:
    toml.write_text('posts = "posts-monday.jsonl"\n' + TOPICS)
    collection = open_collection(toml)
    assert doc_ids(collection) == ["1", "2"]
    assert collection.qrels is None
    assert "--qrels" in collection.missing_judgments
    assert open_collection(toml, qrels=folder / "qrels.txt").qrels is not None


@pytest.mark.parametrize(
    ("content", "problems"),
    [
        case(
            'posts = ["nothing-*.jsonl", "posts-*.jsonl"]\ntopic = "topics.tsv"\n'
            "qrels = 3\n",
            [
                "found the key 'topic', expected posts, topics, qrels, train, "
                "train_qrels, ",
                "did you mean 'topics'?",
                "posts: found no file 'nothing-*.jsonl'",
                "qrels: found 3, expected the name of a file",
            ],
            id="misspelt key, pattern without files, number for a name",
        ),
        case(
            'posts = 4\ntopics = "absent.tsv"\n',
            ["posts: found 4", "no file 'absent.tsv'"],
            id="number for a name, absent file",
        ),
        case(
            POSTS + 'topics = "qrels.txt"\nqrels = "topics.tsv"\n',
            ["topics: ", "qrels.txt:1: ", "qrels: ", "topics.tsv:1: "],
            id="topics and judgments exchanged",
        ),
        case("posts = [", ["found no TOML"], id="malformed TOML"),
        case("language = 1", ["found no posts", "language: found 1"], id="no posts"),
        case(
            POSTS + TOPICS + 'train_qrels = "qrels.txt"\n',
            ["train_qrels: found without qrels"],
            id="judgments for training alone",
        ),
        case(
            TOML + 'train = "others.tsv"\nlanguage = "enn"\n',
            [
                "train: found no file 'others.tsv'",
                "language: found 'enn', expected one of ar, ",
                "did you mean 'en'?",
            ],
            id="absent topics for training, unknown language",
        ),
        case(
            TOML + 'train = "other-text.tsv"\nlanguage = ["en"]\n',
            [
                "other-text.tsv has another text of topic b ('bus tickets')",
                "found ['en']",
            ],
            id="topic with two texts, list of languages",
        ),
        case(
            TOML + 'train = "unjudged.tsv"\njudged_only = "yes"\n',
            [
                "judged_only: found 'yes', expected true or false",
                "train: ",
                "qrels.txt has judgments for no topic of",
            ],
            id="unjudged topics for training, text for a flag",
        ),
        case(
            POSTS + TOPICS + 'qrels = "others.txt"\n',
            ["has judgments for no topic of"],
            id="judgments of other topics",
        ),
        case(
            TOML + 'text_field = "body"\n',
            ['text_field needs engine = "URL"'],
            id="field of an engine without its address",
        ),
        case(
            TOPICS + QRELS + ENGINE,
            ["found no posts, expected files"],
            id="engine without posts",
        ),
        case(
            TOML + ENGINE + 'text_field = "body"\n',
            ["posts: found with text_field"],
            id="files and an existing index",
        ),
        case(
            TOML + 'engine = "a:9200"\n',
            ["engine: found 'a:9200', expected the address of a search"],
            id="address without a scheme",
        ),
        case(
            TOML + "engine = 9200\n",
            ["engine: found 9200, expected a text"],
            id="number for an address",
        ),
        case(
            TOML + ENGINE + 'url_field = "link"\n',
            ["found url_field without text_field"],
            id="links without texts",
        ),
        case(
            TOML + 'enginge = "http://a"\n',
            ["did you mean 'engine'?"],
            id="misspelt engine",
        ),
        case(
            TOPICS + QRELS + ENGINE + 'text_field = "body"\nquery = "none.json"\n',
            ["engine: found no file 'none.json' of a query"],
            id="absent file of a query",
        ),
    ],
)
def test_all_problems_are_named_together(
    folder: Path, toml: Path, content: str, problems: list[str]
) -> None:
    (folder / "others.txt").write_text("x 0 1 1\n")
    (folder / "other-text.tsv").write_text("b\tbus tickets\n")
    (folder / "unjudged.tsv").write_text("c\tferry\n")
    toml.write_text(content)
    with pytest.raises(DataError) as error:
        find(str(toml))
    message = str(error.value)
    for line in message.splitlines():
        assert line.startswith(str(toml))
    assert [problem for problem in problems if problem not in message] == []


@pytest.fixture
def in_several_files(folder: Path, toml: Path) -> Path:
    """A file with a name, columns, and two files of topics and of judgments."""
    (folder / "posts.csv").write_text(
        "number,body\n1,storm closes the harbour\n3,ferry\n"
    )
    more = [{"qid": "a", "query": "storm harbour"}, {"qid": "3", "query": "x"}]
    write_lines(folder / "more.jsonl", more)
    (folder / "grades.csv").write_text("qid,docno,label\na,1,2.0\nMB003,3,1\n")
    toml.write_text(
        'posts = "posts.csv"\ncolumns = {id = "number", text = "body"}\n'
        'name = "mine"\ntopics = ["topics.tsv", "more.jsonl"]\n'
        'qrels = ["qrels.txt", "grades.csv"]\n'
    )
    return toml


def test_lists_a_name_and_columns(in_several_files: Path, capsys: Capture) -> None:
    collection = find(str(in_several_files))
    assert (collection.name, collection.key) == ("mine", "own/mine")
    assert topic_ids(collection.topics) == ["a", "b", "3"]
    assert collection.qrels == {"a": {"1": 2, "2": 0}, "b": {"3": 1}, "3": {"3": 1}}
    texts = [post.text for post in collection.posts()]
    assert texts == ["storm closes the harbour", "ferry"]
    errors = capsys.readouterr().err
    assert "1 grades differ, those of the later file count" in errors
    assert "grades.csv: 1 ids of topics have another form" in errors
    assert "(MB003 for 3)" in errors


def test_two_files_with_two_texts_of_a_topic(in_several_files: Path) -> None:
    more = in_several_files.with_name("more.jsonl")
    write_lines(more, [{"qid": "a", "query": "other"}])
    problem = "found topic a as 'other', expected 'storm harbour' as in"
    with pytest.raises(DataError, match=problem):
        find(str(in_several_files))


Search = Command
"""A search in the user's collection, whose arguments are further options."""


@pytest.fixture
def search(folder: Path, toml: Path, command: Command) -> Search:
    by_first_stage = partial(command, "search", "--reranker", "none")
    return partial(by_first_stage, "--collection", toml, "--output", folder / "run")


def test_judgments_of_other_topics_are_reported(
    folder: Path, search: Search, command: Command
) -> None:
    qrels = folder / "others.txt"
    qrels.write_text("x 0 1 1\ny 0 2 1\n")
    result = search("--qrels", qrels)
    assert "others.txt judges x, y, none of the topics here" in result.out
    assert "lacks, not counted (2): x, y" in result.err
    run = folder / "half.run"
    run.write_text("a Q0 1 1 1 t\n")
    problem = (
        "none of its 1 topics (a) is among the 2 judged ones (x, y), so all figures "
        "are 0"
    )
    assert problem in command("evaluate", qrels, run).err


def test_topics_without_results_are_reported(
    folder: Path, toml: Path, search: Search, command: Command
) -> None:
    run = folder / "half.run"
    run.write_text("a Q0 1 1 1 t\n")
    problem = "half.run: judged topics without a result, counted as 0 (1): b"
    assert problem in command("evaluate", toml, run).err
    assert problem in search("--candidates", run).err


def test_judged_posts_outside_of_the_collection_are_reported(
    folder: Path, toml: Path, search: Search, command: Command
) -> None:
    with (folder / "qrels.txt").open("a") as stream:
        stream.write("a 0 1.23E+17 1\nb 0 77 1\n")
    problem = (
        "2 of the 5 judged posts are not in harbour (1.23E+17, 77), whose posts have "
        "ids such as"
    )
    assert search().err.count(problem) == 1
    assert command("evaluate", toml, folder / "run").err.count(problem) == 1


def test_a_run_without_judged_posts_is_reported(
    folder: Path, search: Search, command: Command
) -> None:
    search()
    qrels = folder / "qrels.txt"
    qrels.write_text("a 0 8 1\na 0 9 1\n")
    problem = "is among the 2 judged ones (8, 9), so all figures are 0"
    assert problem in command("evaluate", qrels, folder / "run").err


def test_a_query_is_searched_in_the_terminal(toml: Path, command: Command) -> None:
    result = command("search", toml, "ferry tickets", "--reranker", "none")
    assert "ferry tickets sold out" in result.out
    assert result.out.split()[2] == "3"
    empty = command("search", "--collection", toml, "zebra")
    assert "found no post for “zebra”" in empty.out
    index = find(str(toml)).index_directory
    by_index = command("search", "--index", index, "ferry tickets")
    assert by_index.out.split()[2] == "3"
    assert "--index and a query" in command("search").err
    assert "--index and a query" in command("search", "--index", index).err
    assert "nothing was trained here" in command("models").out


LUCENE = "org.apache.lucene."


def write_lucene(folder: Path, fields: list[str]) -> None:
    """Write an index with stored ``fields``, like Pyserini; one post is replaced."""
    start()
    path = java_class("java.nio.file.Paths").get(str(folder))
    directory = java_class(f"{LUCENE}store.NIOFSDirectory")(path)
    config = java_class(f"{LUCENE}index.IndexWriterConfig")()
    writer = java_class(f"{LUCENE}index.IndexWriter")(directory, config)
    add_post(writer, "4", "old", fields)
    for doc_id, text in (MONDAY | TUESDAY).items():
        add_post(writer, doc_id, text, fields)
    writer.close()


def add_post(writer: Any, doc_id: str, text: str, fields: list[str]) -> None:
    string = java_class("java.lang.String")
    field_type = java_class(f"{LUCENE}document.StringField")
    stored = java_class(f"{LUCENE}document.Field$Store").YES
    signature = (
        "(Ljava/lang/String;Ljava/lang/String;"
        "Lorg/apache/lucene/document/Field$Store;)V"
    )
    values = {
        "id": doc_id,
        "contents": text,
        "raw": json.dumps({"contents": text}),
    }
    document = java_class(f"{LUCENE}document.Document")()
    for name in fields:
        value = string(values[name])
        document.add(field_type(name, value, stored, signature=signature))
    term = java_class(f"{LUCENE}index.Term")("id", string(doc_id))
    writer.updateDocument(term, document)


@pytest.mark.parametrize("option", ["--index", "--collection"])
@pytest.mark.parametrize("fields", [["id", "raw"], ["id", "contents"]])
def test_an_index_by_pyserini_is_searched(
    folder: Path, command: Command, fields: list[str], option: str
) -> None:
    index = folder / "lucene"
    write_lucene(index, fields)
    result = command("search", option, index, "storm", "--reranker", "none")
    assert [line.split()[2] for line in result.out.splitlines()] == ["4", "1"]


@pytest.mark.parametrize("option", ["--index", "--collection"])
@pytest.mark.parametrize(("stored", "lacking"), [("id", "text"), ("raw", "id")])
def test_an_index_without_stored_texts_or_ids_is_refused(
    folder: Path, command: Command, stored: str, lacking: str, option: str
) -> None:
    index = folder / "lucene"
    write_lucene(index, [stored])
    result = command("search", option, index, "storm", "--reranker", "none")
    assert result.out == ""
    assert f"found no stored {lacking}, expected" in result.err


@pytest.mark.parametrize(
    ("fields", "is_searched"),
    [
        (["id", "raw"], True),
        (["id", "contents"], True),
        (["id"], False),
        (["raw"], False),
    ],
)
def test_topics_of_an_index_by_pyserini(
    folder: Path, command: Command, fields: list[str], is_searched: bool
) -> None:
    write_lucene(folder / "lucene", fields)
    result = command(
        "search",
        "--topics",
        folder / "topics.tsv",
        "--qrels",
        folder / "qrels.txt",
        "--index",
        folder / "lucene",
        "--reranker",
        "none",
        "--output",
        folder / "run",
    )
    assert ("2 judged topics" in result.out) == is_searched


def test_topics_to_search_are_for_training_by_default(toml: Path) -> None:
    assert topic_ids(find(str(toml)).training_topics) == ["a", "b"]


@pytest.fixture
def with_train(folder: Path, toml: Path) -> Path:
    """The collection with topics for training: c, b, and d without judgments."""
    (folder / "train.tsv").write_text(
        "c\tharbour festival\nb\tferry tickets\nd\tnothing\n"
    )
    with (folder / "qrels.txt").open("a") as stream:
        stream.write("c 0 2 1\n")
    toml.write_text(TOML + 'train = "train.tsv"\nlanguage = "de"\n')
    return toml


def test_some_topics_are_for_training(with_train: Path) -> None:
    """They need not be among the topics to search; others are not trained on."""
    collection = find(str(with_train))
    assert topic_ids(collection.topics) == ["a", "b"]
    assert collection.language == "de"
    assert topic_ids(collection.training_topics) == ["c", "b"]
    # Topics that are not searched do not count as failures of a search.
    assert (collection.qrels or {}).keys() == {"a", "b"}
    assert (collection.training_qrels or {}).keys() == {"a", "b", "c"}


def test_judgments_may_be_of_topics_for_training_alone(with_train: Path) -> None:
    with_train.with_name("topics.tsv").write_text("z\tharbour\n")
    collection = find(str(with_train))
    assert collection.qrels is None
    assert "judges training topics only" in collection.missing_judgments
    training = own_training_set(collection).training
    assert topic_ids(training.candidates.topics) == ["c", "b"]


@pytest.mark.slow
def test_commands_accept_the_file(
    folder: Path, toml: Path, search: Search, command: Command
) -> None:
    """The first search builds the index, the next one uses it."""
    run = folder / "run"
    page = folder / "a.html"
    assert "building the index" in search(code=0).err
    assert run.read_text().split()[:3] == ["a", "Q0", "1"]
    assert "building the index" not in search(code=0).err
    by_topics = partial(command, "search", "--topics", toml, "--reranker", "none")
    assert "building the index" not in by_topics("--output", run, code=0).err
    command("explain", "--collection", toml, "--query-id", "a", "--output", page)
    assert "storm" in page.read_text()
    rerank = partial(command, "rerank", "--topics", toml, run)
    rerank("--output", folder / "again", "--reranker", "mp_hcnn", code=0)


@pytest.mark.slow
def test_new_posts_need_another_index(
    folder: Path, toml: Path, search: Search, command: Command
) -> None:
    search(code=0)
    write_posts(folder / "posts-wednesday.jsonl", {"5": "storm harbour storm"})
    problem = search(code=1).err
    assert "posts-tuesday.jsonl'], expected ['posts-" in problem
    # The command in the message works, although the folder's name has a blank.
    rebuild = shlex.split(problem.splitlines()[-1])
    command("index", *rebuild[3:], code=0)
    search(code=0)
    assert (folder / "run").read_text().split()[:3] == ["a", "Q0", "5"]
    assert set(doc_ids(find(str(toml)))) == {"1", "2", "3", "4", "5"}


@pytest.mark.slow
@pytest.mark.parametrize("idf", [None, "wordfreq"])
def test_word_frequencies_of_the_language(toml: Path, idf: str | None) -> None:
    toml.write_text(TOML + 'language = "de-AT"\n')
    model = load_model("mp_hcnn", find(str(toml)), idf=idf)
    assert model.idf.source == "wordfreq:de"


@pytest.mark.slow
def test_word_frequencies_of_a_file(folder: Path, toml: Path) -> None:
    toml.write_text(TOML + 'language = "de-AT"\n')
    path = folder / "idf.txt"
    path.write_text("4\nstorm\t2\n")
    model = load_model("mp_hcnn", find(str(toml)), idf=str(path))
    assert "wordfreq" not in model.idf.source


@pytest.mark.slow
def test_words_of_posts_have_their_frequencies_everywhere(
    tmp_path: Path, command: Command
) -> None:
    """In searches, services, batches, other processes and exported folders."""
    collection = find("sample")
    shipped = load(find_model("window"))
    command("export", "--collection", "sample", "--output", tmp_path / "copy", code=0)
    source = best_source(collection)
    model = load_model("window", collection)
    assert source.frequencies == file_of(collection)
    assert model.idf.source == source.idf
    posts = list(collection.posts())
    pairs = []
    for topic in collection.topics:
        pairs += [(topic.text, post.text) for post in posts]
    expected = Reranker(model).predict(pairs)
    for same in (source.load(), load(tmp_path / "copy"), copy(model)):
        np.testing.assert_array_equal(Reranker(same).predict(pairs), expected)
    assert (Reranker(shipped).predict(pairs) != expected).any()
    assert str(tmp_path) not in shipped.idf.source
    # Another word in the posts is another version of the source.
    before = source.version
    source.frequencies.write_text("874\nstorm\t800\n")
    assert source.version != before


@pytest.fixture
def with_engine(toml: Path) -> Collection:
    """The user's collection with its index in an engine."""
    place = IndexPlace(engine=EngineAddress("http://localhost:1", "posts"))
    return dataclasses.replace(find(str(toml)), index=place)


def test_words_are_counted_in_the_files_of_posts(
    toml: Path, with_engine: Collection
) -> None:
    frequencies = file_of(find(str(toml)))
    assert frequencies is not None
    content = frequencies.read_text()
    assert content.startswith("4\n")
    assert "storm\t2" in content
    of_engine = file_of(with_engine)
    assert of_engine is not None
    assert of_engine.read_text() == content


def test_words_of_an_existing_index_in_an_engine_are_not_counted(
    with_engine: Collection,
) -> None:
    """They are counted when the posts are read."""
    foreign = dataclasses.replace(with_engine, post_source=None)
    assert file_of(foreign) is None
    assert named_frequencies("posts", foreign) == "posts:en"
    assert named_frequencies("posts:de:own.tsv", foreign) == "posts:de:own.tsv"
    assert file_of(foreign, ["storm"]) == file_of(foreign)


def test_words_have_general_frequencies_if_counts_cannot_be_written(
    toml: Path, tmp_path: Path, capsys: Capture
) -> None:
    frequencies = file_of(find(str(toml)))
    assert frequencies is not None
    frequencies.parent.rename(tmp_path / "old")
    frequencies.parent.write_text("no folder")
    assert file_of(find(str(toml))) is None
    assert "words have general frequencies" in capsys.readouterr().err


def test_words_are_not_counted_in_an_index_of_other_posts(
    folder: Path, toml: Path, capsys: Capture
) -> None:
    find(str(toml)).open_index().close()
    (folder / "posts-monday.jsonl").unlink()
    assert file_of(find(str(toml))) is None
    assert "build it again" in capsys.readouterr().err


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    """The sample collection as a user's, and a file of word vectors."""
    (tmp_path / "sample2.toml").write_text(
        f'posts = "{SAMPLE / "posts.jsonl"}"\ntopics = "{SAMPLE / "topics.txt"}"\n'
        f'qrels = "{SAMPLE / "qrels.txt"}"\n'
    )
    (tmp_path / "vectors.txt").write_text("rain 1.0 0.5\nstorm 0.9 0.6\nbus -1.0 0.2\n")
    return tmp_path


def checkpoint_of(sample: Path, model: str) -> tuple[Path, Tuning]:
    """Return folder and tuning of the single trained model."""
    (folder,) = (sample / "home" / "checkpoints" / model / "own").iterdir()
    return folder, Tuning.load(folder / "lambda.json")


@pytest.mark.slow
def test_training_tunes_and_compares_on_held_out_topics(
    sample: Path, command: Command
) -> None:
    toml = sample / "sample2.toml"
    trained = command(
        "train",
        "knrm",
        "--collection",
        toml,
        "--set",
        "training.epochs=3",
        "--vectors",
        sample / "vectors.txt",
        "--threads",
        1,
        code=0,
    )
    assert "20 held-out topics:" in trained.out
    rows = [line.split() for line in trained.out.splitlines()]
    first_stage = next(float(row[2]) for row in rows if row[:2] == ["first", "stage"])
    folder, tuning = checkpoint_of(sample, "knrm")
    assert tuning.collections == ("sample2",)
    assert len(tuning.topics) == 20
    has_gain = tuning.cross_validated > first_stage
    assert has_gain or tuning.weight == 0
    assert ("no gain on held-out topics" not in trained.out) == has_gain
    search = partial(
        command,
        "search",
        "--collection",
        toml,
        "--output",
        sample / "run.txt",
        "--hits",
        10,
        "--reranker",
    )
    weight = f"λ = {tuning.weight:g} (tuned on sample2; {folder}"
    assert weight in search("knrm").err
    # The same scores give the same λ again. The model has not seen the topics.
    tune.main(tune.Options(collection=str(toml), reranker="knrm"))
    again = Tuning.load(folder / "lambda.json")
    assert set(again.topics) == set(tuning.topics)
    same: Any = {"checkpoint": "", "topics": ()}
    assert dataclasses.replace(again, **same) == dataclasses.replace(tuning, **same)
    tune.main(tune.Options(collection=str(toml)))
    path = sample / "home/lambda/mp_hcnn/all/own" / f"{folder.name}.json"
    weight = f"λ = {Tuning.load(path).weight:g} (tuned on sample2; {path}"
    assert weight in search("mp_hcnn").err


@pytest.mark.slow
@pytest.mark.parametrize("count", [20, 5])
def test_a_fusion_is_trained_and_searched_with(
    sample: Path, command: Command, count: int
) -> None:
    toml = sample / "sample2.toml"
    topics = find("sample").topics[:count]
    lines = [f"{topic.query_id}\t{topic.text}" for topic in topics]
    (sample / "train.tsv").write_text("\n".join(lines))
    toml.write_text(toml.read_text() + 'train = "train.tsv"\n')
    train = partial(command, "train", "fusion", "--collection", toml)
    trained = train("--set", "trees=20", "--threads", 1, code=0)
    assert "warning" not in trained.err
    assert f"{count} held-out topics:" in trained.out
    folder, tuning = checkpoint_of(sample, "fusion")
    families = json.loads((folder / "config.json").read_text())["config"]["families"]
    assert "signal:ql" in families
    assert "run_" not in families
    # Judged posts are recognized by their texts among any candidates.
    posts = find(str(toml)).judged_posts
    assert load(folder).resources[JUDGED].content() == posts.content()
    assert len(json.loads(posts.content())) == count
    assert len(tuning.topics) == count
    search_sample = partial(command, "search", "--collection", toml)
    search = partial(search_sample, "--output", sample / "run.txt", "--hits", 20)
    is_default = count >= FEWEST and tuning.cross_validated > tuning.curve[0.0]
    assert ("fusion, trained on" in search(code=0).err) == is_default
    named = search("--reranker", "fusion", "--checkpoint", folder)
    assert "\nfusion " in named.out
    assert ("was trained on sample2;" in named.err) == (count == 20)
    some = f"trained on {count} of the 20 judged topics of sample2"
    assert (some in named.err) == (count < 20)


def write_trained(folder: Path, model: str, weight: float, figure: float) -> None:
    """Write a checkpoint's files with a weight and its figure on held-out topics."""
    tuning = Tuning(
        weight, {0.0: 0.4, 1.0: figure}, figure, (), "AP", "none", 5, 1, ("a",)
    )
    folder.mkdir(parents=True)
    tuning.save(folder / "lambda.json")
    write_config(folder, {"model": model})


def test_search_uses_the_best_trained_model(toml: Path) -> None:
    def write(model: str, weight: float, figure: float) -> None:
        folder = toml.parent.parent / "home" / "checkpoints" / model
        write_trained(folder / find(str(toml)).key, model, weight, figure)

    def default(is_mixed: bool) -> str:
        return default_reranker(find(str(toml)), is_mixed=is_mixed)

    assert default(is_mixed=False) == DEFAULT_FUSION
    assert default(is_mixed=True) == DEFAULT_WINDOW
    write("knrm", 0.0, 0.9)  # λ = 0: no gain
    assert default(is_mixed=False) == DEFAULT_FUSION
    write("sm_cnn", 0.5, 0.5)
    write("fusion", 1.0, 0.6)
    assert default(is_mixed=False) == "fusion"
    assert default(is_mixed=True) == "sm_cnn"
    assert default_reranker(find("sample")) == DEFAULT_FUSION


def test_a_model_of_a_removed_file_is_reported(
    folder: Path, toml: Path, capsys: Capture
) -> None:
    checkpoints = folder.parent / "home" / "checkpoints"
    metrics = checkpoints / "window" / "own" / "old" / "metrics.json"
    metrics.parent.mkdir(parents=True)
    metrics.write_text(json.dumps({"collection_file": str(folder / "old.toml")}))
    assert default_reranker(find(str(toml)), is_mixed=False) == DEFAULT_FUSION
    problem = "old.toml, which is not there any more; if it is"
    assert problem in capsys.readouterr().err


def clicks() -> Iterator[dict[str, object]]:
    """Twenty lists a topic in random orders; users look at position k with 1 / k."""
    users = random.Random(1)
    collection = find("sample")
    qrels = collection.qrels or {}
    candidates = retriever_for(collection).search(collection.topics, 30)
    run = candidates.run
    topics = [topic for topic in candidates.topics if run.get(topic.query_id)]
    for topic in topics * 20:
        grades = qrels[topic.query_id]
        posts = list(run[topic.query_id])
        page = users.sample(posts, min(10, len(posts)))
        clicked = []
        for place, doc_id in enumerate(page, start=1):
            chance = 1.0 if grades.get(doc_id, 0) > 0 else 0.05
            if users.random() * place < chance:
                clicked.append(doc_id)
        yield {
            "query": topic.text,
            "query_id": topic.query_id,
            "shown": page,
            "clicked": clicked,
        }


@pytest.mark.slow
def test_from_a_log_of_clicks_to_a_trained_model(
    sample: Path, command: Command
) -> None:
    log = write_lines(sample / "log.jsonl", clicks())
    command("clicks", log, "--output", sample / "clicks.txt", code=0)
    toml = sample / "clicked.toml"
    toml.write_text(
        f'posts = "{SAMPLE / "posts.jsonl"}"\ntopics = "clicks.topics.tsv"\n'
        'qrels = "clicks.txt"\njudged_only = true\n'
    )
    train = partial(command, "train", "fusion", "--collection", toml)
    trained = train("--set", "trees=20", "--forget-topics", code=0)
    assert f"{len(read_qrels(sample / 'clicks.txt'))} held-out topics:" in trained.out
    assert "AP (judged)" in trained.out
    folder, tuning = checkpoint_of(sample, "fusion")
    assert tuning.measure == "AP(judged_only=True)"
    assert JUDGED not in load(folder).resources
    rejudged = open_collection(toml, qrels=SAMPLE / "qrels.txt")
    assert rejudged.measures == DEFAULT_MEASURES
