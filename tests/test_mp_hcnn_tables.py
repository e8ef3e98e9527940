"""The tables and figures of the MP-HCNN paper, from made-up results and small runs."""

import gzip
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from experiments.cells import Cell, Result, find_runs, run_cells
from experiments.published import mp_hcnn
from experiments.published.system import System
from experiments.tables import TABLES
from experiments.tables.contract import ResultTable, Workshop
from experiments.tables.evidence import EXACT_PHRASE, EXACT_WORD, PARAPHRASE, URL, kinds_of
from experiments.tables.gains import gains_of
from experiments.tables.marks import marked
from experiments.tables.results import read_csv, write_csv
from microblog_samples import write_data

from indexes.posts import Post
from pipeline.collections import named
from pipeline.collections.trec import read_run, write_run
from pipeline.command.errors import DataError, UsageError
from pipeline.evaluation.measures import Evaluator
from rerankers.evidence import Evidence, Matches, Word

MADE = {"date": "2026-01-01", "commit": "abc", "machine": "two cores"}
PNG = b"\x89PNG"


def result(system: System, collection: str, ap: float, mixed: float | None = None) -> Result:
    (cell,) = system.cells([collection], [1])
    mixture = {} if mixed is None else {"AP": mixed, "P@30": mixed}
    return Result(cell, {"AP": ap, "P@30": ap}, mixture, 0.5, 0.3, 3, 12.5, MADE)


def table(name: str) -> ResultTable:
    found = TABLES[name]
    assert isinstance(found, ResultTable)
    return found


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Workshop, list[Result]]:
    """QL and a hardly trained MP-HCNN on a small collection."""
    folder = tmp_path_factory.mktemp("tables")
    data = write_data(folder / "data")
    quick = ("--steps", "2", "--epochs", "1", "--vectors", str(data / "vectors.txt"))
    cells = [
        Cell("QL", "run:ql", (), "mb2011"), Cell("MP-HCNN", "mp_hcnn", quick, "mb2011"),
    ]  # fmt: skip
    results, failures = run_cells(cells, folder / "kept", data, 1, "cpu")
    assert failures == []
    return Workshop(folder / "kept", data, "cpu"), results


def test_table_3_has_blocks_superscripts_and_dashes() -> None:
    ours = result(mp_hcnn.MP_HCNN, "mb2011", 0.41, 0.43)
    ours.better_than["AP"] = ("QL", "LambdaMART (all)")
    ours.mixture_better_than["P@30"] = ("RM3",)
    results = [result(mp_hcnn.QL, "mb2011", 0.3576), ours, result(mp_hcnn.RM3, "mb2012", 0.2)]
    lines = table("table3").markdown(results).splitlines()
    assert lines[0] == "|  | system | mb2011 AP | mb2011 P@30 | mb2012 AP | mb2012 P@30 |"
    ql = "| ¹ | QL | 0.3576 (0.3576) | 0.3576 (0.4000) | - (0.2091) | - (0.3311) |"
    assert ql in lines
    assert "|  | MP-HCNN | 0.4100¹³ (0.3940) | 0.4100 (0.4306) | - (0.2313) | - (0.3757) |" in lines
    assert "|  | MP-HCNN+ | 0.4300 (0.4040) | 0.4300² (0.4435) | - (0.2482) | - (0.3915) |" in lines
    assert "|  | Conv-KNRM+ | - | - | - | - |" in lines
    blocks = [line for line in lines if "**" in line]
    assert [block.split("**")[1] for block in blocks] == [
        "Non-neural baselines", "Neural baselines", "Neural baselines with interpolation",
        "MP-HCNN",
    ]  # fmt: skip


def test_table_4_marks_what_is_below_the_whole() -> None:
    part = result(mp_hcnn.ABLATIONS[0], "mb2011", 0.36)
    part.worse_than["AP"] = ("MP-HCNN",)
    text = table("table4").markdown([result(mp_hcnn.MP_HCNN, "mb2011", 0.4), part])
    assert "|  | - mean pooling | 0.3600★ (0.3687) | 0.3600 (0.4054) |" in text


def test_a_csv_gives_the_same_tables_again(tmp_path: Path) -> None:
    whole = result(mp_hcnn.MP_HCNN, "mb2011", 0.4, 0.5)
    whole.better_than["AP"] = ("QL", "RM3")
    part = result(mp_hcnn.ABLATIONS[1], "mb2011", 0.3)
    part.worse_than["P@30"] = ("MP-HCNN",)
    deep = result(mp_hcnn.DEPTHS[4], "mb2013", 0.27)
    for name in ("table3", "table4", "figure2"):
        shown = table(name).markdown([whole, part, deep])
        write_csv(tmp_path / "r.csv", [whole, part, deep])
        assert table(name).markdown(read_csv(tmp_path / "r.csv")) == shown


def test_a_year_without_judgments_is_a_row_of_dashes() -> None:
    unjudged = Result(
        mp_hcnn.QL.cells(["mb2014"], [1])[0], {}, {}, None, 0.0, 0, 0.0, MADE,
    )  # fmt: skip
    assert "| ¹ | QL | - (0.3924) | - (0.6182) |" in table("table3").markdown([unjudged])


def test_only_judged_years_are_usual(tmp_path: Path) -> None:
    data = write_data(tmp_path)
    assert table("table3").chosen([], data) == ["mb2011", "mb2012", "mb2013"]
    assert table("table3").chosen(["mb2014"], data) == ["mb2014"]
    with pytest.raises(UsageError, match=r"--tests: found mb2015.*expected some of mb2011"):
        table("table3").chosen(["mb2015"], data)


def test_marks_are_those_of_the_randomization_test(tmp_path: Path) -> None:
    """A perfect run against one that is the other way round, and against itself."""
    data = write_data(tmp_path / "data", topics=8)
    workshop = Workshop(tmp_path / "kept", data)
    collection = named.find("mb2011", data)
    qrels = collection.qrels
    assert qrels is not None
    official = read_run(collection.runs["ql"])
    runs = {
        "good": {q: {d: qrels[q][d] - 0.001 * i for i, d in enumerate(official[q])} for q in qrels},
        "bad": {q: {d: -qrels[q][d] - 0.001 * i for i, d in enumerate(official[q])} for q in qrels},
    }
    results = []
    for name, run in runs.items():
        cell = Cell(name, name, (), "mb2011")
        path, mixture = find_runs(cell, workshop.directory, data)
        assert mixture is not None
        write_run(path, run, name)
        write_run(mixture, runs["good"], name)
        ap = float(np.mean(list(Evaluator(qrels, ["AP"])(run)["AP"].values())))
        results.append(Result(cell, {"AP": ap, "P@30": 0.0}, {"AP": 1.0}, 0.5, 0.0, 1, 1.0, MADE))
    good, bad = marked(results, ["good", "bad", "absent"], workshop)
    assert good.better_than["AP"] == ("bad",)
    assert good.worse_than == {}
    assert bad.worse_than["AP"] == ("good",)
    assert "AP" not in bad.better_than
    assert bad.mixture_better_than["AP"] == ("bad",)
    # 14 posts a topic: the first 30 are all of them in either order.
    assert "P@30" not in good.better_than


def test_gains_are_differences_of_ap(done: tuple[Workshop, list[Result]]) -> None:
    workshop, results = done
    gains = gains_of("mb2011", results, workshop)
    qrels = named.find("mb2011", workshop.data).qrels
    assert qrels is not None
    runs = [read_run(find_runs(r.cell, workshop.directory, workshop.data)[0]) for r in results]
    base, ours = (Evaluator(qrels, ["AP"])(run)["AP"] for run in runs)
    assert gains.neural == pytest.approx({q: ours[q] - base[q] for q in qrels})
    order = gains.order()
    assert gains.neural[order[0]] == max(gains.neural.values())
    assert set(gains.by_system) == {"MP-HCNN", "MP-HCNN+"}


def test_figures_count_wins_and_are_drawn(
    done: tuple[Workshop, list[Result]], tmp_path: Path
) -> None:
    workshop, results = done
    text = TABLES["figure3"].report(results, workshop)
    gains = gains_of("mb2011", results, workshop).neural.values()
    above, below = sum(g > 0 for g in gains), sum(g < 0 for g in gains)
    assert f"| MP-HCNN | {above} | {below} | 26 | 13 |" in text
    TABLES["figure3"].draw(tmp_path / "3.png", results, workshop)
    depths = [result(mp_hcnn.DEPTHS[n], "mb2011", 0.3 + n / 100) for n in (0, 2, 4)]
    TABLES["figure2"].draw(tmp_path / "2.png", depths, workshop)
    for name in ("2.png", "3.png"):
        assert (tmp_path / name).read_bytes().startswith(PNG)
    with pytest.raises(DataError, match=r"mb2011: there is no finished cell"):
        TABLES["figure3"].report(results[:1], workshop)


def test_evidence_and_samples_are_read_from_the_cells(done: tuple[Workshop, list[Result]]) -> None:
    workshop, results = done
    shares = TABLES["table5"].report(results, workshop).splitlines()
    # Every made-up post has a word of its query.
    assert "| exact word match | 100 | 100 |" in shares
    assert any(line.startswith("The first 20 posts by MP-HCNN of each of") for line in shares)
    rows = TABLES["table6"].report(results, workshop).splitlines()
    assert sum("(#1)" in line for line in rows) >= 2
    assert sum(line.startswith("|") for line in rows) == 2 + 2 * 3


def evidence(query: str, post: str, phrases: Sequence[Sequence[float]]) -> Evidence:
    words, asked = post.split(), query.split()
    similarity = np.array([[float(a == b) for b in words] for a in asked], np.float32)
    return Evidence(
        asked, np.ones(len(asked), np.float32), [Word(word, ((0, 1),)) for word in words], (),
        {"words": Matches((similarity, np.array(phrases, np.float32)), 2)},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("post", "url", "phrase", "expected"),
    [
        ("stripes of white", "", 0.5, [EXACT_WORD]),
        ("the white stripes", "", 0.5, [EXACT_WORD, EXACT_PHRASE]),
        ("zebra band quits", "", 0.85, [PARAPHRASE]),
        ("zebra band quits", "http://x.com/the-stripe-story", 0.5, [URL]),
        ("the band quits", "http://x.com/a?q=stripes", 0.5, []),
    ],
)
def test_kinds_of_matches(post: str, url: str, phrase: float, expected: list[str]) -> None:
    query = "the white stripes"
    phrases = np.full((3, 3), 0.1)
    phrases[1, 0] = phrase  # white stripes against the post's first two words
    seen = evidence(query, post, phrases.tolist())
    assert list(kinds_of(query, Post("1", post, url), seen)) == expected


def test_the_same_two_words_are_no_paraphrase() -> None:
    seen = evidence("white stripes", "white stripes here", [[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    kinds = list(kinds_of("white stripes", Post("1", "white stripes here", ""), seen))
    assert kinds == [EXACT_WORD, EXACT_PHRASE]


def test_table_2_counts_what_is_there(tmp_path: Path) -> None:
    data = write_data(tmp_path)
    (data / "embeddings").mkdir()
    vectors = b"2 1\n" + b"".join(
        word + b" " + np.float32(1).tobytes() + b"\n" for word in (b"lol", b"news")
    )
    with gzip.open(data / "embeddings" / "glove.6B.100d.bin.gz", "wb") as stream:
        stream.write(vectors)
    folder = data / "microblog" / "trec-2012"
    posts = (folder / "b.toks").read_text().splitlines()
    urls = (folder / "url.txt").read_text().splitlines()
    words = {word for post in posts for word in post.split()}
    text = TABLES["table2"].report([], Workshop(tmp_path, data))
    rows = {
        line.split(" | ")[0]: line.split(" | ")[2] for line in text.splitlines() if " | " in line
    }
    assert rows["| query-document pairs"] == f"{len(posts)} (49,879)"
    assert rows["| unique words"] == f"{len(words)} (27,470)"
    assert rows["| unique OOV words"] == f"{len(words - {'lol', 'news'})} (17,190)"
    assert rows["| URLs"] == f"{sum(map(bool, urls))} (25,405)"
    assert "- (6,812) |" in text
