"""Posts: what readers understand, and refuse with which words; the store gives all back."""

import bz2
import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest
from conftest import Capture
from helpers.index_samples import table, write_lines

from tweetrerank.indexes.data_error import DataError
from tweetrerank.indexes.posts import Post, read_posts
from tweetrerank.indexes.store import PostStore

FORMS = table("platforms.jsonl")


@pytest.mark.parametrize("form", FORMS, ids=[each["form"] for each in FORMS])
def test_forms_of_posts(tmp_path: Path, form: dict[str, Any]) -> None:
    expected = [Post(*post) for post in form["posts"]]
    assert (
        list(read_posts(write_lines(tmp_path / "page.jsonl", [form["record"]])))
        == expected
    )
    path = tmp_path / "pretty.json"
    path.write_text(f"\n{json.dumps(form['record'], indent=1)}\n")
    assert list(read_posts(path)) == expected


def test_files_that_are_one_value_or_a_table(tmp_path: Path) -> None:
    expected, path = [Post("1", "a, b\n", "u"), Post("2", "c")], tmp_path / "posts.json"
    rows = [
        {"id": 1, "text": "a, b\n", "url": "u"},
        {"id": "2", "text": "c", "url": None},
    ]
    for text in (
        json.dumps(rows, indent=2),
        f"window.YTD.t.part0 = {rows[:1]};\n{rows[1:]}",
    ):
        path.write_text(text.replace("'", '"').replace("None", "null"))
        assert list(read_posts(path)) == expected
    table = tmp_path / "posts.CSV"
    table.write_text('id;text;url\n1;"a, b\n";u\n\n2;c;\n')
    assert list(read_posts(table)) == expected
    table.write_text('number,body\n1,"a ""b"""\n')
    assert list(read_posts(table, {"id": "number", "text": "body"})) == [
        Post("1", 'a "b"')
    ]
    tabs = tmp_path / "posts.tsv"
    tabs.write_text('docno\ttext\n1\t"a\n')
    assert list(read_posts(tabs)) == [Post("1", '"a')]
    tabs.write_text("1\ta b\n2\tc\n")
    assert list(read_posts(tabs)) == [Post("1", "a b"), Post("2", "c")]


DEEP = {
    "ending": "jsonl",
    "content": '{"id": 1, "text": "a"}\n' + "[" * 100_000,
    "message": ":2: ",
}


@pytest.mark.parametrize(
    "row", [*table("bad_posts.jsonl"), DEEP], ids=lambda row: row["message"]
)
def test_bad_lines_are_named(tmp_path: Path, row: dict[str, Any]) -> None:
    path = tmp_path / f"p.{row['ending']}"
    path.write_text(row["content"], "latin-1")
    with pytest.raises(DataError) as caught:
        list(read_posts(path))
    assert f"{path}{row['message']}" in str(caught.value)


def test_unusual_texts_survive(tmp_path: Path) -> None:
    texts = [
        "",
        " \t ",
        "nul\0byte",
        "💥👩‍👩‍👧 emoji",
        "مرحبا بالعالم שלום",
        "x" * 10_000,
    ]
    texts += ["one\nline\r\nand\u2028another\x85one", '"quoted" \\ back']
    path = write_lines(
        tmp_path / "p.jsonl", [{"id": n, "text": t} for n, t in enumerate(texts)]
    )
    assert [post.text for post in read_posts(path)] == texts


def test_compressed_files_read_as_plain_ones(tmp_path: Path) -> None:
    rows = [{"id": n, "text": f"post {n} é"} for n in range(50)]
    plain = write_lines(tmp_path / "p.jsonl", rows)
    for name, pack in (("p.jsonl.gz", gzip.compress), ("p.jsonl.BZ2", bz2.compress)):
        (tmp_path / name).write_bytes(pack(plain.read_bytes()))
        assert list(read_posts(tmp_path / name)) == list(read_posts(plain))


def test_lines_that_hold_no_post(tmp_path: Path, capsys: Capture) -> None:
    notices = [{"delete": {"status": {"id": 1}}}, {"limit": {"track": 5}}]
    notices += [
        {"errors": [{"title": "operational-disconnect"}]},
        {"meta": {"result_count": 0}},
    ]
    last = {"id": 2, "text": "b", "delete": "just a word of this post"}
    lines = ["", {"id": 1, "text": "a"}, "   ", *notices, last, ""]
    path = write_lines(tmp_path / "stream.jsonl", lines)
    assert [post.doc_id for post in read_posts(path)] == ["1", "2"]
    assert (
        "stream.jsonl: 4 notices without a post, passed over" in capsys.readouterr().err
    )
    path.write_bytes(b'\xef\xbb\xbf{"id": 1, "text": "a"}\r\n{"id": 2, "text": "b"}')
    assert list(read_posts(path)) == [Post("1", "a"), Post("2", "b")]


@pytest.mark.parametrize(
    ("ending", "pack"), [(".gz", gzip.compress), (".bz2", bz2.compress)]
)
def test_damaged_compressed_files(tmp_path: Path, ending: str, pack: Any) -> None:
    drawn = random.Random(
        0
    )  # such texts hardly compress, so that a cut takes lines away
    lines = "".join(
        json.dumps({"id": n, "text": f"{drawn.random()}"}) + "\n" for n in range(3000)
    )
    whole, file = pack(lines.encode()), tmp_path / f"posts{ending}"
    garbled = whole[:200] + b"garbage" * 50 + whole[550:]
    for damaged in (whole[: len(whole) // 2], garbled, lines.encode()):
        file.write_bytes(damaged)
        with pytest.raises(DataError, match=r"posts\.\w+: .*broken or cut"):
            list(read_posts(file))
    file = tmp_path / "posts.jsonl"
    file.write_bytes(pack(b'{"id": 1, "text": "a"}\n'))
    with pytest.raises(DataError, match=r"must have a name that ends in \.gz or \.bz2"):
        list(read_posts(file))
    with pytest.raises(DataError, match="cannot be read: Is a directory"):
        list(read_posts(tmp_path))


def store_of(path: Path, posts: list[Post]) -> PostStore:
    PostStore.build(path, posts)
    return PostStore(path)


def test_more_ids_than_a_statement_takes(tmp_path: Path) -> None:
    posts = [Post(str(n), f"text {n}") for n in range(5000)]
    random.Random(0).shuffle(posts)
    with store_of(tmp_path / "p", posts) as store:
        wanted = [str(n) for n in range(4999, -1, -2)]
        assert list(store.get_many(wanted).items()) == [
            (n, Post(n, f"text {n}")) for n in wanted
        ]
        assert store.ids_at(range(5000)) == [str(n) for n in range(4999, -1, -1)]
        assert store.ids_at([7, 0, 7]) == ["4992", "4999", "4992"]


def test_numbers_are_ordered_as_numbers_and_other_ids_as_text(tmp_path: Path) -> None:
    numbers = [Post(doc_id, "") for doc_id in ("9", "100", "007", "7", "10")]
    with store_of(tmp_path / "n", numbers) as store:
        assert [post.doc_id for post in store] == ["100", "10", "9", "7", "007"]
    names = [Post(doc_id, "") for doc_id in ("b", "9", "100", "é", "a")]
    with store_of(tmp_path / "t", names) as store:
        assert [post.doc_id for post in store] == ["é", "b", "a", "9", "100"]
    with pytest.raises(DataError, match="twice, expected every id once"):
        PostStore.build(tmp_path / "twice", [*names, Post("100", "")])
    with pytest.raises(DataError, match=r"post 7: found half a character"):
        PostStore.build(tmp_path / "p", [Post("7", "half \ud800")])
