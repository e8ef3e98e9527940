"""READMEs: links, commands and options exist, the Python that they show runs."""

import csv
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from experiments.tables import TABLES, ResultTable
from experiments.tables.results import read_csv

from pipeline.command.main import COMMANDS
from rerankers import models

ROOT = Path(__file__).parents[2]
TEXTS = [
    ROOT / "README.md",
    ROOT / ".github" / "CONTRIBUTING.md",
    *sorted(ROOT.glob("*/README.md")),
]


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_and_commands_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert target.startswith("http") or (path.parent / target).exists(), target
    for module in re.findall(r"python -m ((?:pipeline|rerankers|indexes)[.\w]*)", text):
        assert (ROOT / Path(*module.split("."))).with_suffix(".py").exists(), module
    for command in re.findall(r"(?:^|`)tweetrerank ([a-z]+)", text, re.MULTILINE):
        assert command in COMMANDS, command
    for script in re.findall(r"\b(scripts/\w+(?:\.\w+)?)\b", text):
        assert (ROOT / script).exists(), script


@cache
def help_of(*program: str) -> str:
    """What a command prints for ``--help``."""
    command = [sys.executable, *program, "--help"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_options_that_are_shown_exist(path: Path) -> None:
    """Each option after a command is in that command's help."""
    shown = r"^(tweetrerank \w+|python -m pipeline\.\w+|python scripts/\w+\.py)( .*)$"
    for command, rest in re.findall(shown, path.read_text(encoding="utf-8"), re.MULTILINE):
        words = command.replace("tweetrerank ", "python -m pipeline.").split()[1:]
        for option in re.findall(r"(?<!\S)--?[a-z][-a-z]*", rest.split("#")[0]):
            assert option in help_of(*words), f"{command}{rest}"


@pytest.mark.slow
def test_the_first_python_of_the_readme_runs() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    source = next(block for block in blocks if "import" in block)
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_every_model_is_in_the_table_of_models() -> None:
    text = (ROOT / "rerankers" / "README.md").read_text(encoding="utf-8")
    rows = "\n".join(line for line in text.splitlines() if line.startswith("| `"))
    assert [name for name in models.names() if f"`{name}`" not in rows] == []


def test_tables_are_those_of_their_results() -> None:
    """What stands between two marks is made from the CSV that the first one names."""
    text = (ROOT / "scripts" / "README.md").read_text(encoding="utf-8")
    marked = re.findall(r"<!-- (\S+): (\S+) -->\n(.*?)<!-- end -->", text, re.DOTALL)
    assert {name for name, _, _ in marked} >= {"answer-selection", "sampling", "microblog"}
    for name, path, shown in marked:
        if not (ROOT / "scripts" / path).exists():
            assert shown == "", path
            continue
        results = read_csv(ROOT / "scripts" / path)
        assert results, path
        table = TABLES[name]
        assert isinstance(table, ResultTable)
        assert shown.strip() == table.markdown(results), name


def test_reranked_runs_are_those_of_their_report() -> None:
    text = (ROOT / "scripts" / "README.md").read_text(encoding="utf-8")
    shown = {
        cells[0]: [cell.rstrip("▲▼△▽") for cell in cells]
        for line in text.splitlines()
        if len(cells := line.strip("| ").split(" | ")) == 11
    }
    path = ROOT / "scripts" / "results" / "rerank_runs.csv"
    with path.open(encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 13
    for row in rows:
        assert not row["commit"].endswith("dirty")
        assert shown[row["run"]][:5] == [
            row["run"],
            row["group"],
            f"{float(row['P@30']):.4f}",
            f"{float(row['P@30 reranked']):.4f}",
            f"{float(row['P@30 change %']):+.1f} %",
        ]
        assert shown[row["run"]][5:7] == [
            f"{float(row['AP']):.4f}",
            f"{float(row['AP reranked']):.4f}",
        ]
