"""Cells of experiments, and tables and figures from small runs and made-up results."""

import dataclasses
import gzip
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from conftest import Capture, Patch
from experiments import cells, question_curves
from experiments.added_measures import clean_questions, importances, sizes
from experiments.calibration_error import (
    calibrated,
    calibration_error,
    first_stage_of,
    margin,
)
from experiments.cell_runs import is_finished, measure_drawn, run_cell, run_cells
from experiments.cells import OKAPI, Cell, Result, Setup
from experiments.figures import draw
from experiments.rendering import render
from experiments.results_csv import read_csv
from experiments.significance_marks import significance, stages
from experiments.tables import System, read_tables
from experiments.year_reports import categories, gains, samples
from helpers.data_samples import write_answers, write_microblog
from helpers.reranking_samples import network, small_model

from tweetrerank.indexes.data_error import DataError
from tweetrerank.pipeline.collections.trec import Qrels, Run, read_run, write_run
from tweetrerank.pipeline.command.options import parse_arguments
from tweetrerank.pipeline.evaluation.measures import evaluate, mean

pytestmark = pytest.mark.slow  # Experiments are no part of the packages.

_, TABLES = read_tables()
QL, MP_HCNN = TABLES["figure3"].systems
PNG = b"\x89PNG"
RESULTS = Path(__file__).resolve().parents[2] / "scripts" / "results"
SMALL = "signal:ql,signal:run_ql,overlap"


@dataclasses.dataclass(frozen=True)
class Finished:
    """Small collections with results of cells."""

    setup: Setup
    results: Sequence[Result]  # All of the following ones
    ql_2011: Result
    mp_hcnn_2011: Result  # Hardly trained
    ql_2012: Result
    rm3_2012: Result
    fusion_2012: Result  # A small fusion of QL's candidates
    held_out_2013: Result  # A fusion measured on held-out topics


@pytest.fixture(autouse=True, scope="module")
def _commands_here() -> Iterator[None]:
    """Cells run their commands in this process, which saves the start of new ones."""

    def command(module: str, arguments: Sequence[str]) -> None:
        called = import_module(module)
        called.main(parse_arguments(called.Options, module, None, arguments))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cells, "_run_module", command)
        yield


def made_up(
    system: System,
    collection: str,
    measures: dict[str, float],
    mixture: dict[str, float] | None = None,
) -> Result:
    """A result with these measures of the system and its mixture."""
    return Result(
        Cell(system.name, system.model, tuple(system.training.split()), collection),
        measures,
        mixture or {},
        weight=0.5,
        development=0.7,
        epochs=3,
        seconds=12.4,
        made={"date": "2026-01-01", "commit": "abc", "machine": "two cores"},
    )


def mean_of_run(setup: Setup, cell: Cell, measure: str) -> object:
    qrels = setup.collection(cell.collection).qrels or {}
    values = evaluate(qrels, read_run(setup.run_file(cell)), [measure])
    return pytest.approx(mean(values[measure]), abs=1e-4)


# Cells


def test_an_answer_cell_is_measured_and_computed_once(tmp_path: Path) -> None:
    setup = Setup(tmp_path / "kept", write_answers(tmp_path / "data"), "cpu")
    vectors = f"{setup.data}/vectors.txt"
    quick = ("training.steps=3", "training.epochs=2", "--vectors", vectors)
    # The same work under two names is done once.
    cell = Cell("one", "bag_of_words", quick, "trecqa-raw")
    twin = dataclasses.replace(cell, system="another")
    assert not is_finished(cell, setup)
    results, failures = run_cells([cell, twin], setup)
    assert failures == []
    assert [result.cell for result in results] == [cell, twin]
    first, second = results
    assert first.measures == second.measures
    assert is_finished(twin, setup)
    assert first.measures["RR"] == mean_of_run(setup, cell, "RR")
    assert first.interpolated == {}
    assert first.weight is None
    written = setup.result_file(cell).stat().st_mtime_ns
    assert run_cell(cell, setup) == first
    assert setup.result_file(cell).stat().st_mtime_ns == written


def test_official_runs_are_only_measured(tmp_path: Path) -> None:
    setup = Setup(tmp_path / "kept", write_microblog(tmp_path / "data"), "cpu")
    cell = Cell("QL", "run:ql", (), "mb2012")
    assert run_cell(cell, setup).measures["AP"] == mean_of_run(setup, cell, "AP")
    assert not setup.directory.exists()


def test_shipped_weights_are_only_measured(tmp_path: Path) -> None:
    setup = Setup(tmp_path / "kept", write_microblog(tmp_path / "data"), "cpu")
    cell = Cell("shipped", "shipped:mp_hcnn", (), "mb2012")
    result = run_cell(cell, setup)
    assert result.measures["AP"] == mean_of_run(setup, cell, "AP")
    assert result.interpolated == {}
    assert result.weight is None
    assert result.seconds < 5
    # A mixture of two scores scaled to [0, 1].
    scores: list[float] = []
    for of_topic in read_run(setup.run_file(cell)).values():
        scores += of_topic.values()
    assert 0 <= min(scores) <= max(scores) <= 1
    assert not (setup.directory / "checkpoints").exists()


def test_cells_pick_right_answers_without_training(tmp_path: Path) -> None:
    setup = Setup(tmp_path / "kept", write_answers(tmp_path / "data"), "cpu")
    measured = run_cell(Cell("Okapi", OKAPI, (), "wikiqa"), setup)
    assert set(measured.measures) == {"P@1", "RR"}
    # A right answer has all words of its question, and nearly always the most.
    assert 0.5 < measured.measures["P@1"] <= measured.measures["RR"] <= 1
    assert not setup.directory.exists()


def test_cells_pick_right_answers_after_training(tmp_path: Path) -> None:
    setup = Setup(tmp_path / "kept", write_answers(tmp_path / "data"), "cpu")
    options = (
        "--development drawn training.steps=1 training.epochs=1 "
        f"--configuration nbow_mlp --vectors {setup.data}/vectors.txt"
    )
    cell = Cell("NBOW", "drawn:cntn", tuple(options.split()), "wikiqa")
    measured = run_cell(cell, setup)
    part = setup.collection("wikiqa")
    expected = measure_drawn(part, setup.checkpoint(cell))  # type: ignore[arg-type]
    assert measured.measures == expected


def test_cells_of_clean_questions_are_those_of_the_raw_ones() -> None:
    """Published models are for some collections and one seed."""
    anywhere = System("one", "mp_cnn")
    published = System("few", "pwim", collections=("trecqa-raw",), seeds=1)
    table = TABLES["answer-selection"]
    table = dataclasses.replace(table, lines=[anywhere, published])
    cells = table.cells(["trecqa-clean", "wikiqa"], 2)
    assert [(cell.system, cell.collection, cell.seed) for cell in cells] == [
        ("one", "trecqa-raw", 1),
        ("one", "trecqa-raw", 2),
        ("one", "wikiqa", 1),
        ("one", "wikiqa", 2),
        ("few", "trecqa-raw", 1),
    ]


# Measures


def test_runs_on_raw_questions_are_measured_on_the_clean_ones(tmp_path: Path) -> None:
    setup = Setup(tmp_path / "kept", write_answers(tmp_path / "data"), "cpu")
    raw = setup.collection("trecqa-raw")
    clean = setup.collection("trecqa-clean")
    assert raw.given_candidates
    assert clean.given_candidates
    assert clean.qrels
    run: Run = {}
    for query_id, candidates in raw.given_candidates.items():
        doc_ids = sorted(candidates)
        run[query_id] = {doc_id: -float(n) for n, doc_id in enumerate(doc_ids)}
    system = System("one", "mp_cnn")
    measured = made_up(system, "trecqa-raw", {"AP": 0.1, "RR": 0.2})
    write_run(setup.run_file(measured.cell), run, "test")
    table = TABLES["answer-selection"]
    first, second = clean_questions(table, [measured], setup)
    assert first == measured
    assert second.cell.collection == "trecqa-clean"
    clean_run = {query_id: run[query_id] for query_id in clean.qrels}
    values = evaluate(clean.qrels, clean_run, ["AP", "RR"])
    means = {name: round(mean(of_topics), 4) for name, of_topics in values.items()}
    assert second.measures == means


def test_vectors_of_questions_have_length_1_in_any_batch(monkeypatch: Patch) -> None:
    trained = network(small_model("cntn", "cntn_v"), name="cntn")
    questions = ["where is the water", "who", "is it", "where is the water"]
    vectors = question_curves.question_vectors(trained, questions)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-6)
    np.testing.assert_array_equal(vectors[0], vectors[3])
    monkeypatch.setattr(question_curves, "BATCH_SIZE", 1)
    single = question_curves.question_vectors(trained, questions)
    np.testing.assert_allclose(single, vectors, atol=1e-6)


def graded(official: Run, qrels: Qrels, sign: int) -> Run:
    """Posts by their grades; those of one grade in their order."""
    run: Run = {}
    for query_id, scores in official.items():
        grades = qrels[query_id]
        run[query_id] = {
            doc_id: sign * grades[doc_id] - 0.001 * place
            for place, doc_id in enumerate(scores)
        }
    return run


def test_marks_are_those_of_the_randomization_test(
    tmp_path: Path,
    capsys: Capture,
) -> None:
    """A perfect run against the reversed one, and against itself."""
    setup = Setup(tmp_path / "kept", write_microblog(tmp_path / "data", topics=8))
    collection = setup.collection("mb2011")
    qrels = collection.qrels or {}
    official = read_run(collection.runs["ql"])
    perfect = graded(official, qrels, 1)
    results = []
    for name, run in (("good", perfect), ("bad", graded(official, qrels, -1))):
        result = made_up(System(name, name), "mb2011", {"AP": 0.5}, {"AP": 1.0})
        mixture = setup.mixture_file(result.cell)
        assert mixture
        write_run(setup.run_file(result.cell), run, name)
        write_run(mixture, perfect, name)
        results.append(result)
    better = dict.fromkeys(["good", "bad", "absent"], "*")
    table = dataclasses.replace(TABLES["fusion"], better=better, worse={})
    good, bad = significance(table, results, setup)
    # The 14 posts of a topic leave no difference in P@30.
    assert good.marks == {
        "better_than": {"AP": ("bad",)},
        "worse_than": {},
        "interpolated_better_than": {"AP": ("bad",)},
    }
    assert bad.marks == {
        "better_than": {},
        "worse_than": {"AP": ("good",)},
        "interpolated_better_than": {"AP": ("bad",)},
    }
    message = "mb2011: found no finished cell of absent, so no row"
    assert message in capsys.readouterr().err


def test_table_2_counts_the_candidates(tmp_path: Path) -> None:
    data = write_microblog(tmp_path)
    microblog = data / "microblog"
    (microblog / "qrels.microblog2014.txt").unlink()
    (data / "embeddings").mkdir()
    vectors = b"2 1\nlol \0\0\x80?\nnews \0\0\x80?\n"
    (data / "embeddings" / "glove.6B.100d.bin.gz").write_bytes(gzip.compress(vectors))
    posts = (microblog / "trec-2012" / "b.toks").read_text().splitlines()
    qrels = (microblog / "qrels.microblog2012.txt").read_text()
    words: set[str] = set()
    for post in posts:
        words.update(post.split())
    results = [made_up(QL, name, {}) for name in ("mb2012", "mb2014")]
    table = TABLES["table2"]
    text = render(table, sizes(table, results, Setup(tmp_path, data)))
    rows = {}
    for line in text.splitlines():
        title, *figures = line.strip("| ").split(" | ")
        rows[title] = figures
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


def test_margins_are_of_the_gain_over_the_first_stage() -> None:
    """AP is 1 or 1/2 for the model, 1/2 or 1 for its first stage."""
    qrels = {query: {"a": 1} for query in "1234"}
    best = {"a": 2.0, "b": 1.0}
    second = {"a": 1.0, "b": 2.0}
    run = {"1": best, "2": best, "3": best, "4": second}
    first = {"1": second, "2": second, "3": best, "4": best}
    # Gains of 1/2, 1/2, 0 and -1/2.
    expected = pytest.approx(0.98 * np.sqrt(11 / 48), abs=1e-4)
    assert margin((run, qrels), (first, qrels)) == expected
    # AP of 1, 1, 1 and 1/2.
    assert margin((run, qrels), None) == pytest.approx(0.98 * 0.25, abs=1e-4)


@pytest.mark.parametrize(
    ("form", "first_stage"),
    [
        ("engine", None),  # A first stage itself
        ("scores", "bm25"),  # The default
        ("engine/eights", "engine"),
        ("fusion", "bm25"),
    ],
)
def test_a_form_has_a_first_stage(form: str, first_stage: str | None) -> None:
    assert first_stage_of(form) == first_stage


def test_probabilities_are_compared_with_judgments() -> None:
    """Topics have three posts each.

    Nearly all posts with score 1 are relevant, an eighth of the others is.
    """
    run: Run = {}
    qrels: Qrels = {}
    opposite: Qrels = {}
    for number in range(20):
        grades = {"a": int(number != 9), "b": int(number % 4 == 0)}
        run[str(number)] = {"a": 1.0, "b": 0.0, "c": 0.0}
        qrels[str(number)] = grades
        opposite[str(number)] = {doc_id: 1 - grade for doc_id, grade in grades.items()}
    calibration = calibrated([(run, qrels)])
    assert calibration_error((run, qrels), calibration) < 0.01
    # One of the 20 pairs with .95 is relevant now, and 15 of the 40 with .125.
    expected = (20 * 0.9 + 40 * 0.25) / 60
    error = calibration_error((run, opposite), calibration)
    assert error == pytest.approx(expected, abs=0.01)


# Reports and figures


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    folder = tmp_path_factory.mktemp("tables")
    setup = Setup(folder / "kept", write_microblog(folder / "data"), "cpu")
    vectors = f"--vectors {setup.data}/vectors.txt"
    brief = f"training.steps=2 training.epochs=1 {vectors}".split()
    trees = f"{vectors} --folds 2 families={SMALL} trees=5 minimum_leaf=1"
    quick = trees.split()
    of_ql = f"{trees} candidate_rankers=run_ql".split()
    ql, rm3, _, fusion = (system.name for system in TABLES["fusion"].systems[:4])
    cells = [
        Cell("QL", "run:ql", (), "mb2011"),
        Cell(MP_HCNN.name, "mp_hcnn", tuple(brief), "mb2011"),
        Cell(ql, "run:ql", (), "mb2012"),
        Cell(rm3, "run:rm3", (), "mb2012"),
        Cell(fusion, "fusion", tuple(of_ql), "mb2012"),
        Cell("all families", "held-out:fusion", tuple(quick), "mb2013"),
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TWEETRERANK_HOME", str(folder / "home"))
        results, failures = run_cells(cells, setup)
    assert failures == []
    return Finished(setup, results, *results)


def test_gains_are_differences_of_ap(finished: Finished, tmp_path: Path) -> None:
    setup = finished.setup
    results = [finished.ql_2011, finished.mp_hcnn_2011]
    trained = finished.mp_hcnn_2011
    assert set(trained.measures) == {"AP", "P@30"}
    assert set(trained.interpolated) == {"AP", "P@30"}
    assert 0.0 <= (trained.weight or 0.0) <= 1.0
    qrels = setup.collection("mb2011").qrels or {}
    runs = [read_run(setup.run_file(result.cell)) for result in results]
    base, neural = (evaluate(qrels, run, ["AP"])["AP"] for run in runs)
    differences = np.array([neural[topic] - base[topic] for topic in qrels])
    above = sum(differences > 0)
    below = sum(differences < 0)
    table = TABLES["figure3"]
    report = gains(table, results, setup)
    assert f"\n| {MP_HCNN.name} | {above} | {below} | 26 | 13 |\n" in report
    assert "| MP-HCNN+ (ours) |" in report
    assert f"{max(differences):+.3f}" in report
    draw(tmp_path / "3.png", table, results, setup)
    assert (tmp_path / "3.png").read_bytes().startswith(PNG)
    message = "mb2011: found no finished cell of MP-HCNN"
    with pytest.raises(DataError, match=message):
        gains(table, [finished.ql_2011], setup)


def test_categories_are_read_from_the_cells(finished: Finished) -> None:
    results = [finished.ql_2011, finished.mp_hcnn_2011]
    report = categories(TABLES["table5"], results, finished.setup)
    # Every made-up post has a word of its query.
    assert "\n| exact word match | 100 | 100 |\n" in report
    assert "\nThe first 20 posts by MP-HCNN of each of the topics" in report


def test_samples_are_read_from_the_cells(finished: Finished) -> None:
    results = [finished.ql_2011, finished.mp_hcnn_2011]
    rows = samples(TABLES["table6"], results, finished.setup).splitlines()
    assert sum("(#1)" in line for line in rows) >= 2
    assert sum(line.startswith("|") for line in rows) == 2 + 2 * 3


def test_a_figure_of_depths_is_drawn(tmp_path: Path) -> None:
    table = TABLES["figure2"]
    results = [
        made_up(table.systems[depth], "mb2011", {"AP": 0.3 + depth / 100})
        for depth in (0, 2, 4)
    ]
    path = tmp_path / "figure2.png"
    draw(path, table, results, Setup(tmp_path))
    assert path.read_bytes().startswith(PNG)


def test_a_figure_of_curves_is_drawn(tmp_path: Path) -> None:
    table = TABLES["question-retrieval"]
    path = tmp_path / "question-retrieval.png"
    draw(path, table, read_csv(RESULTS / table.csv), Setup(tmp_path))
    assert path.read_bytes().startswith(PNG)


def test_stages_have_recall_and_are_compared_with_the_row_above(
    finished: Finished,
) -> None:
    """A perfect run is marked against its neighbour only, though others are worse."""
    setup = finished.setup
    table = TABLES["fusion"]
    shipped = Cell(table.systems[2].name, "shipped:mp_hcnn", (), "mb2012")
    qrels = setup.collection("mb2012").qrels or {}
    run: Run = {query_id: dict(grades) for query_id, grades in qrels.items()}
    write_run(setup.run_file(shipped), run, "perfect")
    perfect = dataclasses.replace(finished.ql_2012, cell=shipped)
    results = [finished.ql_2012, finished.rm3_2012, perfect, finished.fusion_2012]
    ql, rm3, best, fusion = stages(table, results, setup)
    assert best.marks["better_than"] == {"AP": (rm3.cell.system,)}
    # The made-up RM3 run is a copy of QL's, and the fusion's candidates are QL's.
    assert rm3.marks["better_than"] == {}
    assert rm3.marks["worse_than"] == {}
    assert ql.measures["recall"] == 1.0
    assert fusion.measures["recall"] == 1.0
    assert fusion.measures["AP"] == mean_of_run(setup, fusion.cell, "AP")


def test_the_ablation_measures_held_out_topics(finished: Finished) -> None:
    setup = finished.setup
    qrels: Qrels = {}
    for name in ("mb2011", "mb2012", "mb2014"):
        qrels |= setup.collection(name).qrels or {}
    checkpoint = setup.checkpoint(finished.held_out_2013.cell)
    run = read_run(checkpoint / "held_out.run.gz")
    values = evaluate(qrels, run, ["AP", "P@30"])
    means = {measure: mean(of_topics) for measure, of_topics in values.items()}
    assert finished.held_out_2013.measures == pytest.approx(means, abs=1e-4)


def test_the_ablation_has_the_importance_of_families(finished: Finished) -> None:
    complete = finished.held_out_2013
    results = [complete]
    for family in f"{SMALL},links".split(","):
        cell = dataclasses.replace(complete.cell, system=f"- {family}")
        results.append(dataclasses.replace(complete, cell=cell))
    table = TABLES["fusion-ablation"]
    shares = {}
    for result in importances(table, results, finished.setup):
        shares[result.cell.system] = result.measures.get("importance")
    assert shares.pop("all families") is None
    assert shares.pop("- links") is None  # Not among the trees' features
    total = sum(share or 0.0 for share in shares.values())
    assert total == pytest.approx(1.0, abs=2e-4)
