"""Command lines from dataclasses."""

import errno
import re
import signal
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from conftest import Result
from helpers.processes import ROOT, run_python

from indexes.errors import CollectionError
from pipeline.command import main, options
from pipeline.command.options import (
    apply_changes,
    argument,
    fraction,
    option,
    parse_arguments,
    positive_int,
    run_command,
)
from pipeline.errors import DataError, UsageError
from pipeline.runtime import choose_device
from rerankers.devices import device_name
from rerankers.errors import RerankerError


@dataclass(frozen=True)
class Options:
    """Options of a command that only the tests have."""

    name: str = argument("what to do")
    more: tuple[str, ...] = argument("and more", many=True, required=False)
    hits: int = option("how many", default=1000, parse=positive_int)
    weight: float | None = option("λ", parse=fraction, names=("--lambda",))
    method: str = option("way", default="ql", choices=("ql", "bm25"))
    measure: tuple[str, ...] = option("measures", many=True, names=("-m", "--measure"))
    files: tuple[str, ...] = option("files", many=True, following=True)
    quiet: bool = option("say nothing", flag=True)
    output: Path | None = option("file", parse=options.output_file)


def parse(*arguments: str) -> Options:
    return parse_arguments(Options, "program", "What it does.", arguments)


def test_values() -> None:
    assert parse("go") == Options("go", (), 1000, None, "ql", (), (), False, None)
    line = "go a b --hits 5 --lambda 0.25 --method bm25 -m AP -m P@30 --files c d --quiet --files e"
    measures, files = ("AP", "P@30"), ("c", "d", "e")
    found = Options("go", ("a", "b"), 5, 0.25, "bm25", measures, files, True, Path("x.txt"))
    assert parse(*line.split(), "--output", "x.txt") == found


def test_all_bad_arguments_are_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as error:
        parse(*f"--hits 0 --lambda 2 --method bm52 --qiet --output {tmp_path}".split())
    text = "\n".join(error.value.problems)
    assert len(error.value.problems) == 6
    assert "name is missing" in text
    assert "--hits: found 0, expected a whole number of at least 1" in text
    assert "--lambda: found 2, expected a number from 0 to 1" in text
    assert "'bm52', expected one of ql, bm25; did you mean 'bm25'?" in text
    assert "unknown argument '--qiet'; did you mean '--quiet'?" in text
    assert f"found the folder {tmp_path}" in text


def test_values_are_checked(tmp_path: Path) -> None:
    for check in (options.positive_float, options.positive_int, options.fraction):
        for text in ("", "nan", "inf", "-1", "1e400"):
            with pytest.raises(ValueError, match=r"expected a (whole )?number"):
                check(text)
    for path, message in ((tmp_path / "none", "there is no file"), (tmp_path, "expected a file")):
        with pytest.raises(ValueError, match=message):
            options.existing_file(str(path))
    for text in ("auto", "cpu", "cuda", "cuda:12"):
        assert device_name(text) == text
    for text in ("", "gpu", "cuda:", "cuda:-1", "cpu:0"):
        with pytest.raises(ValueError, match="expected auto, cpu, cuda or cuda:N"):
            device_name(text)


def test_ctrl_c_during_imports_leaves_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "dataclasses.py").write_text(
        "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(5)\n"
    )
    done = run_python("-m", "pipeline.batch", PYTHONPATH=f"{tmp_path}:{ROOT}")
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (UsageError(["one", "two"]), 2, "one\n  two"),
        (DataError("runs/x:3: bad"), 1, "runs/x:3: bad"),
        (CollectionError("no Java"), 1, "no Java"),
        (RerankerError("no weights"), 1, "no weights"),
        (OSError(errno.ENOSPC, "No space left on device", "out.txt"), 1, "No space left on device"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_errors_become_messages_and_exit_codes(
    error: BaseException, code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def main(options: Options) -> None:
        raise error

    with pytest.raises(SystemExit) as exit_:
        run_command(Options, main, "program", None, ["go"])
    assert exit_.value.code == code
    assert message in capsys.readouterr().err


def test_warnings_are_lines_and_mistakes_of_ours_keep_their_traceback(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def main(options: Options) -> None:
        warnings.warn("the memory is too small", RuntimeWarning, stacklevel=1)
        warnings.warn("use another name", FutureWarning, stacklevel=1)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_command(Options, main, "program", None, ["go"])
    told = capsys.readouterr().err.splitlines()
    assert told[0] == "warning: the memory is too small"
    assert "test_cli.py" in told[1]
    assert told[1].endswith("FutureWarning: use another name")


def test_a_gpu_that_is_not_there_is_bad_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert choose_device("auto") == "cuda"
    assert choose_device("cuda:1") == "cuda:1"
    with pytest.raises(UsageError, match="found cuda:2, expected cuda:N with N below 2"):
        choose_device("cuda:2")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match="found no CUDA device"):
        choose_device("cuda:0")


def test_help_names_every_option_with_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        run_command(Options, lambda options: None, "program", "What it does.", ["--help"])
    assert exit_.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "What it does." in text
    assert "how many (default: 1000)" in text
    assert "way; one of ql, bm25 (default: ql)" in text


def test_the_console_command_and_its_subcommands(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def tweetrerank(*arguments: str) -> Result:
        monkeypatch.setattr(sys, "argv", ["tweetrerank", *arguments])
        with pytest.raises(SystemExit) as left:
            main.tweetrerank()
        return Result(int(left.value.code or 0), *capsys.readouterr())

    # Without the restart that sets the allocator.
    monkeypatch.setattr(main, "keep_allocations", lambda: None)
    done = tweetrerank("--help")
    assert done.code == 0
    assert all(re.search(rf"^  {name} +[A-Z].*\.$", done.out, re.M) for name in main.COMMANDS)
    done = tweetrerank("serch")
    assert done.code == 2
    assert "unknown command 'serch'; did you mean 'search'?" in done.err
    assert tweetrerank().code == 2
    done = tweetrerank("search", "--help")
    assert done.code == 0
    assert done.out.startswith("usage: tweetrerank search ")
    assert "python -m pipeline" not in done.out
    done = tweetrerank("search", "--topics", "sample", "--hits", "none")
    assert done.code == 2
    assert done.err.startswith("tweetrerank search: bad usage:\n  --hits: found 'none'")


@dataclass(frozen=True)
class Configuration:
    depth: int = 4
    dropout: float = 0.1
    words: bool = True
    kind: str = "dot"


def test_changes_of_settings() -> None:
    """Values take the type of their field; every mistake is named."""
    changed = apply_changes(Configuration(), ["depth=2", "dropout=0.5", "words=false", "kind=a=b"])
    assert changed == Configuration(2, 0.5, False, "a=b")
    with pytest.raises(UsageError) as error:
        apply_changes(Configuration(), ["detph=2", "depth=two", "words=maybe", "dropout"])
    assert len(error.value.problems) == 4
    assert "did you mean 'depth'?" in error.value.problems[0]
