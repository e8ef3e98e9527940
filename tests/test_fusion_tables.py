"""The tables of the learned fusion, from made-up results and small runs."""

import dataclasses
import json
from pathlib import Path

import pytest
from experiments.cells import Cell, Result, checkpoint_of, find_runs, run_cells
from experiments.published import fusion
from experiments.published.system import System
from experiments.tables import TABLES
from experiments.tables.contract import ResultTable, Workshop
from experiments.tables.families import IMPORTANCE
from experiments.tables.readme import filled
from experiments.tables.results import read_csv, write_csv
from experiments.tables.stages import RECALL, recall
from experiments.tables.timing import FROM_ENCODED, FROM_TEXTS, REPEATS
from microblog_samples import write_data

from pipeline.collections import named
from pipeline.collections.trec import read_run
from pipeline.command.errors import DataError
from pipeline.evaluation.measures import evaluate, mean
from rerankers import models
from rerankers.engine.precomputed_posts import PrecomputedPosts

MADE = {"date": "2026-01-01", "commit": "abc", "machine": "two cores"}
TIMES = {FROM_TEXTS: 41.26, FROM_ENCODED: 17.0}
SMALL = "signal:ql,signal:run_ql,overlap"


def table(name: str) -> ResultTable:
    found = TABLES[name]
    assert isinstance(found, ResultTable)
    return found


def result(system: System, collection: str, seconds: float = 12.4, **measures: float) -> Result:
    (cell,) = system.cells([collection], [1])
    return Result(cell, measures, {}, None, 0.3, 0, seconds, MADE)


def families_of(cell: Cell) -> list[str]:
    (said,) = (option for option in cell.training if option.startswith("families="))
    return said.removeprefix("families=").split(",")


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Workshop, list[Result]]:
    """Official runs, a small fusion of QL's candidates, and one on held-out topics."""
    folder = tmp_path_factory.mktemp("fusion")
    data = write_data(folder / "data")
    quick = ("--folds", "2", "--vectors", str(data / "vectors.txt"), "--set", f"families={SMALL}")
    trees = (*quick, "--set", "trees=5", "--set", "minimum_leaf=1")
    stages = {system.name: system for system in fusion.stages()}
    candidate_rankers = ("--set", f"candidate_rankers={fusion.QL_CANDIDATES}")
    cells = [
        *stages["QL, official run"].cells(["mb2012"], [1]),
        *stages["RM3, official run"].cells(["mb2012"], [1]),
        Cell("fusion of QL's candidates", "fusion", (*trees, *candidate_rankers), "mb2012"),
        Cell(fusion.whole().name, "held-out:fusion", trees, "mb2013"),
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TWEETRERANK_HOME", str(folder / "home"))
        results, failures = run_cells(cells, folder / "kept", data, 1, "cpu")
    assert failures == []
    return Workshop(folder / "kept", data, "cpu"), results


def test_stages_add_one_thing_at_a_time_to_the_models_defaults() -> None:
    cells = {system.name: system.cells(["mb2012"], [1])[0] for system in fusion.stages()}
    assert len({cell.key for cell in cells.values()}) == len(cells) == 9
    defaults = models.find("fusion").configurations["all"].families.split(",")
    for name, cell in cells.items():
        if cell.is_fusion:
            expected = {*defaults} | {fusion.NEURAL}
            if "SM-CNN" not in name:
                expected -= {fusion.NEURAL}
            assert set(families_of(cell)) == expected
            assert ("candidate_rankers=run_ql" in cell.training) == ("QL's" in name)
            assert cell.reranker == ("linear_fusion" if "linear" in name else "fusion")


def test_each_family_is_left_out_once() -> None:
    (whole,) = fusion.whole().cells(["mb2013"], [1])
    left_out = {
        system.name: set(families_of(whole)) - set(families_of(system.cells(["mb2013"], [1])[0]))
        for system in fusion.ablations()
    }
    assert left_out == {f"- {family}": {family} for family in families_of(whole)}


def test_what_else_is_changed_is_changed_alone() -> None:
    (whole,) = fusion.whole().cells(["mb2013"], [1])
    added, alone = (system.cells(["mb2013"], [1])[0] for system in fusion.changes())
    assert families_of(added) == [*families_of(whole), fusion.NOT_FUSED]
    assert added.training[2:] == whole.training[2:]
    assert alone.training == (*whole.training, "--set", "objectives=lambdarank")


def test_the_stages_have_marks_costs_and_dashes() -> None:
    stages = fusion.stages()
    fused = result(stages[4], "mb2012", AP=0.31, **{"P@30": 0.4, RECALL: 0.7}, **TIMES)
    fused.better_than["AP"] = (stages[3].name,)
    fused.worse_than["P@30"] = (stages[3].name,)
    ql = result(stages[0], "mb2011", 0.0, AP=0.36, **{"P@30": 0.4, RECALL: 0.66})
    lines = table("fusion").markdown([ql, fused]).splitlines()
    years = [f"{year} {what}" for year in ("mb2011", "mb2012") for what in ("AP", "P@30", "recall")]
    assert (
        lines[0] == f"| stage | {' | '.join(years)} | training, s | {FROM_TEXTS} | {FROM_ENCODED} |"
    )
    assert "| QL, official run | 0.3600 | 0.4000 | 0.6600 | - | - | - | - | - | - |" in lines
    row = (
        "| fusion of QL's candidates | - | - | - | 0.3100▲ | 0.4000▼ | 0.7000 | 12 | 41.3 | 17.0 |"
    )
    assert row in lines
    assert [line.split(" | ")[0][2:] for line in lines[2:]] == [system.name for system in stages]


def test_the_ablation_has_differences_to_all_families() -> None:
    whole = result(fusion.whole(), "mb2013", AP=0.38, **{"P@30": 0.45})
    left_out = fusion.ablations()[0]
    part = result(left_out, "mb2013", AP=0.36, **{"P@30": 0.46, IMPORTANCE: 0.1234})
    lines = table("fusion-ablation").markdown([whole, part]).splitlines()
    assert lines[0] == "| families | AP | difference | P@30 | difference | importance, % |"
    assert lines[2] == "| all families | 0.3800 |  | 0.4500 |  |  |"
    assert lines[3] == f"| {left_out.name} | 0.3600 | -0.0200 | 0.4600 | +0.0100 | 12.3 |"
    assert lines[4] == f"| {fusion.ablations()[1].name} | - |  | - |  |  |"
    # Without the whole there is nothing to be apart from.
    assert f"| {left_out.name} | 0.3600 |  | 0.4600 |  | 12.3 |" in table(
        "fusion-ablation"
    ).markdown([part])


def test_a_csv_gives_the_same_tables_again(tmp_path: Path) -> None:
    stages = fusion.stages()
    fused = result(stages[4], "mb2012", AP=0.31, **{"P@30": 0.4, RECALL: 0.7}, **TIMES)
    fused.better_than["AP"] = (stages[3].name,)
    whole = result(fusion.whole(), "mb2013", AP=0.38, **{"P@30": 0.45})
    part = result(fusion.ablations()[2], "mb2013", AP=0.36, **{"P@30": 0.46, IMPORTANCE: 0.1234})
    for name, results in (("fusion", [fused]), ("fusion-ablation", [whole, part])):
        write_csv(tmp_path / "r.csv", results)
        shown = table(name).markdown(results)
        assert table(name).markdown(read_csv(tmp_path / "r.csv")) == shown


def test_recall_counts_relevant_posts_alike_and_as_deep_as_asked() -> None:
    qrels = {"1": {"a": 1, "b": 2, "c": 0}, "2": {"x": 1}, "3": {"y": 0}}
    run = {"1": {"c": 3.0, "a": 2.0, "b": 1.0}, "2": {"z": 1.0}, "9": {"x": 1.0}}
    assert recall(qrels, run) == pytest.approx(2 / 3)
    assert recall(qrels, run, depth=2) == pytest.approx(1 / 3)
    assert recall({"3": {"y": 0}}, run) == 0.0


@pytest.mark.slow
def test_a_fusions_run_is_measured_and_timed_once(
    done: tuple[Workshop, list[Result]], monkeypatch: pytest.MonkeyPatch
) -> None:
    workshop, results = done
    find, found_before = PrecomputedPosts.table, []
    monkeypatch.setattr(
        PrecomputedPosts, "table",
        lambda posts, *asked: (found_before.append(posts), find(posts, *asked))[1],
    )  # fmt: skip
    stages = [r for r in results if r.cell.collection == "mb2012"]
    finished = {r.cell.system: r for r in table("fusion").finish(stages, workshop)}
    assert list(finished) == [
        "QL, official run", "RM3, official run", "fusion of QL's candidates"
    ]  # fmt: skip
    ql, fused = finished["QL, official run"], finished["fusion of QL's candidates"]
    collection = named.find("mb2012", workshop.data)
    qrels = collection.qrels
    assert qrels is not None
    path, mixture = find_runs(fused.cell, workshop.directory, workshop.data)
    assert mixture is None
    run = read_run(path)
    # The candidates are QL's, so the same posts are found.
    assert run.keys() == (official := read_run(collection.runs["ql"])).keys()
    assert all(run[query_id].keys() == official[query_id].keys() for query_id in run)
    assert fused.measures[RECALL] == ql.measures[RECALL] == 1.0
    expected = mean(evaluate(qrels, run, ["AP"])["AP"])
    assert fused.measures["AP"] == pytest.approx(expected, abs=1e-4)
    assert not ql.measures.keys() & TIMES.keys()
    kept = workshop.directory / "timings" / f"{fused.cell.key}.json"
    times = {name: fused.measures[name] for name in TIMES}
    assert json.loads(kept.read_text())["times"] == times and min(times.values()) > 0
    # Half of the times are those with posts that have been read.
    assert len(found_before) == REPEATS * len(run)
    written = kept.stat().st_mtime_ns
    again = {r.cell.system: r for r in table("fusion").finish(stages, workshop)}
    assert again == finished
    assert kept.stat().st_mtime_ns == written


def test_marks_are_against_the_row_above_alone(done: tuple[Workshop, list[Result]]) -> None:
    """The run that is perfect is compared with its neighbour, though others are worse as well."""
    workshop, results = done
    ql, rm3 = results[0], results[1]
    shipped = fusion.stages()[2].cells(["mb2012"], [1])[0]
    qrels = named.find("mb2012", workshop.data).qrels
    assert qrels is not None
    perfect = find_runs(shipped, workshop.directory, workshop.data)[0]
    with perfect.open("w") as stream:
        for query_id, grades in qrels.items():
            best = sorted(grades, key=lambda doc_id: -grades[doc_id])
            for rank, doc_id in enumerate(best, start=1):
                stream.write(f"{query_id} Q0 {doc_id} {rank} {100 - rank} perfect\n")
    timing = workshop.directory / "timings" / f"{shipped.key}.json"
    timing.parent.mkdir(exist_ok=True)
    timing.write_text(json.dumps({"times": TIMES}))
    first = dataclasses.replace(ql, cell=shipped)
    finished = table("fusion").finish([ql, rm3, first], workshop)
    found = {r.cell.system: r for r in finished}
    assert found[shipped.system].better_than == {"AP": (rm3.cell.system,)}
    assert found[shipped.system].measures.items() >= TIMES.items()
    # The made-up RM3 is QL again.
    assert found[rm3.cell.system].better_than == found[rm3.cell.system].worse_than == {}


def test_held_out_topics_of_the_training_years_are_measured(
    done: tuple[Workshop, list[Result]],
) -> None:
    workshop, results = done
    (whole,) = (r for r in results if r.cell.collection == "mb2013")
    assert not find_runs(whole.cell, workshop.directory, workshop.data)[0].exists()
    folder = checkpoint_of(whole.cell, workshop.directory)
    qrels = {
        query_id: grades
        for name in ("mb2011", "mb2012")
        for query_id, grades in (named.find(name, workshop.data).qrels or {}).items()
    }
    assert len(qrels) == 16
    values = evaluate(qrels, read_run(folder / "held_out.run.gz"), ["AP", "P@30"])
    expected = {measure: mean(values[measure]) for measure in values}
    assert whole.measures == pytest.approx(expected, abs=1e-4)
    assert (whole.interpolated, whole.weight) == ({}, None)


def test_importances_are_those_of_the_trees_over_all_families(
    done: tuple[Workshop, list[Result]],
) -> None:
    workshop, results = done
    (whole,) = (r for r in results if r.cell.collection == "mb2013")
    parts = [
        dataclasses.replace(whole, cell=dataclasses.replace(whole.cell, system=f"- {family}"))
        for family in [*SMALL.split(","), "links"]
    ]
    finished = table("fusion-ablation").finish([whole, *parts], workshop)
    found = {r.cell.system: r.measures.get(IMPORTANCE) for r in finished}
    assert found.pop("all families") is None
    assert found.pop("- links") is None  # the trees do not know it
    shares = [share for share in found.values() if share is not None]
    assert len(shares) == 3
    assert sum(shares) == pytest.approx(1.0, abs=2e-4)
    # Without the whole there are no trees to ask.
    assert [r.measures for r in table("fusion-ablation").finish(parts, workshop)] == [
        part.measures for part in parts
    ]


def test_a_readme_has_its_tables_from_csvs(tmp_path: Path) -> None:
    results = [result(fusion.whole(), "mb2013", AP=0.38, **{"P@30": 0.45})]
    write_csv(tmp_path / "a.csv", results)
    start, other = "<!-- fusion-ablation: a.csv -->", "<!-- fusion: b.csv -->"
    text = f"before\n{start}\nold\n<!-- end -->\nbetween\n{other}\nas it was\n<!-- end -->\nafter"
    new, absent = filled(text, tmp_path)
    shown = table("fusion-ablation").markdown(results)
    assert new == text.replace("\nold\n", f"\n{shown}\n")
    assert absent == ["b.csv"]
    assert filled(new, tmp_path)[0] == new
    empty = f"{start}\n<!-- end -->\n"
    assert filled(empty, tmp_path)[0] == f"{start}\n{shown}\n<!-- end -->\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("<!-- fusion: a.csv -->\n", r"<!-- fusion: a.csv -->: found no <!-- end --> after it"),
        ("<!-- fusion: a.csv -->\n<!-- table3: a.csv -->\n<!-- end -->\n", "found no <!-- end -->"),
        ("<!-- fusoin: a.csv -->\n<!-- end -->\n", "found 'fusoin', expected a table"),
        ("<!-- table2: a.csv -->\n<!-- end -->\n", "'table2', expected a table that a CSV gives"),
    ],
)
def test_marks_in_a_readme_that_lead_nowhere_are_told(text: str, told: str, tmp_path: Path) -> None:
    write_csv(tmp_path / "a.csv", [result(fusion.whole(), "mb2013", AP=0.38)])
    with pytest.raises(DataError, match=told):
        filled(text, tmp_path)
