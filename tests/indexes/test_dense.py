"""The index of vectors against brute force, and what it says when it cannot be used."""

import builtins
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from indexes.dense import IDS, VECTORS, DenseIndex
from indexes.errors import CollectionError

REBUILD = "python -m pipeline.retrieve --archive mine"


def some_vectors(count: int = 40, size: int = 7, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, size)).astype(np.float32)


def some_index(fingerprint: str = "me") -> DenseIndex:
    vectors = some_vectors()
    return DenseIndex.build(vectors, [f"id{n}" for n in range(len(vectors))], fingerprint)


def saved(directory: Path) -> Path:
    some_index().save(directory, REBUILD)
    return directory


@pytest.mark.parametrize("hits", [1, 100])
def test_the_nearest_are_those_of_brute_force(hits: int) -> None:
    vectors, asked = some_vectors(), some_vectors(9, seed=1)
    ids, scores = some_index().search(asked, hits)
    products = asked @ vectors.T
    assert scores.shape == (9, min(hits, 40))
    for row in range(9):
        order = np.argsort(-products[row])[:hits]
        assert ids[row] == [f"id{n}" for n in order]
        np.testing.assert_allclose(scores[row], products[row, order], rtol=1e-5, atol=1e-6)
    assert some_index().search(np.asfortranarray(asked), hits)[0] == ids
    assert some_index().search(asked[:0], hits)[0] == []


def test_saved_and_opened_finds_the_same(tmp_path: Path) -> None:
    directory = saved(tmp_path / "folder" / "index")
    opened = DenseIndex.open(directory, "me")
    asked = some_vectors(3, seed=2)
    ids, scores = opened.search(asked, 6)
    expected_ids, expected_scores = some_index().search(asked, 6)
    assert ids == expected_ids
    np.testing.assert_array_equal(scores, expected_scores)
    assert (opened.ids, opened.dimension, opened.fingerprint) == (some_index().ids, 7, "me")
    assert [path.name for path in directory.parent.iterdir()] == ["index"]


def test_an_index_is_replaced_and_anything_else_is_not(tmp_path: Path) -> None:
    directory = saved(tmp_path / "index")
    some_index("you").save(directory, REBUILD)
    assert DenseIndex.open(directory).fingerprint == "you"
    other = tmp_path / "letters"
    other.mkdir()
    some_index().save(other, REBUILD)  # an empty folder
    (tmp_path / "file").write_text("dear")
    with pytest.raises(CollectionError, match="found a file, expected an index or nothing"):
        some_index().save(tmp_path / "file", REBUILD)
    with pytest.raises(CollectionError, match=r"a folder that is not an index.*left as it is"):
        some_index().save(tmp_path, REBUILD)
    assert (tmp_path / "file").read_text() == "dear"


def test_an_index_of_other_vectors_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CollectionError, match="by another checkpoint") as error:
        DenseIndex.open(saved(tmp_path / "index"), "you")
    assert REBUILD in str(error.value)


@pytest.mark.parametrize("name", [VECTORS, IDS])
def test_a_damaged_index_is_refused(tmp_path: Path, name: str) -> None:
    directory = saved(tmp_path / "index")
    content = (directory / name).read_bytes()
    for damaged in (content[:-5], content[:50] + b"\xff" + content[51:], b""):
        (directory / name).write_bytes(damaged)
        with pytest.raises(CollectionError, match=f"{name} is damaged") as error:
            DenseIndex.open(directory)
        assert REBUILD in str(error.value)
    (directory / name).unlink()
    with pytest.raises(CollectionError, match=f"{name} is missing"):
        DenseIndex.open(directory)


def test_without_faiss_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name == "faiss":
            raise ImportError("No module named 'faiss'")
        return usual(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(CollectionError, match=r"tweetrerank\[cpu\]"):
        some_index()
