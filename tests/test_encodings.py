"""Posts' vectors on the disk: the same scores, and nothing stale or damaged is used."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rerankers import checkpoint
from rerankers.base import MASKED_WORDS, PRIOR
from rerankers.checkpoint import TrainedReranker
from rerankers.engine.precompute import precompute
from rerankers.engine.precomputed_folder import keys_of, keys_of_posts, version_of
from rerankers.engine.precomputed_vectors import PrecomputedVectors
from rerankers.errors import RerankerError
from tests.reranking_samples import POSTS, QUERIES, all_pairs, encoder, small_model

REMEDY = "make them again"

VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("robust", {}), ("paper", {}), ("robust", {"depth": 0}), ("robust", {"use_words": False}),
    ("robust", {"use_post_trigrams": False, "use_url_trigrams": False}),
    ("robust", {"similarity": "dot", "normalization": "post"}),
]  # fmt: skip

ONE_VECTOR: list[tuple[str, dict[str, Any]]] = [
    ("static", {}), ("static", {"prior": False}), ("text", {}), ("nonstatic", {"width": 1}),
]  # fmt: skip


def saved(directory: Path, name: str = "mp_hcnn", configuration: str = "robust", **changes: Any
          ) -> TrainedReranker:  # fmt: skip
    model = small_model(name, configuration, **changes).eval()
    checkpoint.save(directory, name, model, encoder(), {})
    return TrainedReranker(name, model, encoder(), {}, directory)


def encoded(
    directory: Path, ready: TrainedReranker, posts: list[tuple[str, str]]
) -> PrecomputedVectors:
    precompute(directory, ready, [text for text, _ in posts], [url for _, url in posts])
    return PrecomputedVectors.open(directory, version_of(ready.directory), REMEDY)


@pytest.mark.parametrize(("configuration", "changes"), VARIANTS)
def test_scores_are_those_without_precomputed_vectors(
    configuration: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    ready = saved(tmp_path / "checkpoint", "mp_hcnn", configuration, **changes)
    pairs = all_pairs()
    found = encoded(tmp_path / "precomputed", ready, POSTS)
    assert (found.keys.find(keys_of(pairs.texts, pairs.urls)) >= 0).all()
    with_them = dataclasses.replace(ready, precomputed=found)
    np.testing.assert_allclose(with_them.score(pairs), ready.score(pairs), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("configuration", "changes"), ONE_VECTOR)
def test_scores_by_one_vector_a_post(
    configuration: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    """Of two posts the text has changed since, and the runs have something to say of all."""
    ready, pairs = saved(tmp_path / "checkpoint", "sm_cnn", configuration, **changes), all_pairs()
    prior = np.random.default_rng(3).random(len(pairs)).astype(np.float32)
    pairs = dataclasses.replace(pairs, signals={PRIOR: prior})
    found = encoded(tmp_path / "precomputed", ready, POSTS[2:])
    (vectors,) = found.towers[MASKED_WORDS].levels
    assert vectors.shape == (len(POSTS) - 2, ready.model.config.filters)
    with_them = dataclasses.replace(ready, precomputed=found)
    np.testing.assert_allclose(with_them.score(pairs), ready.score(pairs), rtol=1e-5, atol=1e-6)


def test_posts_that_are_not_there_are_encoded_when_they_are_scored(tmp_path: Path) -> None:
    ready = saved(tmp_path / "checkpoint")
    # One post twice, and of one the text has changed since.
    changed = [(POSTS[0][0] + " again", POSTS[0][1]), *POSTS[1:4], POSTS[2]]
    found = encoded(tmp_path / "precomputed", ready, changed)
    pairs = all_pairs()
    assert len(found.keys) == 4
    numbers = found.keys.find(keys_of(pairs.texts, pairs.urls))
    assert numbers.tolist() == [-1, 1, 2, 3, *[-1] * (len(POSTS) - 4)]
    with_them = dataclasses.replace(ready, precomputed=found)
    np.testing.assert_allclose(with_them.score(pairs), ready.score(pairs), rtol=1e-5, atol=1e-6)


def test_blocks_do_not_change_what_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready, pairs = saved(tmp_path / "checkpoint"), all_pairs()
    monkeypatch.setattr("rerankers.engine.precompute.BLOCK", 2)
    done: list[int] = []
    texts, urls = [text for text, _ in POSTS], [url for _, url in POSTS]
    size = precompute(tmp_path / "precomputed", ready, texts, urls, done.append)
    assert sum(done) == len(POSTS) and max(done) == 2
    files = [p for p in (tmp_path / "precomputed").iterdir() if p.name != "precomputed.json"]
    assert size == sum(path.stat().st_size for path in files)
    found = PrecomputedVectors.open(tmp_path / "precomputed", version_of(ready.directory), REMEDY)
    with_them = dataclasses.replace(ready, precomputed=found)
    np.testing.assert_allclose(with_them.score(pairs), ready.score(pairs), rtol=1e-5, atol=1e-6)


def test_no_posts(tmp_path: Path) -> None:
    ready, pairs = saved(tmp_path / "checkpoint"), all_pairs()
    found = encoded(tmp_path / "precomputed", ready, [])
    assert (found.keys.find(keys_of(pairs.texts, pairs.urls)) == -1).all()
    with_them = dataclasses.replace(ready, precomputed=found)
    np.testing.assert_array_equal(with_them.score(pairs), ready.score(pairs))


def test_a_key_is_of_text_and_url() -> None:
    keys = keys_of(["a", "a", "ab", "a"], ["", "b", "", ""])
    assert len({tuple(key) for key in keys.tolist()}) == 3
    assert keys[0].tolist() == keys[3].tolist()
    assert keys_of(["half a pair \ud83d"], [""]).shape == (1, 2)


def test_keys_are_computed_once_for_the_same_posts_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(
        "rerankers.engine.precomputed_folder.keys_of",
        lambda texts, urls: (asked.append(len(texts)), keys_of(texts, urls))[1],
    )
    pairs = all_pairs()
    expected = keys_of(pairs.texts, pairs.urls)
    np.testing.assert_array_equal(keys_of_posts(pairs), expected)
    fewer = dataclasses.replace(pairs, query_index=pairs.query_index[:3], signals={})
    np.testing.assert_array_equal(keys_of_posts(fewer), expected)
    assert asked == [len(POSTS)]
    others = dataclasses.replace(pairs, texts=["else", *pairs.texts[1:]])
    changed = (keys_of_posts(others) != expected).all(axis=1)
    assert np.flatnonzero(changed).tolist() == [0]


def test_another_checkpoint_is_refused(tmp_path: Path) -> None:
    ready = saved(tmp_path / "checkpoint")
    encoded(tmp_path / "precomputed", ready, POSTS)
    other = saved(tmp_path / "other", "mp_hcnn", "robust", depth=1)
    with pytest.raises(RerankerError, match=r"checkpoint .*checkpoint as it was.*make them again"):
        PrecomputedVectors.open(tmp_path / "precomputed", version_of(other.directory), REMEDY)


def _shorter(directory: Path) -> None:
    path = directory / "words.0"
    path.write_bytes(path.read_bytes()[:-4])


def _without(directory: Path) -> None:
    (directory / "trigrams.places").unlink()


def _undescribed(directory: Path) -> None:
    (directory / "precomputed.json").write_text("{")


def _half_described(directory: Path) -> None:
    path = directory / "precomputed.json"
    description = json.loads(path.read_text())
    del description["towers"]
    path.write_text(json.dumps(description))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_shorter, r"words\.0: has \d+ bytes, expected \d+ bytes"),
        (_without, r"trigrams\.places: is missing"),
        (_undescribed, "found no description of precomputed posts"),
        (_half_described, "found no towers"),
    ],
)
def test_damaged_ones_are_refused(
    damage: Callable[[Path], None], message: str, tmp_path: Path
) -> None:
    ready = saved(tmp_path / "checkpoint")
    encoded(tmp_path / "precomputed", ready, POSTS)
    damage(tmp_path / "precomputed")
    with pytest.raises(RerankerError, match=f"{message}.*make them again"):
        PrecomputedVectors.open(tmp_path / "precomputed", version_of(ready.directory), REMEDY)


def test_a_model_without_use_for_them_is_refused(tmp_path: Path) -> None:
    ready = saved(tmp_path / "checkpoint", "knrm", "words")
    with pytest.raises(
        RerankerError, match=r"found a model knrm, expected one .*\(mp_hcnn, sm_cnn\)"
    ):
        precompute(tmp_path / "precomputed", ready, ["a"], [""])
    assert not (tmp_path / "precomputed").exists()


def test_only_an_empty_folder_is_written(tmp_path: Path) -> None:
    ready = saved(tmp_path / "checkpoint")
    encoded(tmp_path / "precomputed", ready, POSTS)
    with pytest.raises(RerankerError, match="found files, expected an empty folder"):
        precompute(tmp_path / "precomputed", ready, [QUERIES[0]], [""])
