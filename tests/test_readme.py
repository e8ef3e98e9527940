"""What the READMEs say exists, and the Python that they show runs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from experiments.tables import TABLES, ResultTable
from experiments.tables.results import read_csv

from rerankers import models

ROOT = Path(__file__).parent.parent
READMES = [ROOT / "README.md", *sorted(ROOT.glob("*/README.md"))]


def blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("path", READMES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", path.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            assert (path.parent / target).exists(), target


@pytest.mark.parametrize("path", READMES, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for module in re.findall(r"python -m (\w+(?:\.\w+)+)", text):
        if module.split(".")[0] in ("pipeline", "rerankers", "indexes"):
            assert (ROOT / Path(*module.split("."))).with_suffix(".py").exists(), module
    for script in re.findall(r"\b(scripts/\w+(?:\.\w+)?)\b", text):
        assert (ROOT / script).exists(), script


@pytest.mark.slow
def test_options_that_are_shown_exist() -> None:
    """Each option after a command in the main README is in that command's help."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for line in re.findall(r"^python (?:-m pipeline|scripts/).*$", text, re.MULTILINE):
        command = line.split("#")[0].split()
        options = [word for word in command if word.startswith("--")]
        program = command[1:3] if command[1] == "-m" else [str(ROOT / command[1])]
        shown = subprocess.run(
            [sys.executable, *program, "--help"], capture_output=True, text=True, check=True
        ).stdout
        for option in options:
            assert option in shown, line


@pytest.mark.slow
def test_the_python_that_is_shown_runs() -> None:
    """The pair that is relevant gets the higher score."""
    (source,) = [b for b in blocks(ROOT / "README.md", "python") if "import" in b]
    result = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    first, second = map(float, re.findall(r"-?\d+\.\d+", result.stdout))
    assert first > second


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
