"""Building and searching: scores against naive formulas, time limits, and every kind of damage."""

import json
import math
import os
import random
import re
import sqlite3
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
from conftest import Command, Patch
from helpers.index_samples import POSTS, TOPICS, write_lines
from helpers.processes import run_python

from tweetrerank.indexes import jvm, lucene_index
from tweetrerank.indexes.analysis import (
    ANALYZERS,
    STANDARD,
    analyze,
    analyzer,
    analyzer_name,
    searchable,
)
from tweetrerank.indexes.data_error import DataError
from tweetrerank.indexes.lucene_index import LuceneIndex
from tweetrerank.indexes.methods import (
    BM25,
    METHODS,
    RM3,
    Axiomatic,
    Method,
    QueryLikelihood,
    Topic,
)
from tweetrerank.indexes.posts import Post
from tweetrerank.pipeline.collections import named
from tweetrerank.pipeline.evaluation.measures import evaluate, mean


def build(folder: Path, posts: Iterable[Post]) -> LuceneIndex:
    lucene_index.build(posts, folder, [])
    return LuceneIndex.open(folder)


BAGS = {post.doc_id: Counter(post.text.split()) for post in POSTS[:400]}


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LuceneIndex]:
    with build(tmp_path_factory.mktemp("indexes") / "random", POSTS) as opened:
        yield opened


def search_one(
    index: LuceneIndex, text: str, method: Method, **options: int
) -> dict[str, float]:
    return index.search([Topic("q", text)], method, **options)["q"]


def naive_scores(
    query: str, weight: Callable[[str, Counter[str]], float]
) -> dict[str, float]:
    """Sum of the weights of the query's words, for each post with one of them."""
    asked = query.split()
    found = {doc_id: bag for doc_id, bag in BAGS.items() if bag.keys() & asked}
    return {
        d: sum(weight(word, bag) for word in asked if bag[word])
        for d, bag in found.items()
    }


def naive_query_likelihood(query: str, mu: float) -> dict[str, float]:
    """Dirichlet smoothing as Lucene has it: log p(w|d) - log p(w|C) + a length part, at least 0."""
    collection = Counter(word for bag in BAGS.values() for word in bag.elements())

    def weight(word: str, bag: Counter[str]) -> float:
        expected = mu * (collection[word] + 1) / (collection.total() + 1)
        return max(
            0, math.log(1 + bag[word] / expected) + math.log(mu / (bag.total() + mu))
        )

    return naive_scores(query, weight)


def naive_bm25(query: str, k1: float, b: float) -> dict[str, float]:
    average = sum(bag.total() for bag in BAGS.values()) / len(BAGS)

    def weight(word: str, bag: Counter[str]) -> float:
        df = sum(word in other for other in BAGS.values())
        idf = math.log(1 + (len(BAGS) - df + 0.5) / (df + 0.5))
        return idf * bag[word] / (bag[word] + k1 * (1 - b + b * bag.total() / average))

    return naive_scores(query, weight)


@pytest.mark.parametrize(
    "query", ["tango", "papa romeo tango", "kilo kilo lima", "alpha zzz"]
)
def test_scores_are_those_of_the_formulas(index: LuceneIndex, query: str) -> None:
    for mu in (10.0, 1500.0):
        found = search_one(index, query, QueryLikelihood(mu))
        assert found == pytest.approx(
            naive_query_likelihood(query, mu), rel=1e-4, abs=1e-5
        )
    for k1, b in ((0.9, 0.4), (1.2, 0.0), (0.3, 1.0)):
        found = search_one(index, query, BM25(k1, b))
        assert found == pytest.approx(naive_bm25(query, k1, b), rel=1e-4, abs=1e-5)


def test_pyserini_finds_the_same_posts_and_scores(
    index: LuceneIndex, monkeypatch: Patch
) -> None:
    jvm.start()
    encoders = ModuleType(
        "pyserini.encode"
    )  # Of dense vectors; with dependencies of their own.
    encoders.__getattr__ = lambda name: type(name, (), {})
    monkeypatch.setitem(sys.modules, "pyserini.encode", encoders)
    searcher = import_module("pyserini.search.lucene").LuceneSearcher(
        str(index.directory)
    )
    searcher.set_qld(100)
    for text in ("tango", "papa romeo tango", "kilo kilo lima"):
        found = {hit.docid: hit.score for hit in searcher.search(text, 1000)}
        assert len(found) > 30
        # Anserini rounds, and tells ties apart.
        ours = search_one(index, text, QueryLikelihood(100.0))
        assert found == pytest.approx(ours, abs=2e-4), text


ALL_METHODS = [pytest.param(method(), id=name) for name, method in METHODS.items()]


@pytest.mark.parametrize("method", ALL_METHODS)
def test_results_are_ordered_cut_and_repeatable(
    index: LuceneIndex, method: Method
) -> None:
    topics = TOPICS[:9]
    results = index.search(topics, method, threads=1)
    assert list(results) == [topic.query_id for topic in topics]
    # Threads change places all the time: a filter must not get into another topic's search.
    many = {f"{topic.query_id}-{n}": topic for topic in topics for n in range(15)}
    copies = [topic._replace(query_id=key) for key, topic in many.items()]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        found_by_many = index.search(copies, method, threads=8)
    finally:
        sys.setswitchinterval(interval)
    assert found_by_many == {
        key: results[topic.query_id] for key, topic in many.items()
    }
    for topic in topics:
        found = results[topic.query_id]
        assert found and found.keys() <= {post.doc_id for post in POSTS}
        assert list(found) == sorted(
            found, key=lambda doc_id: (-found[doc_id], -int(doc_id))
        )
        (few,) = index.search([topic], method, hits=7).values()
        assert list(few.items()) == list(found.items())[:7]
    assert (
        index._reader.getRefCount() == 1
    )  # Else files stay open when the index is closed.


@pytest.mark.parametrize("method", ALL_METHODS)
def test_no_post_from_the_future(index: LuceneIndex, method: Method) -> None:
    ceilings = ("0", "100", "9999", "10000", "79999")
    topics = [Topic(ceiling, "alpha bravo", None, ceiling) for ceiling in ceilings]
    for ceiling, found in index.search(topics, method).items():
        past = {post.doc_id for post in POSTS if int(post.doc_id) <= int(ceiling)}
        assert found.keys() <= past
        if not isinstance(method, RM3 | Axiomatic):
            text = {post.doc_id: post.text.split() for post in POSTS}
            assert found.keys() == {
                d for d in past if {"alpha", "bravo"} & set(text[d])
            }


FEEDBACK = [RM3(mu=100), Axiomatic(pool_factor=5), Axiomatic(pool_factor=10_000)]


@pytest.mark.parametrize(
    "method", FEEDBACK, ids=["rm3", "axiom", "axiom-all-posts-in-the-pool"]
)
def test_feedback_learns_nothing_from_the_future(
    tmp_path: Path, method: Method
) -> None:
    """Only in the future does "meteor" go with "festival"."""
    drawn = random.Random(7)
    syllables = [consonant + vowel for consonant in "bdgklmnprtvz" for vowel in "ao"]
    # Many words, because feedback leaves those out that a tenth of the posts have.
    words = [f"{one}{other}k" for one in syllables for other in syllables]
    noise = [" ".join(drawn.choices(words, k=10)) for _ in range(500)]
    past = [Post(str(1000 + n), text) for n, text in enumerate(noise)]
    past += [Post(str(1600 + n), f"festival {noise[n]}") for n in range(12)]
    past += [Post("1999", "meteor zebra")]
    future = [
        Post(str(20000 + n), "festival meteor festival meteor") for n in range(30)
    ]
    with build(tmp_path / "all", [*past, *future]) as everything:
        limited = everything.search([Topic("q", "festival", None, "2000")], method)["q"]
        unlimited = search_one(everything, "festival", method)
    with build(tmp_path / "past", past) as only_past:
        before = search_one(only_past, "festival", method)
    # "meteor" comes from the future, and with it the post that has nothing else.
    assert "1999" in unlimited and "1999" not in limited
    # The same words were added as if the future had not happened, and not the query's word alone.
    assert limited.keys() == before.keys() and len(limited) > 12


@pytest.mark.parametrize("method", ALL_METHODS)
def test_odd_queries(index: LuceneIndex, method: Method) -> None:
    for text in ("", "the of and", "?!", "unheardof", "\0", "💥", "\ud83d"):
        topics = [
            Topic("empty", text),
            Topic("full", "alpha"),
            Topic("late", text, None, "3"),
        ]
        results = index.search(topics, method)
        assert results["empty"] == results["late"] == {}
        assert results["full"]
    plain = search_one(index, "alpha bravo", method)
    assert search_one(index, "ALPHA\0 (bravo)", method) == plain
    assert search_one(index, "alpha AND +bravo~2 *", method).keys() >= {*plain}
    long = " ".join(f"word{n}" for n in range(3000)) + " alpha"
    assert len(search_one(index, long, method)) > 100
    assert index.search([], method) == {}


GERMAN = ["Die Häuser in der Stadt und auf dem Land sind nicht mehr zu haben."]
JAPANESE = ["東京タワーの高さは何メートルですか"]
LANGUAGES = [
    ("de", JAPANESE, "german"),
    ("he", GERMAN, STANDARD),
    ("und", GERMAN, "german"),
]
LANGUAGES += [("und", ["Как пройти в библиотеку?"], "russian"), ("und", [], "english")]
LANGUAGES += [
    ("und", ["Tôi không có gì cho bạn"], STANDARD),
    ("und", ["Дај ми то"], STANDARD),
]
SCRIPTS = [
    (None, GERMAN, "english"),
    (None, JAPANESE, "cjk"),
    (None, ["क्या आप"], "hindi"),
]
SCRIPTS += [(None, ["123 !!"], "english")]


@pytest.mark.parametrize(("language", "texts", "expected"), [*LANGUAGES, *SCRIPTS])
def test_analyzers_of_languages(
    language: str | None, texts: list[str], expected: str
) -> None:
    assert analyzer_name(language, texts) == expected


def test_posts_are_found_by_words_of_their_language(tmp_path: Path) -> None:
    for language, posts, query in (
        ("de", ["Die Größe der Häuser", "Ein Haufen"], "großes Haus"),
        ("ja", ["東京タワーの高さ", "京都の寺"], "タワー"),
        ("th", ["ภาษาไทยน่ารัก", "แมวดำ"], "ภาษาไทย"),
        ("en", ["the cafe\u0301s", "a hose"], "café"),
    ):
        written = [Post(str(n), text) for n, text in enumerate(posts)]
        lucene_index.build(written, tmp_path / language, language=language)
        with LuceneIndex.open(tmp_path / language) as index:
            assert index.manifest.analyzer == ANALYZERS[language]
            assert list(search_one(index, query, BM25())) == ["0"], language


def test_every_analyzer_is_there() -> None:
    for name in {*ANALYZERS.values(), STANDARD}:
        assert list(analyze("x 2011", analyzer(name))) == ["x", "2011"]
    assert searchable("ไ\u200bทย abc") == " ไท ทย  abc"


def test_a_time_limit_needs_numbers(tmp_path: Path, index: LuceneIndex) -> None:
    with build(tmp_path / "names", [Post("a1", "alpha"), Post("22", "alpha")]) as names:
        assert list(search_one(names, "alpha", BM25())) == ["a1", "22"]
        with pytest.raises(
            DataError, match=r"topic q is limited .* are not all whole num"
        ):
            names.search([Topic("q", "alpha", None, "22")], BM25())
    for limit in ("soon", "-1", "1.5e17", "", str(2**63)):
        with pytest.raises(
            DataError, match=f"topic q: found the time limit '{limit}', exp"
        ):
            index.search([Topic("q", "alpha", None, limit)], BM25())


def test_parameters_out_of_range() -> None:
    for make in (
        lambda: QueryLikelihood(0),
        lambda: BM25(b=1.1),
        lambda: RM3(mu=math.nan),
    ):
        with pytest.raises(
            DataError, match=r"found .*=.*; expected values in the ranges"
        ):
            make()


@pytest.fixture
def sources(tmp_path: Path) -> list[Path]:
    rows = {
        "one": {"id": "0", "text": "alpha 0"},
        "two words": {"id": "1", "text": "alpha 1"},
    }
    return [
        write_lines(tmp_path / f"{name}.jsonl", [row]) for name, row in rows.items()
    ]


@pytest.fixture
def built(tmp_path: Path, sources: list[Path]) -> Path:
    posts = [Post("1", "alpha"), Post("20", "alpha bravo"), Post("3", "")]
    command = "python -m pipeline.index --again"
    manifest = lucene_index.build(posts, tmp_path / "index", sources, command)
    assert (manifest.posts, manifest.empties, manifest.numeric_ids) == (3, 1, True)
    return tmp_path / "index"


def listing(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def refused(problem: str, folder: Path, sources: list[Path] | None = None) -> None:
    """An index is not opened, and this is why."""
    with pytest.raises(DataError, match=problem):
        LuceneIndex.open(folder, sources)


def test_builds_are_equal_and_movable(
    tmp_path: Path, built: Path, sources: list[Path]
) -> None:
    posts = [Post("3", ""), Post("20", "alpha bravo"), Post("1", "alpha")]
    lucene_index.build(
        posts, tmp_path / "again", sources, "python -m pipeline.index --again"
    )
    assert listing(tmp_path / "again") == listing(built)
    moved, found = built.rename(tmp_path / "moved #1 %20?"), []
    for folder in (moved, tmp_path / "again"):
        with LuceneIndex.open(folder, sources) as opened:
            found.append(
                (list(opened.posts), search_one(opened, "alpha", QueryLikelihood()))
            )
    assert found[0] == found[1]


def test_a_full_disk(tmp_path: Path, built: Path) -> None:
    """A limit on the size of files stands in for the disk."""
    code = (
        "import resource, signal, sys\n"
        "from tweetrerank.indexes import jvm\n"
        "from tweetrerank.indexes.data_error import DataError\n"
        "from tweetrerank.indexes.lucene_index import build\n"
        "from tweetrerank.indexes.posts import Post\n"
        "jvm.start()\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))\n"
        "posts = (Post(str(n), f'some text {n} ' * 20) for n in range(5000))\n"
        "try: build(posts, sys.argv[1], [])\n"
        "except DataError as error: print('ONE MESSAGE:', error)\n"
    )
    before = listing(tmp_path)
    done = run_python("-c", code, built)
    assert re.match("ONE MESSAGE: .*cannot be written", done.stdout), done.stderr
    assert listing(tmp_path) == before
    LuceneIndex.open(built).close()


def test_sources_that_have_changed(built: Path, sources: list[Path]) -> None:
    LuceneIndex.open(built, sources).close()
    os.utime(sources[0], (1, 1))  # another time, the same content
    LuceneIndex.open(built, sources).close()
    LuceneIndex.open(built, sources[::-1]).close()  # another order, the same posts
    for paths in (sources[1:], [*sources, built.parent / "new.jsonl"]):
        refused(r"built from \['one\.jsonl', .*\], expected \['", built, paths)
    size = sources[0].stat().st_size
    sources[0].write_text(sources[0].read_text().replace("alpha", "omega"))
    assert sources[0].stat().st_size == size
    problem = r"built from .*one\.jsonl, which has changed.*\n +python -m pipeline\.index --again$"
    refused(problem, built, sources)
    sources[0].unlink()
    refused(r"one\.jsonl, which does not exist any more", built, sources)
    LuceneIndex.open(built).close()  # unchecked


def test_what_is_no_index_is_neither_opened_nor_replaced(tmp_path: Path) -> None:
    refused("found no such folder, expected an index; build one", tmp_path / "none")
    (tmp_path / "file").write_text("thesis")
    refused(r"found a folder that is not an index.*`indexes.bu", tmp_path)
    for kind, place in (("folder", tmp_path), ("file", tmp_path / "file")):
        with pytest.raises(DataError, match=f"found a {kind}.*; it is left as it is"):
            lucene_index.build([Post("1", "x")], place, [])
    assert listing(tmp_path) == ["file"]


def test_an_index_of_an_earlier_version(built: Path) -> None:
    """It had no numbers beside texts and no SHA-256, and another name of its analyzer."""
    with LuceneIndex.open(built) as index:
        found, posts = search_one(index, "alpha", BM25()), [*index.posts]
    assert len(found) == 2 and len(posts) == 3
    with closing(sqlite3.connect(built / "posts.sqlite")) as connection:
        connection.execute("ALTER TABLE posts DROP COLUMN signals")
        connection.commit()
    path = built / "manifest.json"
    fields = json.loads(path.read_text("utf-8")) | {
        "posts_crc": 1,
        "analyzer": "English",
    }
    del fields["sha256"], fields["manifest_sha256"]
    fields["files"]["posts.sqlite"] = (built / "posts.sqlite").stat().st_size
    path.write_text(json.dumps(fields), "utf-8")
    with LuceneIndex.open(built) as index:
        assert (search_one(index, "alpha", BM25()), [*index.posts]) == (found, posts)


def test_damages_are_noticed(built: Path, command: Command, monkeypatch: Patch) -> None:
    """Of each file; a byte with an old time in a large index by the full check alone."""
    names = json.loads((built / "manifest.json").read_text())["files"]
    assert len(names) >= 10
    for name in names:
        file, pattern = built / name, re.escape(name)
        whole, status = file.read_bytes(), file.stat()
        for place in (len(whole) // 2, len(whole) - 1):
            file.write_bytes(
                whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]
            )
            problem = (
                rf"found another SHA-256 in {pattern}: damaged; build it again with"
            )
            for small in (0, 10**6):
                monkeypatch.setattr("tweetrerank.indexes.manifest.SMALL", small)
                refused(problem, built)
                os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
            monkeypatch.setattr("tweetrerank.indexes.manifest.SMALL", 0)
            result = command("index", "--index", built, "--check")
            assert result.code == 1 and re.search(problem, result.err)
        file.write_bytes(whole[:-20])
        refused(rf"{pattern} has \d+ bytes, .*damaged; build it", built)
        file.rename(built / "another")
        refused(rf"found another, no file of it; .*{pattern} is", built)
        (built / "another").unlink()
        file.write_bytes(whole)
    result = command("index", "--index", built, "--check")
    assert (result.code, result.out[:9]) == (0, "no damage")
    LuceneIndex.open(built).close()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "of format 2, expected 1; a newer version wrote it"),
        ({"format": 0}, "of format 0, expected 1; build it again"),
        ({"posts": 4}, "found 3 posts in Lucene and 3 in posts.sqlite, expected 4"),
        ({"sources": [[1, 2]]}, "not a readable manifest"),
    ],
)
def test_manifests_that_do_not_fit(
    built: Path, change: dict[str, object], message: str
) -> None:
    path = built / "manifest.json"
    fields = json.loads(path.read_text()) | change
    path.write_text(json.dumps(fields))
    refused(r"manifest\.json: .*another SHA-256 than", built)
    del fields["manifest_sha256"]
    path.write_text(json.dumps(fields))
    refused(message, built)
    for damaged in (b"{", b"[]", b'{"format": 1}', b"\xff"):
        path.write_bytes(damaged)
        refused(r"manifest\.json: not a readable manifest", built)


@pytest.mark.slow
@pytest.mark.usefixtures("pools")
def test_query_likelihood_on_2011(data_dir: Path) -> None:
    collection = named.find("mb2011", data_dir)
    with collection.open_index() as index:
        assert (index.size, index.manifest.empties) == (85379, 4)
        run = index.search(collection.topics, QueryLikelihood(mu=100))
    # Anserini ranks equal scores, which most are, by ascending id: .3527.
    assert mean(evaluate(collection.qrels, run)["AP"]) == pytest.approx(
        0.3547, abs=0.0005
    )
