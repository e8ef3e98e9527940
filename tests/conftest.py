"""Fixtures of all tests: real data, a home folder for each test, and commands."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from helpers.data_samples import write_answers
from helpers.engine_servers import NAMES, SERVERS, Server, running
from helpers.processes import descendants

from tweetrerank.pipeline.command.options import run_command


class Result(NamedTuple):
    code: int  # Exit code
    out: str
    err: str


# Command line of a module of ``pipeline``, further arguments -> result
Command = Callable[..., Result]
Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that read the real collections, and run those of engines last.

    The search engines may still be starting.
    """
    for item in items:
        if "data_dir" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.data)
    items.sort(key=lambda item: any(map(item.get_closest_marker, NAMES)))


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of the real data; without it, the test is skipped."""
    folder = os.environ.get("TWEETRERANK_DATA")
    if not folder or not (Path(folder) / "microblog").is_dir():
        pytest.skip("no data (set TWEETRERANK_DATA or run tweetrerank fetch)")
    return Path(folder)


@pytest.fixture(scope="session")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made-up questions with given answers; WikiQA's test part has no labels."""
    folder = write_answers(tmp_path_factory.mktemp("answers"))
    (folder / "wikiqa" / "test" / "sim.txt").unlink()
    return folder


@pytest.fixture(scope="session")
def served_page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A ``ServedPage`` of the service's samples, which take a second to import."""
    from helpers.service_samples import served

    folder = tmp_path_factory.mktemp("page")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TWEETRERANK_HOME", str(folder / "home"))
        with served(folder) as page:
            yield page


@pytest.fixture(scope="module", params=SERVERS)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """Each search engine of the environment."""
    with running(request.param) as engine:
        yield engine


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: Patch) -> None:
    """A home folder for each test, so that no test uses the user's cache."""
    monkeypatch.setenv("TWEETRERANK_HOME", str(tmp_path / "home"))


@pytest.fixture
def pools(
    _home: None, tmp_path_factory: pytest.TempPathFactory, monkeypatch: Patch
) -> None:
    """A home folder for all such tests of a process, whose indexes are built once."""
    folder = tmp_path_factory.getbasetemp() / "pools"
    monkeypatch.setenv("TWEETRERANK_HOME", str(folder))


@pytest.fixture(scope="session", autouse=True)
def _no_process_is_left() -> Iterator[None]:
    """End the processes that tests have stopped.

    Scoring processes ignore SIGTERM, so a stopped one would stay for ever.
    """
    yield
    for process in descendants(os.getpid()):
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


@pytest.fixture
def command(capsys: Capture) -> Command:
    """Runs a command in this process, which saves the imports of another one.

    The first argument is split at blanks: ``command("search --topics sample", path)``.
    ``code`` is the expected exit code.
    """

    def call(line: str, *arguments: object, code: int | None = None) -> Result:
        name, *words = line.split()
        words += map(str, arguments)
        module = import_module(f"tweetrerank.pipeline.{name}")
        program = f"python -m pipeline.{name}"
        with pytest.raises(SystemExit) as exit_info:
            run_command(module.Options, module.main, program, module.__doc__, words)
        output, errors = capsys.readouterr()
        exit_code = exit_info.value.code
        assert isinstance(exit_code, int)
        assert code in (None, exit_code), errors
        return Result(exit_code, output, errors)

    return call
