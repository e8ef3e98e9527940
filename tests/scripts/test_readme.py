"""READMEs: links, commands and options exist, the Python that they show runs."""

import re
import subprocess
import sys
from contextlib import redirect_stdout
from functools import cache
from importlib import import_module
from io import StringIO
from pathlib import Path

import pytest

from pipeline.command.main import COMMANDS
from pipeline.command.options import run_command
from rerankers import models

ROOT = Path(__file__).parents[2]
TEXTS = [
    ROOT / "README.md",
    ROOT / ".github" / "CONTRIBUTING.md",
    *sorted(ROOT.glob("*/README.md")),
    *(ROOT / "scripts" / "results" / name for name in ("README.md", "notes.md")),
]


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_and_commands_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for target, anchor in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", text):
        if not target.startswith("http"):
            assert (path.parent / target).exists(), target
            assert not anchor or anchor in anchors(path.parent / target if target else path), anchor
    for module in re.findall(r"python -m ((?:pipeline|rerankers|indexes)[.\w]*)", text):
        assert (ROOT / Path(*module.split("."))).with_suffix(".py").exists(), module
    for command in re.findall(r"(?:^|`)tweetrerank ([a-z]+)", text, re.MULTILINE):
        assert command in COMMANDS, command
    for script in re.findall(r"\b(scripts/\w+(?:\.\w+)?)\b", text):
        assert (ROOT / script).exists(), script


@cache
def anchors(path: Path) -> set[str]:
    """Anchors of a file's sections, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@cache
def help_of(*program: str) -> str:
    """What a command prints for ``--help``."""
    if program[0] == "-m":
        module = import_module(program[1])
        with redirect_stdout(StringIO()) as printed, pytest.raises(SystemExit):
            run_command(module.Options, module.main, "", "", ["--help"])
        return printed.getvalue()
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


def test_every_model_is_in_the_table_of_models() -> None:
    text = (ROOT / "rerankers" / "README.md").read_text(encoding="utf-8")
    rows = "\n".join(line for line in text.splitlines() if line.startswith("| `"))
    assert [name for name in models.names() if f"`{name}`" not in rows] == []
