"""The benchmark: that it counts multiply-adds rightly, and that its parts run."""

import dataclasses
import importlib
import importlib.util
import itertools
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from answer_samples import write_data
from reranking_samples import AWKWARD, all_pairs, encoder, small_model
from torch.utils.flop_counter import FlopCounterMode

from indexes.methods import METHODS
from pipeline.command.errors import DataError, UsageError
from pipeline.command.options import parse_arguments
from pipeline.reranking import LuceneRetriever
from pipeline.training.training_set import JudgedCandidates
from rerankers.base import TRIGRAMS, WORDS
from rerankers.engine.tokenized import Tokenized
from rerankers.training.examples import CachedInteractions
from rerankers.training.loop import EpochTrainer, Examples

pytestmark = pytest.mark.slow  # the laboratory, no part of the packages

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"
TINY = ["--collection", "sample", "--rounds", "1", "--pairs", "24", "--device", "cpu"]


@pytest.fixture(autouse=True)
def _scripts_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))


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


def part(name: str) -> Any:
    return importlib.import_module(f"benchmarks.{name}")


def run(script: ModuleType, *arguments: str) -> None:
    script.main(parse_arguments(script.Options, "benchmark", "", [*TINY, *arguments]))


def workload(collection: str = "sample", data: Path | None = None) -> Any:
    return part("workload").Workload(collection, 24, 1, "cpu", data)


def counted_one_by_one(model: Any, encoded: Tokenized) -> int:
    """Multiply-adds of all pairs: one for each number, filter, offset and place, in loops."""
    config, total = model.config, 0

    def cut(inputs: Any, view: str, row: int, longest: int) -> int:
        return min(int(inputs[view].lengths[row]), longest)

    def convolutions(tower: Any, length: int) -> int:
        count = 0
        for layer in tower.convolutions:
            inputs = layer.weight.shape[0] // layer.width
            for place, offset in itertools.product(range(length), range(layer.width)):
                if place + offset < length:
                    count += inputs * layer.weight.shape[1]
        return count

    sides = [
        (encoded.queries, {WORDS: config.query_words, TRIGRAMS: config.query_trigrams}),
        (encoded.posts, {WORDS: config.post_words, TRIGRAMS: config.post_trigrams,
                         "url_trigrams": config.url_trigrams}),
    ]  # fmt: skip
    for inputs, limits in sides:
        for view, longest in limits.items():
            tower = model.towers[WORDS if view == WORDS else TRIGRAMS]
            for row in range(len(inputs[view].lengths)):
                total += convolutions(tower, cut(inputs, view, row, longest))
    for query, post in zip(encoded.query_index, encoded.post_index, strict=True):
        for name, places in model.perspectives.items():
            tower = model.towers[WORDS if places.query_input == WORDS else TRIGRAMS]
            sizes = [level.shape[2] for level in tower(torch.ones(1, 1, dtype=torch.int64))]
            terms = cut(encoded.queries, places.query_input, query, places.query_length)
            others = cut(encoded.posts, places.post_input, post, places.post_length)
            total += sum(1 for _ in itertools.product(range(terms), range(others))) * sum(sizes)
            if config.evidence == "terms":
                first, *_, last = model.position[name]
                total += terms * (first.weight.numel() + last.weight.numel())
        first, *_, last = model.score
        total += first.weight.numel() + last.weight.numel()
    return total


@pytest.mark.parametrize("configuration", ["robust", "paper"])
def test_multiply_adds_are_those_of_a_naive_count(configuration: str) -> None:
    model = small_model("mp_hcnn", configuration, depth=3)
    posts = [("bbc world", "http://x.org/a"), *((text, text) for text in AWKWARD.values())]
    encoded = Tokenized.of(all_pairs(["bbc world service", ""], posts), encoder(), model)
    assert part("floor").needed(model, encoded).total == counted_one_by_one(model, encoded)


@pytest.mark.parametrize("similarity", ["dot", "cosine"])
def test_multiply_adds_of_the_plain_way_are_those_that_pytorch_counts(similarity: str) -> None:
    """Without mean pooling, which multiplies by a mask, no other products are in the model."""
    model = small_model("mp_hcnn", "paper", mean_pooling=False, similarity=similarity)
    encoded = Tokenized.of(all_pairs(), encoder(), model)
    counter = FlopCounterMode(display=False)
    with counter:
        part("ways").plain(model, encoded)()
    assert 2 * part("floor").spent_plainly(model, encoded).total == counter.get_total_flops()


@pytest.mark.parametrize(
    ("name", "configuration"),
    [("mp_hcnn", "robust"), ("mp_hcnn", "paper"), ("sm_cnn", "static"), ("knrm", "words")],
)
def test_all_ways_give_the_same_scores(name: str, configuration: str, tmp_path: Path) -> None:
    from rerankers.engine.scoring import score_tokenized

    model, ways = small_model(name, configuration), part("ways")
    encoded = Tokenized.of(all_pairs(), encoder(), model)
    expected = score_tokenized(model, encoded)
    np.testing.assert_allclose(ways.plain(model, encoded)(), expected, rtol=1e-4, atol=1e-5)
    if name == "mp_hcnn":
        stored = ways.stored(name, model.eval(), encoder(), all_pairs(), tmp_path)
        np.testing.assert_allclose(stored(), expected, rtol=1e-4, atol=1e-5)


def test_a_part_of_pairs_has_their_texts_and_no_others() -> None:
    pairs = all_pairs()
    rows = np.array([13, 14, 40])
    cut = pairs.part(rows)
    texts = [[(p.queries[q], p.texts[d], p.urls[d]) for q, d in zip(p.query_index, p.post_index,
              strict=True)] for p in (cut, pairs)]  # fmt: skip
    assert texts[0] == [texts[1][row] for row in rows]
    assert (len(cut.queries), len(cut.texts)) == (2, 3)


def test_topics_are_enlarged_by_other_posts_before_any_is_repeated() -> None:
    pairs = all_pairs()
    cut = pairs.part(np.flatnonzero(pairs.query_index != pairs.post_index % 4))
    enlarged = part("growth").enlarged
    for size in (3, 9, 12, 30):
        pool = enlarged(cut, size, topics=2)
        posts = [pool.post_index[pool.query_index == query] for query in (0, 1)]
        assert [len(of_topic) for of_topic in posts] == [size, size]
        assert [len(set(of_topic)) for of_topic in posts] == [min(size, 12)] * 2


def test_ratios_are_of_the_rounds_not_of_the_medians() -> None:
    timing = part("measuring").Timing
    slow, fast = timing([4.0, 9.0, 1.0]), timing([2.0, 3.0, 1.0])
    assert slow.median == 4.0
    assert fast.ratio(slow) == 2.0


def test_stages_within_one_another_share_no_second(monkeypatch: pytest.MonkeyPatch) -> None:
    child = part("staged_search")
    now = iter([0.0, 1.0, 3.0, 7.0, 15.0])
    monkeypatch.setattr(child.time, "perf_counter", lambda: next(now))
    clock = child.Clock()
    with clock.stage("matching"), clock.stage("tabulating"):
        pass
    assert (clock.seconds["matching"], clock.seconds["tabulating"]) == (2.0 + 8.0, 4.0)


def test_part_numbers_are_checked(script: ModuleType) -> None:
    assert script.part_numbers("5, 1,5") == (5, 1)
    with pytest.raises(UsageError, match=r"--parts: found '0', expected some of 1,2,3,4,5,6,7,8,9"):
        run(script, "--parts", "1,0")


def test_the_parts_run_on_the_sample(
    script: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    paper_size = part("paper_size")
    monkeypatch.setattr(
        paper_size, "paper_model",
        lambda work: (small_model("mp_hcnn", "paper"), encoder()),
    )  # fmt: skip
    monkeypatch.setattr(part("floor"), "paper_model", paper_size.paper_model)
    monkeypatch.setattr(part("floor"), "SIDES", {"cpu": (8, 8, 8)})
    monkeypatch.setattr(part("growth"), "SIZES", (3, 30))
    monkeypatch.setattr(part("operations"), "paper_model", paper_size.paper_model)
    run(script, "--parts", "1,2,4,5,8")
    shown = capsys.readouterr().out
    text, _, table = shown.partition("| what | measured |\n|---|---|\n")
    assert text.startswith("machine: ")
    assert [line for line in text.splitlines() if line.startswith("==")] == [
        f"== part {number}" for number in (1, 2, 4, 5, 8)
    ]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()]
    assert all(len(row) == 2 for row in rows)
    names = [row[0] for row in rows]
    assert "MP-HCNN at the paper's size, engine, posts encoded" in names
    assert {"SM-CNN, engine", "K-NRM, plain, padded", "K-NRM of matchzoo-py"} <= set(names)
    assert "a topic of 30 candidates" in names
    assert "MP-HCNN, shipped, multiply-adds a pair" in names
    shares = {row[0]: row[1] for row in rows if row[0].startswith("shipped: ")}
    assert "shipped: mm" in shares or "shipped: embedding_bag" in shares
    assert sum(int(share.rstrip("%")) for share in shares.values()) == pytest.approx(100, abs=5)


def test_the_peak_memory_is_that_of_the_process_and_not_of_who_starts_it() -> None:
    held = np.ones(40_000_000)  # 320 MB
    seconds, peak = part("process")._run([sys.executable, "-c", "pass"])
    assert held.all() and seconds > 0
    assert 2**20 < peak < 100 * 2**20


def test_the_fusion_is_measured_both_ways() -> None:
    rows = dict(part("fused").measure(workload()))
    trees = rows.pop("fusion, 1000 candidates, trees alone")
    assert re.search(r"^[\d.]+ ms, [\d.]+ times as fast as LightGBM", trees)
    assert list(rows) == [
        f"fusion, 1000 candidates, posts read {when}" for when in ("now", "beforehand")
    ]
    for value in rows.values():
        assert re.search(r"^1 thread [1-9][\d.]* ms", value)


def test_a_process_that_fails_says_why() -> None:
    with pytest.raises(DataError, match=r"(?s)failed:.*no such luck"):
        part("process")._run([sys.executable, "-c", "raise SystemExit('no such luck')"])


def test_the_process_is_measured_whole_and_by_stage() -> None:
    rows = dict(part("process").measure(workload()))
    seconds = {name: float(value.removesuffix(" s")) for name, value in rows.items()
               if name.startswith("– ")}  # fmt: skip
    assert seconds["– start-up: Python, imports"] > 0.1
    assert seconds["– matching"] > 0
    assert seconds["– the rest"] < 0.5 * sum(seconds.values())
    assert "MiB" in rows["`pipeline.search --topics sample`, 20 topics"]


@pytest.fixture
def training_step(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Part 7 with two steps of small models on the sample, which is no judged year."""
    module = part("training_step")

    def sample(work: Any) -> JudgedCandidates:
        source = work.source
        found = LuceneRetriever(source.index(), METHODS["ql"]()).search(source.topics, hits=40)
        return JudgedCandidates(found, source.qrels)

    monkeypatch.setattr(module, "training_data", sample)
    sizes = {"word_filters": 6, "trigram_filters": 6, "trigram_size": 8, "hidden": 8}
    cases = {
        title: module.Case(dataclasses.replace(case.config, **sizes), steps=2)
        for title, case in module.CASES.items()
    }
    monkeypatch.setattr(module, "CASES", cases)
    return module


@pytest.mark.parametrize("number", [0, 1, 2])
def test_plain_steps_and_ours_come_to_the_same_weights(training_step: Any, number: int) -> None:
    """After a step: in the next, dense Adam also moves rows that the batch does not have."""
    work = workload()
    task = training_step.Task.of(work)
    case = list(training_step.CASES.values())[number]
    config, encoder = dataclasses.replace(case.config, dropout=0.0), work.encoder(100)
    plain, ours = (work.random_model("mp_hcnn", config, encoder) for _ in range(2))
    start = {name: weights.detach().clone() for name, weights in ours.named_parameters()}
    trained = {name for name, weights in ours.named_parameters() if weights.requires_grad}
    assert any("vectors" in name for name in trained) is (number > 0)
    settings = dataclasses.replace(task.settings(case), steps=1)
    known = Tokenized.of(task.pairs, encoder, ours).subset(task.fold.training)
    prepared = CachedInteractions.compute(ours, known) if ours.interactions_are_fixed() else known
    padded = training_step.FullLength(known, plain)
    dense = training_step._dense(plain, settings)
    losses = [
        EpochTrainer(plain, Examples(padded, task.relevant), settings, dense).train_epoch(1),
        EpochTrainer(ours, Examples(prepared, task.relevant), settings).train_epoch(1),
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    moves: dict[str, list[torch.Tensor]] = {"plain": [], "ours": []}
    for name, weights in start.items():
        ended = [dict(model.named_parameters())[name].detach() for model in (plain, ours)]
        assert torch.equal(ended[1], weights) is (name not in trained), name
        for key, values in zip(moves, ended, strict=True):
            moves[key].append((values - weights).flatten())
    one, other = (torch.cat(parts) for parts in moves.values())
    # Adam follows a gradient's sign at first, and where it is tiny, rounding decides that.
    assert (one - other)[one.abs() > 1e-4].abs().lt(1e-4).float().mean() > 0.95


def test_the_plain_way_pads_every_text_to_what_the_model_reads(training_step: Any) -> None:
    model = small_model("mp_hcnn", "robust")
    padded = training_step.FullLength(Tokenized.of(all_pairs(), encoder(), model), model)
    seen: dict[str, Any] = {}
    forward = model.forward

    def spy(queries: Any, posts: Any, own: torch.Tensor, features: Any) -> torch.Tensor:
        seen.update(queries=queries, posts=posts, own=own)
        return forward(queries, posts, own, features)

    model.forward = spy  # type: ignore[method-assign]
    rows = np.array([0, 1, 13, 13])
    padded.scores_of(model, rows, torch.device("cpu"))
    shapes = [{view: tuple(terms.ids.shape) for view, terms in seen[side].items()}
              for side in ("queries", "posts")]  # fmt: skip
    assert shapes == [
        {"words": (4, 10), "trigrams": (4, 51)},
        {"words": (4, 68), "trigrams": (4, 140), "url_trigrams": (4, 120)},
    ]
    assert seen["own"].tolist() == [0, 1, 2, 3]


def test_training_steps_are_measured_both_ways(
    script: ModuleType, training_step: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    run(script, "--parts", "7", "--rounds", "2")
    table = capsys.readouterr().out.partition("| what | measured |\n|---|---|\n")[2]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()]
    assert len(rows) == 9
    for plain, ours, precision in (rows[:3], rows[3:6], rows[6:]):
        assert re.fullmatch(r"[\d,.]+ steps/s", plain[1])
        assert re.match(r"[\d,.]+ steps/s \([\d.]+ ×\)", ours[1])
        assert precision[0].endswith("AP of 3 held-out topics after 4 steps")
        reached = [float(figure) for figure in re.findall(r"0\.\d+", precision[1])]
        assert reached[0] == pytest.approx(reached[1], abs=0.02)
    assert re.search(r", after [\d.]+ s for [\d,]+ pairs$", rows[1][1])
    assert all(row[1].endswith(" ×)") for row in (rows[4], rows[7]))


def test_the_year_left_out_is_not_trained_on(monkeypatch: pytest.MonkeyPatch) -> None:
    module = part("training_step")
    asked: list[Any] = []
    monkeypatch.setattr(
        module.collections, "training_collections",
        lambda test, data: asked.append(test) or ["mb2011"],
    )  # fmt: skip
    monkeypatch.setattr(module.collections, "find", lambda name, data: name)
    monkeypatch.setattr(module, "load_training_data", lambda found: found)
    assert module.training_data(workload()) == ["mb2011"]
    assert asked == ["mb2013"]


def test_answer_selection_is_measured_by_the_model_of_tweets(tmp_path: Path) -> None:
    work = workload("trecqa-raw", write_data(tmp_path / "data"))
    assert len(work.pairs) == 24
    rows = part("process")._arguments(work)
    assert rows[-2:] == ["--checkpoint", str(work.directory)]
    assert part("growth").measure(work, sizes=(2,))
    assert not part("surroundings")._indexing(work)
