"""Collections: named ones, other forms, values in memory, given answers."""

import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pandas
import pytest
from conftest import Command, Patch
from helpers.index_samples import write_lines
from helpers.reranking_samples import network, small_model

from tweetrerank.indexes.data_error import DataError
from tweetrerank.indexes.lucene_index import build
from tweetrerank.indexes.methods import QueryLikelihood
from tweetrerank.indexes.posts import Post
from tweetrerank.pipeline.collections import named
from tweetrerank.pipeline.collections.collection import Collection
from tweetrerank.pipeline.collections.sources import Answers, PairFolders
from tweetrerank.pipeline.collections.topics import Topic
from tweetrerank.pipeline.collections.trec import Run, ranked, read_run
from tweetrerank.pipeline.evaluation.measures import without_relevant
from tweetrerank.pipeline.ranking import checkpoints
from tweetrerank.pipeline.usage_error import UsageError
from tweetrerank.rerankers import checkpoint

case = pytest.param

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
BEIR_HEADER = "query-id\tcorpus-id\tscore\n"

TRECQA_RAW = "trecqa-raw"
TRECQA_CLEAN = "trecqa-clean"
WIKIQA = "wikiqa"
NAMES = [TRECQA_RAW, TRECQA_CLEAN, WIKIQA, "trecqa-all-raw", "trecqa-all-clean"]
SIZES = {"3.1": 6, "3.2": 7, "3.3": 5, "3.4": 6}
"""Questions of TrecQA's raw test part -> number of answers."""

ANSWER_FILES = {
    "a.toks": ["first ?", "first, again ?", "second ?"],
    "b.toks": ["one .", "", "one ."],
    "id.txt": ["32.1", "32.1", "32.10"],
    "sim.txt": ["1", "0", "0"],
}


def texts_of(collection: Collection) -> dict[str, str]:
    return {post.doc_id: post.text for post in collection.posts()}


def ids_of(topics: list[Topic]) -> list[str]:
    return [topic.query_id for topic in topics]


def sizes_of(table: Mapping[str, Mapping[str, object]]) -> dict[str, int]:
    """query_id -> number of posts."""
    return {query_id: len(posts) for query_id, posts in table.items()}


def ids_in(run: Run) -> dict[str, list[str]]:
    return {query_id: list(scores) for query_id, scores in run.items()}


def test_names_and_aliases() -> None:
    folders = {name: named.find(name).index_directory for name in named.names()}
    assert folders.keys() >= {"sample", TRECQA_RAW, TRECQA_CLEAN, WIKIQA}
    # Two years share their tweets.
    assert folders["mb2011"] == folders["mb2012"]
    assert folders["mb2013"] == folders["mb2014"]
    assert folders["mb2012"] != folders["mb2013"]
    assert named.find("mb11").name == "mb2011"
    with pytest.raises(UsageError, match="did you mean 'mb2012'"):
        named.find("mb20012")


def write_pool(
    folder: Path, doc_ids: list[str], texts: list[str], urls: list[str]
) -> None:
    """Write parallel files of posts."""
    folder.mkdir(parents=True)
    columns = {
        "a.toks": ["query"] * len(doc_ids),
        "b.toks": texts,
        "url.txt": urls,
        "id.txt": [f"1 Q0 {doc_id} 1 1.0 x" for doc_id in doc_ids],
    }
    for name, lines in columns.items():
        (folder / name).write_text("".join(f"{line}\n" for line in lines))


def test_posts_of_a_pool_come_once_and_sorted(tmp_path: Path) -> None:
    microblog = tmp_path / "microblog"
    write_pool(microblog / "trec-2011", ["30", "9"], ["c", ""], ["", "http://u"])
    write_pool(
        microblog / "trec-2012",
        ["9", "100", "30"],
        ["a", "d", "other"],
        ["", "", ""],
    )
    (microblog / "runs").mkdir()
    (microblog / "runs" / "run.microblog2011.RM3.txt").write_text("")
    (microblog / "topics.microblog2011.txt").write_text("1\tquery\n")
    posts = named.find("mb2011", tmp_path).posts()
    assert [(post.doc_id, post.text) for post in posts] == [
        ("9", "a"),
        ("30", "c"),
        ("100", "d"),
    ]


@pytest.fixture
def beir(tmp_path: Path) -> Path:
    """A folder of BEIR with a training and a test part."""
    folder = tmp_path / "harbour"
    (folder / "qrels").mkdir(parents=True)
    write_lines(folder / "corpus.jsonl", POSTS)
    queries = [{"_id": query_id, "text": text} for query_id, text in QUERIES.items()]
    write_lines(folder / "queries.jsonl", queries)
    (folder / "qrels" / "test.tsv").write_text(BEIR_HEADER + "a\td1\t2\n")
    (folder / "qrels" / "train.tsv").write_text(BEIR_HEADER + "b\td2\t1\n")
    return folder


def test_a_folder_of_beir(beir: Path) -> None:
    collection = named.open_collection(beir=beir)
    assert collection.name == "harbour"
    assert texts_of(collection) == TEXTS
    assert ids_of(collection.topics) == ["a"]
    assert collection.qrels == {"a": {"d1": 2}}
    assert ids_of(collection.training_topics) == ["b"]
    assert collection.training_qrels == {"a": {"d1": 2}, "b": {"d2": 1}}
    assert named.find(str(beir)) == collection
    assert named.open_collection(beir) == collection


def test_files_of_beir_in_a_user_s_collection(beir: Path, tmp_path: Path) -> None:
    toml = tmp_path / "mine.toml"
    toml.write_text(
        'posts = "harbour/corpus.jsonl"\ntopics = "harbour/queries.jsonl"\n'
        'qrels = "harbour/qrels/test.tsv"\ntrain_qrels = "harbour/qrels/train.tsv"\n'
    )
    expected = named.open_collection(beir=beir)
    collection = named.find(str(toml))
    assert collection.topics == expected.topics
    assert collection.qrels == expected.qrels
    assert collection.training_topics == expected.training_topics
    rejudged = named.open_collection(toml, qrels=beir / "qrels" / "train.tsv")
    assert ids_of(rejudged.topics) == ["b"]


def test_a_folder_of_beir_without_queries(beir: Path) -> None:
    (beir / "queries.jsonl").unlink()
    problem = r"found no queries\.jsonl, expected one beside corpus"
    with pytest.raises(DataError, match=problem):
        named.open_collection(beir=beir)


@pytest.mark.parametrize("table", [list, pandas.DataFrame])
def test_values_in_memory(table: Any) -> None:
    topics = table([{"qid": name, "query": text} for name, text in QUERIES.items()])
    qrels = table(
        [
            {"qid": "a", "docno": "d1", "label": 1},
            {"qid": "b", "docno": "d2", "label": 0},
        ]
    )
    collection = named.open_collection(posts=table(POSTS), topics=topics, qrels=qrels)
    assert texts_of(collection) == TEXTS
    assert {topic.query_id: topic.text for topic in collection.topics} == QUERIES
    assert collection.qrels == {"a": {"d1": 1}, "b": {"d2": 0}}
    with collection.open_index() as index:
        run = index.search(collection.topics, QueryLikelihood())
    assert list(run["b"]) == ["d2"]


def test_other_topics_for_values_in_memory() -> None:
    """They search the same index, and commands use the latest topics."""
    first = named.open_collection(posts=POSTS, topics=QUERIES)
    assert ids_of(first.topics) == ["a", "b", "c"]
    first.open_index().close()
    # A changed file of posts is written again.
    assert first.file
    posts = first.file.with_name("posts.jsonl")
    posts.write_text(posts.read_text().replace("d1", "d7"))
    second = named.open_collection(
        posts=POSTS, topics={"x": "ferry"}, qrels={"x": {"d2": 1}}
    )
    assert second.index_directory == first.index_directory
    assert second.index_directory and second.index_directory.exists()
    assert texts_of(second) == TEXTS
    assert second.topics == [Topic("x", "ferry")]
    assert named.find(str(second.file)).topics == second.topics
    assert first.topics[0].query_id == "a"


def test_topics_in_memory_for_an_index(tmp_path: Path) -> None:
    folder = tmp_path / "index"
    build([Post("1", "storm")], folder)
    collection = named.open_collection(
        topics={"a": "storm"}, index=folder, qrels={"a": {"1": 1}}
    )
    assert collection.topics == [Topic("a", "storm")]
    assert collection.qrels == {"a": {"1": 1}}
    assert texts_of(collection) == {"1": "storm"}


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        case(
            {"posts": [{"text": "a"}]},
            r'posts\[0\]: found the keys "text", expected an id under',
            id="post without an id",
        ),
        case(
            {"posts": ["a"]},
            r"posts\[0\]: found '\"a\"', expected a dictionary",
            id="post that is a text",
        ),
        case(
            {"topics": {"a": 1}},
            r"topics\[0\]: found text '1', expected a text",
            id="topic that is a number",
        ),
        case(
            {"topics": [{"qid": "a"}]},
            r'topics\[0\]: found the keys "qid", expected a text under',
            id="topic without a text",
        ),
        case(
            {"qrels": {"a": {"1": "x"}}},
            r"qrels\[0\]: found the relevance .*x.*, expected a whole",
            id="grade that is a text",
        ),
        case(
            {"qrels": {"a": {"1": 0.5}}},
            r"qrels\[0\]: found the relevance '0.5', expected a whole",
            id="grade that is a fraction",
        ),
        case({"qrels": {}}, "qrels: found no judgment, expected rows", id="no grade"),
        case(
            {"qrels": {"x": {"1": 1}}},
            "has judgments for no topic of",
            id="grades of other topics",
        ),
        case(
            {"topics": None},
            "found no topics, expected a file of them",
            id="no topics",
        ),
    ],
)
def test_malformed_values(values: dict[str, Any], problem: str) -> None:
    valid = {"posts": [{"id": 1, "text": "a"}], "topics": {"a": "storm"}}
    with pytest.raises(DataError, match=problem):
        _ = named.open_collection(**valid | values).topics


@pytest.fixture
def with_own_id(beir: Path) -> Path:
    """A folder of BEIR with a post that has the query's id and text."""
    posts = [{"_id": name, "text": "storm in the harbour"} for name in ("q1", "d1")]
    write_lines(beir / "corpus.jsonl", posts)
    write_lines(beir / "queries.jsonl", [{"_id": "q1", "text": "storm harbour"}])
    (beir / "qrels" / "test.tsv").write_text(BEIR_HEADER + "q1\td1\t1\n")
    return beir


@pytest.mark.parametrize("options", [(), ("--reranker", "none")])
def test_searches_leave_out_the_post_with_the_query_s_id(
    with_own_id: Path, options: tuple[str, ...], command: Command
) -> None:
    """BEIR's figures leave the query itself out."""
    run = with_own_id / "run"
    search = partial(command, "search", "--collection", with_own_id, "--output", run)
    assert "1.0000" in search(*options).out
    assert [line.split()[2] for line in run.read_text().splitlines()] == ["d1"]


def test_evaluation_leaves_out_the_post_with_the_query_s_id(
    with_own_id: Path, command: Command
) -> None:
    run = with_own_id / "run"
    run.write_text("q1 Q0 q1 1 2 x\nq1 Q0 d1 2 1 x\n")
    assert "1.0000" in command("evaluate", with_own_id, run, "-m", "AP").out


@pytest.mark.parametrize(
    "values",
    [
        case({}, id="nothing"),
        case({"beir": "folder", "posts": []}, id="a folder and posts"),
        case({"beir": "folder", "ir_dataset": "x"}, id="a folder and a data set"),
    ],
)
def test_a_collection_is_named_in_one_way(values: dict[str, Any]) -> None:
    problem = "expected one of name, posts, topics, beir and ir_d"
    with pytest.raises(UsageError, match=problem):
        named.open_collection(**values)


def test_other_judgments_of_a_named_collection() -> None:
    qrels = {"1": {"101": 1}}
    assert named.open_collection("sample", qrels=qrels).qrels == qrels


@pytest.fixture
def ir_datasets(tmp_path: Path, monkeypatch: Patch) -> Any:
    """The library with one data set, ``tests/harbour``."""
    library = pytest.importorskip("ir_datasets")
    files = {
        "docs_tsv": "d1\tstorm closes\nd2\tferry\n",
        "queries_tsv": "a\tstorm\n",
        "qrels_trec": "a 0 d1 1\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    paths = {name: str(tmp_path / name) for name in files}
    dataset = library.create_dataset(**paths)
    monkeypatch.setattr(library.registry, "_registered", {})
    library.registry.register("tests/harbour", dataset)
    return library


def check_harbour(collection: Collection) -> None:
    assert texts_of(collection) == {"d1": "storm closes", "d2": "ferry"}
    assert collection.topics == [Topic("a", "storm")]
    assert collection.qrels == {"a": {"d1": 1}}


def test_a_data_set_without_an_id(ir_datasets: Any) -> None:
    dataset = ir_datasets.registry._registered["tests/harbour"]
    check_harbour(named.open_collection(ir_dataset=dataset))


def test_a_data_set_by_its_id(ir_datasets: Any) -> None:
    collection = named.open_collection(ir_dataset="tests/harbour")
    check_harbour(collection)
    assert collection.name == "tests-harbour"
    with pytest.raises(UsageError, match="did you mean 'tests/harbour'"):
        named.open_collection(ir_dataset="tests/harbor")


def test_a_loaded_data_set(ir_datasets: Any) -> None:
    dataset = ir_datasets.load("tests/harbour")
    collection = named.open_collection(ir_dataset=dataset)
    check_harbour(collection)
    assert collection.name == "tests-harbour"


def write_answer_files(folder: Path, **changes: list[str] | None) -> Path:
    """Write :data:`ANSWER_FILES` with changes; None leaves a file out."""
    for name, lines in (ANSWER_FILES | changes).items():
        if lines is not None:
            (folder / name).write_text("".join(f"{line}\n" for line in lines))
    return folder


def test_answers_are_counted_where_only_questions_have_ids(tmp_path: Path) -> None:
    answers = Answers({"test": write_answer_files(tmp_path)})
    assert answers.topics() == [Topic("32.1", "first ?"), Topic("32.10", "second ?")]
    assert answers.qrels() == {
        "32.1": {"32.1-0": 1, "32.1-1": 0},
        "32.10": {"32.10-0": 0},
    }
    assert [post.text for post in answers.posts()] == ["one .", "", "one ."]


def test_answers_with_ids_and_without_labels(tmp_path: Path) -> None:
    doc_ids = ["Q11-D11-0", "Q11-D11-3", "Q2-D0-0"]
    folder = write_answer_files(tmp_path, **{"id.txt": doc_ids, "sim.txt": None})
    assert Answers({"test": folder}).candidates() == {
        "Q11": {"Q11-D11-0": 0.0, "Q11-D11-3": 0.0},
        "Q2": {"Q2-D0-0": 0.0},
    }


@pytest.mark.parametrize(
    ("name", "lines", "problem"),
    [
        case(
            "sim.txt",
            ["1", "2", "0"],
            r"sim\.txt:2: found '2', expected 0 or 1",
            id="label",
        ),
        case(
            "id.txt",
            ["1", " ", "2"],
            r"id\.txt:2: found '', expected one word: the id of a",
            id="blank id",
        ),
        case(
            "id.txt",
            ["1", "1", "1 Q0 7 1 2 x"],
            r"id\.txt:3: found '1 Q0 7 1 2 x', expected one",
            id="line of a run",
        ),
        case(
            "id.txt",
            ["Q1-0", "Q1-1", "Q1-0"],
            r"id\.txt:3: found the answer 'Q1-0' again, .* 1$",
            id="answer twice",
        ),
        case("b.toks", None, r"found no b\.toks; expected", id="absent file"),
        case(
            "b.toks",
            ["one", "two"],
            r"b\.toks: found 2 lines, expected as many",
            id="shorter file of answers",
        ),
        case(
            "sim.txt",
            ["0", "0", "0", "0"],
            r"a\.toks: found 3 lines, expected as many",
            id="longer file of labels",
        ),
    ],
)
def test_malformed_answers(
    tmp_path: Path, name: str, lines: list[str] | None, problem: str
) -> None:
    folder = write_answer_files(tmp_path, **{name: lines})
    with pytest.raises(DataError, match=problem):
        Answers({"test": folder}).topics()


def test_answers_are_no_pairs_of_a_run(tmp_path: Path) -> None:
    source = PairFolders([write_answer_files(tmp_path)])
    problem = r"id\.txt:1: found '32\.1', expected `query_id Q0 doc_id"
    with pytest.raises(DataError, match=problem):
        source.posts()


def test_the_test_part_is_found(answers: Path) -> None:
    raw = named.find(TRECQA_RAW, answers)
    clean = named.find(TRECQA_CLEAN, answers)
    assert ids_of(raw.topics) == list(SIZES)
    assert raw.topics[0].text.startswith("where is the library ")
    assert raw.qrels is not None and clean.qrels is not None
    assert sizes_of(raw.qrels) == SIZES
    assert list(raw.qrels["3.1"].values()).count(1) == 2
    # The question without a relevant answer is judged as well.
    assert without_relevant(raw.qrels) == ["3.4"]
    assert len(clean.topics) == 3
    assert raw.qrels == clean.qrels | {"3.4": raw.qrels["3.4"]}


def train_all(data: Path) -> Collection:
    """A part that may not be passed on; its files are put there by hand."""
    return named.find_answers("trecqa-all-raw", data).part("train")


ABSENT = r"a\.toks and 2 more not found"


@pytest.mark.parametrize(
    ("read", "problem"),
    [
        case(
            lambda data: named.find("mb2012", data).topics,
            "tweetrerank fetch mb2012",
            id="topics",
        ),
        case(
            lambda data: list(named.find("mb2012", data).posts()),
            "tweetrerank fetch mb2012",
            id="posts",
        ),
        case(
            lambda data: named.find(TRECQA_CLEAN, data).topics,
            rf"{ABSENT}(.|\n)*trecqa-clean",
            id="questions",
        ),
        case(
            lambda data: list(named.find(TRECQA_CLEAN, data).posts()),
            rf"{ABSENT}(.|\n)*trecqa-clean",
            id="answers",
        ),
        case(
            lambda data: train_all(data).require_files(),
            rf"train-all/{ABSENT}.*xuchen/jacana",
            id="unpublished answers",
        ),
        case(
            lambda data: named.training_collections("mb2012", data),
            "tweetrerank fetch",
            id="judgments of other years",
        ),
    ],
)
def test_errors_for_absent_data_give_the_remedy(
    tmp_path: Path, read: Callable[[Path], object], problem: str
) -> None:
    with pytest.raises(DataError, match=problem):
        read(tmp_path)


def test_absent_judgments_are_reported(tmp_path: Path, answers: Path) -> None:
    microblog = named.find("mb2012", tmp_path)
    assert microblog.qrels is None
    assert "mb2012 has no judgments" in microblog.missing_judgments
    wikiqa = named.find(WIKIQA, answers)
    assert wikiqa.missing() == []
    assert wikiqa.qrels is None
    assert str(answers / WIKIQA / "test" / "sim.txt") in wikiqa.missing_judgments


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        case("mb2012", "", id="collection without answers"),
        case("trecqa", "", id="group of collections"),
        case("wikiq", ".*did you mean 'wikiqa'", id="misspelt name"),
    ],
)
def test_other_collections_have_no_given_answers(name: str, hint: str) -> None:
    problem = f"found '{name}', expected a collection of questions{hint}"
    with pytest.raises(UsageError, match=problem):
        named.find_answers(name)


def test_given_answers_have_their_own_training_part() -> None:
    with pytest.raises(UsageError, match=r"pipeline\.train MODEL --collection wikiqa"):
        named.training_collections(WIKIQA)
    # A checkpoint for tweets does not suit answers.
    assert checkpoints.default_directory("mp_hcnn", "mine").name == "all"
    problem = r"pipeline\.train mp_hcnn --collection trecqa-raw`"
    with pytest.raises(DataError, match=problem):
        checkpoints.default_directory("mp_hcnn", TRECQA_RAW)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    for name in NAMES:
        model = small_model("mp_hcnn", "robust")
        trained = network(model, metrics={"trained_on": [name]})
        checkpoint.save(folder / "checkpoints" / "mp_hcnn" / name, trained)
    return folder


@pytest.fixture
def search(
    command: Command, home: Path, answers: Path, tmp_path: Path, monkeypatch: Patch
) -> Command:
    """Run a search with this file's home and data, without Java; it writes ``run``."""
    monkeypatch.setitem(sys.modules, "jnius", None)
    monkeypatch.setenv("TWEETRERANK_HOME", str(home))
    monkeypatch.setenv("TWEETRERANK_DATA", str(answers))
    monkeypatch.chdir(tmp_path)
    # The small checkpoints' frequencies are made up, so their source must be named.
    return partial(
        command, "search", "--idf", "wordfreq", "--output", "run", "--topics"
    )


def test_answers_are_ranked_by_the_model_alone(search: Command, home: Path) -> None:
    result = search(TRECQA_RAW, code=0)
    reason = "λ = 1 (nothing to mix: the candidates are given without scores)"
    assert reason in result.err
    # It was trained on another part of the collection.
    assert "was trained on" not in result.err
    header, first, second = result.out.splitlines()[:3]
    assert header.startswith("trecqa-raw, 4 judged topics")
    assert header.split()[-3:] == ["AP", "RR", "ms/topic"]
    stages = [row.partition(" -> ")[0].rsplit(maxsplit=3)[0] for row in (first, second)]
    assert stages == ["given, by id", "mp_hcnn"]
    assert not (home / "indexes").exists()
    assert sizes_of(read_run("run")) == SIZES


def test_answers_are_mixed_with_a_given_weight(search: Command) -> None:
    result = search(TRECQA_RAW, "--lambda", "0.25", code=0)
    assert "λ = 0.25 (given)" in result.err
    assert "mp_hcnn + given, by id (λ = 0.25)" in result.out


def test_answers_without_a_model_are_ranked_by_id(
    search: Command, command: Command
) -> None:
    result = search(WIKIQA, "--reranker", "none", code=0)
    for scores in read_run("run").values():
        order = [doc_id for doc_id, _ in ranked(scores)]
        assert order == sorted(scores, reverse=True)
    assert "wikiqa has no judgments here" in result.out
    evaluation = command("evaluate", WIKIQA, "run", code=1)
    assert "wikiqa has no judgments here" in evaluation.err


def test_evaluation_has_the_collection_s_measures(
    search: Command, command: Command
) -> None:
    search(TRECQA_RAW, "--reranker", "none")
    result = command("evaluate", TRECQA_RAW, "run", code=0)
    title, header = result.out.splitlines()[:2]
    assert title == "trecqa-raw, 4 judged topics"
    assert header.split() == ["AP", "RR"]
    problem = "judged topics without a relevant document, always 0 (1): 3.4"
    assert problem in result.err


def test_a_user_s_run_is_mixed(search: Command) -> None:
    candidates = Path("given")
    candidates.write_text(
        "3.1 Q0 3.1-0 1 9 x\n3.1 Q0 3.1-5 2 8 x\n3.2 Q0 3.2-1 1 7 x\n"
    )
    result = search(TRECQA_RAW, "--candidates", candidates, "--hits", "1", code=0)
    assert "mp_hcnn + given (λ = 0.5)" in result.out
    assert "λ = 0.5 (not tuned: choose one by --lambda)" in result.err
    assert ids_in(read_run("run")) == {"3.1": ["3.1-0"], "3.2": ["3.2-1"]}


def test_a_run_with_unknown_answers_is_refused(search: Command) -> None:
    candidates = Path("given")
    candidates.write_text("3.1 Q0 3.1-9 1 9 x\n")
    result = search(TRECQA_RAW, "--candidates", candidates, code=1)
    assert "not in the collection (3.1-9)" in result.err


def real_sizes(name: str, data: Path) -> list[tuple[int, int]]:
    """Numbers of questions and answers of the training, development and test parts."""
    sizes = []
    for part_name in named.PARTS:
        part = named.find_answers(name, data).part(part_name)
        if part.missing():
            pytest.skip(f"no {name} in the data folder")
        sizes.append((len(part.topics), len(list(part.posts()))))
    return sizes


def test_sizes_of_the_real_collections(data_dir: Path) -> None:
    train, dev, test = real_sizes(TRECQA_RAW, data_dir)
    assert (train, test) == ((93, 4718), (95, 1517))
    assert real_sizes("trecqa-all-raw", data_dir) == [(1229, 53417), dev, test]
    _, dev, test = real_sizes(TRECQA_CLEAN, data_dir)
    assert test == (68, 1442)
    assert real_sizes("trecqa-all-clean", data_dir) == [(1229, 53417), dev, test]
    wikiqa = real_sizes(WIKIQA, data_dir)
    assert [questions for questions, _ in wikiqa] == [873, 126, 243]
    assert wikiqa[2][1] == 2351


@pytest.mark.parametrize(
    ("name", "judged", "hopeless"),
    [(TRECQA_RAW, 95, 6), (TRECQA_CLEAN, 68, 0), (WIKIQA, 243, 0)],
)
def test_judgments_of_the_real_collections(
    data_dir: Path, name: str, judged: int, hopeless: int
) -> None:
    """All questions are judged; the raw part has questions without a right answer."""
    real_sizes(name, data_dir)
    qrels = named.find(name, data_dir).qrels or {}
    assert len(qrels) == judged
    assert len(without_relevant(qrels)) == hopeless
    if name == TRECQA_CLEAN:
        assert qrels.keys() <= (named.find(TRECQA_RAW, data_dir).qrels or {}).keys()
