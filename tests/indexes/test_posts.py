"""Reading posts: what is understood, and what is refused with which words."""

import bz2
import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest

from indexes.errors import CollectionError
from indexes.pairs import read_pair_folder
from indexes.posts import Post, read_posts


def write(path: Path, *records: Any) -> Path:
    """JSON lines; a text is written as it is."""
    lines = [r if isinstance(r, str) else json.dumps(r, ensure_ascii=False) for r in records]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")
    return path


def read_one(tmp_path: Path, record: Any) -> Post:
    (post,) = read_posts(write(tmp_path / "one.jsonl", record))
    return post


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"id": 7, "contents": "hi", "url": "http://a.b"}, Post("7", "hi", "http://a.b")),
        ({"id": "blog-1", "text": "", "url": None}, Post("blog-1", "", "")),
        # id_str is exact where a program has rounded id
        (
            {"id": 34952194402811900, "id_str": "34952194402811904", "text": "x"},
            Post("34952194402811904", "x", ""),
        ),
        ({"id": 1, "text": "cut…", "full_text": "cut no more"}, Post("1", "cut no more", "")),
    ],
)
def test_forms_of_a_post(tmp_path: Path, record: Any, expected: Post) -> None:
    assert read_one(tmp_path, record) == expected


def links(*urls: str) -> dict[str, Any]:
    return {"urls": [{"url": "http://t.co/x", "expanded_url": url} for url in urls]}


@pytest.mark.parametrize(
    ("entities", "url"),
    [
        (links("http://long.example/a", "http://b"), "http://long.example/a"),
        ({"urls": [{"url": "http://t.co/x"}]}, "http://t.co/x"),
        *(({}, ""), ({"urls": []}, ""), ({"urls": None}, ""), (None, "")),
    ],
)
def test_twitter_links(tmp_path: Path, entities: Any, url: str) -> None:
    assert read_one(tmp_path, {"id": 1, "text": "x", "entities": entities}).url == url


def test_extended_tweets_and_retweets(tmp_path: Path) -> None:
    extended = {
        "id": 1,
        "text": "the beginning …",
        "entities": links("http://twitter.com/i/web/status/1"),
        "extended_tweet": {"full_text": "the beginning and the end", "entities": links("http://e")},
    }
    assert read_one(tmp_path, extended) == Post("1", "the beginning and the end", "http://e")
    original = {"id": 2, "full_text": "a long text: with an end", "entities": links("http://o")}
    retweet = {
        "id": 3,
        "full_text": "RT @ann: a long te…",
        "entities": {"urls": []},
        "retweeted_status": original,
    }
    assert read_one(tmp_path, retweet) == Post("3", "RT @ann: a long text: with an end", "http://o")
    whole = {**retweet, "full_text": "RT @ann: a long text: with an end"}
    assert read_one(tmp_path, whole).text == "RT @ann: a long text: with an end"


def test_unusual_texts_survive(tmp_path: Path) -> None:
    texts = ["", " \t ", "nul\0byte", "💥👩‍👩‍👧 emoji", "مرحبا بالعالم שלום", "x" * 10_000]
    texts += ["one\nline\r\nand\u2028another\x85one", '"quoted" \\ back']
    path = write(tmp_path / "p.jsonl", *({"id": n, "text": t} for n, t in enumerate(texts)))
    assert [post.text for post in read_posts(path)] == texts


def test_compressed_files_read_as_plain_ones(tmp_path: Path) -> None:
    plain = write(tmp_path / "p.jsonl", *({"id": n, "text": f"post {n} é"} for n in range(50)))
    for name, pack in (("p.jsonl.gz", gzip.compress), ("p.jsonl.BZ2", bz2.compress)):
        packed = tmp_path / name
        packed.write_bytes(pack(plain.read_bytes()))
        assert list(read_posts(packed)) == list(read_posts(plain))


def test_lines_that_hold_no_post(tmp_path: Path) -> None:
    path = write(
        tmp_path / "stream.jsonl",
        "",
        {"id": 1, "text": "a"},
        "   ",
        {"delete": {"status": {"id": 1}}},
        {"limit": {"track": 5}},
        {"id": 2, "text": "b", "delete": "just a word of this post"},
        "",
    )
    assert [post.doc_id for post in read_posts(path)] == ["1", "2"]
    path.write_bytes(b'\xef\xbb\xbf{"id": 1, "text": "a"}\r\n{"id": 2, "text": "b"}')
    assert list(read_posts(path)) == [Post("1", "a"), Post("2", "b")]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("{not json", r"p\.jsonl:2: found '\{not json', expected one JSON object a line"),
        ("[1, 2]", r"p\.jsonl:2: found '\[1, 2\]', expected a JSON object"),
        ("[" * 100_000, r"p\.jsonl:2: found '\[\[.*…', expected one JSON object a line"),
        ({"text": "x"}, r'p\.jsonl:2: found the keys "text", expected an id under "id_str", "id"'),
        ({"id": 2, "text": None}, r'found the keys "id", "text" \(null\), expected a text'),
        ({"id": 2, "text": 5}, r"p\.jsonl:2: found text '5', expected a text"),
        ({"id": 2, "text": "x", "url": ["u"]}, r"p\.jsonl:2: found url .*, expected a text"),
        ({"id": 3.5e17, "text": "x"}, r"p\.jsonl:2: found id '3.5e\+17', expected a whole number"),
        ({"id": True, "text": "x"}, r"p\.jsonl:2: found id 'true', expected a whole number"),
        ({"id": "a b", "text": "x"}, r"p\.jsonl:2: found id .*a b.*, expected .* without spaces"),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, bad: Any, message: str) -> None:
    path = write(tmp_path / "p.jsonl", {"id": 1, "text": "fine"}, bad, {"id": 9, "text": "fine"})
    with pytest.raises(CollectionError, match=message):
        list(read_posts(path))


def test_bytes_that_are_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "latin.jsonl"
    path.write_bytes('{"id": 1, "text": "a"}\n{"id": 2, "text": "caf\xe9"}\n'.encode("latin-1"))
    with pytest.raises(CollectionError, match=r"latin\.jsonl:2: found the byte 0xe9 at column 23"):
        list(read_posts(path))


@pytest.mark.parametrize(("ending", "pack"), [(".gz", gzip.compress), (".bz2", bz2.compress)])
def test_damaged_compressed_files(tmp_path: Path, ending: str, pack: Any) -> None:
    drawn = random.Random(0)  # such texts hardly compress, so that a cut takes lines away
    lines = "".join(json.dumps({"id": n, "text": f"{drawn.random()}"}) + "\n" for n in range(3000))
    whole, file = pack(lines.encode()), tmp_path / f"posts{ending}"
    garbled = whole[:200] + b"garbage" * 50 + whole[550:]
    for damaged in (whole[: len(whole) // 2], garbled, lines.encode()):
        file.write_bytes(damaged)
        with pytest.raises(CollectionError, match=r"posts\.\w+: .*broken or cut"):
            list(read_posts(file))
    file = tmp_path / "posts.jsonl"
    file.write_bytes(pack(b'{"id": 1, "text": "a"}\n'))
    with pytest.raises(CollectionError, match=r"must have a name that ends in \.gz or \.bz2"):
        list(read_posts(file))
    with pytest.raises(CollectionError, match="cannot be read: Is a directory"):
        list(read_posts(tmp_path))


PAIRS = {
    "a.toks": ["first query", "first query", "second"],
    "b.toks": ["post one ", "", "post one "],
    "url.txt": ["http://x", "", "http://x"],
    "id.txt": ["1 Q0 11 1 9.5 tag", "1 Q0 12 2 9.0 tag", "2 Q0 11 1 3.5 tag"],
}


def pair_folder(folder: Path, **changed: list[str] | None) -> Path:
    for name, lines in {**PAIRS, **{k.replace("_", "."): v for k, v in changed.items()}}.items():
        if lines is not None:
            (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return folder


def test_pair_folder(tmp_path: Path) -> None:
    expected = [("1", Post("11", "post one ", "http://x")), ("1", Post("12", "", ""))]
    expected.append(("2", expected[0][1]))
    assert list(read_pair_folder(pair_folder(tmp_path))) == expected
    (tmp_path / "url.txt").unlink()
    assert [post.url for _, post in read_pair_folder(tmp_path)] == ["", "", ""]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"b_toks": None}, r"found no b\.toks; expected"),
        ({"b_toks": ["one", "two"]}, r"b\.toks: found 2 lines, expected as many"),
        ({"url_txt": [""] * 4}, r"a\.toks: found 3 lines, expected as many"),
        ({"id_txt": ["1 Q0 1 1 9 t", "1 Q0 12", "x"]}, r"id\.txt:2: found '1 Q0 12', expected"),
    ],
)
def test_bad_pair_folders(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(CollectionError, match=message):
        list(read_pair_folder(pair_folder(tmp_path, **changed)))
