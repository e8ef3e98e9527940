"""The store of posts: everything that goes in comes out, and nothing else."""

import random
from pathlib import Path

import pytest

from indexes.errors import CollectionError
from indexes.posts import Post
from indexes.store import PostStore, RepeatedIdError


def store_of(path: Path, posts: list[Post]) -> PostStore:
    PostStore.build(path, posts)
    return PostStore(path)


def test_more_ids_than_a_statement_takes(tmp_path: Path) -> None:
    posts = [Post(str(n), f"text {n}") for n in range(5000)]
    random.Random(0).shuffle(posts)
    with store_of(tmp_path / "p", posts) as store:
        wanted = [str(n) for n in range(4999, -1, -2)]
        assert list(store.get_many(wanted).items()) == [(n, Post(n, f"text {n}")) for n in wanted]
        assert store.ids_at(range(5000)) == [str(n) for n in range(4999, -1, -1)]
        assert store.ids_at([7, 0, 7]) == ["4992", "4999", "4992"]


def test_numbers_are_ordered_as_numbers_and_other_ids_as_text(tmp_path: Path) -> None:
    numbers = [Post(doc_id, "") for doc_id in ("9", "100", "007", "7", "10")]
    with store_of(tmp_path / "n", numbers) as store:
        assert [post.doc_id for post in store] == ["100", "10", "9", "7", "007"]
    names = [Post(doc_id, "") for doc_id in ("b", "9", "100", "é", "a")]
    with store_of(tmp_path / "t", names) as store:
        assert [post.doc_id for post in store] == ["é", "b", "a", "9", "100"]
    with pytest.raises(RepeatedIdError, match="twice, expected every id once"):
        PostStore.build(tmp_path / "twice", [*names, Post("100", "")])
    with pytest.raises(CollectionError, match=r"post 7: found half a character"):
        PostStore.build(tmp_path / "p", [Post("7", "half \ud800")])
