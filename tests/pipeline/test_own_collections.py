"""Collections of one's own, described by a file, where a named one could stand."""

import dataclasses
import json
import random
import shlex
from collections.abc import Iterator, Sequence
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Capture, Command
from helpers.index_samples import table, write_lines

from tweetrerank.indexes.data_error import DataError
from tweetrerank.indexes.engines.address import EngineAddress
from tweetrerank.indexes.jvm import java_class, start
from tweetrerank.pipeline import tune
from tweetrerank.pipeline.collections.collection import IndexPlace
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

POSTS = {
    "monday": [
        ("1", "storm closes the harbour"),
        ("2", "harbour festival opens on friday"),
    ],
    "tuesday": [("3", "ferry tickets sold out"), ("4", "the storm is over")],
}
TOML = 'posts = ["posts-*.jsonl"]\ntopics = "topics.tsv"\nqrels = "qrels.txt"\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A collection of four posts and two topics."""
    folder = tmp_path / "my posts"
    folder.mkdir()
    for day, posts in POSTS.items():
        rows = [{"id": doc_id, "text": text} for doc_id, text in posts]
        write_lines(folder / f"posts-{day}.jsonl", rows)
    (folder / "topics.tsv").write_text("a\tstorm harbour\nb\tferry tickets\n")
    (folder / "qrels.txt").write_text("a 0 1 1\na 0 2 0\nb 0 3 1\n")
    (folder / "harbour.toml").write_text(TOML)
    return folder


@pytest.fixture
def toml(folder: Path) -> Path:
    return folder / "harbour.toml"


def ids(topics: list[Topic]) -> list[str]:
    return [topic.query_id for topic in topics]


def test_file_describes_a_collection(folder: Path, toml: Path) -> None:
    collection = find(str(toml))
    assert (collection.name, ids(collection.topics)) == ("harbour", ["a", "b"])
    assert [post.doc_id for post in collection.posts()] == ["1", "2", "3", "4"]
    assert collection.qrels == {"a": {"1": 1, "2": 0}, "b": {"3": 1}}
    toml.write_text('posts = "posts-monday.jsonl"\ntopics = "topics.tsv"\n')
    collection = open_collection(toml)
    assert [post.doc_id for post in collection.posts()] == ["1", "2"]
    assert collection.qrels is None and "--qrels" in collection.missing_judgments
    assert open_collection(toml, qrels=folder / "qrels.txt").qrels is not None


@pytest.mark.parametrize("row", table("bad_collections.jsonl"))
def test_all_problems_are_named_at_once(
    folder: Path, toml: Path, row: dict[str, Any]
) -> None:
    (folder / "others.txt").write_text("x 0 1 1\n")
    (folder / "other-text.tsv").write_text("b\tbus tickets\n")
    (folder / "unjudged.tsv").write_text("c\tferry\n")
    toml.write_text(row["toml"])
    with pytest.raises(DataError) as caught:
        find(str(toml))
    message = str(caught.value)
    assert all(line.startswith(str(toml)) for line in message.splitlines())
    assert [problem for problem in row["problems"] if problem not in message] == []


def test_lists_a_name_and_columns(folder: Path, toml: Path, capsys: Capture) -> None:
    (folder / "posts.csv").write_text(
        "number,body\n1,storm closes the harbour\n3,ferry\n"
    )
    more = folder / "more.jsonl"
    more.write_text(
        '{"qid": "a", "query": "storm harbour"}\n{"qid": "3", "query": "x"}'
    )
    (folder / "grades.csv").write_text("qid,docno,label\na,1,2.0\nMB003,3,1\n")
    toml.write_text(
        'posts = "posts.csv"\ncolumns = {id = "number", text = "body"}\nname = "mine"\n'
        'topics = ["topics.tsv", "more.jsonl"]\nqrels = ["qrels.txt", "grades.csv"]\n'
    )
    found = find(str(toml))
    assert (found.name, found.key, ids(found.topics)) == (
        "mine",
        "own/mine",
        ["a", "b", "3"],
    )
    assert found.qrels == {"a": {"1": 2, "2": 0}, "b": {"3": 1}, "3": {"3": 1}}
    assert [post.text for post in found.posts()] == [
        "storm closes the harbour",
        "ferry",
    ]
    told = capsys.readouterr().err
    assert "1 grades differ, those of the later file count" in told
    assert (
        "grades.csv: 1 ids of topics have another form" in told
        and "(MB003 for 3)" in told
    )
    more.write_text('{"qid": "a", "query": "other"}\n')
    with pytest.raises(
        DataError, match="found topic a as 'other', expected 'storm harbour' as in"
    ):
        find(str(toml))


def test_judgments_of_others_are_told(
    folder: Path, toml: Path, command: Command
) -> None:
    run, qrels = folder / "run.txt", folder / "qrels.txt"
    (others := folder / "others.txt").write_text("x 0 1 1\ny 0 2 1\n")
    (half := folder / "half.run").write_text("a Q0 1 1 1 t\n")
    search = ("search", "--collection", toml, "--reranker", "none", "--output", run)
    done = command(*search, "--qrels", others)
    assert "others.txt judges x, y, none of the topics here" in done.out
    assert "lacks, not counted (2): x, y" in done.err
    told = "none of its 1 topics (a) is among the 2 judged ones (x, y), so all figures are 0"
    assert told in command("evaluate", others, half).err
    told = "half.run: judged topics without a result, counted as 0 (1): b"
    for words in (("evaluate", toml, half), (*search, "--candidates", half)):
        assert told in command(*words).err
    qrels.write_text(qrels.read_text() + "a 0 1.23E+17 1\nb 0 77 1\n")
    told = "2 of the 5 judged posts are not in harbour (1.23E+17, 77), whose posts have ids such as"
    assert (
        command(*search).err.count(told)
        == command("evaluate", toml, run).err.count(told)
        == 1
    )
    qrels.write_text("a 0 8 1\na 0 9 1\n")
    told = "is among the 2 judged ones (8, 9), so all figures are 0"
    assert told in command("evaluate", qrels, run).err


def test_a_query_is_searched_in_the_terminal(toml: Path, command: Command) -> None:
    found = command("search", toml, "ferry tickets", "--reranker", "none")
    assert "ferry tickets sold out" in found.out and found.out.split()[2] == "3"
    nothing = command("search", "--collection", toml, "zebra")
    assert "found no post for “zebra”" in nothing.out
    index = find(str(toml)).index_directory
    assert command("search", "--index", index, "ferry tickets").out.split()[2] == "3"
    for words in ((), ("--index", index)):
        assert "--index and a query" in command("search", *words).err
    assert "nothing was trained here" in command("models").out


def write_lucene(folder: Path, fields: Sequence[str]) -> None:
    """An index that stores ``fields`` of each post, as Pyserini does; one post is replaced."""
    start()
    lucene, text = "org.apache.lucene.", java_class("java.lang.String")
    path = java_class("java.nio.file.Paths").get(str(folder))
    place = java_class(f"{lucene}store.NIOFSDirectory")(path)
    config = java_class(f"{lucene}index.IndexWriterConfig")()
    writer = java_class(f"{lucene}index.IndexWriter")(place, config)
    store = java_class(f"{lucene}document.Field$Store").YES
    kind = "(Ljava/lang/String;Ljava/lang/String;Lorg/apache/lucene/document/Field$Store;)V"
    for doc_id, words in [("4", "old"), *POSTS["monday"], *POSTS["tuesday"]]:
        values = {
            "id": doc_id,
            "contents": words,
            "raw": json.dumps({"contents": words}),
        }
        document = java_class(f"{lucene}document.Document")()
        for name in fields:
            field = java_class(f"{lucene}document.StringField")
            document.add(field(name, text(values[name]), store, signature=kind))
        writer.updateDocument(
            java_class(f"{lucene}index.Term")("id", text(doc_id)), document
        )
    writer.close()


@pytest.mark.parametrize("stored", ["id raw", "id contents", "id", "raw"])
def test_an_index_by_pyserini_is_searched(
    folder: Path, command: Command, stored: str
) -> None:
    write_lucene(folder / "lucene", stored.split())
    is_whole = " " in stored
    told = (
        ""
        if is_whole
        else f"found no stored {'text' if stored == 'id' else 'id'}, expected"
    )
    for option in ("--index", "--collection"):
        done = command(
            "search", option, folder / "lucene", "storm", "--reranker", "none"
        )
        assert [line.split()[2] for line in done.out.splitlines()] == [
            "4",
            "1",
        ] * is_whole
        assert told in done.err
    files = ("--topics", folder / "topics.tsv", "--qrels", folder / "qrels.txt")
    run = (
        "--index",
        folder / "lucene",
        "--reranker",
        "none",
        "--output",
        folder / "run",
    )
    assert ("2 judged topics" in command("search", *files, *run).out) == is_whole


def test_some_topics_are_for_training(folder: Path, toml: Path) -> None:
    """They need not be among those that are searched, and no other one is trained on."""
    assert ids(find(str(toml)).training_topics) == ["a", "b"]
    (folder / "train.tsv").write_text(
        "c\tharbour festival\nb\tferry tickets\nd\tnothing\n"
    )
    with (folder / "qrels.txt").open("a") as stream:
        stream.write("c 0 2 1\n")
    toml.write_text(TOML + 'train = "train.tsv"\nlanguage = "de"\n')
    collection = find(str(toml))
    assert ids(collection.topics) == ["a", "b"] and collection.language == "de"
    assert ids(collection.training_topics) == ["c", "b"]
    # Topics that are not searched do not count as failures of a search.
    assert {*(collection.qrels or {})} == {"a", "b"}
    assert {*(collection.training_qrels or {})} == {"a", "b", "c"}
    (folder / "topics.tsv").write_text("z\tharbour\n")
    collection = find(str(toml))
    assert collection.qrels is None
    assert "judges training topics only" in collection.missing_judgments
    assert ids(own_training_set(collection).training.candidates.topics) == ["c", "b"]


@pytest.mark.slow
def test_commands_take_the_file(folder: Path, toml: Path, command: Command) -> None:
    """The index is built at the first search, used by the next, and new posts need another."""
    run, page = folder / "run.txt", folder / "a.html"
    search = ["search", "--collection", toml, "--reranker", "none", "--output", run]
    assert "building the index" in command(*search, code=0).err
    assert run.read_text().split()[:3] == ["a", "Q0", "1"]
    assert (
        "building the index"
        not in command("search", "--topics", toml, *search[3:], code=0).err
    )
    command("explain", "--collection", toml, "--query-id", "a", "--output", page)
    assert "storm" in page.read_text()
    given = [
        "--topics",
        toml,
        run,
        "--output",
        folder / "again",
        "--reranker",
        "mp_hcnn",
    ]
    command("rerank", *given, code=0)
    (folder / "posts-wednesday.jsonl").write_text(
        '{"id": "5", "text": "storm harbour storm"}\n'
    )
    lacking = command(*search, code=1).err
    assert "posts-tuesday.jsonl'], expected ['posts-" in lacking
    # The command in the message works, although the folder's name has a blank.
    command("index", *shlex.split(lacking.splitlines()[-1])[3:], code=0)
    command(*search, code=0)
    assert run.read_text().split()[:3] == ["a", "Q0", "5"]
    assert {post.doc_id for post in find(str(toml)).posts()} == set("12345")


@pytest.mark.slow
def test_word_frequencies_of_the_language(folder: Path, toml: Path) -> None:
    toml.write_text(TOML + 'language = "de-AT"\n')
    (folder / "idf.txt").write_text("4\nstorm\t2\n")
    for idf, is_german in (
        (None, True),
        ("wordfreq", True),
        (str(folder / "idf.txt"), False),
    ):
        source = load_model("mp_hcnn", find(str(toml)), idf=idf).idf.source
        assert (source == "wordfreq:de", "wordfreq" in source) == (is_german, is_german)


@pytest.mark.slow
def test_words_of_posts_have_their_frequencies_everywhere(
    tmp_path: Path, command: Command
) -> None:
    """In searches, services, batches, other processes, and in a folder that was exported."""
    collection, shipped = find("sample"), load(find_model("window"))
    command("export", "--collection", "sample", "--output", tmp_path / "copy", code=0)
    source, model = best_source(collection), load_model("window", collection)
    assert source.frequencies == file_of(collection) and model.idf.source == source.idf
    pairs = [
        (topic.text, post.text)
        for topic in collection.topics
        for post in collection.posts()
    ]
    ways = [model, source.load(), load(tmp_path / "copy"), copy(model)]
    expected, *others, general = (way.predict(pairs) for way in [*ways, shipped])
    for scores in others:
        np.testing.assert_array_equal(scores, expected)
    assert (general != expected).any() and not shipped.idf.source.count(str(tmp_path))
    # Another word in the posts is another version of the source.
    before = source.version
    source.frequencies.write_text("874\nstorm\t800\n")
    assert source.version != before


def test_posts_of_an_engine_are_counted_where_they_are_read(
    folder: Path, toml: Path, tmp_path: Path, capsys: Capture
) -> None:
    """Or from the files that it was built from; those of an index are counted anew with it."""
    own = find(str(toml))
    of_files = file_of(own)
    assert (
        of_files.read_text().splitlines()[0] == "4"
        and "storm\t2" in of_files.read_text()
    )
    engine = IndexPlace(engine=EngineAddress("http://localhost:1", "posts"))
    assert (
        file_of(dataclasses.replace(own, index=engine)).read_text()
        == of_files.read_text()
    )
    foreign = dataclasses.replace(own, index=engine, post_source=None)
    assert (
        file_of(foreign) is None and named_frequencies("posts", foreign) == "posts:en"
    )
    assert named_frequencies("posts:de:own.tsv", foreign) == "posts:de:own.tsv"
    assert file_of(foreign, ["storm"]) == file_of(foreign)
    of_files.parent.rename(tmp_path / "old")
    of_files.parent.write_text("no folder")
    assert (
        file_of(own) is None
        and "words have general frequencies" in capsys.readouterr().err
    )
    of_files.parent.unlink()
    find(str(toml)).open_index().close()
    (folder / "posts-monday.jsonl").unlink()
    assert (
        file_of(find(str(toml))) is None and "build it again" in capsys.readouterr().err
    )


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    """The sample collection as an own one, and a file of word vectors beside it."""
    (tmp_path / "sample2.toml").write_text(
        f'posts = "{SAMPLE / "posts.jsonl"}"\ntopics = "{SAMPLE / "topics.txt"}"\n'
        f'qrels = "{SAMPLE / "qrels.txt"}"\n'
    )
    (tmp_path / "vectors.txt").write_text("rain 1.0 0.5\nstorm 0.9 0.6\nbus -1.0 0.2\n")
    return tmp_path


def checkpoint_of(sample: Path, model: str) -> tuple[Path, Tuning]:
    """Folder and tuning of the one model that was trained."""
    (folder,) = (sample / "home" / "checkpoints" / model / "own").iterdir()
    return folder, Tuning.load(folder / "lambda.json")


@pytest.mark.slow
def test_training_tunes_and_compares_on_held_out_topics(
    sample: Path, command: Command
) -> None:
    toml, run = sample / "sample2.toml", sample / "run.txt"
    quick = [
        "--set",
        "training.epochs=3",
        "--vectors",
        sample / "vectors.txt",
        "--threads",
        1,
    ]
    trained = command("train", "knrm", "--collection", toml, *quick, code=0)
    assert "20 held-out topics:" in trained.out
    rows = [line.split() for line in trained.out.splitlines()]
    first_stage = next(float(row[2]) for row in rows if row[:2] == ["first", "stage"])
    folder, tuning = checkpoint_of(sample, "knrm")
    assert (tuning.collections, len(tuning.topics)) == (("sample2",), 20)
    assert tuning.weight == 0 or tuning.cross_validated > first_stage
    assert ("no gain on held-out topics" in trained.out) == (
        tuning.cross_validated <= first_stage
    )
    search = (
        "search",
        "--collection",
        toml,
        "--output",
        run,
        "--hits",
        10,
        "--reranker",
    )
    told = f"λ = {tuning.weight:g} (tuned on sample2; {folder}"
    assert told in command(*search, "knrm").err
    # The same scores give the same λ again; without them, the model has not seen the topics.
    tune.main(tune.Options(collection=str(toml), reranker="knrm"))
    again = Tuning.load(folder / "lambda.json")
    assert {*again.topics} == {*tuning.topics}
    same: Any = {"checkpoint": "", "topics": ()}
    assert dataclasses.replace(again, **same) == dataclasses.replace(tuning, **same)
    tune.main(tune.Options(collection=str(toml)))
    tuned = (
        sample / "home" / "lambda" / "mp_hcnn" / "all" / "own" / f"{folder.name}.json"
    )
    told = f"λ = {Tuning.load(tuned).weight:g} (tuned on sample2; {tuned}"
    assert told in command(*search, "mp_hcnn").err


@pytest.mark.slow
@pytest.mark.parametrize("topics", [20, 5])
def test_a_fusion_is_trained_and_searched_with(
    sample: Path, command: Command, topics: int
) -> None:
    toml = sample / "sample2.toml"
    lines = [
        f"{topic.query_id}\t{topic.text}" for topic in find("sample").topics[:topics]
    ]
    (sample / "train.tsv").write_text("\n".join(lines))
    toml.write_text(toml.read_text() + 'train = "train.tsv"\n')
    quick = ["--set", "trees=20", "--threads", 1]
    trained = command("train", "fusion", "--collection", toml, *quick, code=0)
    assert "warning" not in trained.err and f"{topics} held-out topics:" in trained.out
    folder, tuning = checkpoint_of(sample, "fusion")
    families = json.loads((folder / "config.json").read_text())["config"]["families"]
    assert "signal:ql" in families and "run_" not in families
    # Judged posts are known by their texts, of whatever candidates.
    posts = find(str(toml)).judged_posts
    assert load(folder).resources[JUDGED].content() == posts.content()
    assert len(json.loads(posts.content())) == len(tuning.topics) == topics
    search = (
        "search",
        "--collection",
        toml,
        "--output",
        sample / "run.txt",
        "--hits",
        20,
    )
    by_itself = topics >= FEWEST and tuning.cross_validated > tuning.curve[0.0]
    assert ("fusion, trained on" in command(*search, code=0).err) == by_itself
    named = command(*search, "--reranker", "fusion", "--checkpoint", folder)
    assert "\nfusion " in named.out and ("was trained on sample2;" in named.err) == (
        topics == 20
    )
    assert (f"trained on {topics} of the 20 judged topics of sample2" in named.err) == (
        topics < 20
    )


def test_search_takes_the_best_trained_model(
    folder: Path, toml: Path, capsys: Capture
) -> None:
    root = folder.parent / "home" / "checkpoints"

    def trained(model: str, weight: float, figure: float) -> None:
        tuning = Tuning(
            weight, {0.0: 0.4, 1.0: figure}, figure, (), "AP", "none", 5, 1, ("a",)
        )
        place = root / model / find(str(toml)).key
        place.mkdir(parents=True)
        tuning.save(place / "lambda.json")
        write_config(place, {"model": model})

    def taken() -> list[str]:
        return [
            default_reranker(find(str(toml)), is_mixed=given) for given in (False, True)
        ]

    assert taken() == [DEFAULT_FUSION, DEFAULT_WINDOW]
    old = root / "window" / "own" / "old" / "metrics.json"
    old.parent.mkdir(parents=True)
    old.write_text(json.dumps({"collection_file": str(folder / "old.toml")}))
    assert taken()[0] == DEFAULT_FUSION
    assert "old.toml, which is not there any more; if it is" in capsys.readouterr().err
    trained("knrm", 0.0, 0.9)
    assert taken()[0] == DEFAULT_FUSION
    trained("sm_cnn", 0.5, 0.5)
    trained("fusion", 1.0, 0.6)
    assert taken() == ["fusion", "sm_cnn"]
    assert default_reranker(find("sample")) == DEFAULT_FUSION


def clicks() -> Iterator[dict[str, object]]:
    """Twenty lists a topic in random orders; users look at position k with a chance of 1 / k."""
    users, collection = random.Random(1), find("sample")
    found = retriever_for(collection).search(collection.topics, 30)
    for topic in [
        topic for topic in found.topics if found.run.get(topic.query_id)
    ] * 20:
        posts, qrels = (
            [*found.run[topic.query_id]],
            (collection.qrels or {})[topic.query_id],
        )
        shown = users.sample(posts, min(10, len(posts)))
        chances = [1.0 if qrels.get(doc_id, 0) > 0 else 0.05 for doc_id in shown]
        ranked = enumerate(zip(shown, chances, strict=True), start=1)
        clicked = [
            d for place, (d, chance) in ranked if users.random() * place < chance
        ]
        yield {
            "query": topic.text,
            "query_id": topic.query_id,
            "shown": shown,
            "clicked": clicked,
        }


@pytest.mark.slow
def test_from_a_log_of_clicks_to_a_trained_model(
    sample: Path, command: Command
) -> None:
    log, toml = write_lines(sample / "log.jsonl", clicks()), sample / "clicked.toml"
    command("clicks", log, "--output", sample / "clicks.txt", code=0)
    toml.write_text(
        f'posts = "{SAMPLE / "posts.jsonl"}"\ntopics = "clicks.topics.tsv"\nqrels = "clicks.txt"\n'
        "judged_only = true\n"
    )
    quick = ("--set", "trees=20", "--forget-topics")
    trained = command("train", "fusion", "--collection", toml, *quick, code=0)
    assert f"{len(read_qrels(sample / 'clicks.txt'))} held-out topics:" in trained.out
    assert "AP (judged)" in trained.out
    folder, tuning = checkpoint_of(sample, "fusion")
    assert tuning.measure == "AP(judged_only=True)"
    assert JUDGED not in load(folder).resources
    assert (
        open_collection(toml, qrels=SAMPLE / "qrels.txt").measures == DEFAULT_MEASURES
    )
