"""The set-up scripts, run against a stand-in for Python: when they install, and when they don't."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Makes "environments" that hold a copy of itself, and writes down what it is asked to run. What
# fails is an installation whose arguments contain the text in the file `fail`, or a tool so named.
STAND_IN = """#!/usr/bin/env bash
case "$1 $2" in
    "-m venv") rm -rf "$4" && mkdir -p "$4/bin" && cp "$0" "$4/bin/python" ;;
    "-m pip")
        if [ "$3" = install ]; then
            echo "${*: -1}" >>"$NOTES/calls"
            if [ -f "$NOTES/fail" ] && [[ "$*" == *"$(cat "$NOTES/fail")"* ]]; then
                echo "no such wheel"
                exit 1
            fi
        fi ;;
    "-c "*) [ ! -f "$NOTES/old" ] ;;
    *)
        echo "$*" >>"$NOTES/calls" && echo "$PWD $MALLOC_TRIM_THRESHOLD_" >"$NOTES/seen"
        [ ! -f "$NOTES/fail" ] || [[ "$*" != "-m $(cat "$NOTES/fail")"* ]] ;;
esac
"""


class Checkout:
    """A copy of what the scripts read, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "a check out"
        self.notes = folder / "notes"
        self.notes.mkdir()
        shutil.copytree(ROOT / "scripts", self.root / "scripts")
        shutil.copy(ROOT / "pyproject.toml", self.root)
        self.stand_in = folder / "python"
        self.stand_in.write_text(STAND_IN)
        self.stand_in.chmod(0o755)
        self.elsewhere = folder

    def run(self, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a script from another folder; ``calls`` then has what it asked of Python."""
        (self.notes / "calls").unlink(missing_ok=True)
        ours = {"NOTES": str(self.notes), "TWEETRERANK_PYTHON": str(self.stand_in)}
        environment = os.environ | ours
        environment.pop("TWEETRERANK_TORCH_INDEX", None)
        return subprocess.run(
            [self.root / "scripts" / script, *arguments],
            cwd=self.elsewhere,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
        )

    @property
    def calls(self) -> list[str]:
        file = self.notes / "calls"
        return file.read_text().splitlines() if file.exists() else []

    @property
    def installations(self) -> list[str]:
        return [call for call in self.calls if not call.startswith("-m ")]


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


SEARCH = "-m pipeline.search --topics sample"


@pytest.mark.parametrize("failing", ["ruff check", "mypy", "pytest"])
def test_the_test_script_fails_where_one_check_fails(checkout: Checkout, failing: str) -> None:
    checkout.run("quickstart")
    (checkout.notes / "fail").write_text(failing)
    assert checkout.run("test").returncode == 1


def test_quickstart_installs_once_then_only_searches(checkout: Checkout) -> None:
    first = checkout.run("quickstart", "--hits", "5")
    assert first.returncode == 0, first.stderr
    calls = [call.split("==")[0] for call in checkout.calls]
    assert calls == ["setuptools", "torch", f"{checkout.root}[cpu]", f"{SEARCH} --hits 5"]
    assert checkout.run("quickstart").returncode == 0
    assert checkout.calls == [SEARCH]
    assert (checkout.notes / "seen").read_text() == f"{checkout.root} 8589934592\n"


def test_quickstart_serves_the_page(checkout: Checkout) -> None:
    for _ in range(2):
        assert checkout.run("quickstart", "--serve", "--port", "9000").returncode == 0
        *_, last = checkout.calls
        assert last == "-m pipeline.serve --collection sample --port 9000"
    assert len(checkout.calls) == 1


def test_a_failed_installation_is_not_taken_for_done(checkout: Checkout) -> None:
    (checkout.notes / "fail").write_text("[cpu]")
    failed = checkout.run("quickstart")
    assert failed.returncode == 1
    assert "no such wheel" in failed.stderr
    assert "the installation failed" in failed.stderr
    assert SEARCH not in checkout.calls
    half_written = checkout.root / ".venv" / "half-written"
    half_written.touch()
    (checkout.notes / "fail").unlink()
    assert checkout.run("quickstart").returncode == 0
    assert len(checkout.installations) == 3
    assert not half_written.exists()


def test_torch_comes_from_pip_s_own_index_when_the_other_is_out_of_reach(
    checkout: Checkout,
) -> None:
    (checkout.notes / "fail").write_text("--index-url")
    assert checkout.run("quickstart").returncode == 0
    assert len([call for call in checkout.calls if call.startswith("torch==")]) == 2


def test_an_old_python_is_refused_in_words(checkout: Checkout) -> None:
    (checkout.notes / "old").touch()
    refused = checkout.run("quickstart")
    assert refused.returncode == 1
    assert "is not a Python 3.11 or newer" in refused.stderr
    helped = [checkout.run(script, "--help") for script in ("quickstart", "test")]
    assert [done.returncode for done in helped] == [0, 0]
    assert "Needs Python 3.11" in helped[0].stdout
    assert "scripts/test --quick" in helped[1].stdout
    assert not checkout.calls


@pytest.mark.parametrize(
    ("arguments", "selection"),
    [(["-k", "trec"], "-k trec"), (["--quick"], "-m not slow and not data")],
)
def test_the_test_script_adds_its_tools_and_checks_all(
    checkout: Checkout, arguments: list[str], selection: str
) -> None:
    checkout.run("quickstart")
    assert checkout.run("test", *arguments).returncode == 0
    assert f"{checkout.root}[cpu,dev]" in checkout.installations
    first, second, *both = [call for call in checkout.calls if call.startswith("-m ")]
    assert (first, second) == ("-m ruff check .", "-m ruff format --check .")
    types, tests = sorted(both)  # they run side by side
    assert types == "-m mypy"
    assert tests.startswith("-m pytest ") and tests.endswith(selection)


def test_a_change_of_the_requirements_or_of_the_folder_installs_again(checkout: Checkout) -> None:
    checkout.run("quickstart")
    for file in ("pyproject.toml", "scripts/constraints.txt"):
        with (checkout.root / file).open("a") as stream:
            stream.write("# changed\n")
        checkout.run("quickstart")
        assert len(checkout.installations) == 3
    checkout.root = checkout.root.rename(checkout.elsewhere / "moved")
    checkout.run("quickstart")
    assert f"{checkout.root}[cpu]" in checkout.installations
