"""Precomputed posts: scores stay the same, and stale or damaged folders are refused."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.reranking_samples import (
    AWKWARD,
    POSTS,
    QUERIES,
    all_pairs,
    encoder,
    small_model,
    threads,
)

from rerankers import checkpoint, features
from rerankers.base import FIRST_STAGE, Pairs
from rerankers.errors import RerankerError
from rerankers.reranker import TrainedReranker
from rerankers.scoring.precomputed import (
    PrecomputedPosts,
    open_precomputed,
    precompute,
)
from rerankers.text.vocabulary import Idf

pytestmark = pytest.mark.slow

REMEDY = "make them again"
IDF = encoder().idf
OTHER_IDF = Idf.from_document_frequencies({"bbc": 3, "cuts": 1}, 10, "counted elsewhere")
FAMILIES = ("overlap", "phrases", "links", "hashtags", "quality", "feedback", "temporal",
            "meaning:general")  # fmt: skip
EVERY = [*POSTS, *((text, text) for text in AWKWARD.values()), ("", "")]

Posts = list[tuple[str, str]]


@pytest.fixture
def ready(tmp_path: Path) -> TrainedReranker:
    folder = tmp_path / "checkpoint"
    model = small_model("fusion", "general", families=",".join(FAMILIES)).eval()
    checkpoint.save(folder, "fusion", model, encoder(), {})
    return TrainedReranker("fusion", model, encoder(), {}, folder)


def precomputed(ready: TrainedReranker, posts: Posts, directory: Path) -> PrecomputedPosts:
    precompute(ready.directory, IDF, posts, directory)
    return open_precomputed(ready.directory, directory, REMEDY)


def pairs_of(posts: Posts) -> Pairs:
    """All queries with all posts, with dates and first-stage scores."""
    pairs, random = all_pairs([*QUERIES, "zzz new"], posts), np.random.default_rng(0)
    ids = random.integers(2**54, 2**54 + 2**46, size=len(posts))
    scores = random.random(len(pairs), dtype=np.float32)
    return dataclasses.replace(
        pairs, doc_ids=[str(doc_id) for doc_id in ids], signals={FIRST_STAGE: scores}
    )


@pytest.mark.parametrize("count", [0, 1, len(EVERY) // 2, len(EVERY)])
def test_scores_and_features_of_precomputed_posts(
    count: int, ready: TrainedReranker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of other word frequencies, too, and in several threads; missing posts are read."""
    monkeypatch.setattr("rerankers.scoring.precomputed.BLOCK", 3)
    pairs, done = pairs_of(EVERY), list[int]()
    size = precompute(ready.directory, IDF, EVERY[:count], tmp_path / "posts", done.append)
    files = [path for path in (tmp_path / "posts").iterdir() if path.name != "precomputed.json"]
    assert size == sum(path.stat().st_size for path in files)
    found = open_precomputed(ready.directory, tmp_path / "posts", REMEDY)
    assert len(found) == len({*EVERY[:count], ("", "")}), "a post without text is always there"
    assert sum(done) == len(found) and max(done) <= 3
    before = len(found.known.words)
    for idf in (IDF, OTHER_IDF):
        plain = features.table(pairs, FAMILIES, idf)
        for number in (1, 4):
            with threads(number):
                again = features.table(pairs, FAMILIES, idf, found)
            np.testing.assert_array_equal(again.values, plain.values)
    scores = dataclasses.replace(ready, precomputed=found).score(pairs)
    np.testing.assert_array_equal(scores, ready.score(pairs))
    assert len(found.known.words) == before


def test_a_post_whose_text_has_changed_is_read_again(
    ready: TrainedReranker, tmp_path: Path
) -> None:
    changed = [(POSTS[0][0] + " again", POSTS[0][1]), *POSTS[1:4], POSTS[2]]
    found = precomputed(ready, changed, tmp_path / "posts")
    rows = found.find(all_pairs()).tolist()
    assert rows == [-1, 1, 2, 3, *[-1] * (len(POSTS) - 4)]


def test_another_checkpoint_is_refused(ready: TrainedReranker, tmp_path: Path) -> None:
    precompute(ready.directory, IDF, POSTS, tmp_path / "posts")
    config = ready.directory / "config.json"
    config.write_text(config.read_text().replace('"idf"', '"IDF"'))
    with pytest.raises(RerankerError, match=r"checkpoint .*checkpoint as it was.*make them again"):
        open_precomputed(ready.directory, tmp_path / "posts", REMEDY)


def cut(folder: Path) -> None:
    path = folder / "column.trigrams.values"
    path.write_bytes(path.read_bytes()[:-4])


def half_described(folder: Path) -> None:
    path = folder / "precomputed.json"
    description = json.loads(path.read_text())
    del description["arrays"]["keys"]
    path.write_text(json.dumps(description))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (cut, r"has \d+ bytes, expected \d+ bytes"),
        (lambda folder: (folder / "known.words").unlink(), r"known\.words: is missing"),
        (
            lambda folder: (folder / "precomputed.json").write_text("{"),
            "found no description of precomputed posts",
        ),
        (half_described, "found no array keys"),
    ],
)
def test_damaged_folders_are_refused(
    damage: Callable[[Path], Any], message: str, ready: TrainedReranker, tmp_path: Path
) -> None:
    precompute(ready.directory, IDF, POSTS, tmp_path / "posts")
    damage(tmp_path / "posts")
    with pytest.raises(RerankerError, match=f"{message}.*make them again"):
        open_precomputed(ready.directory, tmp_path / "posts", REMEDY)


def test_only_an_empty_folder_is_written(ready: TrainedReranker, tmp_path: Path) -> None:
    precompute(ready.directory, IDF, POSTS, tmp_path / "posts")
    with pytest.raises(RerankerError, match="found files, expected an empty folder"):
        precompute(ready.directory, IDF, [("a", "")], tmp_path / "posts")
