"""READMEs: their links, commands and options exist, and their code prints its output.

A block without a language, or of ``text``, directly after a block of code is the code's
output; ``…`` in it stands for anything. Blocks for servers are run by the tests of
servers, blocks with adapters by ``test_python_api``.
"""

import gzip
import re
from collections.abc import Iterator
from contextlib import redirect_stdout
from functools import cache
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import NamedTuple

import pytest
from conftest import Patch
from helpers.processes import ROOT, run_program, run_python

from tweetrerank.pipeline.command.main import COMMANDS
from tweetrerank.pipeline.command.options import run_command
from tweetrerank.rerankers import registry

PATTERNS = (
    "README.md",
    "*/README.md",
    "*/*/README.md",
    ".github/*.md",
    "scripts/results/notes.md",
)

PROGRAMS = r"tweetrerank \w+|python -m pipeline\.\w+|python scripts/\w+\.py"

TESTED_ELSEWHERE = ("127.0.0.1", "http://localhost", "adapters")
"""Words of blocks that other tests run."""


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def texts() -> Iterator[Path]:
    for pattern in PATTERNS:
        yield from sorted(ROOT.glob(pattern))


def readmes() -> list[Path]:
    """All READMEs outside of hidden folders."""
    paths = sorted(ROOT.rglob("README.md"))
    return [path for path in paths if "/." not in f"/{relative(path)}"]


every_text = pytest.mark.parametrize("path", list(texts()), ids=relative)
every_readme = pytest.mark.parametrize("path", readmes(), ids=relative)


@every_text
def test_links_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    missing = []
    for target, anchor in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", text):
        if target.startswith("http"):
            continue
        linked = path.parent / target if target else path
        if not linked.exists() or (anchor and anchor not in anchors(linked)):
            missing.append(f"{target}#{anchor}")
    assert missing == []


@every_text
def test_modules_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    modules = re.findall(r"python -m ((?:pipeline|rerankers|indexes)[.\w]*)", text)
    files = [ROOT / f"{module.replace('.', '/')}.py" for module in modules]
    assert [file for file in files if not file.exists()] == []


@every_text
def test_commands_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    commands = re.findall(r"(?:^|`)tweetrerank ([a-z]+)", text, re.MULTILINE)
    assert set(commands) - set(COMMANDS) == set()


@every_text
def test_files_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    files = re.findall(r"\b(?:scripts/\w+(?:\.\w+)?|tests/[\w/]+\.py)\b", text)
    assert [file for file in files if not (ROOT / file).exists()] == []


@every_text
def test_files_in_tables_exist(path: Path) -> None:
    """Every row of a table of files names some, possibly by a pattern."""
    text = path.read_text(encoding="utf-8")
    tables = r"^\| (?:path|file|folder) \|.*\n\|[-|]+\n((?:\|.*\n)+)"
    missing = []
    for row in "".join(re.findall(tables, text, re.MULTILINE)).splitlines():
        names = re.findall(r"`([^`]+)`", row.split("|")[1])
        if not names or not all(any(path.parent.glob(name)) for name in names):
            missing.append(row)
    assert missing == []


@every_text
def test_options_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    unknown = []
    for command, arguments in re.findall(rf"^({PROGRAMS})( .*)$", text, re.MULTILINE):
        _, program = command.replace("tweetrerank ", "python -m pipeline.").split(
            " ", 1
        )
        code = arguments.split("#")[0]
        for option in re.findall(r"(?<!\S)--?[a-z][-a-z]*", code):
            if option not in help_of(program):
                unknown.append(f"{command}{arguments}: {option}")
    assert unknown == []


@cache
def anchors(path: Path) -> set[str]:
    """Anchors of a file's sections, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    names = [re.sub(r"[^\w\- ]", "", title.lower()) for title in titles]
    return {name.replace(" ", "-") for name in names}


@cache
def help_of(program: str) -> str:
    if not program.startswith("-m "):
        return run_python(program, "--help").stdout
    module = import_module(program.removeprefix("-m "))
    with redirect_stdout(StringIO()) as printed, pytest.raises(SystemExit):
        run_command(module.Options, module.main, "", "", ["--help"])
    return printed.getvalue()


def test_every_model_is_in_the_table_of_models() -> None:
    text = (ROOT / "rerankers" / "README.md").read_text(encoding="utf-8")
    rows = "\n".join(line for line in text.splitlines() if line.startswith("| `"))
    assert [name for name in registry.names() if f"`{name}`" not in rows] == []


class Block(NamedTuple):
    """A block of code."""

    language: str
    code: str
    output: str | None  # None if the README does not show it


def blocks(path: Path) -> list[Block]:
    fenced = r"^```(\w+)\n(.*?)^```$(?:\s*^```(?:text)?\n(.*?)^```$)?"
    text = path.read_text(encoding="utf-8")
    matches = re.finditer(fenced, text, re.DOTALL | re.MULTILINE)
    return [Block._make(match.groups()) for match in matches]


def assert_printed(output: str, expected: str) -> None:
    """The output is as expected, with anything in place of ``…``."""
    pieces = expected.strip().replace("\n…\n", "…").split("…")
    pattern = r"[\s\S]*?".join(re.escape(piece) for piece in pieces)
    is_printed = re.fullmatch(pattern + r"\s*", output.strip() + "\n")
    assert is_printed, f"{expected}\n---\n{output}"


@pytest.mark.slow
@pytest.mark.usefixtures("pools")
@every_readme
def test_python_prints_its_output(
    path: Path,
    tmp_path: Path,
    monkeypatch: Patch,
) -> None:
    """All blocks of a README in their order; each has the names of those before."""
    posts = (ROOT / "pipeline" / "sample" / "posts.jsonl").read_bytes()
    (tmp_path / "posts.jsonl.gz").write_bytes(gzip.compress(posts))
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in blocks(path):
        is_elsewhere = any(word in block.code for word in TESTED_ELSEWHERE)
        if block.language != "python" or is_elsewhere:
            continue
        with redirect_stdout(StringIO()) as printed:
            exec(block.code, names)
        if block.output is not None:
            assert_printed(printed.getvalue(), block.output)


@pytest.mark.slow
@pytest.mark.usefixtures("pools")
@every_readme
def test_commands_print_their_output(path: Path, tmp_path: Path) -> None:
    """Commands with output run in a folder with the checkout's ``pipeline``."""
    (tmp_path / "pipeline").symlink_to(ROOT / "pipeline")
    for block in blocks(path):
        if block.language == "sh" and block.output is not None:
            result = run_program("bash", "-euc", block.code, cwd=tmp_path, code=0)
            assert_printed(result.stdout, block.output)
