"""The set-up scripts, run against a stand-in for Python: when they install, and when they don't."""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from helpers.processes import ROOT, started


class Checkout:
    """A copy of what the scripts read, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "a check out"
        self.notes = folder / "notes"
        self.notes.mkdir()
        shutil.copytree(ROOT / "scripts", self.root / "scripts")
        shutil.copy(ROOT / "pyproject.toml", self.root)
        self.stand_in = folder / "python"
        shutil.copy(ROOT / "tests" / "helpers" / "python_stand_in", self.stand_in)
        self.elsewhere = folder

    def start(self, script: str, *arguments: str) -> subprocess.Popen[str]:
        """Start a script from another folder; ``calls`` then has what it asked of Python."""
        (self.notes / "calls").unlink(missing_ok=True)
        environment = {
            k: v for k, v in os.environ.items() if k != "TWEETRERANK_TORCH_INDEX"
        }
        environment |= {
            "NOTES": str(self.notes),
            "TWEETRERANK_PYTHON": str(self.stand_in),
        }
        environment["PYTHON_HERE"] = sys.executable
        # A program in the background, as these tests may be, ignores it.
        heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
        program = (self.root / "scripts" / script, *arguments)
        return started(*program, cwd=self.elsewhere, env=environment, preexec_fn=heed)

    def run(self, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        process = self.start(script, *arguments)
        output, errors = process.communicate(timeout=60)
        return subprocess.CompletedProcess([], process.returncode, output, errors)

    @property
    def calls(self) -> list[str]:
        file = self.notes / "calls"
        return file.read_text().splitlines() if file.exists() else []

    @property
    def installed(self) -> list[str]:
        """What was asked for, by ``python`` (pip) or ``uv``, in the order of the alphabet."""
        made = [
            call.split(maxsplit=1) for call in self.calls if not call.startswith("-m ")
        ]
        return sorted(f"{tool} {Path(what).name.split('==')[0]}" for tool, what in made)

    @property
    def environments(self) -> list[Path]:
        """Once earlier ones are removed, or will not be."""
        for _ in range(500):
            found = [path for path in self.root.glob(".venv-*") if path.is_dir()]
            if len(found) == 1:
                break
            time.sleep(0.01)
        return found


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


SEARCH = "-m pipeline.search --topics sample"
ALL = [
    "python a check out",
    "python build.txt",
    "python installer.txt",
    "python torch",
    "uv packages.txt",
]


def test_quickstart_installs_once_then_only_searches(checkout: Checkout) -> None:
    first = checkout.run("quickstart", "--hits", "5")
    assert first.returncode == 0, first.stderr
    assert checkout.installed == ALL
    assert checkout.calls[-1] == f"{SEARCH} --hits 5"
    packages = (checkout.root / ".venv" / "packages.txt").read_text()
    assert "\nnumpy==" in packages and "torch==" not in packages
    for phase in (
        "installing 47 packages",
        " s: packages",
        " s: PyTorch",
        "installed in ",
    ):
        assert (
            phase in first.stderr and phase in (checkout.root / ".venv.log").read_text()
        )
    assert checkout.run("quickstart").returncode == 0
    assert checkout.calls == [SEARCH]
    assert (checkout.notes / "seen").read_text() == f"{checkout.root} 8589934592\n"
    # Programs of the environment outlive it, as does a shell in which it was activated.
    assert (
        checkout.root / ".venv" / "bin" / "x"
    ).read_text() == f"#!{checkout.root}/.venv\n"


@pytest.mark.slow
def test_a_larger_set_has_the_smaller_ones(checkout: Checkout) -> None:
    serve = ("--serve", "--port", "9000")
    for arguments, installs in (((), ALL), (serve, ALL), ((), []), (serve, [])):
        assert checkout.run("quickstart", *arguments).returncode == 0
        assert checkout.installed == installs
        [environment] = checkout.environments
        assert (checkout.root / ".venv").resolve() == environment
    assert checkout.calls == ["-m pipeline.serve --collection sample --port 9000"]
    # A change of the requirements or of the folder installs again, and takes nothing away.
    for file in ("pyproject.toml", "scripts/locks/serve.txt"):
        with (checkout.root / file).open("a") as stream:
            stream.write("# changed\n")
        checkout.run("quickstart", "--serve")
        assert checkout.installed == ALL
    checkout.root = checkout.root.rename(checkout.elsewhere / "moved")
    checkout.run("quickstart")
    assert "python moved" in checkout.installed
    assert "\nuvicorn==" in (checkout.root / ".venv" / "packages.txt").read_text()


@pytest.mark.slow
def test_a_failed_installation_changes_nothing(checkout: Checkout) -> None:
    checkout.run("quickstart")
    before = (checkout.root / ".venv").resolve()
    for failing in ("packages.txt", "torch==", "--editable"):
        (checkout.notes / "fail").write_text(failing)
        failed = checkout.run("quickstart", "--serve")
        assert failed.returncode == 1
        assert (
            "no such wheel" in failed.stderr
            and "the installation failed" in failed.stderr
        )
        assert not [call for call in checkout.calls if "pipeline.serve" in call]
        assert (checkout.root / ".venv").resolve() == before
        checkout.run("quickstart")
        assert checkout.calls == [SEARCH]
    (checkout.notes / "fail").unlink()
    assert checkout.run("quickstart", "--serve").returncode == 0
    assert len(checkout.environments) == 1


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_installation_changes_nothing(
    checkout: Checkout, sent: int
) -> None:
    checkout.run("quickstart")
    (checkout.notes / "hang").write_text("packages.txt")
    process = checkout.start("test")
    # They run side by side.
    while not {"uv packages.txt", "python torch"} <= {*checkout.installed}:
        time.sleep(0.01)
    process.send_signal(sent)
    if sent != signal.SIGKILL:
        _, errors = process.communicate(timeout=30)
        assert process.returncode == 130
        assert "interrupted; what was installed before is as it was" in errors
    else:
        process.wait()
    checkout.run("quickstart")
    assert checkout.calls == [SEARCH]
    # After a kill uv is still at work, and the next installation waits for its end.
    (checkout.notes / "hang").unlink()
    assert checkout.run("test").returncode == 0
    assert len(checkout.environments) == 1


@pytest.mark.skipif(not shutil.which("flock"), reason="nobody waits")
def test_waiting_for_another_installation_is_told(checkout: Checkout) -> None:
    with (checkout.root / "scripts" / "locks" / "installer.txt").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process = checkout.start("quickstart")
        assert process.stderr
        assert "another installation is at work here" in process.stderr.readline()
        assert "another installation" in (checkout.root / ".venv.log").read_text()
    process.communicate(timeout=60)
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("failing", "again"),
    [("bin/uv", "python packages.txt"), ("--index-url", "python torch")],
)
def test_pip_and_its_own_index_take_over(
    checkout: Checkout, failing: str, again: str
) -> None:
    """Where uv fails, or PyTorch's index is out of reach."""
    (checkout.notes / "fail").write_text(failing)
    assert checkout.run("quickstart").returncode == 0
    assert checkout.installed == sorted([*ALL, again])


def test_what_cannot_be_used_is_refused_in_words(checkout: Checkout) -> None:
    (checkout.notes / "old").touch()
    refused = checkout.run("quickstart")
    assert refused.returncode == 1
    assert "is not a Python 3.11 or newer" in refused.stderr
    (checkout.root / ".venv").mkdir()  # of others
    refused = checkout.run("quickstart")
    assert (refused.returncode, "move it away" in refused.stderr) == (1, True)
    shown = {
        "quickstart": "Python 3.11",
        "test": "test --quick",
        "lock": "scripts/lock --upgrade",
    }
    for script, text in shown.items():
        helped = checkout.run(script, "--help")
        assert (helped.returncode, text in helped.stdout) == (0, True)
    assert not checkout.calls


def test_the_test_script_adds_its_tools_and_checks_all(checkout: Checkout) -> None:
    checkout.run("quickstart")
    assert checkout.run("test", "-k", "trec").returncode == 0
    assert checkout.installed == ALL
    assert "\npytest==" in (checkout.root / ".venv" / "packages.txt").read_text()
    first, second, *both = [call for call in checkout.calls if call.startswith("-m ")]
    assert (first, second) == ("-m ruff check .", "-m ruff format --check .")
    types, tests = sorted(both)  # they run side by side
    assert types == "-m mypy"
    assert tests.startswith("-m pytest ") and tests.endswith("-k trec")
    assert checkout.run("test", "--quick").returncode == 0
    assert any(call.endswith("-m not slow and not data") for call in checkout.calls)
    for failing in ("ruff check", "mypy", "pytest"):
        (checkout.notes / "fail").write_text(failing)
        assert checkout.run("test").returncode == 1
