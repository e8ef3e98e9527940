"""Posts that were read beforehand: the same scores, whichever of them are stored."""

import dataclasses
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from feature_lists import VECTORS
from reranking_samples import AWKWARD, POSTS, QUERIES, all_pairs, encoder, small_model

from rerankers import checkpoint, features
from rerankers.base import FIRST_STAGE, Pairs
from rerankers.checkpoint import TrainedReranker
from rerankers.engine.precompute import open_precomputed, precompute
from rerankers.engine.precomputed_posts import PrecomputedPosts
from rerankers.errors import RerankerError
from rerankers.text.vocabulary import Idf

FAMILIES = ("overlap", "phrases", "links", "hashtags", "quality", "feedback",
            "temporal", "soft_match")  # fmt: skip
EVERY = [*POSTS, *((text, text) for text in AWKWARD.values()), ("", "")]
OTHER = Idf.from_document_frequencies({"bbc": 3, "cuts": 1}, 10, "counted elsewhere")


def pairs_of(posts: list[tuple[str, str]]) -> Pairs:
    pairs, random = all_pairs([*QUERIES, "zzz new"], posts), np.random.default_rng(0)
    ids = random.integers(2**54, 2**54 + 2**46, size=len(posts))
    scores = random.random(len(pairs), dtype=np.float32)
    return dataclasses.replace(
        pairs, doc_ids=[str(doc_id) for doc_id in ids], signals={FIRST_STAGE: scores}
    )


def saved(directory: Path) -> TrainedReranker:
    model = small_model("fusion", "all", families=",".join(FAMILIES))
    checkpoint.save(directory, "fusion", model, encoder(), {})
    return TrainedReranker("fusion", model, encoder(), {}, directory)


def stored(
    directory: Path, ready: TrainedReranker, posts: list[tuple[str, str]]
) -> PrecomputedPosts:
    precompute(directory, ready, [text for text, _ in posts], [url for _, url in posts])
    found = open_precomputed(directory, ready, "make them again")
    assert isinstance(found, PrecomputedPosts)
    return found


@pytest.mark.parametrize("count", [0, 1, len(EVERY) // 2, len(EVERY)])
def test_features_are_those_of_posts_that_are_read_now(count: int, tmp_path: Path) -> None:
    ready, pairs = saved(tmp_path / "checkpoint"), pairs_of(EVERY)
    found = stored(tmp_path / "stored", ready, EVERY[:count])
    # A post without a text always is.
    assert len(found.keys) == len({*EVERY[:count], ("", "")})
    for idf in (encoder().idf, OTHER):
        plain = features.table(pairs, FAMILIES, idf, VECTORS)
        again = features.table(pairs, FAMILIES, idf, VECTORS, found)
        np.testing.assert_array_equal(again.values, plain.values)
    before = len(found.known.words)
    with_them = dataclasses.replace(ready, precomputed=found)
    np.testing.assert_array_equal(with_them.score(pairs), ready.score(pairs))
    assert len(found.known.words) == before


def test_blocks_do_not_change_what_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready, pairs = saved(tmp_path / "checkpoint"), pairs_of(EVERY)
    monkeypatch.setattr("rerankers.engine.precomputed_posts.BLOCK", 4)
    done: list[int] = []
    texts, urls = [text for text, _ in EVERY], [url for _, url in EVERY]
    precompute(tmp_path / "stored", ready, texts, urls, done.append)
    assert sum(done) == len(set(EVERY)) and max(done) == 4
    found = open_precomputed(tmp_path / "stored", ready, "make them again")
    with_them = dataclasses.replace(ready, precomputed=found)
    np.testing.assert_array_equal(with_them.score(pairs), ready.score(pairs))


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    yield
    torch.set_num_threads(before)


def test_threads_do_not_change_what_is_found(tmp_path: Path) -> None:
    ready, pairs = saved(tmp_path / "checkpoint"), pairs_of(EVERY)
    found = stored(tmp_path / "stored", ready, EVERY[::2])
    tables = []
    for count in (1, 4):
        with threads(count):
            tables.append(features.table(pairs, FAMILIES, encoder().idf, VECTORS, found).values)
            assert torch.get_num_threads() == count
    np.testing.assert_array_equal(*tables)


def _shorter(directory: Path) -> None:
    path = directory / "trigrams.values.npy"
    path.write_bytes(path.read_bytes()[:-4])


def _without_words(directory: Path) -> None:
    (directory / "words.json").unlink()


def _half_described(directory: Path) -> None:
    path = directory / "precomputed.json"
    description = json.loads(path.read_text())
    del description["idf"]
    path.write_text(json.dumps(description))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_shorter, r"trigrams\.values\.npy: has \d+ bytes, expected \d+ bytes"),
        (_without_words, r"words\.json: is missing"),
        (_half_described, "found no idf"),
    ],
)
def test_damaged_ones_are_refused(
    damage: Callable[[Path], None], message: str, tmp_path: Path
) -> None:
    ready = saved(tmp_path / "checkpoint")
    stored(tmp_path / "stored", ready, EVERY)
    damage(tmp_path / "stored")
    with pytest.raises(RerankerError, match=f"{message}.*make them again"):
        open_precomputed(tmp_path / "stored", ready, "make them again")


def test_those_of_another_checkpoint_are_refused(tmp_path: Path) -> None:
    ready = saved(tmp_path / "checkpoint")
    stored(tmp_path / "stored", ready, EVERY)
    (tmp_path / "checkpoint" / "vocabulary.json").write_text("{}")
    with pytest.raises(RerankerError, match=r"as it was.*make them again"):
        open_precomputed(tmp_path / "stored", ready, "make them again")
