"""Training lists: windows, batches, disguised language, first stages in memory."""

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import Patch

from tweetrerank.indexes.posts import Post
from tweetrerank.pipeline.collections import named
from tweetrerank.pipeline.collections.collection import Collection
from tweetrerank.pipeline.collections.topics import Topic
from tweetrerank.pipeline.ranking.retrievers import Candidates
from tweetrerank.pipeline.training.disguise import LETTERS, disguised
from tweetrerank.pipeline.training.memory_retrievers import MemoryRetriever, bm25
from tweetrerank.pipeline.training.training_set import JudgedCandidates
from tweetrerank.pipeline.training.trees import (
    LOST,
    LOST_MEANING,
    _weights,
    _with_losses,
)
from tweetrerank.pipeline.training.window_lists import window_lists
from tweetrerank.rerankers import checkpoint
from tweetrerank.rerankers.pairs import FREQUENCIES
from tweetrerank.rerankers.text.words import words

TEXTS = ["the cut", "a storm of storms and a storm", "the storm", ""]


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collection]:
    """The sample, with a home folder for the fixtures below."""
    with Patch.context() as patch:
        patch.setenv("TWEETRERANK_HOME", str(tmp_path_factory.mktemp("lists")))
        yield named.find("sample")


@pytest.fixture(scope="module")
def mixed(sample: Collection) -> JudgedCandidates:
    """Windows of two collections, of nine topics for each first stage."""
    return window_lists([sample, replace(sample, name="again")], 9)


@pytest.fixture(scope="module")
def single(sample: Collection) -> JudgedCandidates:
    return window_lists([sample], 9)


def test_families_are_missing_in_complete_lists() -> None:
    names = ["given.z", "links.a", "links.b", "meaning:general.cosine"]
    lists = np.repeat(np.arange(1000), 3)
    lost = np.isnan(_with_losses(np.ones((3000, 4), np.float32), names, lists))
    assert (lost.reshape(1000, 3, 4).std(axis=1) == 0).all()
    assert not lost[:, 0].any()
    assert (lost[:, 1] == lost[:, 2]).all()
    shares = lost.mean(axis=0)
    assert shares[[1, 3]] == pytest.approx([LOST, LOST_MEANING], abs=0.03)


def test_collections_have_the_same_weight() -> None:
    collections = np.repeat([0, 1], [6, 2])
    sums = np.bincount(collections, _weights(collections))
    np.testing.assert_allclose(sums, [4.0, 4.0])


def test_bm25_of_engines_equals_its_formula() -> None:
    def expected(text: str) -> float:
        tokens = words(text)
        total = 0.0
        for word in ("storm", "the"):
            holders = sum(word in words(other) for other in TEXTS)
            norm = 1.2 * (0.25 + 0.75 * len(tokens) / (11 / 4))
            idf = math.log1p((len(TEXTS) - holders + 0.5) / (holders + 0.5))
            total += idf * tokens.count(word) / (tokens.count(word) + norm)
        return total

    scores = bm25(TEXTS)(Topic("1", "Storm the unknown"))
    np.testing.assert_allclose(scores, [expected(text) for text in TEXTS])


@pytest.mark.parametrize(
    ("topic", "results"),
    [
        pytest.param(Topic("1", "storm the"), ["2", "0"], id="best two"),
        pytest.param(Topic("2", "storm", max_doc_id="1"), ["1"], id="none is later"),
        pytest.param(Topic("3", "none"), [], id="none matches"),
    ],
)
def test_first_stage_in_memory(topic: Topic, results: list[str]) -> None:
    posts = [Post(str(number), text) for number, text in enumerate(TEXTS)]
    retriever = MemoryRetriever("standard", posts, bm25(TEXTS))
    run = retriever.search([topic], 2).run
    assert list(run.get(topic.query_id, {})) == results


def unreadable(lists: JudgedCandidates) -> list[str]:
    """The query_ids of lists with Georgian letters."""
    return [
        topic.query_id
        for topic in lists.candidates.topics
        if any("ა" <= letter <= "ჰ" for letter in topic.text)
    ]


def test_mixed_collections_have_lists_and_batches_in_an_unknown_language(
    mixed: JudgedCandidates, single: JudgedCandidates
) -> None:
    is_batch = [query_id.count("/") == 2 for query_id in unreadable(mixed)]
    assert any(is_batch)
    assert not all(is_batch)
    assert unreadable(single) == []


def test_half_of_the_lists_of_mixed_collections_have_frequencies_of_posts(
    mixed: JudgedCandidates, single: JudgedCandidates
) -> None:
    """A batch shares those of its list; lists of a single collection lack them."""
    states = defaultdict[str, set[bool]](set)
    for topic, whole in zip(mixed.candidates.topics, mixed.wholes, strict=True):
        states[whole].add(bool(mixed.candidates.resources.get(topic.query_id)))
    assert all(len(of_whole) == 1 for of_whole in states.values())
    assert 0.4 < np.mean([True in of_whole for of_whole in states.values()]) < 0.6
    assert not any(single.candidates.resources.values())


@pytest.mark.parametrize("word", ["storm", "the"])
def test_frequencies_of_posts_are_smoothed_by_general_ones(
    word: str, mixed: JudgedCandidates, sample: Collection
) -> None:
    """Disguised lists have those of the disguised words, of which none is general."""
    idf = {}  # Whether the text is readable -> frequencies
    for topic in mixed.candidates.topics:
        resources = mixed.candidates.resources.get(topic.query_id)
        if resources:
            idf[topic.text.isascii()] = resources[FREQUENCIES]
    posts = [set(words(post.text)) for post in sample.posts()]
    total = len(posts) + 1000
    share = sum(word in post for post in posts) / total
    general = checkpoint.idf_from("wordfreq").share(word) * 1000 / total
    assert idf[True].share(word) == pytest.approx(share + general)
    assert idf[False].share(word.translate(LETTERS)) == pytest.approx(share)


def test_questions_with_given_answers_teach_by_their_training_parts(
    answers: Path, sample: Collection
) -> None:
    name = named.training_collections(None, answers, True)[0]
    questions = named.to_train_on(name, answers)
    lists = window_lists([sample, questions], 4)
    twins = {twin for twin in lists.twins if "sample" not in twin}
    assert twins
    assert twins <= {f"wikiqa/{topic.query_id}" for topic in questions.training_topics}


def test_a_disguised_list_keeps_scores_judgments_links_and_mentions() -> None:
    post = Post("7", "RT @bbc: The Cuts http://t.co/x 2011", "http://t.co")
    candidates = Candidates([Topic("1", "Cuts")], {"1": {"7": 2.5}}, {"7": post})
    qrels = {"1": {"7": 1, "8": 1}, "2": {"7": 1}}
    lists = disguised(JudgedCandidates(candidates, qrels))
    assert lists.candidates.run == {"1": {"disguised/7": 2.5}}
    assert lists.qrels == {"1": {"disguised/7": 1, "disguised/8": 1}}
    (post,) = lists.candidates.posts.values()
    assert post.url == "http://t.co"
    assert "@bbc" in post.text
    assert "http://t.co/x 2011" in post.text
    (query,) = words(lists.candidates.topics[0].text)
    assert query in words(post.text)
    assert not query.isascii()
