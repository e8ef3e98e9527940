"""``import rerankers``: texts in, scores out, without index arrays, Java or Pyserini."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.reranking_samples import POSTS, QUERIES, all_pairs

import rerankers
from rerankers import RerankerError
from rerankers.checkpoint import SHIPPED, TrainedReranker

LIGHT = (
    "import sys, rerankers; print(*{'torch', 'numpy', 'jnius', 'pyserini'} & sys.modules.keys())"
)


@pytest.fixture(scope="module")
def reranker() -> TrainedReranker:
    return rerankers.load("mp_hcnn")


def run(code: str) -> str:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_the_import_is_light() -> None:
    assert run(LIGHT).strip() == ""


def test_a_fusion_warns_that_texts_lack_its_signals() -> None:
    with pytest.warns(RuntimeWarning, match=r"fusion was trained with axiom, bm25, .* mp_hcnn"):
        assert_scores_of_pairs(rerankers.load("fusion"))


def test_scores_are_those_of_pairs_as_index_arrays(reranker: TrainedReranker) -> None:
    assert_scores_of_pairs(reranker)


def assert_scores_of_pairs(loaded: TrainedReranker) -> None:
    pairs = all_pairs()
    texts = [
        (QUERIES[q], POSTS[d]) for q, d in zip(pairs.query_index, pairs.post_index, strict=True)
    ]
    predicted = loaded.predict(texts)
    assert predicted.shape == (len(pairs),) and predicted.dtype == np.float32
    np.testing.assert_allclose(predicted, loaded.score(pairs), rtol=1e-6, atol=2e-6)


def test_ranked_posts_are_best_first(reranker: TrainedReranker) -> None:
    scores = reranker.predict([(QUERIES[0], post) for post in POSTS])
    ranked = reranker.rank(QUERIES[0], POSTS)
    assert [post.index for post in ranked] == np.argsort(-scores, kind="stable").tolist()
    assert [post.score for post in ranked] == sorted(scores.tolist(), reverse=True)
    assert all(post.text == POSTS[post.index][0] for post in ranked)
    assert reranker.rank(QUERIES[0], POSTS, top_k=3) == ranked[:3]


def test_posts_with_and_without_links(reranker: TrainedReranker) -> None:
    text, url = POSTS[0]
    pairs = [(QUERIES[0], text), (QUERIES[0], (text, "")), (QUERIES[0], (text, url))]
    plain, empty, linked = reranker.predict(pairs)
    assert plain == pytest.approx(empty, abs=1e-5)
    assert plain != pytest.approx(linked, abs=1e-3)


def test_equal_posts_keep_their_order(reranker: TrainedReranker) -> None:
    ranked = reranker.rank("water", ["no", "water", "no", "water"])
    assert [post.index for post in ranked] == [1, 3, 0, 2]


def test_nothing_to_rank(reranker: TrainedReranker) -> None:
    assert reranker.rank("water", []) == []
    assert reranker.rank("water", ["water"], top_k=0) == []
    assert reranker.predict([]).shape == (0,)
    assert len(reranker.rank("", ["", " "])) == 2


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (["ab"], r"found the pair 'ab', expected \(query, post\)"),
        ([(1, "post")], r"found the pair \(1, 'post'\)"),
        ([("query", ("text", None))], r"found the post \('text', None\)"),
    ],
)
def test_what_is_no_pair_is_an_error(reranker: TrainedReranker, pairs: list, message: str) -> None:
    with pytest.raises(RerankerError, match=message):
        reranker.predict(pairs)


def test_a_negative_top_k_is_an_error(reranker: TrainedReranker) -> None:
    with pytest.raises(RerankerError, match="top_k: found -1, expected 0 or more"):
        reranker.rank("water", ["water"], top_k=-1)


def test_a_folder_may_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = SHIPPED / "mp_hcnn" / "mb2011"
    assert rerankers.load(folder).directory == folder
    assert rerankers.load(str(folder)).directory == folder
    (tmp_path / "fusion").mkdir()
    monkeypatch.chdir(tmp_path)
    assert rerankers.load("fusion").directory == SHIPPED / "fusion" / "all"
    with pytest.raises(RerankerError, match=r"config\.json"):
        rerankers.load(Path("fusion"))


def test_an_unknown_name_lists_those_that_come_with_the_package() -> None:
    with pytest.raises(
        RerankerError, match="'mp_hcn', expected one of fusion, mp_hcnn, sm_cnn, or"
    ) as info:
        rerankers.load("mp_hcn")
    assert str(info.value).endswith("did you mean mp_hcnn?")
