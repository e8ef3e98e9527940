"""READMEs: links, commands and options exist, the Python runs, and what is shown is printed.

A block without a language, or of ``text``, right behind a block of code is its output; in it ``…``
stands for anything. Blocks that speak to a server are run by the tests of servers, those with
adapters by ``test_python_api``.
"""

import gzip
import re
from contextlib import redirect_stdout
from functools import cache
from importlib import import_module
from io import StringIO
from pathlib import Path

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
TEXTS = [path for pattern in PATTERNS for path in sorted(ROOT.glob(pattern))]


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", TEXTS, ids=named)
def test_links_commands_and_options_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for target, anchor in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", text):
        if not target.startswith("http"):
            assert (path.parent / target).exists(), target
            assert not anchor or anchor in anchors(
                path.parent / target if target else path
            ), anchor
    for module in re.findall(r"python -m ((?:pipeline|rerankers|indexes)[.\w]*)", text):
        assert (ROOT / Path(*module.split("."))).with_suffix(".py").exists(), module
    for command in re.findall(r"(?:^|`)tweetrerank ([a-z]+)", text, re.MULTILINE):
        assert command in COMMANDS, command
    for file in re.findall(r"\b(?:scripts/\w+(?:\.\w+)?|tests/[\w/]+\.py)\b", text):
        assert (ROOT / file).exists(), file
    tables = r"^\| (?:path|file|folder) \|.*\n\|[-|]+\n((?:\|.*\n)+)"
    for row in "".join(re.findall(tables, text, re.MULTILINE)).splitlines():
        names = re.findall(r"`([^`]+)`", row.split("|")[1])
        assert names and all(any(path.parent.glob(name)) for name in names), row
    shown = r"^(tweetrerank \w+|python -m pipeline\.\w+|python scripts/\w+\.py)( .*)$"
    for command, rest in re.findall(shown, text, re.MULTILINE):
        program = command.replace("tweetrerank ", "python -m pipeline.").split()[1:]
        for option in re.findall(r"(?<!\S)--?[a-z][-a-z]*", rest.split("#")[0]):
            assert option in help_of(*program), f"{command}{rest}"


@cache
def anchors(path: Path) -> set[str]:
    """Anchors of a file's sections, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles
    }


@cache
def help_of(*program: str) -> str:
    if program[0] == "-m":
        module = import_module(program[1])
        with redirect_stdout(StringIO()) as printed, pytest.raises(SystemExit):
            run_command(module.Options, module.main, "", "", ["--help"])
        return printed.getvalue()
    return run_python(*program, "--help").stdout


def test_every_model_is_in_the_table_of_models() -> None:
    text = (ROOT / "rerankers" / "README.md").read_text(encoding="utf-8")
    rows = "\n".join(line for line in text.splitlines() if line.startswith("| `"))
    assert [name for name in registry.names() if f"`{name}`" not in rows] == []


READMES = [
    path for path in sorted(ROOT.rglob("README.md")) if "/." not in f"/{named(path)}"
]
ELSEWHERE = (
    "127.0.0.1",
    "http://localhost",
    "adapters",
)  # Words of blocks that other tests run


def blocks(path: Path) -> list[tuple[str, str, str | None]]:
    """Language and code of each block, and its output; None if the README does not say."""
    fenced = r"^```(\w+)\n(.*?)^```$(?:\s*^```(?:text)?\n(.*?)^```$)?"
    found = re.finditer(
        fenced, path.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    return [block.groups() for block in found]


def assert_printed(output: str, shown: str) -> None:
    """The output is what is shown, but for what ``…`` stands for."""
    parts = [re.escape(part) for part in shown.strip().replace("\n…\n", "…").split("…")]
    pattern = r"[\s\S]*?".join(parts)
    assert re.fullmatch(pattern + r"\s*", output.strip() + "\n"), (
        f"{shown}\n---\n{output}"
    )


@pytest.mark.slow
@pytest.mark.usefixtures("pools")
@pytest.mark.parametrize("path", READMES, ids=named)
def test_what_python_prints(path: Path, tmp_path: Path, monkeypatch: Patch) -> None:
    """All blocks of a README in their order, with the names of those before."""
    posts = (ROOT / "pipeline" / "sample" / "posts.jsonl").read_bytes()
    (tmp_path / "posts.jsonl.gz").write_bytes(gzip.compress(posts))
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for language, code, output in blocks(path):
        if language == "python" and not any(word in code for word in ELSEWHERE):
            with redirect_stdout(StringIO()) as printed:
                exec(code, names)
            if output is not None:
                assert_printed(printed.getvalue(), output)


@pytest.mark.slow
@pytest.mark.usefixtures("pools")
@pytest.mark.parametrize("path", READMES, ids=named)
def test_what_commands_print(path: Path, tmp_path: Path) -> None:
    """Commands whose output is shown, in the checkout's folders but for what they write."""
    (tmp_path / "pipeline").symlink_to(ROOT / "pipeline")
    for language, code, output in blocks(path):
        if language == "sh" and output is not None:
            done = run_program("bash", "-euc", code, cwd=tmp_path, code=0)
            assert_printed(done.stdout, output)
