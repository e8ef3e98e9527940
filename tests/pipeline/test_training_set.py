"""Training sets of microblog years, of answer selection, and of trees."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.data_samples import write_answers, write_microblog, write_part

from indexes.posts import Post
from pipeline.collections import named
from pipeline.collections.collection import Collection
from pipeline.collections.topics import Topic
from pipeline.collections.trec import write_run
from pipeline.errors import DataError
from pipeline.ranking.retrievers import Candidates
from pipeline.training.fusion import MemoryRetriever, _disguised, bm25, window_lists
from pipeline.training.training_set import (
    JudgedCandidates,
    answer_training_set,
    draw_answers,
    load_answers,
    microblog_training_set,
    split_topics,
)
from pipeline.training.trees import LOST, LOST_MEANING, _weights, _with_losses
from rerankers.pairs import PRIOR
from rerankers.text.words import words


@pytest.fixture(scope="module")
def microblog(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made-up years; 2014 has no judgments."""
    folder = write_microblog(tmp_path_factory.mktemp("microblog"), topics=4, posts=6)
    (folder / "microblog" / "qrels.microblog2014.txt").unlink()
    return folder


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made-up collections; WikiQA's test part has no labels."""
    folder = write_answers(tmp_path_factory.mktemp("answers"))
    (folder / "wikiqa" / "test" / "sim.txt").unlink()
    return folder


def test_microblog_training_set(microblog: Path) -> None:
    """Of a year without judgments, the texts alone are read."""
    training_set, years = microblog_training_set(None, microblog), (2011, 2012, 2013)
    assert training_set.trained_on == [f"mb{year}" for year in years]
    folder, keys, relevant = microblog / "microblog", [], []
    for year in years:
        files = folder / f"qrels.microblog{year}.txt", folder / f"trec-{year}" / "id.txt"
        judged, of_year = ([*map(str.split, f.read_text().splitlines())] for f in files)
        grades = {(q, d): grade for q, _, d, grade in judged}
        keys += [(q, d) for q, _, d, *_ in of_year]
        relevant += [grades[q, d] == "1" for q, _, d, *_ in of_year]
    data = training_set.training
    assert data.candidates.keys() == keys
    assert data.relevant().tolist() == relevant
    assert 0 < sum(relevant) < len(relevant) == 24 * len(years)
    texts = [(folder / f"trec-{year}" / "b.toks").read_text() for year in (*years, 2014)]
    assert sorted(training_set.texts) == sorted("".join(texts).splitlines())


def test_priors_can_be_means_over_the_best_of_given_runs(microblog: Path, tmp_path: Path) -> None:
    collection = named.find("mb2011", microblog)
    topic, grades = next(iter((collection.qrels or {}).items()))
    others, answers = ([d for d, g in grades.items() if g == grade] for grade in (0, 1))
    contents = {"worst": others, "good": answers[:1] + others[:1], "best": answers[::-1]}
    runs = {name: (topic, doc_ids) for name, doc_ids in contents.items()}
    runs["of another year"] = ("9", ["1"])
    for name, (query_id, doc_ids) in runs.items():
        scores = {doc_id: -float(rank) for rank, doc_id in enumerate(doc_ids)}
        write_run(tmp_path / name, {query_id: scores}, "t")
    paths = [tmp_path / name for name in runs]
    trained = microblog_training_set("mb2012", microblog, ["mb11"], paths, top=2)
    assert trained.trained_on == ["mb2011"]
    candidates = trained.training.candidates
    found = dict(zip(candidates.keys(), candidates.pairs().signals[PRIOR].tolist(), strict=True))
    assert len(answers) > 1
    best = {d: 0.5 / math.log(rank) for rank, d in enumerate(answers[::-1], start=2)}
    best[answers[0]] += 0.5 / math.log(2)
    best[others[0]] = 0.5 / math.log(3)
    assert {d: prior for (q, d), prior in found.items() if prior} == pytest.approx(best)
    with pytest.raises(DataError, match="no results for the topics of mb2013 in"):
        microblog_training_set(None, microblog, ["mb2013"], paths[:3])


def test_right_answers_are_drawn_among_those_of_other_questions(
    answers: Path, tmp_path: Path
) -> None:
    part = named.find_answers("trecqa-raw", answers).part("train")
    judged = (part.qrels or {}).items()
    right = {d: q for q, grades in judged for d, grade in grades.items() if grade}
    drawn = draw_answers(part, repeats=2)
    assert len(drawn.candidates.topics) == 2 * len(right)
    others = []
    for topic in drawn.candidates.topics:
        query_id = topic.query_id.partition("/")[0]
        (answer,) = drawn.qrels[topic.query_id]
        candidates = set(drawn.candidates.run[topic.query_id])
        assert right[answer] == query_id and len(candidates) == 6
        others.append(candidates - {answer})
        assert query_id not in {right[doc_id] for doc_id in others[-1]}
    assert others[0] != others[1]
    assert draw_answers(part, repeats=2).candidates.run == drawn.candidates.run
    # The development part of a training, three draws of each right answer.
    collection = named.find_answers("wikiqa", answers)
    trained = answer_training_set(collection, draws=True)
    assert trained.development.qrels == draw_answers(collection.part("dev"), 3).qrels
    with pytest.raises(DataError, match=r"wikiqa has no judgments here .* training needs them"):
        load_answers(collection)
    few = [("Q1-1", "who", "a", 1), ("Q1-2", "who", "b", 0), ("Q2-1", "where", "c", 1)]
    write_part(tmp_path / "wikiqa" / "dev", few)
    with pytest.raises(DataError, match=r"found 1 right answers besides those of question Q1"):
        draw_answers(named.find_answers("wikiqa", tmp_path).part("dev"))


def test_every_tenth_post_that_nobody_was_shown_is_trained_on() -> None:
    run, rows = dict.fromkeys(map(str, range(1000)), 0.0), np.arange(1000)
    found = Candidates([Topic("q", "storm")], {"q": run}, {}), {"q": {"3": 1, "4": 0}}
    kept = JudgedCandidates(*found, judged_only=True).to_train(rows)
    assert {3, 4} <= {*kept.tolist()} and 70 < len(kept) < 130
    assert len(JudgedCandidates(*found).to_train(rows)) == 1000


def test_a_share_of_every_group_of_topics_is_held_out() -> None:
    (held_out,) = split_topics(np.arange(20), 1, 1, 0.2, ["a"] * 10 + ["b"] * 10)
    assert held_out[:10].sum() == held_out[10:].sum() == 2


# Trees: forms of lists, and first stages of engines


def test_families_are_missing_in_whole_lists_and_collections_weigh_the_same() -> None:
    names = ["given.z", "links.a", "links.b", "meaning:general.cosine"]
    lists = np.repeat(np.arange(1000), 3)
    lost = np.isnan(_with_losses(np.ones((3000, 4), np.float32), names, lists))
    assert (lost.reshape(1000, 3, 4).std(axis=1) == 0).all()
    assert not lost[:, 0].any() and (lost[:, 1] == lost[:, 2]).all()
    np.testing.assert_allclose(lost.mean(axis=0)[[1, 3]], [LOST, LOST_MEANING], atol=0.03)
    collections = np.repeat([0, 1], [6, 2])
    np.testing.assert_allclose(np.bincount(collections, _weights(collections)), [4.0, 4.0])


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

    scores = bm25(texts)(Topic("1", "Storm the unknown"))
    np.testing.assert_allclose(scores, [expected(text) for text in texts])
    posts = [Post(str(n), text) for n, text in enumerate(texts)]
    topics = [Topic("1", "storm the"), Topic("2", "storm", max_doc_id="1"), Topic("3", "none")]
    run = MemoryRetriever("standard", posts, bm25(texts)).search(topics, 2).run
    assert [[*scores] for scores in run.values()] == [["2", "0"], ["1"]]


def test_mixed_collections_give_lists_and_batches_that_nobody_can_read() -> None:
    """Letters of Georgian stand for a language that no source of words knows."""
    sample = named.find("sample")

    def unread(*collections: Collection) -> list[str]:
        found = window_lists(collections, 4).candidates
        return [t.query_id for t in found.topics if any("ა" <= c <= "ჰ" for c in t.text)]

    lists = unread(sample, replace(sample, name="again"))
    is_batch = [query_id.count("/") == 2 for query_id in lists]
    assert any(is_batch) and not all(is_batch)
    assert unread(sample) == []


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
