"""Precomputed posts: scores stay the same, and stale or damaged folders are refused."""

import dataclasses
import json
import random
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.feature_lists import VECTORS
from helpers.reranking_samples import AWKWARD, POSTS, QUERIES, all_pairs, encoder, small_model

from rerankers import checkpoint, features
from rerankers.base import FIRST_STAGE, MASKED_WORDS, PRIOR, Pairs
from rerankers.checkpoint import TrainedReranker
from rerankers.errors import RerankerError
from rerankers.features._tables import PostTable
from rerankers.scoring.precomputed import (
    Precomputed,
    PrecomputedPosts,
    PrecomputedVectors,
    keys_of,
    keys_of_posts,
    open_precomputed,
    precompute,
)
from rerankers.text.vocabulary import Idf

pytestmark = pytest.mark.slow

REMEDY = "make them again"

Posts = list[tuple[str, str]]

WINDOWS: list[tuple[str, dict[str, Any]]] = [
    ("robust", {}), ("paper", {}), ("robust", {"depth": 0}), ("robust", {"use_words": False}),
    ("robust", {"use_post_trigrams": False, "use_url_trigrams": False}),
    ("robust", {"similarity": "dot", "normalization": "post"}),
]  # fmt: skip

ONE_VECTOR: list[tuple[str, dict[str, Any]]] = [
    ("static", {}), ("static", {"prior": False}), ("text", {}), ("nonstatic", {"width": 1}),
]  # fmt: skip

FAMILIES = ("overlap", "phrases", "links", "hashtags", "quality", "feedback", "temporal",
            "soft_match", "meaning:general")  # fmt: skip
EVERY = [*POSTS, *((text, text) for text in AWKWARD.values()), ("", "")]
OTHER = Idf.from_document_frequencies({"bbc": 3, "cuts": 1}, 10, "counted elsewhere")


def saved(
    directory: Path, name: str = "mp_hcnn", configuration: str = "robust", **changes: Any
) -> TrainedReranker:
    model = small_model(name, configuration, **changes).eval()
    checkpoint.save(directory, name, model, encoder(), {})
    return TrainedReranker(name, model, encoder(), {}, directory)


def saved_fusion(directory: Path) -> TrainedReranker:
    return saved(directory, "fusion", "general", families=",".join(FAMILIES))


def precomputed(directory: Path, ready: TrainedReranker, posts: Posts) -> Any:
    precompute(ready, posts, directory)
    return open_precomputed(ready, directory, REMEDY)


def scores_with(ready: TrainedReranker, found: Any, pairs: Pairs) -> Any:
    return dataclasses.replace(ready, precomputed=found).score(pairs)


@pytest.mark.parametrize(("configuration", "changes"), WINDOWS)
def test_scores_with_vectors_of_windows(
    configuration: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    ready, pairs = saved(tmp_path / "checkpoint", "mp_hcnn", configuration, **changes), all_pairs()
    found = precomputed(tmp_path / "posts", ready, POSTS)
    assert isinstance(found, PrecomputedVectors) and (found.find(pairs) >= 0).all()
    scores = scores_with(ready, found, pairs)
    np.testing.assert_allclose(scores, ready.score(pairs), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("configuration", "changes"), ONE_VECTOR)
def test_scores_with_one_vector_for_each_post(
    configuration: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    """The texts of two posts have changed since, and runs have a prior for all."""
    ready, pairs = saved(tmp_path / "checkpoint", "sm_cnn", configuration, **changes), all_pairs()
    prior = np.random.default_rng(3).random(len(pairs)).astype(np.float32)
    pairs = dataclasses.replace(pairs, signals={PRIOR: prior})
    found = precomputed(tmp_path / "posts", ready, POSTS[2:])
    (vectors,) = found.towers[MASKED_WORDS].levels
    assert vectors.shape == (len(POSTS) - 2, ready.model.config.filters)
    scores = scores_with(ready, found, pairs)
    np.testing.assert_allclose(scores, ready.score(pairs), rtol=1e-5, atol=1e-6)


def test_missing_posts_are_computed_when_they_are_scored(tmp_path: Path) -> None:
    ready, pairs = saved(tmp_path / "checkpoint"), all_pairs()
    # A repeated post, and one whose text has changed since.
    changed = [(POSTS[0][0] + " again", POSTS[0][1]), *POSTS[1:4], POSTS[2]]
    found = precomputed(tmp_path / "posts", ready, changed)
    assert len(found) == 4
    assert found.find(pairs).tolist() == [-1, 1, 2, 3, *[-1] * (len(POSTS) - 4)]
    scores = scores_with(ready, found, pairs)
    np.testing.assert_allclose(scores, ready.score(pairs), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("save", [saved, saved_fusion])
def test_blocks_do_not_change_scores(
    save: Callable[[Path], TrainedReranker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready, pairs = save(tmp_path / "checkpoint"), all_pairs()
    monkeypatch.setattr("rerankers.scoring.precomputed.BLOCK", 2)
    done: list[int] = []
    size = precompute(ready, POSTS, tmp_path / "posts", done.append)
    assert sum(done) == len(POSTS) + (save is saved_fusion) and max(done) == 2
    files = [path for path in (tmp_path / "posts").iterdir() if path.name != "precomputed.json"]
    assert size == sum(path.stat().st_size for path in files)
    scores = scores_with(ready, open_precomputed(ready, tmp_path / "posts", REMEDY), pairs)
    np.testing.assert_allclose(scores, ready.score(pairs), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("save", [saved, saved_fusion])
def test_memory_does_not_grow_with_the_posts(
    save: Callable[[Path], TrainedReranker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python's and NumPy's memory; the posts are as large as the difference allowed."""
    ready = save(tmp_path / "checkpoint")
    monkeypatch.setattr("rerankers.scoring.precomputed.BLOCK", 64)
    words, peaks = " ".join(text for text, _ in POSTS).split(), []
    for count in (200, 4000):
        drawn = random.Random(count)
        posts = [(" ".join(drawn.choices(words, k=20)), "") for _ in range(count)]
        tracemalloc.start()
        precompute(ready, posts, tmp_path / str(count))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] - peaks[0] < 400_000


@pytest.mark.parametrize("count", [0, 1, 2, 7, 8, 1000])
def test_keys_are_found_where_they_are(count: int) -> None:
    drawn = np.random.default_rng(count)
    keys = drawn.integers(0, 50 * max(1, count), (count, 2)).astype(np.uint64)
    keys = keys[np.unique(keys[:, 0], return_index=True)[1]]
    rows = drawn.permutation(len(keys))
    found: Any = Precomputed({"keys": keys, "rows": rows})  # type: ignore[arg-type]
    others = drawn.integers(0, 50 * max(1, count), (30, 2)).astype(np.uint64)
    places = {tuple(key): row for key, row in zip(keys.tolist(), rows.tolist(), strict=True)}
    for wanted in (keys, keys[::-1], others, keys[:0]):
        expected = [places.get(tuple(key), -1) for key in wanted.tolist()]
        assert found.rows_of(wanted).tolist() == expected


def test_no_posts(tmp_path: Path) -> None:
    ready, pairs = saved(tmp_path / "checkpoint"), all_pairs()
    found = precomputed(tmp_path / "posts", ready, [])
    assert (found.find(pairs) == -1).all()
    np.testing.assert_array_equal(scores_with(ready, found, pairs), ready.score(pairs))


def pairs_of(posts: Posts) -> Pairs:
    """All queries with all posts, with dates and first-stage scores."""
    pairs, random = all_pairs([*QUERIES, "zzz new"], posts), np.random.default_rng(0)
    ids = random.integers(2**54, 2**54 + 2**46, size=len(posts))
    scores = random.random(len(pairs), dtype=np.float32)
    return dataclasses.replace(
        pairs, doc_ids=[str(doc_id) for doc_id in ids], signals={FIRST_STAGE: scores}
    )


@pytest.mark.parametrize("count", [0, 1, len(EVERY) // 2, len(EVERY)])
def test_features_of_precomputed_posts(count: int, tmp_path: Path) -> None:
    ready, pairs = saved_fusion(tmp_path / "checkpoint"), pairs_of(EVERY)
    found = precomputed(tmp_path / "posts", ready, EVERY[:count])
    assert isinstance(found, PrecomputedPosts)
    assert len(found) == len({*EVERY[:count], ("", "")}), "a post without text is always there"
    for idf in (encoder().idf, OTHER):
        plain = features.table(pairs, FAMILIES, idf, VECTORS)
        again = features.table(pairs, FAMILIES, idf, VECTORS, found)
        np.testing.assert_array_equal(again.values, plain.values)
    before = len(found.known.words)
    np.testing.assert_array_equal(scores_with(ready, found, pairs), ready.score(pairs))
    assert len(found.known.words) == before


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    yield
    torch.set_num_threads(before)


def test_threads_do_not_change_features(tmp_path: Path) -> None:
    ready, pairs = saved_fusion(tmp_path / "checkpoint"), pairs_of(EVERY)
    found = precomputed(tmp_path / "posts", ready, EVERY[::2])
    tables = []
    for count in (1, 4):
        with threads(count):
            tables.append(features.table(pairs, FAMILIES, encoder().idf, VECTORS, found).values)
            assert torch.get_num_threads() == count
    np.testing.assert_array_equal(*tables)


def saved_sm_cnn(directory: Path) -> TrainedReranker:
    return saved(directory, "sm_cnn", "static")


@pytest.mark.parametrize("save", [saved, saved_sm_cnn, saved_fusion])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (slice(0, 6), slice(3, None)),  # some stay, some go, others are new
        (slice(0, 6), slice(2, 4)),  # none is new
        (slice(0, 3), slice(3, None)),  # none stays
        (slice(0, 0), slice(0, None)),  # there was none
    ],
)
def test_known_posts_are_copied(
    save: Callable[[Path], TrainedReranker], before: slice, after: slice, tmp_path: Path
) -> None:
    ready, pairs = save(tmp_path / "checkpoint"), pairs_of(POSTS)
    if save is saved_sm_cnn:
        pairs = dataclasses.replace(pairs, signals={PRIOR: pairs.signals[FIRST_STAGE]})
    old, fresh = (
        precomputed(tmp_path / name, ready, posts)
        for name, posts in (("old", POSTS[before]), ("fresh", POSTS[after]))
    )
    done: list[int] = []
    precompute(ready, POSTS[after], tmp_path / "new", done.append, old)
    kept = len({*POSTS[before]} & {*POSTS[after]}) + (save is saved_fusion)
    assert done[0] == kept and sum(done) == len(POSTS[after]) + (save is saved_fusion)
    found = open_precomputed(ready, tmp_path / "new", REMEDY)
    np.testing.assert_array_equal(found.find(pairs) >= 0, fresh.find(pairs) >= 0)
    for expected in (scores_with(ready, fresh, pairs), ready.score(pairs)):
        scores = scores_with(ready, found, pairs)
        np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-6)
    if isinstance(found, PrecomputedPosts):
        assert sorted(found.known.words) == sorted(fresh.known.words)
    elif done == [kept]:
        for name, tower in found.towers.items():
            both = zip(tower.levels, old.towers[name].levels, strict=True)
            assert all(len(level) < len(other) for level, other in both)


def test_only_new_posts_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ready, read = saved_fusion(tmp_path / "checkpoint"), []
    old = precomputed(tmp_path / "old", ready, POSTS[:6])
    monkeypatch.setattr(
        "rerankers.scoring.precomputed.PostTable.read",
        lambda texts, *rest, of=PostTable.read: (read.extend(texts), of(texts, *rest))[1],
    )
    precompute(ready, POSTS[3:], tmp_path / "new", known=old)
    assert read == [text for text, _ in POSTS[6:]]


def test_a_key_is_a_hash_of_text_and_url() -> None:
    keys = keys_of(["a", "a", "ab", "a"], ["", "b", "", ""])
    assert len({tuple(key) for key in keys.tolist()}) == 3
    assert keys[0].tolist() == keys[3].tolist()
    assert keys_of(["half a pair \ud83d"], [""]).shape == (1, 2)


def test_keys_are_computed_once_for_the_same_posts(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr(
        "rerankers.scoring.precomputed.keys_of",
        lambda texts, urls: (calls.append(len(texts)), keys_of(texts, urls))[1],
    )
    pairs = all_pairs()
    expected = keys_of(pairs.texts, pairs.urls)
    np.testing.assert_array_equal(keys_of_posts(pairs), expected)
    fewer = dataclasses.replace(pairs, signals={})
    np.testing.assert_array_equal(keys_of_posts(fewer), expected)
    assert len(calls) == 1
    others = dataclasses.replace(pairs, texts=["other", *pairs.texts[1:]])
    changed = (keys_of_posts(others) != expected).all(axis=1)
    assert np.flatnonzero(changed).tolist() == [0]


@pytest.mark.parametrize("save", [saved, saved_fusion])
def test_another_checkpoint_is_refused(
    save: Callable[[Path], TrainedReranker], tmp_path: Path
) -> None:
    ready = save(tmp_path / "checkpoint")
    precompute(ready, POSTS, tmp_path / "posts")
    config = tmp_path / "checkpoint" / "config.json"
    config.write_text(config.read_text().replace('"idf"', '"IDF"'))
    with pytest.raises(RerankerError, match=r"checkpoint .*checkpoint as it was.*make them again"):
        open_precomputed(ready, tmp_path / "posts", REMEDY)


def cut(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-4])


def without(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def half_described(folder: Path) -> None:
    path = folder / "precomputed.json"
    description = json.loads(path.read_text())
    del description["arrays"]["keys"]
    path.write_text(json.dumps(description))


def undescribed(folder: Path) -> None:
    (folder / "precomputed.json").write_text("{")


@pytest.mark.parametrize(
    ("save", "damage", "message"),
    [
        (saved, cut("tower.words.0"), r"tower\.words\.0: has \d+ bytes, expected \d+ bytes"),
        (saved, without("input.trigrams.values"), r"input\.trigrams\.values: is missing"),
        (saved, undescribed, "found no description of precomputed posts"),
        (saved, half_described, "found no array keys"),
        (saved_fusion, cut("column.trigrams.values"), r"has \d+ bytes, expected \d+ bytes"),
        (saved_fusion, without("known.words"), r"known\.words: is missing"),
    ],
)
def test_damaged_folders_are_refused(
    save: Callable[[Path], TrainedReranker],
    damage: Callable[[Path], None],
    message: str,
    tmp_path: Path,
) -> None:
    ready = save(tmp_path / "checkpoint")
    precompute(ready, POSTS, tmp_path / "posts")
    damage(tmp_path / "posts")
    with pytest.raises(RerankerError, match=f"{message}.*make them again"):
        open_precomputed(ready, tmp_path / "posts", REMEDY)


def test_other_models_are_refused(tmp_path: Path) -> None:
    ready = saved(tmp_path / "checkpoint", "knrm", "words")
    with pytest.raises(RerankerError, match=r"found a model knrm, expected .* mp_hcnn, sm_cnn;"):
        precompute(ready, [("a", "")], tmp_path / "posts")
    assert not (tmp_path / "posts").exists()


def test_only_an_empty_folder_is_written(tmp_path: Path) -> None:
    ready = saved(tmp_path / "checkpoint")
    precompute(ready, POSTS, tmp_path / "posts")
    with pytest.raises(RerankerError, match="found files, expected an empty folder"):
        precompute(ready, [("a", "")], tmp_path / "posts")
