"""Topics, qrels and runs: what is read, what is refused, and the order that trec_eval will see."""

import bz2
import gzip
import math
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.collections.topics import Topic, read_topics
from pipeline.collections.trec import aligned, ranked, read_qrels, read_run, write_run
from pipeline.errors import DataError, UsageError


def single(score: float) -> float:
    """The nearest number of C's type float."""
    return struct.unpack("f", struct.pack("f", score))[0]


def official_order(scores: dict[str, float]) -> list[str]:
    """trec_eval's order, said in another way than the code says it: two stable sorts."""
    by_id = sorted(scores, key=lambda doc_id: doc_id.encode(), reverse=True)
    return sorted(by_id, key=lambda doc_id: -single(scores[doc_id]))


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


# Topics

TIMES = "<querytime> Tue </querytime>\n<querytweettime> 0123 </querytweettime>"


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        ("<num> Number: MB001 </num>\n<title> a  b </title>", Topic("1", "a b")),
        ("<NUM>number:MB100</NUM><Title>a</TITLE>", Topic("100", "a")),
        ("<num> Number: 301\n<title> over\ntwo lines\n<desc> more", Topic("301", "over two lines")),
        ("<num>007</num><title>a</title>", Topic("007", "a")),
        ("<num>MB7b</num><title></title>", Topic("MB7b", "")),
        ("<num>1</num><title>&amp; &lt;3 &copy &amp;lt;</title>", Topic("1", "& <3 &copy &lt;")),
        ("<num>1</num><title><![CDATA[a &#39;b&#x27; &eacute;]]></title>", Topic("1", "a 'b' é")),
        (
            "<head> Tipster\n<num> Number:  051\n<dom> Domain: Weather\n"
            "<title> Topic:  storm warning\n\n<desc> Description:\nmore",
            Topic("51", "storm warning"),
        ),
        ("<num> Number: 202\n<desc> Description: \nof\ntreaties", Topic("202", "of treaties")),
        ("<identifier>10.2/4-AH</identifier><title lang='en'>a</title>", Topic("10.2/4-AH", "a")),
        ("<num>1</num><title>i <b>x</b> > 😀 שלום</title>", Topic("1", "i <b>x</b> > 😀 שלום")),
        (f"<num>1</num><query>a</query>{TIMES}", Topic("1", "a", "Tue", "0123")),
    ],
)
def test_xml_topic(tmp_path: Path, block: str, expected: Topic) -> None:
    bare = write(tmp_path / "bare", f"\n<top>\n{block}\n</top>\n")
    assert read_topics(bare) == [expected]
    wrapped = f'<?xml version="1.0"?>\n<!-- <top>\n\n -->\n<topics task="x">\n<top>{block}</top>'
    assert read_topics(write(tmp_path / "wrapped", f"{wrapped}\n</topics>\n")) == [expected]


def test_tsv_topics(tmp_path: Path) -> None:
    content = "\ufeff7\thaiti  aristide\r\n\r\nMB8\t\r\n9\t< 3 tops\r\n"
    expected = [Topic("7", "haiti aristide"), Topic("MB8", ""), Topic("9", "< 3 tops")]
    assert read_topics(write(tmp_path / "topics.tsv", content)) == expected


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a", '<topics>\n<topic number="1" type="faceted">\n<query>storm warning</query>\n'
         '<description>d</description><subtopic number="1">s</subtopic></topic></topics>'),
        ("a", "<topics><topic><number>1</number><title>storm warning</title></topic></topics>"),
        ("a", "<a><query><number>1</number><text>storm warning</text></query></a>"),
        ("a", "query_id\ttext\n1\tstorm warning\n"),
        ("a.tsv", "qid\tquery\n1\tstorm warning\n"),
        ("a.tsv", "1\tstorm warning\n"),
        ("a.csv", 'narrative,number,title\n"a, b",1,storm warning\n'),
        ("a", "1:storm warning\n"),
        ("a", '[{"topid": 1, "title": "storm  warning", "narrative": "n"}]'),
        ("a", '{\n"_id": "1",\n"text": "storm warning"}'),
    ],
)  # fmt: skip
def test_forms_of_topics(tmp_path: Path, name: str, content: str) -> None:
    assert read_topics(write(tmp_path / name, content)) == [Topic("1", "storm warning")]


# Qrels and runs


def test_qrels(tmp_path: Path) -> None:
    content = "\ufeff51 0 10 1\r\n\r\n51\tQ0\t9 -2\r\n  52 0 10 +2  \r\n51 0 é 1000000"
    expected = {"51": {"10": 1, "9": -2, "é": 1_000_000}, "52": {"10": 2}}
    assert read_qrels(write(tmp_path / "qrels", content)) == expected
    for header in (
        "query-id\tcorpus-id\tscore",
        "qid docno label",
        'qid,"doc_id",rel',
        "a;qid;id;rel",
    ):
        comma = next((mark for mark in "\t,;" if mark in header), " ")
        row = comma.join(["0"] * header.startswith("a") + ["51", "10", "1.0"])
        path = write(tmp_path / "table", f"{header}\n{row}\n")
        assert read_qrels(path) == {"51": {"10": 1}}


@pytest.mark.parametrize(
    ("ids", "topics", "expected"),
    [
        (["MB051", "052", "7"], ["51", "52", "7"], ["51", "52", "7"]),
        (["51"], ["RTS51", "MB52"], ["RTS51"]),
        (["wt09-1", "2"], ["1", "2"], ["1", "2"]),
        (["a1"], ["b1"], ["a1"]),  # two tracks
        (["MB1"], ["RTS1", "1"], ["MB1"]),
        (["MB1", "RTS1"], ["1"], ["MB1", "RTS1"]),
        (["MB1", "1"], ["1"], ["MB1", "1"]),
    ],
)
def test_ids_with_and_without_a_prefix(
    ids: list[str], topics: list[str], expected: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert [*aligned({key: {} for key in ids}, topics, "my.qrels")] == expected
    assert ("my.qrels: " in capsys.readouterr().err) == (ids != expected)


def test_run(tmp_path: Path) -> None:
    lines = ["2 Q0 b 7 -1.5 x", "1 Q0 a - 1e-3 x", "2 Q0 a 0 .5 x", "2 0 c 1.0 5. x"]
    read = read_run(write(tmp_path / "run", "\r\n".join(lines)))
    assert list(read.items()) == [("2", {"b": -1.5, "a": 0.5, "c": 5.0}), ("1", {"a": 0.001})]
    assert read_run(write(tmp_path / "empty", "")) == {}


@pytest.mark.parametrize("read", [read_qrels, read_run, read_topics])
def test_files_that_cannot_be_read(tmp_path: Path, read: Callable[[Path], Any]) -> None:
    with pytest.raises(DataError, match="nowhere: cannot be read: No such file"):
        read(tmp_path / "nowhere")
    with pytest.raises(DataError, match="cannot be read"):
        read(tmp_path)
    whole = gzip.compress(b"\n" * 1000)
    with pytest.raises(DataError, match="cut off"):
        read(write(tmp_path / "x.gz", whole[:-9]))


TOP = "<top><num>1</num><title>a</title></top>\n"
GOOD, BEIR = "1 Q0 a 1 2.5 t\n", "query-id corpus-id score\n"
MALFORMED: dict[Callable[[Path], Any], list[tuple[str | bytes, str]]] = {
    read_topics: [
        ("\n \n", ": found no topic"),
        ("<topics></topics>", ": found no topic"),
        ("1 haiti\n", ":1: found 0 tabs in '1 haiti', expected query_id<TAB>text"),
        ("1\ta\n2\tb\tc\n", ":2: found 2 tabs"),
        ("1\ta\n\tb\n", ":2: found '', expected a query_id of one word"),
        ("1\ta\n\n2\tb\n1\tc\n", ":4: found a second topic 1, expected every id once; the f"),
        (TOP + "\n<top>\n<num>MB01</num><query>b</query></top>", ":3: found a second topic 1, "),
        (TOP + "\n\n<top>\n<num>2</num>\n", ":4: found '<top> 2', expected <top>"),
        (TOP + "</top>\n", ":2: found '</top>'"),
        (TOP + "<!-- a\n -->\n stray\n" + TOP, ":4: found 'stray'"),
        ("<top>\n<num>1</num><title>a</title>\n" + TOP, ":1: found a second <top>"),
        (TOP + "<top><title>a</title></top>", ":2: found a topic without <num>"),
        (TOP + "<top><num>2</num></top>", ":2: found a topic without <title> or <query>"),
        ("<top><num>1 2</num><title>a</title></top>", ":1: found '1 2', expected a query_id"),
        ("<top><num>1</num><title>a</title><title>b</title></top>", ":1: found 2 <title>"),
        (TOP[:-7] + "<querytweettime>now</querytweettime></top>", ":1: found 'now' in <querytwee"),
        (b"1\tcaf\xe9\n", ":1: found the byte 0xe9"),
        ('{"_id": "a"}', ':1: found the keys "_id", expected a text'),
        ('{"text": "a"}', ':1: found the keys "text", expected an id under "query_id"'),
        ("{", ":1: found '{', expected JSON"),
    ],
    read_run: [
        (GOOD + "\n1 Q0 b 2 t\n", ":3: found 5 columns in '1 Q0 b 2 t', expected query_id Q0 doc"),
        (GOOD + "1 Q0 b 2 1.5 my tag\n", ":2: found 7 columns"),
        ("1 Q0 a\0 1 2 t\n", ":1: found a NUL byte"),
        *(
            (GOOD + f"1 Q0 b 2 {score} t\n", f":2: found the score '{score}', expected a number")
            for score in ("nan", "-inf", "1e39", "1_0", "0x1p3", "١", "1,5")
        ),
        (GOOD * 2, ":2: found document a of topic 1 again, expected it once; the first is on line"),
        (GOOD.encode() + b"1 Q0 \xff 2 1 t", ":2: found the byte 0xff"),
    ],
    read_qrels: [
        ("", ": found no judgment"),
        (f"{BEIR}a d1", ":2: found 2 columns in 'a d1', expected query-id corpus-id score"),
        (f"{BEIR}a d1 x", ":2: found the relevance 'x'"),
        ("a d1 1", ":1: found 3 columns in 'a d1 1', expected query_id 0 doc_id relevance"),
        ("1 0 a 1\n1 Q0 a 1 2.5 t\n", ":2: found 6 columns in '1 Q0 a 1 2.5 t', expected query_id"),
        ("1 0 a 1\n2 0 a 1\n\n1 0 a 0\n", ":4: found document a of topic 1 again, expected it"),
        *(
            (f"1 0 a {grade}\n", f":1: found the relevance {grade!r}, expected a whole number")
            for grade in ("1.5", "x", "1_0", "²", "1000001", "-1000001")
        ),
    ],
}


@pytest.mark.parametrize(
    ("read", "content", "message"),
    [(read, *row) for read, rows in MALFORMED.items() for row in rows],
)
def test_malformed_files(
    tmp_path: Path, read: Callable[[Path], Any], content: str | bytes, message: str
) -> None:
    path = write(tmp_path / "file", content)
    with pytest.raises(DataError) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}{message}")


# The tie rule, and writing


@pytest.mark.parametrize("score", [math.nan, -math.inf, 3.5e38])
def test_no_such_score_is_ranked_or_written(tmp_path: Path, score: float) -> None:
    path = write(tmp_path / "run", "old")
    run = {"51": {"a": 1.0}, "52": {"a": 1.0, "b": score}}
    with pytest.raises(DataError, match="topic 52, document b: found the score"):
        write_run(path, run, "t")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(DataError, match="document b"):
        ranked(run["52"])


@pytest.mark.parametrize("name", ["", "a b", "a\0", "a\u2003b", "\ud800"])
def test_ids_and_tags_that_cannot_stand_in_a_run(tmp_path: Path, name: str) -> None:
    for run in ({name: {"a": 1.0}}, {"1": {name: 1.0}}):
        with pytest.raises(DataError, match="expected one word"):
            write_run(tmp_path / "run", run, "t")
    with pytest.raises(UsageError, match="tag of a run"):
        write_run(tmp_path / "run", {"1": {"a": 1.0}}, name)
    assert not list(tmp_path.iterdir())


def test_written_runs_are_compressed_by_their_name(tmp_path: Path) -> None:
    run = {"1": {"a": 1.0, "b": 2.0}, "2": {}}
    text = b"1 Q0 b 1 2 t\n1 Q0 a 2 1 t\n"
    write_run(tmp_path / "new" / "x.run", run, "t")
    write_run(tmp_path / "x.gz", run, "t")
    write_run(tmp_path / "x.bz2", run, "t")
    assert (tmp_path / "new" / "x.run").read_bytes() == text
    assert gzip.decompress(first := (tmp_path / "x.gz").read_bytes()) == text
    assert bz2.decompress((tmp_path / "x.bz2").read_bytes()) == text
    # No time stamp (RFC 1952, bytes 4 to 7): the same run gives the same bytes.
    assert first[4:8] == b"\0\0\0\0"


IDS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=3).filter(
    lambda text: len(text.split()) == 1 and text == text.strip() and "\0" not in text
)
# Ties and near ties are what can go wrong, so they are drawn often.
SCORES = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, 16.0, -16.0, 1e-45, -1e-45, 3.4028234e38]),
    st.builds(
        lambda base, up, steps: base * (1 + (steps if up else -steps) * 2.0**-26),
        st.sampled_from([1.0, 16.0, -7.3, 1e-38]),
        st.booleans(),
        st.integers(0, 9),
    ),
    st.floats(width=32, allow_nan=False, allow_infinity=False),
    st.floats(-3e38, 3e38),
)
RUNS = st.dictionaries(IDS, st.dictionaries(IDS, SCORES, min_size=1, max_size=12), max_size=3)
in_a_folder = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30, deadline=None
)


@in_a_folder
@given(run=RUNS)
def test_a_run_read_back_is_the_run_in_single_precision(tmp_path: Path, run: Any) -> None:
    path = tmp_path / "run"
    write_run(path, run, "t")
    read = read_run(path)
    assert read.keys() == run.keys()
    for query_id, scores in run.items():
        assert {d: single(s) for d, s in read[query_id].items()} == {
            d: single(s) for d, s in scores.items()
        }
        order = official_order(scores)
        # The file's order, what a reader in single and what one in double precision makes of it.
        assert list(read[query_id]) == order
        assert [doc_id for doc_id, _ in ranked(read[query_id])] == order
        assert sorted(read[query_id], key=lambda d: (read[query_id][d], d), reverse=True) == order
    write_run(tmp_path / "again", read, "t")
    assert (tmp_path / "again").read_bytes() == path.read_bytes()
