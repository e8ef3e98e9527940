"""Command lines from dataclasses, and mistakes in those of all commands."""

import errno
import io
import json
import re
import signal
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from conftest import Capture, Command, Patch, Result
from helpers.data_samples import write_microblog
from helpers.index_samples import table
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


def test_values() -> None:
    assert parse("go") == Options("go", (), 1000, None, "ql", (), (), False, None)
    line = "go a b --hits 5 --lambda 0.25 --method bm25 -m AP -m P@30 --files c d --quiet --files e"
    many = ("AP", "P@30"), ("c", "d", "e"), True, Path("x.txt")
    assert parse(f"{line} --output x.txt") == Options(
        "go", ("a", "b"), 5, 0.25, "bm25", *many
    )


def test_all_bad_arguments_are_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as error:
        parse(f"--hits 0 --lambda 2 --method bm52 --qiet --output {tmp_path}")
    text = "\n".join(error.value.problems)
    assert len(error.value.problems) == 6
    for problem in (
        "name is missing",
        "--hits: found 0, expected a whole number of at least 1",
        "--lambda: found 2, expected a number from 0 to 1",
        "'bm52', expected one of ql, bm25; did you mean 'bm25'?",
        "unknown argument '--qiet'; did you mean '--quiet'?",
        f"found the folder {tmp_path}",
    ):
        assert problem in text


def test_values_are_checked(tmp_path: Path) -> None:
    for check in (options.positive_float, options.positive_int, options.fraction):
        for text in ("", "nan", "inf", "-1", "1e400"):
            with pytest.raises(ValueError, match=r"expected a (whole )?number"):
                check(text)
    for path, message in (
        (tmp_path / "none", "there is no file"),
        (tmp_path, "expected a file"),
    ):
        with pytest.raises(ValueError, match=message):
            options.existing_file(str(path))
    for text in ("cuda:", "cuda:-1", "cpu:0"):
        with pytest.raises(ValueError, match="expected auto, cpu, cuda or cuda:N"):
            device_name(text)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home folder, for an index of the sample, with made-up years of posts."""
    return write_microblog(tmp_path_factory.mktemp("home"))


@pytest.mark.parametrize("row", table("mistakes.jsonl"), ids=lambda row: row["command"])
def test_mistakes_are_explained(
    row: dict[str, Any],
    command: Command,
    home: Path,
    tmp_path: Path,
    monkeypatch: Patch,
) -> None:
    """Nothing is written before all is read. ``small.run`` has two topics."""
    monkeypatch.setenv("TWEETRERANK_HOME", str(home))
    monkeypatch.chdir(tmp_path)
    qrels = find("sample").qrels or {}
    write_run("small.run", {q: dict.fromkeys(qrels[q], 1.0) for q in ("1", "2")})
    places = {
        "SAMPLE": SAMPLE,
        "SHIPPED": SHIPPED,
        "DATA": home,
        "NOWHERE": "http://127.0.0.1:9",
    }
    row = json.loads(
        re.sub("|".join(places), lambda found: str(places[found[0]]), json.dumps(row))
    )
    for name, content in row.get("files", {}).items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(content)
    line, before = (
        row["command"],
        {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")},
    )
    done = command(*line.split(), code=row["code"])
    assert [told for told in row["told"] if told not in done.err] == []
    assert "Traceback" not in done.err and "hush" not in done.err
    assert not (home / "checkpoints").exists()
    if "--show 99" not in line:  # It is looked at after the search.
        assert done.out == "" or done.out.startswith("loading ")
        assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")} == before


def test_ctrl_c_during_imports_leaves_no_traceback(tmp_path: Path) -> None:
    code = (
        "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(5)\n"
    )
    (tmp_path / "dataclasses.py").write_text(code)
    done = run_python("-m", "pipeline.batch", PYTHONPATH=f"{tmp_path}:{ROOT}")
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


def test_errors_become_messages(capsys: Capture) -> None:
    for error, code, message in (
        (UsageError(["one", "two"]), 2, "one\n  two"),
        (DataError("runs/x:3: bad"), 1, "runs/x:3: bad"),
        (RerankerError("no weights"), 1, "no weights"),
        (
            OSError(errno.ENOSPC, "No space left on device", "out.txt"),
            1,
            "No space left on device",
        ),
        (KeyboardInterrupt(), 130, "interrupted"),
    ):
        with pytest.raises(SystemExit) as left:
            run_command(Options, Mock(side_effect=error), "program", None, ["go"])
        assert left.value.code == code and message in capsys.readouterr().err


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
    assert "test_cli.py" in theirs and theirs.endswith(
        "FutureWarning: use another name"
    )


def test_a_gpu_that_is_not_there_is_bad_usage(monkeypatch: Patch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert (choose_device("auto"), choose_device("cuda:1")) == ("cuda", "cuda:1")
    with pytest.raises(
        UsageError, match="found cuda:2, expected cuda:N with N below 2"
    ):
        choose_device("cuda:2")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match="found no CUDA device"):
        choose_device("cuda:0")


def test_the_console_command_and_its_subcommands(
    monkeypatch: Patch, capsys: Capture
) -> None:
    def tweetrerank(line: str, code: int) -> Result:
        monkeypatch.setattr(sys, "argv", ["tweetrerank", *line.split()])
        with pytest.raises(SystemExit) as left:
            main.tweetrerank()
        assert int(left.value.code or 0) == code
        return Result(code, *capsys.readouterr())

    # Without the restart that sets the allocator.
    monkeypatch.setattr(main, "keep_allocations", lambda: None)
    text = tweetrerank("--help", 0).out
    assert all(
        re.search(rf"^  {name} +[A-Z].*\.$", text, re.M) for name in main.COMMANDS
    )
    assert (
        "unknown command 'serch'; did you mean 'search'?" in tweetrerank("serch", 2).err
    )
    tweetrerank("", 2)
    text = " ".join(tweetrerank("search --help", 0).out.split())
    assert (
        text.startswith("usage: tweetrerank search ")
        and "python -m pipeline" not in text
    )
    assert "first stage (default: ql); one of ql, bm25, rm3, axiom" in text
    told = tweetrerank("search --topics sample --hits none", 2).err
    assert told.startswith("tweetrerank search: bad usage:\n  --hits: found 'none'")
    for stream in (
        None,
        io.TextIOWrapper(io.BytesIO(), "ascii"),
    ):  # Closed, or without a λ
        monkeypatch.setattr(sys, "stdout", stream)
        tweetrerank("tune --help", 0)


def test_changes_of_settings_have_the_type_of_their_field() -> None:
    changed = apply_changes(Options("go"), ["hits=2", "quiet=true", "method=a=b"])
    assert (changed.hits, changed.quiet, changed.method) == (2, True, "a=b")
    with pytest.raises(UsageError) as error:
        apply_changes(Options("go"), ["htis=2", "hits=two", "quiet=maybe", "hits"])
    assert (
        len(error.value.problems) == 4
        and "did you mean 'hits'?" in error.value.problems[0]
    )
