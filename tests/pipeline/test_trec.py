"""Topics, qrels and runs: readers, refused files, and trec_eval's order."""

import bz2
import gzip
import math
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Capture
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tweetrerank.indexes.data_error import DataError
from tweetrerank.pipeline.collections.topics import Topic, read_topics
from tweetrerank.pipeline.collections.trec import (
    aligned,
    ranked,
    read_qrels,
    read_run,
    write_run,
)
from tweetrerank.pipeline.usage_error import UsageError

case = pytest.param
Reader = Callable[[Path], Any]


def single(score: float) -> float:
    """The nearest number of C's type float."""
    return struct.unpack("f", struct.pack("f", score))[0]


def official_order(scores: dict[str, float]) -> list[str]:
    """trec_eval's order by another implementation: two stable sorts."""
    by_id = sorted(scores, key=lambda doc_id: doc_id.encode(), reverse=True)
    return sorted(by_id, key=lambda doc_id: -single(scores[doc_id]))


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


TIPSTER = (
    "<head> Tipster\n<num> Number:  051\n<dom> Domain: Weather\n"
    "<title> Topic:  storm warning\n\n<desc> Description:\nmore"
)
LIMITED = (
    "<num>1</num><query>a</query><querytime> Tue </querytime>\n"
    "<querytweettime> 0123 </querytweettime>"
)
XML_TOPICS = [
    case(
        "<num> Number: MB001 </num>\n<title> a  b </title>",
        Topic("1", "a b"),
        id="prefix of the track",
    ),
    case(
        "<NUM>number:MB100</NUM><Title>a</TITLE>",
        Topic("100", "a"),
        id="upper case",
    ),
    case(
        "<num> Number: 301\n<title> over\ntwo lines\n<desc> more",
        Topic("301", "over two lines"),
        id="old file without closing tags",
    ),
    case("<num>007</num><title>a</title>", Topic("007", "a"), id="zeros"),
    case("<num>MB7b</num><title></title>", Topic("MB7b", ""), id="id with a letter"),
    case(
        "<num>1</num><title>&amp; &lt;3 &copy &amp;lt;</title>",
        Topic("1", "& <3 &copy &lt;"),
        id="entities are decoded once",
    ),
    case(
        "<num>1</num><title><![CDATA[a &#39;b&#x27; &eacute;]]></title>",
        Topic("1", "a 'b' é"),
        id="CDATA and numbered entities",
    ),
    case(TIPSTER, Topic("51", "storm warning"), id="labels of TREC 1"),
    case(
        "<num> Number: 202\n<desc> Description: \nof\ntreaties",
        Topic("202", "of treaties"),
        id="description alone, as in TREC 4",
    ),
    case(
        "<identifier>10.2/4-AH</identifier><title lang='en'>a</title>",
        Topic("10.2/4-AH", "a"),
        id="identifier and attribute, as in CLEF",
    ),
    case(
        "<num>1</num><title>i <b>x</b> > 😀 שלום</title>",
        Topic("1", "i <b>x</b> > 😀 שלום"),
        id="other tags, emoji, Hebrew",
    ),
    case(LIMITED, Topic("1", "a", "Tue", "0123"), id="time limit"),
]


@pytest.mark.parametrize(("block", "topic"), XML_TOPICS)
def test_xml_topic(tmp_path: Path, block: str, topic: Topic) -> None:
    path = write(tmp_path / "topics", f"\n<top>\n{block}\n</top>\n")
    assert read_topics(path) == [topic]


@pytest.mark.parametrize(("block", "topic"), XML_TOPICS)
def test_xml_topic_in_a_document(tmp_path: Path, block: str, topic: Topic) -> None:
    head = '<?xml version="1.0"?>\n<!-- <top>\n\n -->\n<topics task="x">'
    path = write(tmp_path / "topics", f"{head}\n<top>{block}</top>\n</topics>\n")
    assert read_topics(path) == [topic]


def test_tsv_topics(tmp_path: Path) -> None:
    content = "\ufeff7\thaiti  aristide\r\n\r\nMB8\t\r\n9\t< 3 tops\r\n"
    expected = [Topic("7", "haiti aristide"), Topic("MB8", ""), Topic("9", "< 3 tops")]
    assert read_topics(write(tmp_path / "topics.tsv", content)) == expected


@pytest.mark.parametrize(
    ("name", "content"),
    [
        case(
            "a",
            '<topics>\n<topic number="1" type="faceted">\n<query>storm warning</query>'
            '\n<description>d</description><subtopic number="1">s</subtopic></topic>'
            "</topics>",
            id="attributes, as in the web track",
        ),
        case(
            "a",
            "<topics><topic><number>1</number><title>storm warning</title></topic>"
            "</topics>",
            id="topic elements",
        ),
        case(
            "a",
            "<a><query><number>1</number><text>storm warning</text></query></a>",
            id="query elements",
        ),
        case("a", "query_id\ttext\n1\tstorm warning\n", id="header"),
        case("a.tsv", "qid\tquery\n1\tstorm warning\n", id="header of a .tsv file"),
        case("a.tsv", "1\tstorm warning\n", id=".tsv file without a header"),
        case(
            "a.csv",
            'narrative,number,title\n"a, b",1,storm warning\n',
            id=".csv file with quotes",
        ),
        case("a", "1:storm warning\n", id="colon"),
        case(
            "a",
            '[{"topid": 1, "title": "storm  warning", "narrative": "n"}]',
            id="JSON array, as in TREC RTS",
        ),
        case("a", '{\n"_id": "1",\n"text": "storm warning"}', id="JSON object"),
    ],
)
def test_forms_of_topics(tmp_path: Path, name: str, content: str) -> None:
    path = write(tmp_path / name, content)
    assert read_topics(path) == [Topic("1", "storm warning")]


def test_qrels(tmp_path: Path) -> None:
    content = "\ufeff51 0 10 1\r\n\r\n51\tQ0\t9 -2\r\n  52 0 10 +2  \r\n51 0 é 1000000"
    expected = {"51": {"10": 1, "9": -2, "é": 1_000_000}, "52": {"10": 2}}
    assert read_qrels(write(tmp_path / "qrels", content)) == expected


@pytest.mark.parametrize(
    "content",
    [
        case("query-id\tcorpus-id\tscore\n51\t10\t1.0\n", id="tabs, as in BEIR"),
        case("qid docno label\n51 10 1.0\n", id="spaces"),
        case('qid,"doc_id",rel\n51,10,1.0\n', id="commas and quotes"),
        case("a;qid;id;rel\n0;51;10;1.0\n", id="semicolons, and another column"),
    ],
)
def test_tables_of_qrels(tmp_path: Path, content: str) -> None:
    assert read_qrels(write(tmp_path / "table", content)) == {"51": {"10": 1}}


@pytest.mark.parametrize(
    ("ids", "topics", "expected"),
    [
        case(
            ["MB051", "052", "7"],
            ["51", "52", "7"],
            ["51", "52", "7"],
            id="prefix and zeros in the table",
        ),
        case(["51"], ["RTS51", "MB52"], ["RTS51"], id="prefix in the topics"),
        case(["wt09-1", "2"], ["1", "2"], ["1", "2"], id="prefix with a year"),
        case(["a1"], ["b1"], ["a1"], id="two prefixes are two tracks"),
        case(["MB1"], ["RTS1", "1"], ["MB1"], id="two topics of the number"),
        case(["MB1", "RTS1"], ["1"], ["MB1", "RTS1"], id="two ids of one topic"),
        case(["MB1", "1"], ["1"], ["MB1", "1"], id="both forms in the table"),
    ],
)
def test_prefixes_of_ids(
    ids: list[str], topics: list[str], expected: list[str], capsys: Capture
) -> None:
    table: dict[str, dict[str, int]] = {query_id: {} for query_id in ids}
    result = list(aligned(table, topics, "my.qrels"))
    assert result == expected
    is_reported = "my.qrels: " in capsys.readouterr().err
    assert is_reported == (result != ids)


def test_run(tmp_path: Path) -> None:
    lines = ["2 Q0 b 7 -1.5 x", "1 Q0 a - 1e-3 x", "2 Q0 a 0 .5 x", "2 0 c 1.0 5. x"]
    run = read_run(write(tmp_path / "run", "\r\n".join(lines)))
    # In the order of the first lines
    assert list(run.items()) == [
        ("2", {"b": -1.5, "a": 0.5, "c": 5.0}),
        ("1", {"a": 0.001}),
    ]


def test_empty_run(tmp_path: Path) -> None:
    assert read_run(write(tmp_path / "empty", "")) == {}


READERS = [read_qrels, read_run, read_topics]


@pytest.mark.parametrize("read", READERS)
def test_an_absent_file(tmp_path: Path, read: Reader) -> None:
    with pytest.raises(DataError, match="nowhere: cannot be read: No such file"):
        read(tmp_path / "nowhere")


@pytest.mark.parametrize("read", READERS)
def test_a_folder_instead_of_a_file(tmp_path: Path, read: Reader) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        read(tmp_path)


@pytest.mark.parametrize("read", READERS)
def test_a_truncated_file(tmp_path: Path, read: Reader) -> None:
    path = write(tmp_path / "x.gz", gzip.compress(b"\n" * 1000)[:-9])
    with pytest.raises(DataError, match="cut off"):
        read(path)


def check_refused(path: Path, read: Reader, problem: str) -> None:
    """Check that a DataError begins with the path and the problem."""
    with pytest.raises(DataError) as error:
        read(path)
    assert str(error.value).startswith(f"{path}{problem}")


TOPIC = "<top><num>1</num><title>a</title></top>\n"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        case("\n \n", ": found no topic", id="blank lines"),
        case("<topics></topics>", ": found no topic", id="XML without topics"),
        case(
            "1 haiti\n",
            ":1: found 0 tabs in '1 haiti', expected query_id<TAB>text",
            id="no tab",
        ),
        case("1\ta\n2\tb\tc\n", ":2: found 2 tabs", id="two tabs"),
        case(
            "1\ta\n\tb\n",
            ":2: found '', expected a query_id of one word",
            id="no id",
        ),
        case(
            "1\ta\n\n2\tb\n1\tc\n",
            ":4: found a second topic 1, expected every id once; the f",
            id="id twice",
        ),
        case(
            f"{TOPIC}\n<top>\n<num>MB01</num><query>b</query></top>",
            ":3: found a second topic 1, ",
            id="id twice in two forms",
        ),
        case(
            f"{TOPIC}\n\n<top>\n<num>2</num>\n",
            ":4: found '<top> 2', expected <top>",
            id="open element",
        ),
        case(f"{TOPIC}</top>\n", ":2: found '</top>'", id="closing tag alone"),
        case(
            f"{TOPIC}<!-- a\n -->\n stray\n{TOPIC}",
            ":4: found 'stray'",
            id="text between topics",
        ),
        case(
            f"<top>\n<num>1</num><title>a</title>\n{TOPIC}",
            ":1: found a second <top>",
            id="topic within a topic",
        ),
        case(
            f"{TOPIC}<top><title>a</title></top>",
            ":2: found a topic without <num>",
            id="topic without an id",
        ),
        case(
            f"{TOPIC}<top><num>2</num></top>",
            ":2: found a topic without <title> or <query>",
            id="topic without a text",
        ),
        case(
            "<top><num>1 2</num><title>a</title></top>",
            ":1: found '1 2', expected a query_id",
            id="id of two words",
        ),
        case(
            "<top><num>1</num><title>a</title><title>b</title></top>",
            ":1: found 2 <title>",
            id="two titles",
        ),
        case(
            "<top><num>1</num><title>a</title><querytweettime>now</querytweettime>"
            "</top>",
            ":1: found 'now' in <querytwee",
            id="time limit that is no id",
        ),
        case(
            "1\tcafé\n".encode("latin-1"),
            ":1: found the byte 0xe9",
            id="another encoding",
        ),
        case(
            '{"_id": "a"}',
            ':1: found the keys "_id", expected a text',
            id="JSON without a text",
        ),
        case(
            '{"text": "a"}',
            ':1: found the keys "text", expected an id under "query_id"',
            id="JSON without an id",
        ),
        case("{", ":1: found '{', expected JSON", id="malformed JSON"),
    ],
)
def test_malformed_topics(tmp_path: Path, content: str | bytes, problem: str) -> None:
    check_refused(write(tmp_path / "file", content), read_topics, problem)


HIT = "1 Q0 a 1 2.5 t\n"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        case(
            f"{HIT}\n1 Q0 b 2 t\n",
            ":3: found 5 columns in '1 Q0 b 2 t', expected query_id Q0 doc",
            id="five columns",
        ),
        case(f"{HIT}1 Q0 b 2 1.5 my tag\n", ":2: found 7 columns", id="tag of words"),
        case("1 Q0 a\0 1 2 t\n", ":1: found a NUL byte", id="NUL"),
        case(
            f"{HIT}{HIT}",
            ":2: found document a of topic 1 again, expected it once; the first is on "
            "line",
            id="document twice",
        ),
        case(
            f"{HIT}1 Q0 ÿ 2 1 t".encode("latin-1"),
            ":2: found the byte 0xff",
            id="another encoding",
        ),
    ],
)
def test_malformed_runs(tmp_path: Path, content: str | bytes, problem: str) -> None:
    check_refused(write(tmp_path / "file", content), read_run, problem)


@pytest.mark.parametrize(
    "score",
    [
        case("nan", id="no number"),
        case("-inf", id="infinite"),
        case("1e39", id="infinite in single precision"),
        case("1_0", id="Python's underscore"),
        case("0x1p3", id="C's hexadecimal number"),
        case("١", id="Arabic digit"),
        case("1,5", id="comma"),
    ],
)
def test_malformed_scores(tmp_path: Path, score: str) -> None:
    path = write(tmp_path / "file", f"{HIT}1 Q0 b 2 {score} t\n")
    problem = f":2: found the score '{score}', expected a number"
    check_refused(path, read_run, problem)


HEADER = "query-id corpus-id score\n"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        case("", ": found no judgment", id="empty file"),
        case(
            f"{HEADER}a d1",
            ":2: found 2 columns in 'a d1', expected query-id corpus-id score",
            id="two columns below a header",
        ),
        case(f"{HEADER}a d1 x", ":2: found the relevance 'x'", id="text for a grade"),
        case(
            "a d1 1",
            ":1: found 3 columns in 'a d1 1', expected query_id 0 doc_id relevance",
            id="three columns without a header",
        ),
        case(
            f"1 0 a 1\n{HIT}",
            ":2: found 6 columns in '1 Q0 a 1 2.5 t', expected query_id",
            id="line of a run",
        ),
        case(
            "1 0 a 1\n2 0 a 1\n\n1 0 a 0\n",
            ":4: found document a of topic 1 again, expected it",
            id="document twice",
        ),
    ],
)
def test_malformed_qrels(tmp_path: Path, content: str, problem: str) -> None:
    check_refused(write(tmp_path / "file", content), read_qrels, problem)


@pytest.mark.parametrize(
    "grade",
    [
        case("1.5", id="fraction"),
        case("x", id="text"),
        case("1_0", id="Python's underscore"),
        case("²", id="superscript"),
        case("1000001", id="above the highest grade"),
        case("-1000001", id="below the lowest grade"),
    ],
)
def test_malformed_grades(tmp_path: Path, grade: str) -> None:
    path = write(tmp_path / "file", f"1 0 a {grade}\n")
    problem = f":1: found the relevance '{grade}', expected a whole number"
    check_refused(path, read_qrels, problem)


@pytest.mark.parametrize("score", [math.nan, -math.inf, 3.5e38])
def test_infinite_scores_are_neither_ranked_nor_written(
    tmp_path: Path, score: float
) -> None:
    path = write(tmp_path / "run", "old")
    run = {"51": {"a": 1.0}, "52": {"a": 1.0, "b": score}}
    with pytest.raises(DataError, match="topic 52, document b: found the score"):
        write_run(path, run, "t")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(DataError, match="document b"):
        ranked(run["52"])


@pytest.mark.parametrize("name", ["", "a b", "a\0", "a\u2003b", "\ud800"])
@pytest.mark.parametrize("column", ["query_id", "doc_id", "tag"])
def test_ids_and_tags_that_cannot_stand_in_a_run(
    tmp_path: Path, name: str, column: str
) -> None:
    words = {"query_id": "1", "doc_id": "a", "tag": "t"} | {column: name}
    run = {words["query_id"]: {words["doc_id"]: 1.0}}
    with pytest.raises((DataError, UsageError), match="expected one word"):
        write_run(tmp_path / "run", run, words["tag"])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "unpack"),
    [("new/x.run", bytes), ("x.gz", gzip.decompress), ("x.bz2", bz2.decompress)],
)
def test_written_runs_are_compressed_by_their_name(
    tmp_path: Path, name: str, unpack: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / name
    write_run(path, {"1": {"a": 1.0, "b": 2.0}, "2": {}}, "t")
    assert unpack(path.read_bytes()) == b"1 Q0 b 1 2 t\n1 Q0 a 2 1 t\n"


def test_compressed_runs_have_no_time_stamp(tmp_path: Path) -> None:
    """RFC 1952, bytes 4 to 7: the same run gives the same bytes."""
    write_run(tmp_path / "x.gz", {"1": {"a": 1.0}}, "t")
    assert (tmp_path / "x.gz").read_bytes()[4:8] == b"\0\0\0\0"


def is_word(text: str) -> bool:
    return len(text.split()) == 1 and text == text.strip() and "\0" not in text


CHARACTERS = st.characters(codec="utf-8")
IDS = st.text(CHARACTERS, min_size=1, max_size=3).filter(is_word)
# Ties and near ties can go wrong, so they are drawn often.
SCORES = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, 16.0, -16.0, 1e-45, -1e-45, 3.4028234e38]),
    st.builds(
        lambda base, steps: base * (1 + steps * 2.0**-26),
        st.sampled_from([1.0, 16.0, -7.3, 1e-38]),
        st.integers(-9, 9),
    ),
    st.floats(width=32, allow_nan=False, allow_infinity=False),
    st.floats(-3e38, 3e38),
)
RUNS = st.dictionaries(
    IDS, st.dictionaries(IDS, SCORES, min_size=1, max_size=12), max_size=3
)
SHARED_FOLDER = [HealthCheck.function_scoped_fixture]


@settings(suppress_health_check=SHARED_FOLDER, max_examples=30, deadline=None)
@given(run=RUNS)
def test_a_run_read_back_is_the_run_in_single_precision(
    tmp_path: Path, run: Any
) -> None:
    path = tmp_path / "run"
    write_run(path, run, "t")
    result = read_run(path)
    assert result.keys() == run.keys()
    for query_id, scores in run.items():
        read_back = result[query_id]
        assert read_back.keys() == scores.keys()
        for doc_id, score in scores.items():
            assert single(read_back[doc_id]) == single(score)
        order = official_order(scores)
        # The file's order, and those of readers in single and double precision
        assert list(read_back) == order
        assert [doc_id for doc_id, _ in ranked(read_back)] == order
        keys = {doc_id: (score, doc_id) for doc_id, score in read_back.items()}
        assert sorted(keys, key=keys.__getitem__, reverse=True) == order
    write_run(tmp_path / "again", result, "t")
    assert (tmp_path / "again").read_bytes() == path.read_bytes()
