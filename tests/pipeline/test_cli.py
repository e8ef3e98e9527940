"""Command lines from dataclasses, and mistakes in those of all commands."""

import errno
import io
import re
import signal
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from conftest import Capture, Command, Patch, Result
from helpers.command_mistakes import MISTAKES, Mistake
from helpers.data_samples import write_microblog
from helpers.processes import ROOT, run_python

from tweetrerank.indexes.data_error import DataError
from tweetrerank.pipeline.collections.named import SAMPLE, find
from tweetrerank.pipeline.collections.trec import write_run
from tweetrerank.pipeline.command import main, options
from tweetrerank.pipeline.command.options import (
    apply_changes,
    argument,
    option,
    parse_arguments,
    run_command,
)
from tweetrerank.pipeline.runtime import choose_device
from tweetrerank.pipeline.usage_error import UsageError
from tweetrerank.rerankers.checkpoint import SHIPPED
from tweetrerank.rerankers.devices import device_name
from tweetrerank.rerankers.reranker_error import RerankerError


@dataclass(frozen=True)
class Options:
    name: str = argument("what to do")
    more: tuple[str, ...] = argument("and more", many=True, required=False)
    hits: int = option("how many", default=1000, parse=options.positive_int)
    weight: float | None = option("λ", parse=options.fraction, names=("--lambda",))
    method: str = option("way", default="ql", choices=("ql", "bm25"))
    measure: tuple[str, ...] = option("measures", many=True, names=("-m", "--measure"))
    files: tuple[str, ...] = option("files", many=True, following=True)
    quiet: bool = option("say nothing", flag=True)
    output: Path | None = option("file", parse=options.output_file)


def parse(line: str) -> Options:
    return parse_arguments(Options, "program", "What it does.", line.split())


def test_defaults() -> None:
    assert parse("go") == Options("go", (), 1000, None, "ql", (), (), False, None)


def test_values() -> None:
    line = "go a b --hits 5 --lambda 0.25 --method bm25 -m AP -m P@30"
    line += " --files c d --quiet --files e --output x.txt"
    assert parse(line) == Options(
        name="go",
        more=("a", "b"),
        hits=5,
        weight=0.25,
        method="bm25",
        measure=("AP", "P@30"),
        files=("c", "d", "e"),
        quiet=True,
        output=Path("x.txt"),
    )


def test_all_bad_arguments_are_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as error:
        parse(f"--hits 0 --lambda 2 --method bm52 --qiet --output {tmp_path}")
    expected = [
        "found the folder",
        "--hits: found 0, expected a whole number of at least 1",
        "--lambda: found 2, expected a number from 0 to 1",
        "'bm52', expected one of ql, bm25; did you mean 'bm25'?",
        "unknown argument '--qiet'; did you mean '--quiet'?",
        "name is missing",
    ]
    text = "\n".join(error.value.problems)
    assert [problem for problem in expected if problem not in text] == []
    assert f"found the folder {tmp_path}" in text
    assert len(error.value.problems) == len(expected)


@pytest.mark.parametrize("text", ["", "nan", "inf", "-1", "1e400"])
@pytest.mark.parametrize("name", ["positive_float", "positive_int", "fraction"])
def test_numbers_are_checked(name: str, text: str) -> None:
    parse_number = getattr(options, name)
    with pytest.raises(ValueError, match=r"expected a (whole )?number"):
        parse_number(text)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none", "there is no file"),
        (".", "expected a file"),  # A folder
    ],
)
def test_files_are_checked(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        options.existing_file(str(tmp_path / name))


@pytest.mark.parametrize("text", ["cuda:", "cuda:-1", "cpu:0"])
def test_devices_are_checked(text: str) -> None:
    with pytest.raises(ValueError, match="expected auto, cpu, cuda or cuda:N"):
        device_name(text)


# Mistakes in the command lines of all commands


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home folder for an index of the sample, with made-up years of posts."""
    return write_microblog(tmp_path_factory.mktemp("home"))


@pytest.fixture
def fill(home: Path) -> Callable[[str], str]:
    """Replaces the placeholders of a text."""
    places = {
        "SAMPLE": str(SAMPLE),
        "SHIPPED": str(SHIPPED),
        "DATA": str(home),
        "NOWHERE": "http://127.0.0.1:9",
    }
    pattern = "|".join(places)

    def call(text: str) -> str:
        return re.sub(pattern, lambda match: places[match[0]], text)

    return call


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.reason)
def test_mistakes_are_explained(
    mistake: Mistake,
    command: Command,
    home: Path,
    fill: Callable[[str], str],
    tmp_path: Path,
    monkeypatch: Patch,
) -> None:
    """No file is written before all files are read."""
    monkeypatch.setenv("TWEETRERANK_HOME", str(home))
    monkeypatch.delenv("TWEETRERANK_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    qrels = find("sample").qrels or {}
    write_run("small.run", {topic: dict.fromkeys(qrels[topic], 1.0) for topic in "12"})
    for name, content in mistake.files.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(fill(content))
    before = times_of_change(tmp_path)
    result = command(fill(mistake.command), code=mistake.code)
    messages = [fill(message) for message in mistake.messages]
    assert [message for message in messages if message not in result.err] == []
    assert "Traceback" not in result.err
    assert "hush" not in result.err  # The password of an engine
    assert not (home / "checkpoints").exists()
    if "--show 99" not in mistake.command:  # The topic is looked up after the search.
        assert result.out == "" or result.out.startswith("loading ")
        assert times_of_change(tmp_path) == before


def times_of_change(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


# Errors, signals and warnings


def test_ctrl_c_during_imports_leaves_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "dataclasses.py").write_text(
        "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(5)\n"
    )
    path = f"{tmp_path}:{ROOT}"
    process = run_python("-m", "pipeline.batch", PYTHONPATH=path)
    assert process.returncode == -signal.SIGINT
    assert process.stderr == ""


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (UsageError(["one", "two"]), 2, "one\n  two"),
        (DataError("runs/x:3: bad"), 1, "runs/x:3: bad"),
        (RerankerError("no weights"), 1, "no weights"),
        (OSError(errno.ENOSPC, "No space left", "out.txt"), 1, "out.txt: No space"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_errors_become_messages(
    capsys: Capture, error: BaseException, code: int, message: str
) -> None:
    with pytest.raises(SystemExit) as exit_info:
        run_command(Options, Mock(side_effect=error), "program", None, ["go"])
    assert exit_info.value.code == code
    assert message in capsys.readouterr().err


def test_warnings_are_lines_and_our_mistakes_keep_their_traceback(
    capsys: Capture,
) -> None:
    def main(options: Options) -> None:
        warnings.warn("the memory is too small", RuntimeWarning, stacklevel=1)
        warnings.warn("use another name", FutureWarning, stacklevel=1)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_command(Options, main, "program", None, ["go"])
    ours, theirs, *_ = capsys.readouterr().err.splitlines()
    assert ours == "warning: the memory is too small"
    assert "test_cli.py" in theirs
    assert theirs.endswith("FutureWarning: use another name")


def test_devices_are_chosen(monkeypatch: Patch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert choose_device("auto") == "cuda"
    assert choose_device("cuda:1") == "cuda:1"
    expected = "found cuda:2, expected cuda:N with N below 2"
    with pytest.raises(UsageError, match=expected):
        choose_device("cuda:2")


def test_a_gpu_that_is_not_there_is_bad_usage(monkeypatch: Patch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match="found no CUDA device"):
        choose_device("cuda:0")


# The console command


@pytest.fixture
def console(monkeypatch: Patch, capsys: Capture) -> Callable[[str, int], Result]:
    """Runs the console command, and checks its exit code."""
    # Without the restart that sets the allocator
    monkeypatch.setattr(main, "keep_allocations", lambda: None)

    def call(line: str, code: int) -> Result:
        monkeypatch.setattr(sys, "argv", ["tweetrerank", *line.split()])
        with pytest.raises(SystemExit) as exit_info:
            main.tweetrerank()
        assert int(exit_info.value.code or 0) == code
        output, errors = capsys.readouterr()
        return Result(code, output, errors)

    return call


def test_help_lists_all_commands(console: Callable[[str, int], Result]) -> None:
    text = console("--help", 0).out
    for name in main.COMMANDS:
        assert re.search(rf"^  {name} +[A-Z].*\.$", text, re.M), name


def test_help_of_a_command(console: Callable[[str, int], Result]) -> None:
    text = " ".join(console("search --help", 0).out.split())
    assert text.startswith("usage: tweetrerank search ")
    assert "python -m pipeline" not in text
    assert "first stage (default: ql); one of ql, bm25, rm3, axiom" in text


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("serch", "unknown command 'serch'; did you mean 'search'?"),
        ("", "no command"),
        (
            "search --topics sample --hits none",
            "tweetrerank search: bad usage:\n  --hits: found 'none'",
        ),
    ],
)
def test_mistakes_in_commands(
    console: Callable[[str, int], Result], line: str, message: str
) -> None:
    assert message in console(line, 2).err


@pytest.mark.parametrize(
    "stream",
    [None, io.TextIOWrapper(io.BytesIO(), "ascii")],
    ids=["closed", "without λ"],
)
def test_help_on_any_stream(
    console: Callable[[str, int], Result], monkeypatch: Patch, stream: Any
) -> None:
    monkeypatch.setattr(sys, "stdout", stream)
    console("tune --help", 0)


# Changes of settings


def test_changes_of_settings_have_the_type_of_their_field() -> None:
    changed = apply_changes(Options("go"), ["hits=2", "quiet=true", "method=a=b"])
    assert changed.hits == 2
    assert changed.quiet is True
    assert changed.method == "a=b"


def test_wrong_changes_of_settings_are_named_at_once() -> None:
    with pytest.raises(UsageError) as error:
        apply_changes(Options("go"), ["htis=2", "hits=two", "quiet=maybe", "hits"])
    assert len(error.value.problems) == 4
    assert "did you mean 'hits'?" in error.value.problems[0]
