"""Tables and figures of the papers and of the fusion, from made-up results and small runs."""

import csv
import dataclasses
import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from experiments import systems
from experiments.cells import Cell, Result, Setup, run_cells
from experiments.systems import ALL_FAMILIES, FUSION_ABLATIONS, FUSION_STAGES, System
from experiments.tables import TABLES, ResultTable
from experiments.tables.answer_selection import Means
from experiments.tables.fusion import (
    FROM_TEXTS,
    IMPORTANCE,
    PRECOMPUTED,
    RECALL,
    REPEATS,
    recall,
)
from experiments.tables.results import fill_tables, read_csv, write_csv
from experiments.tables.significance import marked
from experiments.tables.topics import (
    EXACT_PHRASE,
    EXACT_WORD,
    PARAPHRASE,
    URL,
    YearGains,
    categories_of,
)
from helpers.data_samples import write_answers, write_microblog
from helpers.experiment_samples import run_commands_here

from indexes.posts import Post
from pipeline.collections.trec import read_run, write_run
from pipeline.command.errors import DataError
from pipeline.evaluation.measures import Evaluator, evaluate, mean
from rerankers.models._mp_hcnn_matches import PairMatches, PerspectiveMatches
from rerankers.scoring.precomputed import PrecomputedPosts
from rerankers.text.spans import Word

pytestmark = pytest.mark.slow  # experiments are no part of the packages

MP_HCNN = systems.MP_HCNN.name
PNG = b"\x89PNG"
TIMES = {FROM_TEXTS: 41.26, PRECOMPUTED: 17.0}
SMALL = "signal:ql,signal:run_ql,overlap"
Finished = tuple[Setup, list[Result]]


def table(name: str) -> ResultTable:
    found = TABLES[name]
    assert isinstance(found, ResultTable)
    return found


def result(system: System, collection: str, *, seed: int = 1, **measures: float) -> Result:
    """A result with made-up measures, named AP, P30, mixed, recall, …"""
    mixed = {name: measures.pop("mixed") for name in ("AP",) if "mixed" in measures}
    named = {"P30": "P@30", "texts": FROM_TEXTS, "precomputed": PRECOMPUTED}
    values = {named.get(name, name): value for name, value in measures.items()}
    made = {"date": "2026-01-01", "commit": "abc", "machine": "two cores"}
    cell = Cell(system.name, system.model, tuple(system.training.split()), collection, seed)
    return Result(cell, values, mixed, 0.5, 0.7, 3, 12.4, made)


def row_of(table: str, first: str) -> str:
    (row,) = (line for line in table.splitlines() if line.startswith(f"| {first} |"))
    return row


# Tables from made-up results


def test_means_have_spreads_and_the_papers_figures() -> None:
    one, two = System("MP-CNN (paper)", "mp_cnn"), System("two", "model")
    never = System("never run", "model")
    shown = Means((one, two, never), ("trecqa-all-raw", "trecqa-clean")).markdown(
        [
            result(one, "trecqa-all-raw", AP=0.7, RR=0.8),
            result(one, "trecqa-all-raw", seed=2, AP=0.8, RR=0.9),
            result(two, "trecqa-all-raw", AP=0.5, RR=0.6, mixed=0.7),
        ]
    )
    assert shown.splitlines()[0] == "| system | trecqa-all-raw AP/RR | paper | training, s |"
    assert row_of(shown, "MP-CNN (paper)").endswith(
        "| 0.7500 ± 0.071 / 0.8500 ± 0.071 | 0.762 / 0.830 | 12 |"
    )
    assert row_of(shown, "two") == "| two | 0.5000 / 0.6000, interpolated 0.7000 | - | 12 |"
    assert row_of(shown, "never run") == "| never run | - | - | - |"


def test_runs_on_raw_questions_are_measured_on_the_clean_ones(tmp_path: Path) -> None:
    """Nothing is trained for these; the published models are for some collections and one seed."""
    setup = Setup(tmp_path / "kept", write_answers(tmp_path / "data"), "cpu")
    few = System("few", "pwim", collections=("trecqa-raw",), seeds=1)
    table = Means((System("one", "mp_cnn"), few), ("trecqa-raw", "trecqa-clean", "wikiqa"))
    cells = table.cells(["trecqa-clean", "wikiqa"], 2)
    assert [(cell.system, cell.collection, cell.seed) for cell in cells] == [
        *(("one", name, seed) for name in ("trecqa-raw", "wikiqa") for seed in (1, 2)),
        ("few", "trecqa-raw", 1),
    ]
    raw, clean = (setup.collection(name) for name in ("trecqa-raw", "trecqa-clean"))
    assert raw.given_candidates and clean.given_candidates and clean.qrels
    run = {
        query_id: {doc_id: float(score) for score, doc_id in enumerate(sorted(given, reverse=True))}
        for query_id, given in raw.given_candidates.items()
    }
    write_run(setup.run_file(cells[0]), run, "test")
    one = result(System("one", "mp_cnn"), "trecqa-raw", AP=0.1, RR=0.2)
    one = dataclasses.replace(one, cell=cells[0])
    found = table.finish([one], setup)
    assert found[0] == one
    assert found[1].cell.collection == "trecqa-clean"
    expected = evaluate(clean.qrels, {q: run[q] for q in clean.qrels}, ["AP", "RR"])
    assert found[1].measures == {name: round(mean(v), 4) for name, v in expected.items()}
    assert found[1].measures["AP"] > 0


def test_table_3_has_blocks_superscripts_and_dashes() -> None:
    ours = result(systems.MP_HCNN, "mb2011", AP=0.41, P30=0.42, mixed=0.43)
    ours.better_than["AP"] = ("QL", "LambdaMART (all)")
    ours.mixture_better_than["AP"] = ("RM3",)
    part = result(systems.ABLATIONS[0], "mb2011", AP=0.36, P30=0.36)
    part.worse_than["AP"] = (MP_HCNN,)
    results = [
        result(systems.QL, "mb2011", AP=0.3576, P30=0.4),
        ours,
        result(systems.RM3, "mb2012", AP=0.2, P30=0.2),
        result(systems.LAMBDAMART, "mb2014"),
    ]
    shown = table("table3").markdown(results)
    header = " | ".join(f"{y} AP | {y} P@30" for y in ("mb2011 †", "mb2012 †", "mb2014"))
    assert shown.splitlines()[0] == f"|  | system | {header} | seeds |"
    expected = "| QL | 0.3576 (0.3576) | 0.4000 (0.4000) | - (0.2091) | - (0.3311) | - (0.3924)"
    assert expected in row_of(shown, "¹")
    assert (
        "| MP-HCNN (ours) | 0.4100¹³ (0.3940) | 0.4200 (0.4306) | - (0.2313) | - (0.3757)" in shown
    )
    assert "| MP-HCNN+ (ours) | 0.4300² (0.4040) | - (0.4435) |" in shown
    assert "|  | Conv-KNRM+ (ours) | - | - | - | - | - | - | - |" in shown
    assert sum("**" in line for line in shown.splitlines()) == 4  # blocks
    # Table 4 marks values significantly below those of the whole model, as does that of the forms.
    form = result(systems.FORMS[0], "mb2013", AP=0.2, P30=0.3)
    form.worse_than["P@30"] = (MP_HCNN,)
    shown = table("mp-hcnn-forms").markdown([form])
    assert f"|  | {systems.FORMS[0].name} | 0.2000 | 0.3000★ | 1 |" in shown
    shown = table("table4").markdown([part])
    assert "|  | - mean pooling | 0.3600★ (0.3687) | 0.3600 (0.4054) | 1 |" in shown


def test_the_stages_have_marks_costs_and_dashes() -> None:
    fused = result(
        FUSION_STAGES[4], "mb2012", AP=0.31, P30=0.4, recall=0.7, texts=41.26, precomputed=17
    )
    fused.better_than["AP"] = fused.worse_than["P@30"] = (FUSION_STAGES[3].name,)
    ql = dataclasses.replace(
        result(FUSION_STAGES[0], "mb2011", AP=0.36, P30=0.4, recall=0.66), seconds=0.0
    )
    shown = table("fusion").markdown([ql, fused])
    years = [
        f"{year} {what}" for year in ("mb2011 †", "mb2012 †") for what in ("AP", "P@30", "recall")
    ]
    header = ["stage", *years, "training, s", FROM_TEXTS, PRECOMPUTED]
    assert shown.splitlines()[0] == f"| {' | '.join(header)} |"
    assert row_of(shown, "QL, official run").endswith(
        "| 0.3600 | 0.4000 | 0.6600 | - | - | - | - | - | - |"
    )
    assert row_of(shown, "fusion of QL's candidates").endswith(
        "| - | - | - | 0.3100▲ | 0.4000▼ | 0.7000 | 12 | 41.3 | 17.0 |"
    )


def test_the_ablation_has_differences_to_all_families() -> None:
    whole = result(ALL_FAMILIES, "mb2013", AP=0.38, P30=0.45)
    part = result(FUSION_ABLATIONS[0], "mb2013", AP=0.36, P30=0.46, importance=0.1234)
    name, absent = FUSION_ABLATIONS[0].name, FUSION_ABLATIONS[1].name
    shown = table("fusion-ablation").markdown([whole, part])
    header = "| families | AP | difference | P@30 | difference | importance, % |"
    assert shown.splitlines()[0] == header
    assert row_of(shown, "all families") == "| all families | 0.3800 |  | 0.4500 |  |  |"
    assert row_of(shown, name) == f"| {name} | 0.3600 | -0.0200 | 0.4600 | +0.0100 | 12.3 |"
    assert row_of(shown, absent) == f"| {absent} | - |  | - |  |  |"
    # No differences without the whole.
    shown = table("fusion-ablation").markdown([part])
    assert row_of(shown, name) == f"| {name} | 0.3600 |  | 0.4600 |  | 12.3 |"


# Result files


def test_a_csv_gives_the_same_tables_again(tmp_path: Path) -> None:
    whole = result(systems.MP_HCNN, "mb2011", AP=0.4, P30=0.5, mixed=0.5)
    whole.better_than["AP"] = ("QL", "RM3")
    fused = result(FUSION_STAGES[4], "mb2012", AP=0.31, recall=0.7, texts=41.26)
    fused.better_than["AP"] = (FUSION_STAGES[3].name,)
    part = result(systems.ABLATIONS[1], "mb2011", seed=2, AP=0.3, P30=0.3)
    part.worse_than["P@30"] = (MP_HCNN,)
    unjudged = result(systems.ANSWER_SELECTION[0], "wikiqa")
    left_out = result(FUSION_ABLATIONS[2], "mb2013", AP=0.36, P30=0.46, importance=0.1234)
    results = [whole, fused, part, unjudged, left_out]
    write_csv(tmp_path / "r.csv", results)
    again = read_csv(tmp_path / "r.csv")
    for name, found in TABLES.items():
        if isinstance(found, ResultTable):
            assert table(name).markdown(again) == table(name).markdown(results)
    assert "| not measured; development AP 0.7000 |" in table("answer-selection").markdown(again)
    with (tmp_path / "r.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [(row["measure"], row["value"]) for row in rows[:2]] == [("AP", "0.4"), ("P@30", "0.5")]
    assert (rows[0]["commit"], rows[0]["better_than"], rows[5]["seed"]) == ("abc", "QL; RM3", "2")


def test_a_readme_has_its_tables_from_csvs(tmp_path: Path) -> None:
    results = [result(ALL_FAMILIES, "mb2013", AP=0.38, P30=0.45)]
    write_csv(tmp_path / "a.csv", results)
    start, other = "<!-- fusion-ablation: a.csv -->", "<!-- fusion: b.csv -->"
    text = f"before\n{start}\nold\n<!-- end -->\nbetween\n{other}\nas it was\n<!-- end -->\nafter"
    new, missing = fill_tables(text, tmp_path)
    shown = table("fusion-ablation").markdown(results)
    assert new == text.replace("\nold\n", f"\n{shown}\n")
    assert missing == ["b.csv"]
    assert fill_tables(new, tmp_path)[0] == new
    empty = f"{start}\n<!-- end -->\n"
    assert fill_tables(empty, tmp_path)[0] == f"{start}\n{shown}\n<!-- end -->\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<!-- fusion: a.csv -->\n", r"<!-- fusion: a.csv -->: found no <!-- end --> after it"),
        ("<!-- fusion: a.csv -->\n<!-- table3: a.csv -->\n<!-- end -->\n", "found no <!-- end -->"),
        ("<!-- fusoin: a.csv -->\n<!-- end -->\n", "found 'fusoin', expected a table"),
    ],
)
def test_wrong_marks_in_a_readme_are_named(text: str, message: str, tmp_path: Path) -> None:
    write_csv(tmp_path / "a.csv", [result(ALL_FAMILIES, "mb2013", AP=0.38)])
    with pytest.raises(DataError, match=message):
        fill_tables(text, tmp_path)


# Figures and statistics


def test_figures_of_results_are_drawn(tmp_path: Path) -> None:
    depths = [result(systems.DEPTHS[n], "mb2011", AP=0.3 + n / 100) for n in (0, 2, 4)]
    TABLES["figure2"].draw(tmp_path / "figure2.png", depths, Setup(tmp_path))
    assert (tmp_path / "figure2.png").read_bytes().startswith(PNG)


def test_recall_counts_relevant_posts_alike_and_as_deep_as_asked() -> None:
    qrels = {"1": {"a": 1, "b": 2, "c": 0}, "2": {"x": 1}, "3": {"y": 0}}
    run = {"1": {"c": 3.0, "a": 2.0, "b": 1.0}, "2": {"z": 1.0}, "9": {"x": 1.0}}
    assert recall(qrels, run) == pytest.approx(2 / 3)
    assert recall(qrels, run, depth=2) == pytest.approx(1 / 3)
    assert recall({"3": {"y": 0}}, run) == 0.0


def test_marks_are_those_of_the_randomization_test(tmp_path: Path) -> None:
    """A perfect run against the reversed one, and against itself."""
    setup = Setup(tmp_path / "kept", write_microblog(tmp_path / "data", topics=8))
    collection = setup.collection("mb2011")
    qrels = collection.qrels
    assert qrels is not None
    official = read_run(collection.runs["ql"])
    runs = {
        name: {
            query_id: {d: sign * qrels[query_id][d] - 0.001 * i for i, d in enumerate(scores)}
            for query_id, scores in official.items()
        }
        for name, sign in (("good", 1), ("bad", -1))
    }
    results = []
    for name, run in runs.items():
        found = result(System(name, name), "mb2011", AP=0.5, mixed=1.0)
        mixture = setup.mixture_file(found.cell)
        assert mixture is not None
        write_run(setup.run_file(found.cell), run, name)
        write_run(mixture, runs["good"], name)
        results.append(found)
    good, bad = marked(results, ["good", "bad", "absent"], setup)
    assert good.better_than["AP"] == ("bad",)
    assert good.worse_than == {}
    assert bad.worse_than["AP"] == ("good",)
    assert "AP" not in bad.better_than
    assert bad.mixture_better_than["AP"] == ("bad",)
    # A topic has 14 posts: the first 30 are all of them.
    assert "P@30" not in good.better_than


def test_table_2_counts_the_candidates(tmp_path: Path) -> None:
    data = write_microblog(tmp_path)
    (data / "microblog" / "qrels.microblog2014.txt").unlink()
    (data / "embeddings").mkdir()
    vectors = [word + b" " + np.float32(1).tobytes() + b"\n" for word in (b"lol", b"news")]
    with gzip.open(data / "embeddings" / "glove.6B.100d.bin.gz", "wb") as stream:
        stream.write(b"2 1\n" + b"".join(vectors))
    folder = data / "microblog" / "trec-2012"
    posts = (folder / "b.toks").read_text().splitlines()
    qrels = (data / "microblog" / "qrels.microblog2012.txt").read_text()
    words = {word for post in posts for word in post.split()}
    results = [result(systems.QL, name) for name in ("mb2012", "mb2014")]
    shown = TABLES["table2"].report(results, Setup(tmp_path, data))
    lines = [line.strip("| ").split(" | ") for line in shown.splitlines()]
    rows = {first: rest for first, *rest in lines}
    assert rows["topics"] == ["8 (60)", "8 (55)"]
    assert rows["query-document pairs"][0] == f"{len(posts)} (49,879)"
    assert rows["relevant documents"] == [f"{qrels.count(' 1' + chr(10))} (4,298)", "- (6,812)"]
    assert rows["unique words"][0] == f"{len(words)} (27,470)"
    assert rows["unique OOV words"][0] == f"{len(words - {'lol', 'news'})} (17,190)"
    assert rows["hashtags"] == ["0 (8,019)", "0 (7,346)"]


def evidence(query: str, post: str, phrases: Sequence[Sequence[float]]) -> PairMatches:
    post_words, query_words = post.split(), query.split()
    similarity = np.array([[float(a == b) for b in post_words] for a in query_words], np.float32)
    return PairMatches(
        query_words,
        np.ones(len(query_words), np.float32),
        [Word(word, ((0, 1),)) for word in post_words],
        (),
        {"words": PerspectiveMatches((similarity, np.array(phrases, np.float32)), 2)},
    )


@pytest.mark.parametrize(
    ("post", "url", "phrase", "expected"),
    [
        ("stripes of white", "", 0.5, [EXACT_WORD]),
        # The same two words are no paraphrase.
        ("white stripes here", "", 1.0, [EXACT_WORD, EXACT_PHRASE]),
        ("zebra band quits", "", 0.85, [PARAPHRASE]),
        ("zebra band quits", "http://x.com/the-stripe-story", 0.5, [URL]),
        ("the band quits", "http://x.com/a?q=stripes", 0.5, []),
    ],
)
def test_categories_of_matches(post: str, url: str, phrase: float, expected: list[str]) -> None:
    query = "the white stripes"
    phrases = np.full((3, 3), 0.1)
    phrases[1, 0] = phrase  # "white stripes" against the post's first two words
    found = categories_of(query, Post("1", post, url), evidence(query, post, phrases.tolist()))
    assert list(found) == expected


# MP-HCNN's tables from a small run


@pytest.fixture(scope="module")
def mp_hcnn(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """QL and a hardly trained MP-HCNN on a small collection."""
    folder = tmp_path_factory.mktemp("tables")
    setup = Setup(folder / "kept", write_microblog(folder / "data"), "cpu")
    quick = ("--steps", "2", "--epochs", "1", "--vectors", str(folder / "data" / "vectors.txt"))
    cells = [Cell("QL", "run:ql", (), "mb2011"), Cell(MP_HCNN, "mp_hcnn", quick, "mb2011")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TWEETRERANK_HOME", str(folder / "home"))
        run_commands_here(patch)
        results, failures = run_cells(cells, setup)
    assert failures == []
    return setup, results


def test_gains_are_differences_of_ap(mp_hcnn: Finished, tmp_path: Path) -> None:
    setup, results = mp_hcnn
    gains = YearGains.from_results("mb2011", results, setup)
    base, ours = (
        Evaluator(gains.qrels, ["AP"])(read_run(setup.run_file(r.cell)))["AP"] for r in results
    )
    assert gains.neural == pytest.approx({q: ours[q] - base[q] for q in gains.qrels})
    assert gains.neural[gains.order()[0]] == max(gains.neural.values())
    assert set(gains.by_system) == {MP_HCNN, "MP-HCNN+ (ours)"}
    above, below = (sum(sign * g > 0 for g in gains.neural.values()) for sign in (1, -1))
    report = TABLES["figure3"].report(results, setup)
    assert row_of(report, MP_HCNN) == f"| {MP_HCNN} | {above} | {below} | 26 | 13 |"
    TABLES["figure3"].draw(tmp_path / "3.png", results, setup)
    assert (tmp_path / "3.png").read_bytes().startswith(PNG)
    with pytest.raises(DataError, match=r"mb2011: there is no finished cell"):
        TABLES["figure3"].report(results[:1], setup)


def test_evidence_and_samples_are_read_from_the_cells(mp_hcnn: Finished) -> None:
    setup, results = mp_hcnn
    shares = TABLES["table5"].report(results, setup)
    # Every made-up post has a word of its query.
    assert row_of(shares, "exact word match") == "| exact word match | 100 | 100 |"
    assert "\nThe first 20 posts by MP-HCNN of each of the topics" in shares
    rows = TABLES["table6"].report(results, setup).splitlines()
    assert sum("(#1)" in line for line in rows) >= 2
    assert sum(line.startswith("|") for line in rows) == 2 + 2 * 3


# The fusion's tables from a small run


@pytest.fixture(scope="module")
def fused(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Official runs, a small fusion of QL's candidates, and one on held-out topics."""
    folder = tmp_path_factory.mktemp("fusion")
    setup = Setup(folder / "kept", write_microblog(folder / "data"), "cpu")
    vectors = ("--vectors", str(folder / "data" / "vectors.txt"))
    settings = (f"families={SMALL}", "trees=5", "minimum_leaf=1")
    quick = ("--folds", "2", *vectors, *(w for setting in settings for w in ("--set", setting)))
    limit = ("--set", f"candidate_rankers={systems.QL_CANDIDATES}")
    cells = [
        Cell(FUSION_STAGES[0].name, "run:ql", (), "mb2012"),
        Cell(FUSION_STAGES[1].name, "run:rm3", (), "mb2012"),
        Cell(FUSION_STAGES[4].name, "fusion", (*quick, *limit), "mb2012"),
        Cell(ALL_FAMILIES.name, "held-out:fusion", quick, "mb2013"),
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TWEETRERANK_HOME", str(folder / "home"))
        run_commands_here(patch)
        results, failures = run_cells(cells, setup)
    assert failures == []
    return setup, results


def test_a_fusions_run_is_measured_and_timed_once(
    fused: Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup, results = fused
    reader, calls = PrecomputedPosts.reader, []

    def counted(*arguments: Any) -> Any:
        calls.append(arguments)
        return reader(*arguments)

    monkeypatch.setattr(PrecomputedPosts, "reader", counted)
    ql, rm3, measured = finished = table("fusion").finish(results[:3], setup)
    qrels = setup.collection("mb2012").qrels
    assert qrels is not None
    run, official = (read_run(setup.run_file(r.cell)) for r in (measured, ql))
    # The candidates are QL's.
    assert {q: set(scores) for q, scores in run.items()} == {
        q: set(scores) for q, scores in official.items()
    }
    assert measured.measures[RECALL] == ql.measures[RECALL] == 1.0
    expected = mean(evaluate(qrels, run, ["AP"])["AP"])
    assert measured.measures["AP"] == pytest.approx(expected, abs=1e-4)
    assert not rm3.measures.keys() & TIMES.keys()
    kept = setup.directory / "timings" / f"{measured.cell.key}.json"
    times = json.loads(kept.read_text())["times"]
    assert times == {name: measured.measures[name] for name in TIMES}
    assert min(times.values()) > 0
    # Each timed repetition reads the precomputed posts; a second report times nothing.
    count = len(calls)
    assert count >= REPEATS
    assert table("fusion").finish(results[:3], setup) == finished
    assert len(calls) == count


def test_stages_are_compared_with_the_row_above_alone(fused: Finished) -> None:
    """A perfect run is marked against its neighbour only, though other stages are worse too."""
    setup, (ql, rm3, *_) = fused
    shipped = Cell(FUSION_STAGES[2].name, "shipped:mp_hcnn", (), "mb2012")
    qrels = setup.collection("mb2012").qrels
    assert qrels is not None
    write_run(setup.run_file(shipped), {q: dict(grades) for q, grades in qrels.items()}, "perfect")
    timing = setup.directory / "timings" / f"{shipped.key}.json"
    timing.parent.mkdir(exist_ok=True)
    timing.write_text(json.dumps({"times": TIMES}))
    finished = table("fusion").finish([ql, rm3, dataclasses.replace(ql, cell=shipped)], setup)
    assert finished[2].better_than == {"AP": (rm3.cell.system,)}
    assert finished[2].measures.items() >= TIMES.items()
    # The made-up RM3 run is a copy of QL's.
    assert finished[1].better_than == finished[1].worse_than == {}


def test_importances_are_those_of_the_trees_over_all_families(fused: Finished) -> None:
    setup, results = fused
    whole = results[3]
    parts = [
        dataclasses.replace(whole, cell=dataclasses.replace(whole.cell, system=f"- {family}"))
        for family in [*SMALL.split(","), "links"]
    ]
    finished = table("fusion-ablation").finish([whole, *parts], setup)
    found = {r.cell.system: r.measures.get(IMPORTANCE) for r in finished}
    assert found.pop("all families") is None
    assert found.pop("- links") is None  # not among the trees' features
    assert sum(share or 0.0 for share in found.values()) == pytest.approx(1.0, abs=2e-4)
    # Without the whole there are no trees to ask.
    measures = [r.measures for r in table("fusion-ablation").finish(parts, setup)]
    assert measures == [part.measures for part in parts]


def test_held_out_topics_of_the_training_years_are_measured(fused: Finished) -> None:
    setup, results = fused
    whole = results[3]
    assert not setup.run_file(whole.cell).exists()
    qrels = {
        query_id: grades
        for name in ("mb2011", "mb2012", "mb2014")
        for query_id, grades in (setup.collection(name).qrels or {}).items()
    }
    assert len(qrels) == 24
    run = read_run(setup.checkpoint(whole.cell) / "held_out.run.gz")
    values = evaluate(qrels, run, ["AP", "P@30"])
    assert whole.measures == pytest.approx({m: mean(v) for m, v in values.items()}, abs=1e-4)
    assert (whole.interpolated, whole.weight) == ({}, None)
