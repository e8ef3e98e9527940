"""The command pipeline.vectors."""

from pathlib import Path

import numpy as np
import pytest
from data_samples import write_microblog

from pipeline import vectors as command
from pipeline.command.options import parse_arguments
from rerankers.text.vectors import read_vectors


def run(*arguments: str | Path) -> None:
    texts = [str(argument) for argument in arguments]
    command.main(parse_arguments(command.Options, "vectors", None, texts))


def test_vectors_of_the_posts_are_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_microblog(tmp_path / "data")
    path = tmp_path / "posts.bin"
    small = ["--size", "6", "--epochs", "2", "--data", data]
    run(*small, "--output", path)
    printed = capsys.readouterr()
    vectors = read_vectors(path)
    assert vectors.matrix.shape == (len(vectors.words), 6)
    assert f"{len(vectors.words):,} words of" in printed.out and "vectors" not in printed.err
    run(*small, "--output", tmp_path / "both.bin", "--concatenate", path)
    both = read_vectors(tmp_path / "both.bin")
    assert both.words == vectors.words and both.matrix.shape == vectors.matrix.shape
    # The same vectors twice are themselves, but for their length and the axes.
    ours = vectors.matrix / np.linalg.norm(vectors.matrix, axis=1, keepdims=True)
    np.testing.assert_allclose(both.matrix @ both.matrix.T, 2 * ours @ ours.T, atol=1e-5)
