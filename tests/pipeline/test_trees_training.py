"""What trees are trained to miss, and the first stages of engines in memory."""

import math

import numpy as np

from indexes.posts import Post
from pipeline.collections.topics import Topic
from pipeline.ranking.retrievers import Candidates
from pipeline.training.first_stages import MemoryRetriever, _bm25
from pipeline.training.fusion import _disguised
from pipeline.training.trees import LOST, LOST_MEANING, _weights, _with_losses
from rerankers.text.words import words


def test_families_are_missing_in_whole_lists() -> None:
    names = ["given.z", "links.a", "links.b", "meaning:general.cosine"]
    lists = np.repeat(np.arange(1000), 3)
    lost = np.isnan(_with_losses(np.ones((3000, 4), np.float32), names, lists))
    assert (lost.reshape(1000, 3, 4).std(axis=1) == 0).all()
    assert not lost[:, 0].any() and (lost[:, 1] == lost[:, 2]).all()
    np.testing.assert_allclose(lost.mean(axis=0)[[1, 3]], [LOST, LOST_MEANING], atol=0.03)


def test_collections_have_the_same_weight() -> None:
    collections = np.array([0] * 6 + [1] * 2)
    weights = _weights(collections)
    np.testing.assert_allclose(np.bincount(collections, weights), [4.0, 4.0])


def test_bm25_of_engines() -> None:
    texts = ["the cut", "a storm of storms and a storm", "the storm", ""]
    count, mean = 4, 11 / 4

    def expected(text: str) -> float:
        found, total = words(text), 0.0
        for word in ("storm", "the"):
            holders = sum(word in words(each) for each in texts)
            norm = 1.2 * (0.25 + 0.75 * len(found) / mean)
            idf = math.log1p((count - holders + 0.5) / (holders + 0.5))
            total += idf * found.count(word) / (found.count(word) + norm)
        return total

    scores = _bm25(texts)(Topic("1", "Storm the unknown"))
    np.testing.assert_allclose(scores, [expected(text) for text in texts])
    posts = [Post(str(n), text) for n, text in enumerate(texts)]
    found = MemoryRetriever("standard", posts, _bm25(texts))
    topics = [Topic("1", "storm the"), Topic("2", "storm", max_doc_id="1"), Topic("3", "none")]
    run = found.search(topics, 2).run
    assert [[*scores] for scores in run.values()] == [["2", "0"], ["1"]]


def test_a_disguised_list_keeps_scores_judgments_links_and_mentions() -> None:
    posts = {"7": Post("7", "RT @bbc: The Cuts http://t.co/x 2011", "http://t.co")}
    known = Candidates([Topic("1", "Cuts")], {"1": {"7": 2.5}}, posts)
    found, qrels = _disguised(known, {"1": {"7": 1, "8": 1}, "2": {"7": 1}})
    assert found.run == {"1": {"disguised/7": 2.5}}
    assert qrels == {"1": {"disguised/7": 1, "disguised/8": 1}}
    (post,) = found.posts.values()
    assert post.url == "http://t.co" and "@bbc" in post.text and "http://t.co/x 2011" in post.text
    (query,) = words(found.topics[0].text)
    assert query in words(post.text) and not query.isascii()
