"""Topics, qrels and runs: what is read, what is refused, and the order that trec_eval will see."""

import bz2
import gzip
import math
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Capture
from helpers.index_samples import table
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


FILES = table("trec_files.jsonl")
"""Topics in XML, other files with one topic, malformed files, and ids that are aligned."""


@pytest.mark.parametrize("row", [row for row in FILES if "block" in row])
def test_xml_topic(tmp_path: Path, row: dict[str, Any]) -> None:
    block, head = (
        row["block"],
        '<?xml version="1.0"?>\n<!-- <top>\n\n -->\n<topics task="x">',
    )
    for content in (
        f"\n<top>\n{block}\n</top>\n",
        f"{head}\n<top>{block}</top>\n</topics>\n",
    ):
        assert read_topics(write(tmp_path / "topics", content)) == [
            Topic(*row["topic"])
        ]


def test_tsv_topics(tmp_path: Path) -> None:
    content = "\ufeff7\thaiti  aristide\r\n\r\nMB8\t\r\n9\t< 3 tops\r\n"
    expected = [Topic("7", "haiti aristide"), Topic("MB8", ""), Topic("9", "< 3 tops")]
    assert read_topics(write(tmp_path / "topics.tsv", content)) == expected


@pytest.mark.parametrize("row", [row for row in FILES if "name" in row])
def test_forms_of_topics(tmp_path: Path, row: dict[str, Any]) -> None:
    path = write(tmp_path / row["name"], row["content"])
    assert read_topics(path) == [Topic("1", "storm warning")]


def test_qrels(tmp_path: Path) -> None:
    content = "\ufeff51 0 10 1\r\n\r\n51\tQ0\t9 -2\r\n  52 0 10 +2  \r\n51 0 é 1000000"
    expected = {"51": {"10": 1, "9": -2, "é": 1_000_000}, "52": {"10": 2}}
    assert read_qrels(write(tmp_path / "qrels", content)) == expected
    for rows in (
        "query-id\tcorpus-id\tscore\n51\t10\t1.0\n",
        "qid docno label\n51 10 1.0\n",
        'qid,"doc_id",rel\n51,10,1.0\n',
        "a;qid;id;rel\n0;51;10;1.0\n",
    ):
        assert read_qrels(write(tmp_path / "table", rows)) == {"51": {"10": 1}}


@pytest.mark.parametrize("row", [row for row in FILES if "ids" in row])
def test_prefixes_of_ids(row: dict[str, Any], capsys: Capture) -> None:
    found = [*aligned({key: {} for key in row["ids"]}, row["topics"], "my.qrels")]
    assert found == row["expected"]
    assert ("my.qrels: " in capsys.readouterr().err) == (row["ids"] != found)


def test_run(tmp_path: Path) -> None:
    lines = ["2 Q0 b 7 -1.5 x", "1 Q0 a - 1e-3 x", "2 Q0 a 0 .5 x", "2 0 c 1.0 5. x"]
    read = read_run(write(tmp_path / "run", "\r\n".join(lines)))
    assert list(read.items()) == [
        ("2", {"b": -1.5, "a": 0.5, "c": 5.0}),
        ("1", {"a": 0.001}),
    ]
    assert read_run(write(tmp_path / "empty", "")) == {}


@pytest.mark.parametrize("read", [read_qrels, read_run, read_topics])
def test_files_that_cannot_be_read(tmp_path: Path, read: Callable[[Path], Any]) -> None:
    cut = write(tmp_path / "x.gz", gzip.compress(b"\n" * 1000)[:-9])
    absent = (tmp_path / "nowhere", "nowhere: cannot be read: No such file")
    for path, problem in (absent, (tmp_path, "cannot be read"), (cut, "cut off")):
        with pytest.raises(DataError, match=problem):
            read(path)


@pytest.mark.parametrize("row", [row for row in FILES if "error" in row])
def test_malformed_files(tmp_path: Path, row: dict[str, Any]) -> None:
    read = {"read_topics": read_topics, "read_run": read_run, "read_qrels": read_qrels}
    path = write(tmp_path / "file", row["content"].encode(row.get("encoding", "utf-8")))
    with pytest.raises(DataError) as caught:
        read[row["read"]](path)
    assert str(caught.value).startswith(f"{path}{row['error']}")


@pytest.mark.parametrize("score", [math.nan, -math.inf, 3.5e38])
def test_no_such_score_is_ranked_or_written(tmp_path: Path, score: float) -> None:
    path = write(tmp_path / "run", "old")
    run = {"51": {"a": 1.0}, "52": {"a": 1.0, "b": score}}
    with pytest.raises(DataError, match="topic 52, document b: found the score"):
        write_run(path, run, "t")
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]
    with pytest.raises(DataError, match="document b"):
        ranked(run["52"])


@pytest.mark.parametrize("name", ["", "a b", "a\0", "a\u2003b", "\ud800"])
def test_ids_and_tags_that_cannot_stand_in_a_run(tmp_path: Path, name: str) -> None:
    for query_id, doc_id, tag in ((name, "a", "t"), ("1", name, "t"), ("1", "a", name)):
        with pytest.raises((DataError, UsageError), match="expected one word"):
            write_run(tmp_path / "run", {query_id: {doc_id: 1.0}}, tag)
    assert not list(tmp_path.iterdir())


def test_written_runs_are_compressed_by_their_name(tmp_path: Path) -> None:
    run = {"1": {"a": 1.0, "b": 2.0}, "2": {}}
    forms = {"new/x.run": bytes, "x.gz": gzip.decompress, "x.bz2": bz2.decompress}
    for name, unpack in forms.items():
        write_run(tmp_path / name, run, "t")
        assert unpack((tmp_path / name).read_bytes()) == b"1 Q0 b 1 2 t\n1 Q0 a 2 1 t\n"
    # No time stamp (RFC 1952, bytes 4 to 7): the same run gives the same bytes.
    assert (tmp_path / "x.gz").read_bytes()[4:8] == b"\0\0\0\0"


IDS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=3).filter(
    lambda text: len(text.split()) == 1 and text == text.strip() and "\0" not in text
)
# Ties and near ties are what can go wrong, so they are drawn often.
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
    read = read_run(path)
    assert read.keys() == run.keys()
    for query_id, scores in run.items():
        found, order = read[query_id], official_order(scores)
        assert {d: single(found[d]) for d in found} == {
            d: single(scores[d]) for d in scores
        }
        # The file's order, what a reader in single and what one in double precision makes of it.
        assert list(found) == [doc_id for doc_id, _ in ranked(found)] == order
        assert sorted(found, key=lambda d: (found[d], d), reverse=True) == order
    write_run(tmp_path / "again", read, "t")
    assert (tmp_path / "again").read_bytes() == path.read_bytes()
