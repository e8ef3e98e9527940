"""The benchmark: counts of multiply-adds, equal scores of all ways, and that its parts run."""

import dataclasses
import importlib.util
import re
import sys
from collections import Counter
from pathlib import Path
from statistics import mean
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks import (
    engines,
    growth,
    operations,
    plain,
    processes,
    scoring,
    service,
    staged_search,
    training_step,
)
from benchmarks.workload import Workload
from helpers.data_samples import write_answers
from helpers.engine_servers import running
from helpers.reranking_samples import all_pairs, encoder, small_model

from indexes.methods import METHODS
from indexes.posts import Post
from pipeline.command.errors import DataError, UsageError
from pipeline.command.options import parse_arguments
from pipeline.ranking.retrievers import IndexRetriever
from pipeline.training.training_set import JudgedCandidates
from rerankers.base import TRIGRAMS, WORDS
from rerankers.scoring.batches import score_tokenized
from rerankers.scoring.tokenized import Tokenized

pytestmark = pytest.mark.slow  # benchmarks are no part of the packages

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
TINY = ["--collection", "sample", "--rounds", "1", "--pairs", "24", "--device", "cpu"]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("benchmark", SCRIPTS / "benchmark.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "benchmark", module)  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def run(script: ModuleType, *arguments: str) -> None:
    script.main(parse_arguments(script.Options, "benchmark", "", [*TINY, *arguments]))


def workload(collection: str = "sample", data: Path | None = None) -> Workload:
    return Workload(collection, 24, 1, "cpu", data)


def test_multiply_adds_are_counted_with_and_without_padding() -> None:
    """At depth 0 without mean pooling, which multiplies by a mask, only these products are left."""
    model: Any = small_model("mp_hcnn", "paper", depth=0, mean_pooling=False)
    pairs = all_pairs(["bbc news"], [("world cup", "http://x.org/a")])
    tokenized = Tokenized.from_pairs(pairs, encoder(), model)

    def expected(lengths: Any) -> int:
        first, *_, last = model.score
        total = first.weight.numel() + last.weight.numel()
        for places in model.perspectives.values():
            tower = model.towers[WORDS if places.query_input == WORDS else TRIGRAMS]
            (level,) = tower(torch.ones(1, 1, dtype=torch.int64))
            total += np.prod([*lengths(places), level.shape[2]])
        return int(total)

    def own(places: Any) -> tuple[int, int]:
        query, post = tokenized.queries[places.query_input], tokenized.posts[places.post_input]
        return int(query.lengths[0]), int(post.lengths[0])

    def longest(places: Any) -> tuple[int, int]:
        return places.query_length, places.post_length

    found = operations.multiply_adds(model, tokenized)
    assert found == (expected(own), expected(longest))


@pytest.mark.parametrize(
    ("name", "configuration"), [("mp_hcnn", "robust"), ("sm_cnn", "static"), ("knrm", "words")]
)
def test_all_ways_give_the_same_scores(name: str, configuration: str) -> None:
    model = small_model(name, configuration).eval()
    tokenized = Tokenized.from_pairs(all_pairs(), encoder(), model)
    expected = score_tokenized(model, tokenized)
    found = plain.PaddedPairs(tokenized, model).score(model)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_topics_are_enlarged_by_other_posts_before_any_is_repeated() -> None:
    pairs = all_pairs()
    cut = pairs.take(np.flatnonzero(pairs.query_index != pairs.post_index % 4))
    for size in (3, 9, 12, 30):
        pool = scoring.enlarged(cut, size, topics=2)
        posts = [pool.post_index[pool.query_index == query] for query in (0, 1)]
        assert [len(of_topic) for of_topic in posts] == [size, size]
        assert [len(set(of_topic)) for of_topic in posts] == [min(size, 12)] * 2


def test_nested_stages_share_no_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0.0, 1.0, 3.0, 7.0, 15.0])
    monkeypatch.setattr(staged_search.time, "perf_counter", lambda: next(now))
    clock = staged_search.Clock()
    with clock.stage(staged_search.MATCHING), clock.stage(staged_search.TABLES):
        pass
    assert clock.seconds[staged_search.MATCHING] == 2.0 + 8.0
    assert clock.seconds[staged_search.TABLES] == 4.0


def test_the_parts_run_on_the_sample(
    script: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match=r"--parts: found '0', expected some of 1,2,3,4,5,6,7,8,9"):
        run(script, "--parts", "1,0")
    small = (small_model("mp_hcnn", "paper"), encoder())
    monkeypatch.setattr(Workload, "paper_model", lambda work: small)
    monkeypatch.setattr(operations, "SIDES", {"cpu": (8, 8, 8)})
    monkeypatch.setattr(scoring, "SIZES", (3, 30))
    run(script, "--parts", "1,2, 4,5,8,1")
    text, _, table = capsys.readouterr().out.partition("| what | measured |\n|---|---|\n")
    assert text.startswith("machine: ")
    parts = [line for line in text.splitlines() if line.startswith("==")]
    assert parts == [f"== part {number}" for number in (1, 2, 4, 5, 8)]
    rows = dict(line.strip("| ").split(" | ") for line in table.splitlines())
    assert {
        "MP-HCNN at the paper's size, engine",
        "SM-CNN, engine",
        "K-NRM, plain, padded",
        "a topic of 30 candidates, 1 thread",
        "MP-HCNN, shipped, multiply-adds a pair",
    } <= set(rows)
    assert rows["SM-CNN, engine"].endswith(" ×)")
    shares = [value for name, value in rows.items() if name.startswith("MP-HCNN, shipped: ")]
    assert sum(int(share.rstrip("%")) for share in shares) == pytest.approx(100, abs=5)


def test_the_peak_memory_excludes_that_of_the_parent() -> None:
    held = np.ones(40_000_000)  # 320 MB
    seconds, peak = processes.run([sys.executable, "-c", "pass"])
    assert held.all()
    assert seconds > 0
    assert 2**20 < peak < 100 * 2**20
    with pytest.raises(DataError, match=r"(?s)failed:.*no such luck"):
        processes.run([sys.executable, "-c", "raise SystemExit('no such luck')"])


def test_the_process_is_measured_whole_and_by_stage() -> None:
    rows = dict(processes.measure_search(workload()))
    stages = {
        name: float(value.removesuffix(" s"))
        for name, value in rows.items()
        if name.startswith("– ")
    }
    assert stages["– start-up: Python, imports"] > 0.1
    assert stages["– matching"] > 0
    assert stages["– the rest"] < 0.5 * sum(stages.values())
    assert "MiB" in rows["`pipeline.search --topics sample`, 20 topics"]


def test_the_fusion_is_measured_both_ways() -> None:
    rows = dict(scoring.measure_fusion(workload()))
    for when in ("posts read now", "posts precomputed"):
        assert re.match(r"[1-9][\d.]* ms", rows[f"fusion, 1000 candidates, {when}, 1 thread"])


@pytest.fixture
def small_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Part 7 with two steps of a small model on the sample, which is no judged year."""

    def sample(work: Workload) -> JudgedCandidates:
        retriever = IndexRetriever(work.source.open_index(), METHODS["ql"]())
        found = retriever.search(work.source.topics, hits=40)
        assert work.source.qrels is not None
        return JudgedCandidates(found, work.source.qrels)

    monkeypatch.setattr(training_step, "training_data", sample)
    sizes = {"word_filters": 6, "trigram_filters": 6, "trigram_size": 8, "hidden": 8}
    config = dataclasses.replace(training_step.CONFIG, **sizes)
    monkeypatch.setattr(training_step, "CONFIG", config)
    monkeypatch.setattr(training_step, "STEPS", 2)


def test_plain_steps_and_ours_come_to_the_same_weights(small_training: None) -> None:
    work = workload()
    data = training_step.training_data(work)
    config = dataclasses.replace(training_step.CONFIG, dropout=0.0)
    text_encoder = work.encoder(100)
    models = {
        name: work.random_model("mp_hcnn", config, text_encoder)
        for name in (training_step.PLAIN, training_step.OURS)
    }
    pairs = Tokenized.from_pairs(data.candidates.pairs(), text_encoder, models[training_step.OURS])
    start = [weights.detach().clone() for weights in models[training_step.OURS].parameters()]
    trainers = training_step.both_ways(models, pairs, data.relevant(), 1)
    losses = [trainer.train_epoch(1) for trainer in trainers.values()]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    one, other = (
        torch.cat([(now.detach() - then).flatten() for now, then in zip(model, start, strict=True)])
        for model in (models[name].parameters() for name in trainers)
    )
    assert one.abs().max() > 1e-4
    # Adam's first steps follow the gradient's sign, which rounding decides where it is tiny.
    assert (one - other)[one.abs() > 1e-4].abs().lt(1e-4).float().mean() > 0.95


def test_training_steps_are_measured_both_ways(small_training: None) -> None:
    work = dataclasses.replace(workload(), rounds=2)
    theirs, ours, reached = training_step.measure(work)
    assert re.fullmatch(r"[\d,.]+ steps/s", theirs[1])
    assert re.fullmatch(r"[\d,.]+ steps/s \([\d.]+ ×\)", ours[1])
    assert reached[0].endswith("AP of 3 held-out topics after 4 steps")
    values = [float(figure) for figure in re.findall(r"0\.\d+", reached[1])]
    assert values[0] == pytest.approx(values[1], abs=0.02)


def test_answer_selection_is_measured_with_the_model_of_tweets(tmp_path: Path) -> None:
    work = workload("trecqa-raw", write_answers(tmp_path / "data"))
    assert len(work.pairs) == 24
    assert processes.arguments(work)[-2:] == ["--checkpoint", str(work.directory)]
    assert scoring.measure_growth(work, sizes=(2,))
    assert not processes.indexing(work)


def test_the_service_is_measured(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = {"SINGLE": 2, "SECONDS": 0.2, "MINUTE": 0.2, "RESTARTS": 1, "CROSS_ENCODED": 20}
    for name, value in {**small, "CLIENTS": 2, "LOAD": 20, "CACHE": 50_000_000}.items():
        monkeypatch.setattr(service, name, value)
    run(script, "--parts", "10")
    printed = capsys.readouterr().out
    assert re.search(r"2 clients at once, 20 posts each \| [\d,]+ pairs/s, .* 0 errors", printed)
    found = re.search(r"largest difference from `predict` \| (\S+) \|", printed)
    assert found and float(found[1]) < 2e-6
    assert "from its start to the first scores" in printed


def test_copies_have_fresh_ids_and_other_words() -> None:
    posts = [Post(str(n << 40), "alpha bravo charlie delta echo", "http://x") for n in range(3, 9)]
    made = list(growth.copies(posts, 600))
    assert made == list(growth.copies(posts, 600)) != list(growth.copies(posts, 600, seed=2))
    assert len({post.doc_id for post in made} | {post.doc_id for post in posts}) == 606
    assert all(3 << 40 <= int(post.doc_id) < 9 << 40 and post.url == "http://x" for post in made)
    words = Counter(word for post in made for word in post.text.split())
    assert sum(words.values()) == 3000
    assert len(words) > 50  # misspelled ones
    assert 0.6 < mean(post.text == posts[0].text for post in made) * 5 < 1.4


def test_a_line_has_the_exponent_of_its_growth() -> None:
    sizes = (10, 100, 1000)
    line = growth.Line("work", "ms", [3.0 * size**0.7 for size in sizes])
    assert line.exponent(sizes) == pytest.approx(0.7)
    few = growth.Line("few", "MB", [None, 250.0, None])
    *_, first, second = growth.table(sizes, [line, few]).splitlines()
    assert first == "| work, ms | 15.0 | 75.4 | 378 | 0.70 |"
    assert second == "| few, MB | – | 250 | – | – |"


def test_growth_is_measured(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plot = tmp_path / "growth.svg"
    run(script, *["--parts", "11", "--sizes", "40,80", "--encoded", "40", "--plot", str(plot)])
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if " | " in line]
    found = {title.removeprefix("| "): figures for title, *figures in rows}
    assert "–" not in found["query likelihood, 1000 hits, ms"]
    assert found["– with encodings, ms"][0] != "–" == found["– with encodings, ms"][1]
    assert "exponent" in plot.read_text()
    assert (tmp_path / "home" / "growth" / "80" / "index" / growth.BUILT).exists()


def test_what_is_there_is_not_built_again(tmp_path: Path) -> None:
    index, built = tmp_path / "index", []

    def build() -> dict[str, float]:
        built.append(len(built))
        index.mkdir(exist_ok=True)
        return {"seconds": 1.0}

    for _ in range(2):
        growth._once(index, "index", build)
    assert built == [0]
    (index / growth.BUILT).unlink()  # the figures of an older index are not known
    growth._once(index, "index", build)
    assert built == [0, 1]


@pytest.mark.opensearch
def test_an_engine_is_measured(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(engines, "SEARCHES", 8)
    monkeypatch.setattr(service, "CACHE", 50_000_000)
    with running("opensearch") as server:
        run(script, "--parts", "12", "--engine", server.url)
        assert engines.NAME not in server.engine(server.address()).request("GET", "/_all")
    printed = capsys.readouterr().out
    assert re.search(r"posts/s, \d+% of the next row's", printed)
    assert re.search(r"proxy, beside the engine and the scoring \| [\d.]+ ms", printed)
    assert re.search(r"processor, beside the engine and the service \| -?[\d.]+ ms", printed)
    found = re.findall(r"^\| AP, P@30 of 100 posts, (.*) \| (.*) \|$", printed, re.MULTILINE)
    first, *others = [values for _, values in found]
    assert len(others) == 5
    assert {first} != set(others)
    assert len(set(others)) == 1
