"""Readers of posts accept every form of file and name bad lines; the store of posts."""

import bz2
import gzip
import json
import random
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pytest
from conftest import Capture
from helpers.index_samples import refused, write_lines

from tweetrerank.indexes.data_error import DataError
from tweetrerank.indexes.posts import Post, read_posts
from tweetrerank.indexes.store import PostStore

Pack = Callable[[bytes], bytes]

TWO_POSTS = [Post("1", "a, b\n", "u"), Post("2", "c")]
FIRST_ROW = '{"id": 1, "text": "a, b\\n", "url": "u"}'
SECOND_ROW = '{"id": "2", "text": "c", "url": null}'


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        # An array over several lines
        ("posts.json", f"[\n  {FIRST_ROW},\n  {SECOND_ROW}\n]", TWO_POSTS),
        # Twitter's archive, and another array
        (
            "posts.json",
            f"window.YTD.t.part0 = [{FIRST_ROW}];\n[{SECOND_ROW}]",
            TWO_POSTS,
        ),
        # Semicolons, a line end in a field, and a blank line
        ("posts.CSV", 'id;text;url\n1;"a, b\n";u\n\n2;c;\n', TWO_POSTS),
        # Quotes mean nothing between tabs.
        ("posts.tsv", 'docno\ttext\n1\t"a\n', [Post("1", '"a')]),
        # Id and text without a header
        ("posts.tsv", "1\ta b\n2\tc\n", [Post("1", "a b"), Post("2", "c")]),
    ],
)
def test_files_that_are_one_value_or_a_table(
    tmp_path: Path, name: str, content: str, expected: list[Post]
) -> None:
    path = tmp_path / name
    path.write_text(content)
    assert list(read_posts(path)) == expected


def test_columns_of_other_names(tmp_path: Path) -> None:
    path = tmp_path / "posts.CSV"
    path.write_text('number,body\n1,"a ""b"""\n')
    columns = {"id": "number", "text": "body"}
    assert list(read_posts(path, columns)) == [Post("1", 'a "b"')]


def assert_refused(path: Path, message: str) -> None:
    with pytest.raises(DataError) as caught:
        list(read_posts(path))
    assert f"{path}{message}" in str(caught.value)


# Second line of three -> the message
BAD_LINES = [
    ("{not json", ":2: found '{not json', expected one JSON object a line"),
    ("[1, 2]", ":2: found '[1, 2]', expected a JSON object"),
    (
        '{"text": "x"}',
        ':2: found the keys "text", expected an id under "id_str", "id"',
    ),
    (
        '{"id": 2, "text": null}',
        ':2: found the keys "id", "text" (null), expected a text',
    ),
    ('{"id": 2, "text": 5}', ":2: found text '5', expected a text"),
    (
        '{"id": 2, "text": "x", "url": ["u"]}',
        ":2: found url '[\"u\"]', expected a text",
    ),
    (
        '{"id": 3.5e+17, "text": "x"}',
        ":2: found id '3.5e+17', expected a whole number",
    ),
    ('{"id": true, "text": "x"}', ":2: found id 'true', expected a whole number"),
    (
        '{"id": "a b", "text": "x"}',
        ":2: found id '\"a b\"', expected a whole number or a text without spaces",
    ),
    # Written in Latin-1
    ('{"id": 2, "text": "café"}', ":2: found the byte 0xe9 at column 23"),
]


@pytest.mark.parametrize(("line", "message"), BAD_LINES)
def test_bad_lines_are_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "p.jsonl"
    good = '{"id": 1, "text": "fine"}\n'
    last = '{"id": 9, "text": "fine"}\n'
    path.write_text(f"{good}{line}\n{last}", "latin-1")
    assert_refused(path, message)


DEEP = '{"id": 1, "text": "a"}\n' + "[" * 100_000
LONG_NUMBER = '{"id": ' + "9" * 5000 + ', "text": "fine"}\n'

BAD_FILES = [
    pytest.param(
        "json",
        '[\n{"id": 1, "text": "a"},\n 3]',
        ":3: found '3', expected a JSON object",
        id="a number in an array",
    ),
    pytest.param(
        "json",
        '\n[{"id": 1, "text": "a"},\n{"id"',
        ":3: found '{\"id\"', expected JSON",
        id="an array that ends within an object",
    ),
    pytest.param(
        "json",
        '[{"id": 1, "text": "a"},\n',
        ":1: found '', expected JSON",
        id="an array without its end",
    ),
    pytest.param(
        "json",
        '[{"id": 1, "text": "fine"}]\n[{"id": 2}]\n',
        ':2: found the keys "id", expected a text',
        id="an object without a text in a second array",
    ),
    pytest.param(
        "json",
        '[{"id": 1, "text": "fine"}] end',
        ":1: found 'end', expected JSON",
        id="text after an array",
    ),
    pytest.param(
        "csv",
        "id,text\n1,a\n2,b,c\n",
        ":3: found 3 columns in '2,b,c', expected 2: id, text",
        id="a row that is too long",
    ),
    pytest.param(
        "csv",
        "id,text\n1.23E+17,a\n",
        ":2: found id '\"1.23E+17\"', a long id that a spreadsheet has",
        id="a rounded id",
    ),
    pytest.param(
        "csv",
        "number,text\n1,a\n",
        ':2: found the keys "number", "text", expected an id',
        id="a table without ids",
    ),
    pytest.param(
        "csv",
        'id,text\n1,"fine\n2,lost\n',
        ":2: found no row of a table (unexpected end of data), expected quotes",
        id="a quote that is not closed",
    ),
    pytest.param(
        "csv",
        'id,text\n1,"fine\n2,"lost"\n3,fine\n',
        ":2: found no row of a table",
        id="a quote that is closed within another field",
    ),
    pytest.param(
        "csv",
        "id,text,text\n1,fine,other\n",
        ":1: found more than one column text, expected one",
        id="two columns of one name",
    ),
    pytest.param("jsonl", LONG_NUMBER, ':1: found \'{"id": 999', id="a long number"),
    pytest.param("jsonl", DEEP, ":2: ", id="deep brackets"),
]


@pytest.mark.parametrize(("ending", "content", "message"), BAD_FILES)
def test_bad_files_are_named(
    tmp_path: Path, ending: str, content: str, message: str
) -> None:
    path = tmp_path / f"p.{ending}"
    path.write_text(content, "latin-1")
    assert_refused(path, message)


def test_unusual_texts_survive(tmp_path: Path) -> None:
    texts = [
        "",
        " \t ",
        "nul\0byte",
        "💥👩‍👩‍👧 emoji",
        "مرحبا بالعالم שלום",
        "x" * 10_000,
        "one\nline\r\nand\u2028another\x85one",
        '"quoted" \\ back',
    ]
    rows = [{"id": number, "text": text} for number, text in enumerate(texts)]
    path = write_lines(tmp_path / "p.jsonl", rows)
    assert [post.text for post in read_posts(path)] == texts


@pytest.mark.parametrize(
    ("name", "pack"), [("p.jsonl.gz", gzip.compress), ("p.jsonl.BZ2", bz2.compress)]
)
def test_compressed_files_read_as_plain_ones(
    tmp_path: Path, name: str, pack: Pack
) -> None:
    rows = [{"id": number, "text": f"post {number} é"} for number in range(50)]
    plain = write_lines(tmp_path / "p.jsonl", rows)
    compressed = tmp_path / name
    compressed.write_bytes(pack(plain.read_bytes()))
    assert list(read_posts(compressed)) == list(read_posts(plain))


def test_lines_that_hold_no_post(tmp_path: Path, capsys: Capture) -> None:
    lines: list[str | Mapping[str, object]] = [
        "",
        {"id": 1, "text": "a"},
        "   ",
        {"delete": {"status": {"id": 1}}},
        {"limit": {"track": 5}},
        {"errors": [{"title": "operational-disconnect"}]},
        {"meta": {"result_count": 0}},
        {"id": 2, "text": "b", "delete": "just a word of this post"},
        "",
    ]
    path = write_lines(tmp_path / "stream.jsonl", lines)
    assert [post.doc_id for post in read_posts(path)] == ["1", "2"]
    note = "stream.jsonl: 4 notices without a post, passed over"
    assert note in capsys.readouterr().err


def test_a_byte_order_mark_and_line_ends_of_windows(tmp_path: Path) -> None:
    path = tmp_path / "posts.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"id": 1, "text": "a"}\r\n{"id": 2, "text": "b"}')
    assert list(read_posts(path)) == [Post("1", "a"), Post("2", "b")]


def random_lines(count: int) -> bytes:
    """Lines that hardly compress, so that a cut takes lines away."""
    generator = random.Random(0)
    lines = []
    for number in range(count):
        post = {"id": number, "text": f"{generator.random()}"}
        lines.append(json.dumps(post) + "\n")
    return "".join(lines).encode()


def cut_in_half(content: bytes) -> bytes:
    return content[: len(content) // 2]


def with_garbage(content: bytes) -> bytes:
    return content[:200] + b"garbage" * 50 + content[550:]


def not_compressed(content: bytes) -> bytes:
    return random_lines(3000)


@pytest.mark.parametrize("damage", [cut_in_half, with_garbage, not_compressed])
@pytest.mark.parametrize(
    ("ending", "pack"), [(".gz", gzip.compress), (".bz2", bz2.compress)]
)
def test_damaged_compressed_files(
    tmp_path: Path, ending: str, pack: Pack, damage: Pack
) -> None:
    path = tmp_path / f"posts{ending}"
    path.write_bytes(damage(pack(random_lines(3000))))
    with refused(r"posts\.\w+: .*broken or cut"):
        list(read_posts(path))


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress])
def test_compressed_files_need_their_ending(tmp_path: Path, pack: Pack) -> None:
    path = tmp_path / "posts.jsonl"
    path.write_bytes(pack(b'{"id": 1, "text": "a"}\n'))
    with refused(r"must have a name that ends in \.gz or \.bz2"):
        list(read_posts(path))


def test_folders_are_no_files(tmp_path: Path) -> None:
    with refused("cannot be read: Is a directory"):
        list(read_posts(tmp_path))


def store_of(path: Path, posts: Iterable[Post]) -> PostStore:
    PostStore.build(path, posts)
    return PostStore(path)


def test_more_ids_than_a_statement_takes(tmp_path: Path) -> None:
    posts = [Post(str(number), f"text {number}") for number in range(5000)]
    random.Random(0).shuffle(posts)
    descending = [str(number) for number in range(4999, -1, -1)]
    with store_of(tmp_path / "p", posts) as store:
        even_places = descending[::2]
        expected = [(doc_id, Post(doc_id, f"text {doc_id}")) for doc_id in even_places]
        assert list(store.get_many(even_places).items()) == expected
        assert store.ids_at(range(5000)) == descending
        assert store.ids_at([7, 0, 7]) == ["4992", "4999", "4992"]


@pytest.mark.parametrize(
    ("doc_ids", "expected"),
    [
        # Numbers as numbers
        ("9 100 007 7 10", "100 10 9 7 007"),
        # Other ids as text
        ("b 9 100 é a", "é b a 9 100"),
    ],
)
def test_order_of_ids(tmp_path: Path, doc_ids: str, expected: str) -> None:
    posts = [Post(doc_id, "") for doc_id in doc_ids.split()]
    with store_of(tmp_path / "p", posts) as store:
        assert [post.doc_id for post in store] == expected.split()


def test_an_id_that_is_repeated(tmp_path: Path) -> None:
    posts = [Post(doc_id, "") for doc_id in ["b", "9", "100", "é", "a", "100"]]
    with refused("twice, expected every id once"):
        PostStore.build(tmp_path / "twice", posts)


def test_half_a_character(tmp_path: Path) -> None:
    with refused(r"post 7: found half a character"):
        PostStore.build(tmp_path / "p", [Post("7", "half \ud800")])
