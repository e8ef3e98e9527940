"""Word vectors from one's own posts, and the command pipeline.vectors."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import Command
from helpers.data_samples import write_microblog

from pipeline.collections.named import find
from pipeline.training import word_vectors as vectors
from rerankers.errors import RerankerError
from rerankers.text.skip_gram import train
from rerankers.text.vectors import read_vectors

# Two subjects that share no word.
POSTS = [
    "storm wind coast warning",
    "coast storm flood wind",
    "goal match cup final",
    "final cup match referee",
] * 60


def test_the_same_posts_give_the_same_vectors_and_they_are_trained_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = train(POSTS, size=8, epochs=2)
    np.testing.assert_array_equal(first.matrix, train(POSTS, size=8, epochs=2).matrix)
    path = vectors.cached_vectors(POSTS, None, tmp_path)
    assert re.search(r"training word vectors on 240 posts \(once\)", capsys.readouterr().err)
    written = path.stat().st_mtime_ns
    assert vectors.cached_vectors(POSTS, None, tmp_path) == path
    assert (path.stat().st_mtime_ns, capsys.readouterr().err) == (written, "")
    assert vectors.cached_vectors([*POSTS, "one more"], None, tmp_path) != path


def test_what_cannot_be_trained_on(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RerankerError, match="expected posts with words that occur 3 times or more"):
        train(["once", "only"])
    monkeypatch.setitem(sys.modules, "gensim", None)
    monkeypatch.setitem(sys.modules, "gensim.models", None)
    with pytest.raises(RerankerError, match=r"found no gensim.*tweetrerank\[vectors\]"):
        train(POSTS)


def test_vectors_of_the_posts_are_written(command: Command, tmp_path: Path) -> None:
    data, path = write_microblog(tmp_path / "data"), tmp_path / "posts.bin"
    small = ["vectors", "--size", 6, "--epochs", 2, "--data", data]
    done = command(*small, "--output", path)
    assert done.code == 0, done.err
    found = read_vectors(path)
    assert found.matrix.shape == (len(found.words), 6)
    assert f"{len(found.words):,} words of" in done.out and "vectors" not in done.err
    command(*small, "--output", tmp_path / "both.bin", "--concatenate", path)
    both = read_vectors(tmp_path / "both.bin")
    assert both.words == found.words and both.matrix.shape == found.matrix.shape
    # The same vectors twice are themselves, but for their length and the axes.
    ours = found.matrix / np.linalg.norm(found.matrix, axis=1, keepdims=True)
    np.testing.assert_allclose(both.matrix @ both.matrix.T, 2 * ours @ ours.T, atol=1e-5)
    # Those of one collection, which may be one's own.
    own = ["--collection", "sample", "--size", 6, "--epochs", 1, "--output", tmp_path / "own.bin"]
    assert f"words of {len(list(find('sample').posts()))} posts" in command("vectors", *own).out
