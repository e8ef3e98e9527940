"""Cells of experiments: computed once, measured, named when they fail; the systems' cells."""

from pathlib import Path

import pytest
from experiments import systems
from experiments.cells import Cell, Setup, is_finished, read_result, run_cell, run_cells
from experiments.systems import ALL_FAMILIES, FUSION_ABLATIONS, FUSION_STAGES
from experiments.tables import TABLES
from helpers.data_samples import write_answers, write_microblog
from helpers.experiment_samples import run_commands_here

from pipeline.collections.trec import read_run
from pipeline.evaluation.measures import evaluate, mean
from rerankers import models

pytestmark = pytest.mark.slow  # experiments are no part of the packages

QUICK = ("--steps", "3", "--epochs", "2")


def setup_in(folder: Path, data: Path | None) -> Setup:
    return Setup(folder / "kept", data, "cpu")


def quick_cell(setup: Setup, collection: str, *training: str) -> Cell:
    vectors = ("--vectors", f"{setup.data}/vectors.txt")
    return Cell("Bag of words", "bag_of_words", (*QUICK, *vectors, *training), collection)


def mean_of_run(setup: Setup, cell: Cell, measure: str) -> object:
    qrels = setup.collection(cell.collection).qrels
    assert qrels is not None
    values = evaluate(qrels, read_run(setup.run_file(cell)), [measure])
    return pytest.approx(mean(values[measure]), abs=1e-4)


def test_an_answer_cell_is_measured_and_computed_once(tmp_path: Path) -> None:
    setup = setup_in(tmp_path, write_answers(tmp_path / "data"))
    cell = quick_cell(setup, "trecqa-raw")
    twin = Cell("another name", cell.model, cell.training, cell.collection)
    assert not is_finished(cell, setup)
    lines: list[str] = []
    results, failures = run_cells([cell, twin], setup, 1, lambda cell, line: lines.append(line))
    assert failures == []
    # The same work under two names is done once.
    assert lines == ["Bag of words on trecqa-raw, seed 1: done"]
    assert [found.cell for found in results] == [cell, twin]
    assert results[0].measures == results[1].measures
    assert is_finished(twin, setup)
    assert results[0].measures["RR"] == mean_of_run(setup, cell, "RR")
    assert (results[0].interpolated, results[0].weight) == ({}, None)
    kept = setup.result_file(cell)
    written = kept.stat().st_mtime_ns
    assert run_cell(cell, setup) == results[0] == read_result(kept)
    assert kept.stat().st_mtime_ns == written


def test_a_microblog_cell_is_mixed_and_a_failing_one_names_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_commands_here(monkeypatch)
    setup = setup_in(tmp_path, write_microblog(tmp_path / "data"))
    good = quick_cell(setup, "mb2012")
    bad = quick_cell(setup, "mb2012", "--optimizer", "nonsense")
    (found,), (message,) = run_cells([bad, good], setup)
    assert found.cell == good
    assert set(found.measures) == set(found.interpolated) == {"AP", "P@30"}
    assert found.weight is not None
    assert 0.0 <= found.weight <= 1.0
    mixture = setup.mixture_file(good)
    assert mixture is not None
    assert mixture.exists()
    assert message.startswith("Bag of words on mb2012, seed 1: ")
    assert "nonsense" in message


def test_stages_and_ablations_change_one_thing_at_a_time() -> None:
    def families_of(system: systems.System) -> set[str]:
        (option,) = (word for word in system.training.split() if word.startswith("families="))
        return set(option.removeprefix("families=").split(","))

    defaults = {*models.find("fusion").configurations["microblog"].families.split(",")}
    for system in FUSION_STAGES[3:]:
        adapted = {"meaning:adapted"} if "adapted" in system.name else set()
        assert families_of(system) == defaults | adapted
        assert ("candidate_rankers=run_ql" in system.training) == ("QL's" in system.name)
        assert system.model == ("linear_fusion" if "linear" in system.name else "fusion")
    whole = families_of(ALL_FAMILIES)
    left_out = {system.name: whole - families_of(system) for system in FUSION_ABLATIONS}
    meaning = {"meaning:general", "meaning:adapted"}
    assert left_out == {f"- {family}": {family} for family in whole} | {"- meaning": meaning}


def test_official_runs_and_shipped_weights_are_only_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_commands_here(monkeypatch)
    setup = setup_in(tmp_path, write_microblog(tmp_path / "data"))
    (cell,) = systems.QL.cells(["mb2012"], [1, 2])
    assert run_cell(cell, setup).measures["AP"] == mean_of_run(setup, cell, "AP")
    assert setup.mixture_file(cell) is None
    assert not setup.directory.exists()
    cell = Cell("shipped", "shipped:mp_hcnn", (), "mb2012")
    found = run_cell(cell, setup)
    assert setup.mixture_file(cell) is None
    assert found.measures["AP"] == mean_of_run(setup, cell, "AP")
    assert (found.interpolated, found.weight, found.seconds) == ({}, None, 0.0)
    # A mixture of two scores scaled to [0, 1].
    scores = [s for of_topic in read_run(setup.run_file(cell)).values() for s in of_topic.values()]
    assert 0 <= min(scores) <= max(scores) <= 1
    assert not (setup.directory / "checkpoints").exists()


@pytest.mark.parametrize(
    ("model", "training", "trained", "searched"),
    [
        ("sm_cnn", "--folds 5", "--folds 5", "--reranker sm_cnn --candidates ql --lambda 1"),
        ("sm_cnn", "", "--folds 1", "--reranker sm_cnn --candidates ql --lambda 1"),
        ("fusion", "--set trees=3", "--set trees=3", "--reranker fusion"),
        ("held-out:fusion", "", "", None),
        ("shipped:mp_hcnn", "", None, "--reranker mp_hcnn --candidates ql"),
    ],
)
def test_the_commands_of_each_kind_of_cell(
    model: str,
    training: str,
    trained: str | None,
    searched: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    commands = {}

    def command(module: str, *arguments: str) -> None:
        commands[module] = " ".join(arguments)

    monkeypatch.setattr("experiments.cells._command", command)
    monkeypatch.setattr("experiments.cells._measure", lambda *_: ({"AP": 0.5}, {}, None))
    cell = Cell("a system", model, tuple(training.split()), "mb2011")
    setup = setup_in(tmp_path, None)
    checkpoint = setup.checkpoint(cell)
    if trained is not None:
        checkpoint.mkdir(parents=True)
        (checkpoint / "metrics.json").write_text('{"validation": {"AP": 0.25}, "epochs": 7}')
    assert run_cell(cell, setup).measures == {"AP": 0.5}
    common = "--threads 1 --device cpu"
    if trained is not None:
        start = " ".join(f"{cell.reranker} --test mb2011 {trained} --seed 1".split())
        trained = f"{start} --output {checkpoint} --resume {common}"
    if searched is not None:
        paths = f"--checkpoint {checkpoint} --output {setup.run_file(cell)}"
        searched = f"--topics mb2011 {searched} {paths} {common}"
    assert commands.get("pipeline.train") == trained
    assert commands.get("pipeline.search") == searched


def test_cells_that_name_no_word_vectors_get_the_given_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = Setup(tmp_path, vectors=Path("mine.bin"))
    trained: list[tuple[str, ...]] = []
    monkeypatch.setattr("experiments.cells._command", lambda _, *words: trained.append(words))
    monkeypatch.setattr("experiments.cells._measure", lambda *_: ({"AP": 0.5}, {}, None))
    for training in ((), ("--vectors", "own.bin")):
        cell = Cell("a system", "held-out:fusion", training, "mb2011")
        setup.checkpoint(cell).mkdir(parents=True)
        metrics = setup.checkpoint(cell) / "metrics.json"
        metrics.write_text('{"validation": {"AP": 0.25}, "epochs": 7}')
        run_cell(cell, setup)
        words = trained.pop()
        files = [words[n + 1] for n, word in enumerate(words) if word == "--vectors"]
        assert files == [training[1] if training else "mine.bin"]


# Systems


@pytest.mark.parametrize("name", TABLES)
def test_keys_tell_the_cells_of_a_table_apart(name: str) -> None:
    cells = TABLES[name].cells(TABLES[name].collections, 3)
    assert len({cell.key for cell in cells}) == len(cells)


def test_keys_do_not_depend_on_the_systems_name() -> None:
    assert Cell("a", "m", ("x",), "wikiqa").key == Cell("b", "m", ("x",), "wikiqa").key
    depths = [system.cells(["mb2011"], [1])[0].key for system in systems.DEPTHS]
    # Depth 2 is the default.
    assert depths.index(systems.MP_HCNN.cells(["mb2011"], [1])[0].key) == 2
