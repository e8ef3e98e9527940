"""Cells of experiments, and tables and figures from them: small runs and made-up results."""

import dataclasses
import gzip
from collections.abc import Iterator
from importlib import import_module
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from conftest import Capture, Patch
from experiments import cells, reports
from experiments.cells import (
    OKAPI,
    Cell,
    Result,
    Setup,
    is_finished,
    read_csv,
    run_cell,
    run_cells,
)
from experiments.reports import draw, margin, significance
from experiments.tables import System, read_tables, render
from helpers.data_samples import write_answers, write_microblog
from helpers.reranking_samples import network, small_model

from tweetrerank.indexes.data_error import DataError
from tweetrerank.pipeline.collections.trec import read_run, write_run
from tweetrerank.pipeline.command.options import parse_arguments
from tweetrerank.pipeline.evaluation.measures import evaluate, mean

pytestmark = pytest.mark.slow  # experiments are no part of the packages

_, TABLES = read_tables()
QL, MP_HCNN = TABLES["figure3"].systems
PNG = b"\x89PNG"
RESULTS = Path(__file__).resolve().parents[2] / "scripts" / "results"
SMALL = "signal:ql,signal:run_ql,overlap"
Finished = tuple[Setup, list[Result]]


@pytest.fixture(autouse=True, scope="module")
def _commands_here() -> Iterator[None]:
    """Cells run their commands in this process, which saves the start of new ones."""

    def command(module: str, *arguments: str) -> None:
        called = import_module(module)
        called.main(parse_arguments(called.Options, module, None, arguments))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cells, "_command", command)
        yield


def made_up(
    system: System, collection: str, mixed: float | None = None, **of: float
) -> Result:
    """A result with these measures, and the AP ``mixed`` of its mixture."""
    made = {"date": "2026-01-01", "commit": "abc", "machine": "two cores"}
    cell = Cell(system.name, system.model, tuple(system.training.split()), collection)
    return Result(
        cell, of, {} if mixed is None else {"AP": mixed}, 0.5, 0.7, 3, 12.4, made
    )


def mean_of_run(setup: Setup, cell: Cell, measure: str) -> object:
    qrels = setup.collection(cell.collection).qrels or {}
    values = evaluate(qrels, read_run(setup.run_file(cell)), [measure])
    return pytest.approx(mean(values[measure]), abs=1e-4)


def test_an_answer_cell_is_measured_and_computed_once(tmp_path: Path) -> None:
    setup = Setup(tmp_path / "kept", write_answers(tmp_path / "data"), "cpu")
    quick = (
        "training.steps=3",
        "training.epochs=2",
        "--vectors",
        f"{setup.data}/vectors.txt",
    )
    # The same work under two names is done once.
    cell, twin = (
        Cell(name, "bag_of_words", quick, "trecqa-raw") for name in ("one", "another")
    )
    assert not is_finished(cell, setup)
    results, failures = run_cells([cell, twin], setup)
    assert (failures, [result.cell for result in results]) == ([], [cell, twin])
    assert results[0].measures == results[1].measures and is_finished(twin, setup)
    assert results[0].measures["RR"] == mean_of_run(setup, cell, "RR")
    assert (results[0].interpolated, results[0].weight) == ({}, None)
    written = setup.result_file(cell).stat().st_mtime_ns
    assert run_cell(cell, setup) == results[0]
    assert setup.result_file(cell).stat().st_mtime_ns == written


def test_official_runs_and_shipped_weights_are_only_measured(tmp_path: Path) -> None:
    setup = Setup(tmp_path / "kept", write_microblog(tmp_path / "data"), "cpu")
    cell = Cell("QL", "run:ql", (), "mb2012")
    assert run_cell(cell, setup).measures["AP"] == mean_of_run(setup, cell, "AP")
    assert not setup.directory.exists()
    cell = Cell("shipped", "shipped:mp_hcnn", (), "mb2012")
    result = run_cell(cell, setup)
    assert result.measures["AP"] == mean_of_run(setup, cell, "AP")
    assert (result.interpolated, result.weight) == ({}, None) and result.seconds < 5
    # A mixture of two scores scaled to [0, 1].
    scores = [
        s
        for of_topic in read_run(setup.run_file(cell)).values()
        for s in of_topic.values()
    ]
    assert 0 <= min(scores) <= max(scores) <= 1
    assert not (setup.directory / "checkpoints").exists()


def test_cells_pick_right_answers_with_and_without_training(tmp_path: Path) -> None:
    setup = Setup(tmp_path / "kept", write_answers(tmp_path / "data"), "cpu")
    measured = run_cell(Cell("Okapi", OKAPI, (), "wikiqa"), setup)
    assert set(measured.measures) == {"P@1", "RR"}
    # A right answer has all words of its question, and nearly always the most.
    assert 0.5 < measured.measures["P@1"] <= measured.measures["RR"] <= 1
    assert not setup.directory.exists()
    options = "--development drawn training.steps=1 training.epochs=1 --configuration nbow_mlp"
    options += f" --vectors {setup.data}/vectors.txt"
    cell = Cell("NBOW", "drawn:cntn", tuple(options.split()), "wikiqa")
    measured = run_cell(cell, setup)
    part = setup.collection("wikiqa")
    assert measured.measures == cells.measure_drawn(part, setup.checkpoint(cell))  # type: ignore[arg-type]


def test_vectors_of_questions_have_length_1_in_any_batch(monkeypatch: Patch) -> None:
    trained = network(small_model("cntn", "cntn_v"), name="cntn")
    questions = ["where is the water", "who", "is it", "where is the water"]
    vectors = reports.question_vectors(trained, questions)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-6)
    np.testing.assert_array_equal(vectors[0], vectors[3])
    monkeypatch.setattr(reports, "BATCH_SIZE", 1)
    np.testing.assert_allclose(
        reports.question_vectors(trained, questions), vectors, atol=1e-6
    )


def test_runs_on_raw_questions_are_measured_on_the_clean_ones(tmp_path: Path) -> None:
    """Nothing is trained for these; the published models are for some collections and one seed."""
    setup = Setup(tmp_path / "kept", write_answers(tmp_path / "data"), "cpu")
    one = System("one", "mp_cnn")
    few = System("few", "pwim", collections=("trecqa-raw",), seeds=1)
    table = dataclasses.replace(TABLES["answer-selection"], lines=[one, few])
    cells = table.cells(["trecqa-clean", "wikiqa"], 2)
    expected = [
        *product(["one"], ["trecqa-raw", "wikiqa"], [1, 2]),
        ("few", "trecqa-raw", 1),
    ]
    assert [(cell.system, cell.collection, cell.seed) for cell in cells] == expected
    raw, clean = (setup.collection(name) for name in ("trecqa-raw", "trecqa-clean"))
    assert raw.given_candidates and clean.given_candidates and clean.qrels
    given = {
        query_id: sorted(found) for query_id, found in raw.given_candidates.items()
    }
    run = {
        q: {doc_id: -float(n) for n, doc_id in enumerate(ids)}
        for q, ids in given.items()
    }
    write_run(setup.run_file(cells[0]), run, "test")
    measured = dataclasses.replace(
        made_up(one, "trecqa-raw", AP=0.1, RR=0.2), cell=cells[0]
    )
    first, second = reports.clean_questions(table, [measured], setup)
    assert (first, second.cell.collection) == (measured, "trecqa-clean")
    values = evaluate(clean.qrels, {q: run[q] for q in clean.qrels}, ["AP", "RR"])
    assert second.measures == {name: round(mean(v), 4) for name, v in values.items()}


def test_marks_are_those_of_the_randomization_test(
    tmp_path: Path, capsys: Capture
) -> None:
    """A perfect run against the reversed one, and against itself."""
    setup = Setup(tmp_path / "kept", write_microblog(tmp_path / "data", topics=8))
    collection = setup.collection("mb2011")
    qrels, official = collection.qrels or {}, read_run(collection.runs["ql"])

    def graded(sign: int) -> dict[str, dict[str, float]]:
        """Posts by their grades; those of one grade in their order."""
        posts = {q: enumerate(scores) for q, scores in official.items()}
        return {
            q: {d: sign * qrels[q][d] - 0.001 * n for n, d in of}
            for q, of in posts.items()
        }

    results = []
    for name, run in (("good", graded(1)), ("bad", graded(-1))):
        made = made_up(System(name, name), "mb2011", AP=0.5, mixed=1.0)
        write_run(setup.run_file(made.cell), run, name)
        write_run(setup.mixture_file(made.cell), graded(1), name)
        results.append(made)
    better = dict.fromkeys(["good", "bad", "absent"], "*")
    table = dataclasses.replace(TABLES["fusion"], better=better, worse={})
    good, bad = significance(table, results, setup)
    assert [*good.marks.values()] == [
        {"AP": ("bad",)},
        {},
        {"AP": ("bad",)},
    ]  # Not P@30 of 14
    assert [*bad.marks.values()] == [{}, {"AP": ("good",)}, {"AP": ("bad",)}]
    assert (
        "mb2011: found no finished cell of absent, so no row" in capsys.readouterr().err
    )


def test_table_2_counts_the_candidates(tmp_path: Path) -> None:
    data = write_microblog(tmp_path)
    (data / "microblog" / "qrels.microblog2014.txt").unlink()
    (data / "embeddings").mkdir()
    vectors = b"2 1\nlol \0\0\x80?\nnews \0\0\x80?\n"
    (data / "embeddings" / "glove.6B.100d.bin.gz").write_bytes(gzip.compress(vectors))
    posts = (data / "microblog" / "trec-2012" / "b.toks").read_text().splitlines()
    qrels = (data / "microblog" / "qrels.microblog2012.txt").read_text()
    words = {word for post in posts for word in post.split()}
    results = [made_up(QL, name) for name in ("mb2012", "mb2014")]
    table = TABLES["table2"]
    shown = render(table, reports.sizes(table, results, Setup(tmp_path, data)))
    lines = [line.strip("| ").split(" | ") for line in shown.splitlines()]
    rows = {first: rest for first, *rest in lines}
    expected = {
        "topics": "8 (60)",
        "query-document pairs": f"{len(posts)} (49,879)",
        "relevant documents": f"{qrels.count(' 1' + chr(10))} (4,298)",
        "unique words": f"{len(words)} (27,470)",
        "unique OOV words": f"{len(words - {'lol', 'news'})} (17,190)",
        "hashtags": "0 (8,019)",
    }
    assert {name: rows[name][0] for name in expected} == expected
    assert rows["relevant documents"][1] == "- (6,812)"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Small collections with QL and a hardly trained MP-HCNN; with official runs, a small fusion of
    QL's candidates, and one on held-out topics."""
    folder = tmp_path_factory.mktemp("tables")
    setup = Setup(folder / "kept", write_microblog(folder / "data"), "cpu")
    vectors = ("--vectors", f"{setup.data}/vectors.txt")
    options = f"--folds 2 families={SMALL} trees=5 minimum_leaf=1"
    ql, rm3, _, fusion, *_ = (system.name for system in TABLES["fusion"].systems)
    quick = (*vectors, *options.split())
    brief = ("training.steps=2", "training.epochs=1", *vectors)
    wanted = [
        Cell("QL", "run:ql", (), "mb2011"),
        Cell(MP_HCNN.name, "mp_hcnn", brief, "mb2011"),
        Cell(ql, "run:ql", (), "mb2012"),
        Cell(rm3, "run:rm3", (), "mb2012"),
        Cell(fusion, "fusion", (*quick, "candidate_rankers=run_ql"), "mb2012"),
        Cell("all families", "held-out:fusion", quick, "mb2013"),
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TWEETRERANK_HOME", str(folder / "home"))
        results, failures = run_cells(wanted, setup)
    assert failures == []
    return setup, results


def test_gains_are_differences_of_ap(finished: Finished, tmp_path: Path) -> None:
    setup, (*results, _, _, _, _) = finished
    table = TABLES["figure3"]
    assert set(results[1].measures) == set(results[1].interpolated) == {"AP", "P@30"}
    assert 0.0 <= (results[1].weight or 0.0) <= 1.0
    qrels = setup.collection("mb2011").qrels or {}
    runs = (read_run(setup.run_file(r.cell)) for r in results)
    base, ours = (evaluate(qrels, run, ["AP"])["AP"] for run in runs)
    gains = np.array([ours[query_id] - base[query_id] for query_id in qrels])
    above, below = sum(gains > 0), sum(gains < 0)
    report = reports.gains(table, results, setup)
    assert f"\n| {MP_HCNN.name} | {above} | {below} | 26 | 13 |\n" in report
    assert "| MP-HCNN+ (ours) |" in report
    assert f"{max(gains):+.3f}" in report
    draw(tmp_path / "3.png", table, results, setup)
    assert (tmp_path / "3.png").read_bytes().startswith(PNG)
    with pytest.raises(DataError, match=r"mb2011: found no finished cell of MP-HCNN"):
        reports.gains(table, results[:1], setup)


def test_categories_and_samples_are_read_from_the_cells(finished: Finished) -> None:
    setup, results = finished
    shares = reports.categories(TABLES["table5"], results[:2], setup)
    # Every made-up post has a word of its query.
    assert "\n| exact word match | 100 | 100 |\n" in shares
    assert "\nThe first 20 posts by MP-HCNN of each of the topics" in shares
    rows = reports.samples(TABLES["table6"], results[:2], setup).splitlines()
    assert sum("(#1)" in line for line in rows) >= 2
    assert sum(line.startswith("|") for line in rows) == 2 + 2 * 3


def test_figures_of_results_are_drawn(tmp_path: Path) -> None:
    depths = [
        made_up(TABLES["figure2"].systems[n], "mb2011", AP=0.3 + n / 100)
        for n in (0, 2, 4)
    ]
    questions = read_csv(RESULTS / TABLES["question-retrieval"].csv)
    for name, results in (("figure2", depths), ("question-retrieval", questions)):
        draw(tmp_path / f"{name}.png", TABLES[name], results, Setup(tmp_path))
        assert (tmp_path / f"{name}.png").read_bytes().startswith(PNG)


def test_margins_are_of_the_gain_over_the_first_stage() -> None:
    """AP is 1 or 1/2 for the model, 1/2 or 1 for its first stage."""
    qrels = {query: {"a": 1} for query in "1234"}
    best, second = {"a": 2.0, "b": 1.0}, {"a": 1.0, "b": 2.0}
    run = dict(zip("1234", (best, best, best, second), strict=True))
    first = dict(zip("1234", (second, second, best, best), strict=True))
    # Gains of 1/2, 1/2, 0 and -1/2; AP 1, 1, 1 and 1/2
    assert margin((run, qrels), (first, qrels)) == pytest.approx(
        0.98 * np.sqrt(11 / 48), abs=1e-4
    )
    assert margin((run, qrels), None) == pytest.approx(0.98 * 0.25, abs=1e-4)
    forms = ("engine", "scores", "engine/eights", "fusion")
    assert [*map(reports.first_stage_of, forms)] == [None, "bm25", "engine", "bm25"]


def test_probabilities_are_compared_with_what_happened() -> None:
    """Topics have three posts each: those with score 1 are relevant, an eighth of the others is."""
    run = {str(query): {"a": 1.0, "b": 0.0, "c": 0.0} for query in range(20)}
    qrels = {
        str(query): {"a": int(query != 9), "b": int(query % 4 == 0)}
        for query in range(20)
    }
    calibration = reports.calibrated([(run, qrels)])
    assert reports.calibration_error((run, qrels), calibration) < 0.01
    turned = {
        q: {d: int(not grade) for d, grade in of.items()} for q, of in qrels.items()
    }
    # Of 20 pairs with .95 one is relevant now, of 40 with .125 there are 15.
    expected = (20 * 0.9 + 40 * 0.25) / 60
    found = reports.calibration_error((run, turned), calibration)
    assert found == pytest.approx(expected, abs=0.01)


def test_stages_have_recall_and_are_compared_with_the_row_above(
    finished: Finished,
) -> None:
    """A perfect run is marked against its neighbour only, though other stages are worse too."""
    setup, (_, _, ql, rm3, fusion, _) = finished
    shipped = Cell(TABLES["fusion"].systems[2].name, "shipped:mp_hcnn", (), "mb2012")
    qrels = setup.collection("mb2012").qrels or {}
    write_run(
        setup.run_file(shipped),
        {q: dict(grades) for q, grades in qrels.items()},
        "perfect",
    )
    perfect = dataclasses.replace(ql, cell=shipped)
    done = reports.stages(TABLES["fusion"], [ql, rm3, perfect, fusion], setup)
    assert done[2].marks["better_than"] == {"AP": (rm3.cell.system,)}
    # The made-up RM3 run is a copy of QL's, and the fusion's candidates are QL's.
    assert done[1].marks["better_than"] == done[1].marks["worse_than"] == {}
    assert done[0].measures["recall"] == done[3].measures["recall"] == 1.0
    assert done[3].measures["AP"] == mean_of_run(setup, fusion.cell, "AP")


def test_the_ablation_measures_held_out_topics_and_importance(
    finished: Finished,
) -> None:
    setup, (*_, whole) = finished
    others = (
        setup.collection(name).qrels or {} for name in ("mb2011", "mb2012", "mb2014")
    )
    qrels = {query_id: grades for of in others for query_id, grades in of.items()}
    run = read_run(setup.checkpoint(whole.cell) / "held_out.run.gz")
    values = evaluate(qrels, run, ["AP", "P@30"])
    assert whole.measures == pytest.approx(
        {m: mean(v) for m, v in values.items()}, abs=1e-4
    )
    names = [f"- {family}" for family in [*SMALL.split(","), "links"]]
    cells = [dataclasses.replace(whole.cell, system=name) for name in names]
    parts = [dataclasses.replace(whole, cell=cell) for cell in cells]
    done = reports.importances(TABLES["fusion-ablation"], [whole, *parts], setup)
    shares = {r.cell.system: r.measures.get("importance") for r in done}
    assert shares.pop("all families") is None
    assert shares.pop("- links") is None  # not among the trees' features
    assert sum(share or 0.0 for share in shares.values()) == pytest.approx(
        1.0, abs=2e-4
    )
