"""Training sets; the command ``train``, and searches with its models, on small made-up data."""

import gzip
import math
import shutil
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import Capture, Command, Patch
from helpers.data_samples import write_microblog, write_part
from safetensors.numpy import load_file

from tweetrerank.indexes.data_error import DataError
from tweetrerank.indexes.posts import Post
from tweetrerank.pipeline import train as command
from tweetrerank.pipeline import tune
from tweetrerank.pipeline.collections import named
from tweetrerank.pipeline.collections.collection import Collection
from tweetrerank.pipeline.collections.topics import Topic
from tweetrerank.pipeline.collections.trec import read_run, write_run
from tweetrerank.pipeline.command.options import parse_arguments
from tweetrerank.pipeline.evaluation.measures import evaluate, mean
from tweetrerank.pipeline.ranking.retrievers import Candidates
from tweetrerank.pipeline.training import training_set as sets
from tweetrerank.pipeline.training.cross_validation import HeldOut
from tweetrerank.pipeline.training.fusion_lists import (
    _DISGUISE,
    MemoryRetriever,
    _disguised,
    bm25,
    window_lists,
)
from tweetrerank.pipeline.training.trees import (
    LOST,
    LOST_MEANING,
    _weights,
    _with_losses,
)
from tweetrerank.rerankers import checkpoint
from tweetrerank.rerankers.networks.models.bag_of_words import Bilinear
from tweetrerank.rerankers.pairs import FREQUENCIES, PRIOR
from tweetrerank.rerankers.text.words import words


@pytest.fixture(scope="module")
def microblog(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made-up years; 2014 has no judgments."""
    folder = write_microblog(tmp_path_factory.mktemp("microblog"), topics=4, posts=6)
    (folder / "microblog" / "qrels.microblog2014.txt").unlink()
    return folder


def test_microblog_training_set(microblog: Path) -> None:
    """Of a year without judgments, the texts alone are read."""
    training_set, years = (
        sets.microblog_training_set(None, microblog),
        (2011, 2012, 2013),
    )
    assert training_set.trained_on == [f"mb{year}" for year in years]
    folder, keys, relevant = microblog / "microblog", [], []
    for year in years:
        files = (
            folder / f"qrels.microblog{year}.txt",
            folder / f"trec-{year}" / "id.txt",
        )
        judged, of_year = ([*map(str.split, f.read_text().splitlines())] for f in files)
        grades = {(q, d): grade for q, _, d, grade in judged}
        keys += [(q, d) for q, _, d, *_ in of_year]
        relevant += [grades[q, d] == "1" for q, _, d, *_ in of_year]
    data = training_set.training
    assert data.candidates.keys() == keys and data.relevant().tolist() == relevant
    assert 0 < sum(relevant) < len(relevant) == 24 * len(years)
    texts = [
        (folder / f"trec-{year}" / "b.toks").read_text() for year in (*years, 2014)
    ]
    assert sorted(training_set.texts) == sorted("".join(texts).splitlines())


def test_priors_can_be_means_over_the_best_of_given_runs(
    microblog: Path, tmp_path: Path
) -> None:
    collection = named.find("mb2011", microblog)
    topic, grades = next(iter((collection.qrels or {}).items()))
    others, answers = ([d for d, g in grades.items() if g == grade] for grade in (0, 1))
    contents = {
        "worst": others,
        "good": answers[:1] + others[:1],
        "best": answers[::-1],
    }
    runs = {name: (topic, doc_ids) for name, doc_ids in contents.items()}
    runs["of another year"] = ("9", ["1"])
    for name, (query_id, doc_ids) in runs.items():
        scores = {doc_id: -float(rank) for rank, doc_id in enumerate(doc_ids)}
        write_run(tmp_path / name, {query_id: scores}, "t")
    paths = [tmp_path / name for name in runs]
    trained = sets.microblog_training_set("mb2012", microblog, ["mb11"], paths, top=2)
    assert trained.trained_on == ["mb2011"]
    candidates = trained.training.candidates
    found = dict(
        zip(candidates.keys(), candidates.pairs().signals[PRIOR].tolist(), strict=True)
    )
    assert len(answers) > 1
    best = {d: 0.5 / math.log(rank) for rank, d in enumerate(answers[::-1], start=2)}
    best[answers[0]] += 0.5 / math.log(2)
    best[others[0]] = 0.5 / math.log(3)
    assert {d: prior for (q, d), prior in found.items() if prior} == pytest.approx(best)
    with pytest.raises(DataError, match="no results for the topics of mb2013 in"):
        sets.microblog_training_set(None, microblog, ["mb2013"], paths[:3])


def test_right_answers_among_those_of_other_questions(
    answers: Path, tmp_path: Path
) -> None:
    part = named.find_answers("trecqa-raw", answers).part("train")
    judged = (part.qrels or {}).items()
    right = {d: q for q, grades in judged for d, grade in grades.items() if grade}
    drawn = sets.draw_answers(part, repeats=2)
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
    assert sets.draw_answers(part, repeats=2).candidates.run == drawn.candidates.run
    # The development part of a training, three draws of each right answer.
    collection = named.find_answers("wikiqa", answers)
    trained = sets.answer_training_set(collection, draws=True)
    assert (
        trained.development.qrels == sets.draw_answers(collection.part("dev"), 3).qrels
    )
    with pytest.raises(
        DataError, match=r"wikiqa has no judgments here .* training needs them"
    ):
        sets.load_answers(collection)
    few = [("Q1-1", "who", "a", 1), ("Q1-2", "who", "b", 0), ("Q2-1", "where", "c", 1)]
    write_part(tmp_path / "wikiqa" / "dev", few)
    with pytest.raises(
        DataError, match=r"found 1 right answers besides those of question Q1"
    ):
        sets.draw_answers(named.find_answers("wikiqa", tmp_path).part("dev"))


def test_every_tenth_post_that_nobody_was_shown_is_trained_on() -> None:
    run, rows = dict.fromkeys(map(str, range(1000)), 0.0), np.arange(1000)
    found = Candidates([Topic("q", "storm")], {"q": run}, {}), {"q": {"3": 1, "4": 0}}
    kept = sets.JudgedCandidates(*found, judged_only=True).to_train(rows)
    assert {3, 4} <= {*kept.tolist()} and 70 < len(kept) < 130
    assert len(sets.JudgedCandidates(*found).to_train(rows)) == 1000


def test_a_share_of_every_group_of_topics_is_held_out() -> None:
    (held_out,) = sets.split_topics(np.arange(20), 1, 1, 0.2, ["a"] * 10 + ["b"] * 10)
    assert held_out[:10].sum() == held_out[10:].sum() == 2


def test_families_are_missing_in_whole_lists_and_collections_weigh_the_same() -> None:
    names = ["given.z", "links.a", "links.b", "meaning:general.cosine"]
    lists = np.repeat(np.arange(1000), 3)
    lost = np.isnan(_with_losses(np.ones((3000, 4), np.float32), names, lists))
    assert (lost.reshape(1000, 3, 4).std(axis=1) == 0).all()
    assert not lost[:, 0].any() and (lost[:, 1] == lost[:, 2]).all()
    np.testing.assert_allclose(
        lost.mean(axis=0)[[1, 3]], [LOST, LOST_MEANING], atol=0.03
    )
    collections = np.repeat([0, 1], [6, 2])
    np.testing.assert_allclose(
        np.bincount(collections, _weights(collections)), [4.0, 4.0]
    )


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
    topics = [
        Topic("1", "storm the"),
        Topic("2", "storm", max_doc_id="1"),
        Topic("3", "none"),
    ]
    run = MemoryRetriever("standard", posts, bm25(texts)).search(topics, 2).run
    assert [[*scores] for scores in run.values()] == [["2", "0"], ["1"]]


def test_mixed_collections_give_lists_and_batches_that_nobody_can_read() -> None:
    """Letters of Georgian stand for a language that no source of words knows."""
    sample = named.find("sample")

    def unread(*collections: Collection) -> list[str]:
        found = window_lists(collections, 4).candidates
        return [
            t.query_id for t in found.topics if any("ა" <= c <= "ჰ" for c in t.text)
        ]

    lists = unread(sample, replace(sample, name="again"))
    is_batch = [query_id.count("/") == 2 for query_id in lists]
    assert any(is_batch) and not all(is_batch)
    assert unread(sample) == []


def test_half_of_the_lists_of_mixed_collections_know_the_frequencies_of_posts() -> None:
    """Also those that nobody can read; a batch as its whole list; a single collection's none."""
    sample = named.find("sample")
    found = window_lists([sample, replace(sample, name="again")], 9)
    topics, by_whole = found.candidates.topics, defaultdict[str, set[bool]](set)
    known = [found.candidates.resources.get(topic.query_id) for topic in topics]
    for whole, resources in zip(found.wholes, known, strict=True):
        by_whole[whole].add(bool(resources))
    assert all(len(states) == 1 for states in by_whole.values())
    assert 0.4 < np.mean([True in states for states in by_whole.values()]) < 0.6
    idf = {
        t.text.isascii(): of[FREQUENCIES]
        for t, of in zip(topics, known, strict=True)
        if of
    }
    posts = [{*words(post.text)} for post in sample.posts()]
    for word in ("storm", "the"):
        share = sum(word in post for post in posts) / (len(posts) + 1000)
        general = (
            checkpoint.idf_from("wordfreq").share(word) * 1000 / (len(posts) + 1000)
        )
        assert idf[True].share(word) == pytest.approx(share + general)
        assert idf[False].share(word.translate(_DISGUISE)) == pytest.approx(share)
    assert not any(window_lists([sample], 9).candidates.resources.values())


def test_questions_with_given_answers_teach_by_their_training_parts(
    answers: Path,
) -> None:
    first, _ = named.training_collections(None, answers, True)
    questions = named.to_train_on(first, answers)
    found = window_lists([named.find("sample"), questions], 4)
    known = {f"wikiqa/{topic.query_id}" for topic in questions.training_topics}
    assert set() < {twin for twin in found.twins if "sample" not in twin} <= known


def test_a_disguised_list_keeps_scores_judgments_links_and_mentions() -> None:
    posts = {"7": Post("7", "RT @bbc: The Cuts http://t.co/x 2011", "http://t.co")}
    known = Candidates([Topic("1", "Cuts")], {"1": {"7": 2.5}}, posts)
    found, qrels = _disguised(known, {"1": {"7": 1, "8": 1}, "2": {"7": 1}})
    assert found.run == {"1": {"disguised/7": 2.5}}
    assert qrels == {"1": {"disguised/7": 1, "disguised/8": 1}}
    (post,) = found.posts.values()
    assert (
        post.url == "http://t.co"
        and "@bbc" in post.text
        and "http://t.co/x 2011" in post.text
    )
    (query,) = words(found.topics[0].text)
    assert query in words(post.text) and not query.isascii()


SMALL = ["--folds", "2", "--set", "training.epochs=3", "--set", "training.steps=4"]
FILES = {
    "config.json",
    "model.safetensors",
    "vocabulary.json",
    "metrics.json",
    "held_out.run.gz",
}
SEARCH = ["search", "--topics", "mb2012"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_microblog(tmp_path_factory.mktemp("data"))


def train(data: Path, *arguments: str | Path) -> None:
    common = ["--vectors", data / "vectors.txt", "--data", data, "--device", "cpu"]
    texts = [str(argument) for argument in (*arguments, *common)]
    command.main(parse_arguments(command.Options, "train", None, texts))


@pytest.fixture
def pipeline(command: Command, data: Path, monkeypatch: Patch) -> Command:
    """Commands that read the made-up data folder."""
    monkeypatch.setenv("TWEETRERANK_DATA", str(data))
    return command


@pytest.fixture(scope="module")
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "mp_hcnn" / "mb2012"
    train(data, "mp_hcnn", *SMALL, "--test", "mb12", "--output", folder)
    return folder


@pytest.mark.slow
def test_weights_are_independent_of_the_test_years_judgments(
    trained: Path, tmp_path: Path
) -> None:
    other = write_microblog(tmp_path / "other")
    qrels = other / "microblog" / "qrels.microblog2012.txt"
    lines = [line.rsplit(" ", 1) for line in qrels.read_text().splitlines()]
    qrels.write_text("".join(f"{head} {1 - int(grade)}\n" for head, grade in lines))
    train(other, "mp_hcnn", *SMALL, "--test", "mb2012", "--output", tmp_path / "again")
    first, second = (
        load_file(f / "model.safetensors") for f in (trained, tmp_path / "again")
    )
    assert first.keys() == second.keys()
    assert all(np.array_equal(first[key], second[key]) for key in first)


@pytest.mark.slow
def test_a_checkpoint_of_the_other_years_keeps_its_tuned_weight(
    pipeline: Command, trained: Path, tmp_path: Path, capsys: Capture
) -> None:
    assert {path.name for path in trained.iterdir()} == FILES
    assert [path.name for path in trained.parent.iterdir()] == ["mb2012"]
    metrics = checkpoint.read_json(trained / "metrics.json")
    assert metrics["trained_on"] == (others := ["mb2011", "mb2013", "mb2014"])
    assert metrics["left_out"] == "mb2012"
    assert metrics["topics"] == 24 and 0 < metrics["validation"]["AP"] <= 1
    held_out = read_run(trained / "held_out.run.gz")
    assert set(held_out) == {str(n) for n in [*range(1, 9), *range(17, 33)]}
    folder = tmp_path / "home" / "checkpoints" / "mp_hcnn" / "mb2012"
    shutil.copytree(trained, folder)
    tune.main(tune.Options(test="mb2012"))
    content = checkpoint.read_json(folder / "lambda.json")
    assert (content["collections"], content["checkpoint"]) == (others, "mp_hcnn/mb2012")
    assert len(content["curve"]) == 21
    assert "<- chosen" in capsys.readouterr().out
    mixed = [
        "--candidates",
        "ql",
        "--reranker",
        "mp_hcnn",
        "--output",
        tmp_path / "run.txt",
    ]
    found = pipeline(*SEARCH, *mixed, code=0)
    assert (
        f"λ = {content['weight']:g} (tuned on mb2011, mb2013, mb2014; {folder}"
        in found.err
    )
    assert len(read_run(tmp_path / "run.txt")) == 8


@pytest.mark.slow
def test_windows_of_a_part_of_the_topics(
    data: Path, tmp_path: Path, capsys: Capture
) -> None:
    """Anew for each first stage; and the model has a calibration by topics held out in folds."""
    lists = []
    for topics in (1, 4):
        folder = tmp_path / str(topics)
        small = f"--test mb12 --folds 2 --set topics={topics} --set trees=3 --set minimum_leaf=1"
        train(data, "window", *small.split(), "--output", folder)
        assert checkpoint.read_json(folder / "lambda.json")["calibration"]
        written = checkpoint.read_json(folder / "config.json")
        # The posts of such years are those of pools, whose frequencies are no collection's.
        assert written["config"]["topics"] == topics and written["idf"] == "wordfreq:en"
        lists.append(checkpoint.read_json(folder / "metrics.json")["topics"])
    assert (
        "AP of folds is over the lists of the training, windows and"
        in capsys.readouterr().out
    )
    # A window of each first stage, a set and one batch or more.
    assert 3 * 7 <= lists[0] < 3 * 8 * 4 <= lists[1]


@pytest.mark.slow
def test_leaked_topics_are_told(pipeline: Command, data: Path, tmp_path: Path) -> None:
    everything = tmp_path / "everything"
    train(data, "mp_hcnn", *SMALL, "--output", everything)
    output = ("--output", tmp_path / "run.txt")
    warned = pipeline(
        *SEARCH, "--candidates", "ql", "--checkpoint", everything, *output
    )
    assert "was trained on mb2012" in warned.err
    scores = everything / "held_out.run.gz"
    for content, message in (
        (scores.read_bytes(), "none of the collections that mb2012 may be tuned on"),
        (gzip.compress(b"1 Q0 2 1 x tag\n"), r"held_out.run.gz:1"),
        (None, r"held_out.run.gz: .*pipeline.train MODEL --test mb2012"),
    ):
        scores.unlink()
        if content:
            scores.write_bytes(content)
        with pytest.raises(DataError, match=message):
            HeldOut.read(everything, "mb2012", data)


@pytest.mark.slow
def test_checkpoint_of_a_training_part(
    answers: Path, tmp_path: Path, capsys: Capture
) -> None:
    """Held-out scores and figures are those of the development part."""
    small = [*SMALL[2:], "--set", "training.batch_pairs=8"]
    train(answers, "bigram", "--collection", "trecqa-raw", *small)
    printed = capsys.readouterr()
    assert "training bigram on trecqa-raw" in printed.err
    folder = tmp_path / "home" / "checkpoints" / "bigram" / "trecqa-raw"
    assert {path.name for path in folder.iterdir()} == FILES
    metrics = checkpoint.read_json(folder / "metrics.json")
    expected = {"trained_on": ["trecqa-raw"], "left_out": None, "folds": None}
    expected |= {"topics": 8, "candidates": "given candidates"}
    assert expected.items() <= metrics.items()
    history = metrics["histories"]["training"]
    assert [set(epoch) for epoch in history] == [
        {"training_loss", "validation_map"}
    ] * 3
    best = max(range(3), key=lambda epoch: (history[epoch]["validation_map"], -epoch))
    assert metrics["epochs"] == best + 1
    loaded = checkpoint.load(folder, "bigram")
    assert isinstance(loaded.model, Bilinear) and bool(loaded.model.is_fitted)
    assert {"storm", "library", "where"} <= set(loaded.encoder.vocabulary.known)
    development = sets.load_answers(
        named.find_answers("trecqa-raw", answers).part("dev")
    )
    held_out = read_run(folder / "held_out.run.gz")
    keys = development.candidates.keys()
    found = [held_out[query_id][doc_id] for query_id, doc_id in keys]
    scores = loaded.score(development.candidates.pairs())
    np.testing.assert_allclose(found, scores, rtol=1e-4, atol=1e-5)
    figure = mean(evaluate(development.qrels, held_out, ["AP"])["AP"])
    assert list(metrics["validation"]["by_fold"]) == ["development"]
    assert metrics["validation"]["AP"] == pytest.approx(figure, abs=1e-4)
    assert f"development: AP {figure:.4f} on the development part" in printed.out
