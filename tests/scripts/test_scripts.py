"""The set-up scripts with a stand-in for Python: when they install and when not."""

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
    """A copy of the files that the scripts read, in a separate folder."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "a check out"
        self.environment = self.root / ".venv"
        self.notes = folder / "notes"
        self.notes.mkdir()
        shutil.copytree(ROOT / "scripts", self.root / "scripts")
        shutil.copy(ROOT / "pyproject.toml", self.root)
        self.stand_in = folder / "python"
        shutil.copy(ROOT / "tests" / "helpers" / "python_stand_in", self.stand_in)
        self.elsewhere = folder

    def start(self, script: str, arguments: str = "") -> subprocess.Popen[str]:
        """Start a script from another folder; ``calls`` has its calls of Python."""
        (self.notes / "calls").unlink(missing_ok=True)
        variables = dict(os.environ)
        variables.pop("TWEETRERANK_TORCH_INDEX", None)
        variables |= {
            "NOTES": str(self.notes),
            "TWEETRERANK_PYTHON": str(self.stand_in),
            "PYTHON_HERE": sys.executable,
        }
        # A background program, such as these tests may be, ignores SIGINT.
        handle = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
        command: list[object] = [self.root / "scripts" / script]
        command += arguments.split()
        return started(
            *command,
            cwd=self.elsewhere,
            env=variables,
            preexec_fn=handle,
        )

    def run(
        self,
        script: str,
        arguments: str = "",
    ) -> subprocess.CompletedProcess[str]:
        process = self.start(script, arguments)
        output, errors = process.communicate(timeout=60)
        return subprocess.CompletedProcess([], process.returncode, output, errors)

    def fail(self, text: str) -> None:
        """Let installations and tools fail whose arguments contain a text."""
        (self.notes / "fail").write_text(text)

    def hang(self, text: str) -> None:
        """Let installations hang whose arguments contain a text."""
        (self.notes / "hang").write_text(text)

    @property
    def calls(self) -> list[str]:
        file = self.notes / "calls"
        return file.read_text().splitlines() if file.exists() else []

    @property
    def tools(self) -> list[str]:
        """Calls of modules."""
        return [call for call in self.calls if call.startswith("-m ")]

    @property
    def installed(self) -> list[str]:
        """Installations by ``python`` (pip) or ``uv``, sorted."""
        installations = []
        for call in self.calls:
            if not call.startswith("-m "):
                tool, requirement = call.split(maxsplit=1)
                name = Path(requirement).name.split("==")[0]
                installations.append(f"{tool} {name}")
        return sorted(installations)

    @property
    def environments(self) -> list[Path]:
        """The folders of environments, after some time to remove earlier ones."""
        for _ in range(500):
            folders = [path for path in self.root.glob(".venv-*") if path.is_dir()]
            if len(folders) == 1:
                break
            time.sleep(0.01)
        return folders


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


def test_quickstart_installs_and_searches(checkout: Checkout) -> None:
    first = checkout.run("quickstart", "--hits 5")
    assert first.returncode == 0, first.stderr
    assert checkout.installed == ALL
    assert checkout.calls[-1] == f"{SEARCH} --hits 5"
    packages = (checkout.environment / "packages.txt").read_text()
    assert "\nnumpy==" in packages
    assert "torch==" not in packages
    log = (checkout.root / ".venv.log").read_text()
    phases = ["installing 47 packages", " s: packages", " s: PyTorch", "installed in "]
    assert [phase for phase in phases if phase not in first.stderr] == []
    assert [phase for phase in phases if phase not in log] == []


def test_a_second_quickstart_only_searches(checkout: Checkout) -> None:
    checkout.run("quickstart", "--hits 5")
    assert checkout.run("quickstart").returncode == 0
    assert checkout.calls == [SEARCH]
    assert (checkout.notes / "seen").read_text() == f"{checkout.root} 8589934592\n"
    # Programs of the environment outlive it, like a shell in which it was activated.
    program = (checkout.environment / "bin" / "x").read_text()
    assert program == f"#!{checkout.environment}\n"


@pytest.mark.slow
def test_a_larger_set_has_the_smaller_ones(checkout: Checkout) -> None:
    serve = "--serve --port 9000"
    for arguments, installed in (("", ALL), (serve, ALL), ("", []), (serve, [])):
        assert checkout.run("quickstart", arguments).returncode == 0
        assert checkout.installed == installed
        [environment] = checkout.environments
        assert checkout.environment.resolve() == environment
    assert checkout.calls == ["-m pipeline.serve --collection sample --port 9000"]


@pytest.mark.slow
@pytest.mark.parametrize("file", ["pyproject.toml", "scripts/locks/serve.txt"])
def test_changed_requirements_are_installed(checkout: Checkout, file: str) -> None:
    checkout.run("quickstart", "--serve")
    with (checkout.root / file).open("a") as stream:
        stream.write("# changed\n")
    checkout.run("quickstart", "--serve")
    assert checkout.installed == ALL


@pytest.mark.slow
def test_a_moved_checkout_is_installed(checkout: Checkout) -> None:
    """The set stays the larger one."""
    checkout.run("quickstart", "--serve")
    root = checkout.root.rename(checkout.elsewhere / "moved")
    checkout.root = root
    checkout.run("quickstart")
    assert "python moved" in checkout.installed
    assert "\nuvicorn==" in (root / ".venv" / "packages.txt").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("failing", ["packages.txt", "torch==", "--editable"])
def test_a_failed_installation_changes_nothing(
    checkout: Checkout,
    failing: str,
) -> None:
    checkout.run("quickstart")
    before = checkout.environment.resolve()
    checkout.fail(failing)
    failed = checkout.run("quickstart", "--serve")
    assert failed.returncode == 1
    assert "no such wheel" in failed.stderr
    assert "the installation failed" in failed.stderr
    assert not [call for call in checkout.calls if "pipeline.serve" in call]
    assert checkout.environment.resolve() == before
    checkout.run("quickstart")
    assert checkout.calls == [SEARCH]
    (checkout.notes / "fail").unlink()
    assert checkout.run("quickstart", "--serve").returncode == 0
    assert len(checkout.environments) == 1


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_installation_changes_nothing(
    checkout: Checkout,
    number: int,
) -> None:
    checkout.run("quickstart")
    checkout.hang("packages.txt")
    process = checkout.start("test")
    # Both installations run at the same time.
    while not {"uv packages.txt", "python torch"} <= set(checkout.installed):
        time.sleep(0.01)
    process.send_signal(number)
    if number != signal.SIGKILL:
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


@pytest.mark.skipif(not shutil.which("flock"), reason="without flock nobody waits")
def test_waiting_for_another_installation_is_reported(checkout: Checkout) -> None:
    with (checkout.root / "scripts" / "locks" / "installer.txt").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process = checkout.start("quickstart")
        assert process.stderr
        assert "another installation is at work here" in process.stderr.readline()
        assert "another installation" in (checkout.root / ".venv.log").read_text()
    process.communicate(timeout=60)
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("failing", "fallback"),
    [
        ("bin/uv", "python packages.txt"),  # pip in place of uv
        ("--index-url", "python torch"),  # pip's default index in place of PyTorch's
    ],
)
def test_pip_and_its_default_index_take_over(
    checkout: Checkout,
    failing: str,
    fallback: str,
) -> None:
    checkout.fail(failing)
    assert checkout.run("quickstart").returncode == 0
    assert checkout.installed == sorted([*ALL, fallback])


def test_an_old_python_is_refused(checkout: Checkout) -> None:
    (checkout.notes / "old").touch()
    refused = checkout.run("quickstart")
    assert refused.returncode == 1
    assert "is not a Python 3.11 or newer" in refused.stderr
    assert not checkout.calls


def test_a_foreign_environment_is_refused(checkout: Checkout) -> None:
    checkout.environment.mkdir()
    refused = checkout.run("quickstart")
    assert refused.returncode == 1
    assert "move it away" in refused.stderr
    assert not checkout.calls


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ("quickstart", "Python 3.11"),
        ("test", "test --quick"),
        ("lock", "scripts/lock --upgrade"),
    ],
)
def test_help_needs_no_environment(
    checkout: Checkout,
    script: str,
    text: str,
) -> None:
    process = checkout.run(script, "--help")
    assert process.returncode == 0
    assert text in process.stdout
    assert not checkout.calls


def test_the_test_script_adds_its_tools_and_checks_all(checkout: Checkout) -> None:
    checkout.run("quickstart")
    assert checkout.run("test", "-k trec").returncode == 0
    assert checkout.installed == ALL
    assert "\npytest==" in (checkout.environment / "packages.txt").read_text()
    assert checkout.tools[:2] == ["-m ruff check .", "-m ruff format --check ."]
    types, tests = sorted(checkout.tools[2:])  # They run at the same time.
    assert types == "-m mypy"
    assert tests.startswith("-m pytest ")
    assert tests.endswith("-k trec")


def test_the_quick_tests_need_no_data(checkout: Checkout) -> None:
    assert checkout.run("test", "--quick").returncode == 0
    assert any(call.endswith("-m not slow and not data") for call in checkout.calls)


@pytest.mark.parametrize("failing", ["ruff check", "mypy", "pytest"])
def test_the_test_script_fails_with_a_check(checkout: Checkout, failing: str) -> None:
    checkout.run("test")
    checkout.fail(failing)
    assert checkout.run("test").returncode == 1
    assert any(call.startswith(f"-m {failing}") for call in checkout.calls)
