"""Code blocks of the READMEs: the Python runs, and what is shown as printed is printed.

A block without a language, or of ``text``, right behind a block of code is its output; in it ``…``
stands for anything. Blocks that speak to a server are run by the tests of servers, those with
adapters by ``test_adapters``.
"""

import gzip
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
READMES = [
    path
    for path in sorted(ROOT.rglob("README.md"))
    if not any(part.startswith(".") for part in path.relative_to(ROOT).parts)
]
ELSEWHERE = ("127.0.0.1", "http://localhost", "adapters")  # Words of blocks that other tests run


class Block(NamedTuple):
    """A block of code, and what it prints; None if the README does not say."""

    language: str
    code: str
    output: str | None


def blocks(path: Path) -> list[Block]:
    text = path.read_text(encoding="utf-8")
    found = [*re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)]
    shown = []
    for block, following in zip(found, [*found, None][1:], strict=False):
        is_output = (
            following is not None
            and following[1] in ("", "text")
            and not text[block.end() : following.start()].strip()
        )
        shown.append(Block(block[1], block[2], following[2] if following and is_output else None))
    return shown


def assert_printed(output: str, shown: str) -> None:
    """The output is what is shown, but for what ``…`` stands for."""
    parts = [re.escape(part) for part in shown.strip().replace("\n…\n", "…").split("…")]
    pattern = r"[\s\S]*?".join(parts)
    assert re.fullmatch(pattern + r"\s*", output.strip() + "\n"), f"{shown}\n---\n{output}"


def environment(home: Path) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {
        **os.environ,
        "PATH": path,
        "PYTHONPATH": str(ROOT),
        "TWEETRERANK_HOME": str(home),
        "COLUMNS": "100",
    }


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


SEPARATOR = "\n=== block ===\n"


@pytest.mark.slow
@pytest.mark.parametrize("path", READMES, ids=named)
def test_the_python_prints_what_is_shown(path: Path, tmp_path: Path, home: Path) -> None:
    """All blocks of a README in one process, in their order."""
    chosen = [
        block
        for block in blocks(path)
        if block.language == "python" and not any(word in block.code for word in ELSEWHERE)
    ]
    if not chosen:
        return
    posts = (ROOT / "pipeline" / "sample" / "posts.jsonl").read_bytes()
    (tmp_path / "posts.jsonl.gz").write_bytes(gzip.compress(posts))
    script = tmp_path / "blocks.py"
    script.write_text(f"print({SEPARATOR!r}, end='')\n".join(block.code for block in chosen))
    done = subprocess.run(
        [sys.executable, script],
        cwd=tmp_path,
        env=environment(home),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    printed = done.stdout.split(SEPARATOR)
    for block, output in zip(chosen, printed, strict=True):
        if block.output is not None:
            assert_printed(output, block.output)


def test_the_shown_output_is_compared() -> None:
    assert_printed("a 1.5\nb\nc\n", "a …\nb\nc")
    assert_printed("a\nb\nc\nd\n", "a\n…\nd\n")
    for wrong in ("a\nc", "a\nb"):
        with pytest.raises(AssertionError):
            assert_printed("a\nb\nc\n", wrong)


@pytest.mark.slow
@pytest.mark.parametrize("path", READMES, ids=named)
def test_commands_print_what_is_shown(path: Path, tmp_path: Path, home: Path) -> None:
    """Commands whose output is shown, in the checkout's folders but for what they write."""
    (tmp_path / "pipeline").symlink_to(ROOT / "pipeline")
    for block in blocks(path):
        if block.language != "sh" or block.output is None:
            continue
        done = subprocess.run(
            ["bash", "-euc", block.code],
            cwd=tmp_path,
            env=environment(home),
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        assert_printed(done.stdout, block.output)
