"""The script that reprints the papers' tables: what it refuses, computes and writes."""

import csv
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

import pytest
from experiments.cells import Cell, Result, Setup
from helpers.data_samples import write_microblog

from pipeline.command.errors import DataError, UsageError
from pipeline.command.options import parse_arguments

pytestmark = pytest.mark.slow  # the laboratory, no part of the packages

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("reproduce", ROOT / "scripts" / "reproduce.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "reproduce", module)  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small data folder, and a home folder beside it."""
    monkeypatch.setenv("TWEETRERANK_HOME", str(tmp_path / "home"))
    return write_microblog(tmp_path / "data")


def run(script: ModuleType, *arguments: str) -> None:
    script.main(parse_arguments(script.Options, "reproduce", "", arguments))


@pytest.mark.parametrize(
    ("arguments", "messages"),
    [
        ("tabel3", ["table: found 'tabel3', expected one of mp-hcnn-forms, ", "'table3'"]),
        (
            "table2 --plot x.png --tests mb2011,mb2015",
            ["--plot: table2 has no picture", "--tests: found mb2015, expected some of mb2011, "],
        ),
        (
            "all --csv x.csv --tests wikiqa",
            ["--csv and --plot are for one table; use --output", "--tests: found wikiqa"],
        ),
        ("readme --seeds 2", ["readme: found other options, expected none"]),
        (f"table3 --output {__file__}", ["--output: found the file ", ", expected a folder"]),
    ],
)
def test_all_bad_arguments_are_named_at_once(
    script: ModuleType, arguments: str, messages: list[str]
) -> None:
    with pytest.raises(UsageError) as caught:
        run(script, *arguments.split())
    for message in messages:
        assert message in str(caught.value)


def test_the_tables_of_a_readme_are_written_anew(
    script: ModuleType,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("README.md", "results"):
        (tmp_path / name).symlink_to(ROOT / "scripts" / name)
    written = tmp_path / "README.md"
    text = written.read_text()
    written.unlink()
    written.write_text(text.replace("| ² | RM3 |", "| ² | somebody's own |"))
    options = parse_arguments(script.Options, "reproduce", "", ["readme"])
    script.fill_readme(options, written)
    assert written.read_text() == text
    assert capsys.readouterr().out.startswith(f"wrote {written}")


def test_collections_come_by_commas_and_by_repetition(script: ModuleType, data: Path) -> None:
    words = f"all --tests mb2013,mb2012 --tests mb2014 --data {data}".split()
    tables, chosen = script.check(parse_arguments(script.Options, "reproduce", "", words))
    assert list(chosen["table3"]) == ["mb2012", "mb2013", "mb2014"]
    assert list(chosen["table5"]) == ["mb2012"]
    # The figure of 2011 is not asked for.
    assert "figure3" not in tables
    assert list(chosen["figure4"]) == ["mb2012"]


def test_some_rows_and_finished_cells_alone(
    script: ModuleType,
    data: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def compute(
        cells: Sequence[Cell], setup: Setup, workers: int
    ) -> tuple[list[Result], list[str]]:
        computed.append([(cell.system, cell.collection, cell.seed) for cell in cells])
        return [], []

    computed: list[list[tuple[str, str, int]]] = []
    monkeypatch.setattr(script, "compute", compute)
    common = ["--tests", "mb2012", "--data", str(data)]
    rows = ["--systems", "QL", "--systems", "MP-HCNN (paper)"]
    run(script, "table3", *rows, *common)
    assert computed.pop() == [("QL", "mb2012", 1), ("MP-HCNN (paper)", "mb2012", 1)]
    run(script, "table3", *rows, *common, "--finished")
    assert computed.pop() == [("QL", "mb2012", 1)]
    with pytest.raises(UsageError, match=r"--systems: found 'MP-HCN', .*did you mean"):
        run(script, "table3", "--systems", "MP-HCN", *common)


def test_cells_of_other_word_vectors_are_kept_apart(
    script: ModuleType, tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setups = []

    def compute(cells: object, setup: Setup, workers: int) -> tuple[list[Result], list[str]]:
        setups.append(setup)
        return [], []

    monkeypatch.setattr(script, "compute", compute)
    (tmp_path / "other.txt").write_text("lol 1.0 2.0\n")
    for path in (None, data / "vectors.txt", tmp_path / "other.txt", data / "vectors.txt"):
        given = ["--vectors", str(path)] if path else []
        run(script, "microblog", "--tests", "mb2012", "--data", str(data), *given)
        assert setups[-1].vectors == path
    folders = [setup.directory for setup in setups]
    assert folders[0] == tmp_path / "home" / "experiments"
    assert {folder.parent for folder in folders[1:]} == {folders[0]}
    assert len(set(folders)) == 3 and folders[1] == folders[3]


def test_failing_cells_are_dashes_and_every_other_is_there_once(
    script: ModuleType,
    data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError("no training today")

    monkeypatch.setattr("experiments.cells._train", fail)
    out = tmp_path / "out"
    with pytest.raises(DataError) as caught:
        run(script, "all", "--tests", "mb2012", "--output", str(out), "--data", str(data))
    message = str(caught.value)
    assert message.count("MP-HCNN (ours) on mb2012, seed 1: no training today") == 1
    assert "figure4: mb2012: there is no finished cell" in message
    assert "QL" not in message.replace("MP-HCNN and of QL", "")
    printed = capsys.readouterr().out
    assert "## table3\n" in printed
    assert "by Fisher's two-sided paired randomization test" in printed
    assert (out / "table3.md").read_text() in printed
    with (out / "table3.csv").open() as stream:
        rows = [(row["system"], row["measure"]) for row in csv.DictReader(stream)]
    assert sorted(rows) == [(s, m) for s in ("QL", "RM3") for m in ("AP", "P@30")]
