"""Fixtures of all tests: real data, a home folder of each test's own, commands in this process."""

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


@pytest.fixture(scope="session")
def served_page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A ``ServedPage`` of the service's samples, which take a second to import."""
    from helpers.service_samples import served

    folder = tmp_path_factory.mktemp("page")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TWEETRERANK_HOME", str(folder / "home"))
        with served(folder) as page:
            yield page


Command = Callable[..., Result]  # Name of a module of ``pipeline``, arguments -> result
Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that read the real collections; those of search engines, which may still be
    starting, come last."""
    for item in items:
        if "data_dir" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.data)
    items.sort(key=lambda item: any(map(item.get_closest_marker, NAMES)))


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of the real data; tests that need it are skipped where there is none."""
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


@pytest.fixture(scope="module", params=SERVERS)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with running(request.param) as found:
        yield found


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: Patch) -> None:
    """Nothing is read from or written to the user's own cache."""
    monkeypatch.setenv("TWEETRERANK_HOME", str(tmp_path / "home"))


@pytest.fixture
def pools(
    _home: None, tmp_path_factory: pytest.TempPathFactory, monkeypatch: Patch
) -> None:
    """Indexes are kept, and built once for all such tests of a process."""
    monkeypatch.setenv(
        "TWEETRERANK_HOME", str(tmp_path_factory.getbasetemp() / "pools")
    )


@pytest.fixture(scope="session", autouse=True)
def _no_process_is_left() -> Iterator[None]:
    """Processes that score are deaf to SIGTERM; one that a test has stopped would stay for ever."""
    yield
    for process in descendants(os.getpid()):
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


@pytest.fixture
def command(capsys: Capture) -> Command:
    """Runs a command in this process, which saves a new one's imports; ``code`` is the expected."""

    def call(name: str, *arguments: object, code: int | None = None) -> Result:
        module, words = (
            import_module(f"tweetrerank.pipeline.{name}"),
            [*map(str, arguments)],
        )
        program = f"python -m pipeline.{name}"
        with pytest.raises(SystemExit) as left:
            run_command(module.Options, module.main, program, module.__doc__, words)
        output, errors = capsys.readouterr()
        assert isinstance(left.value.code, int)
        assert code in (None, left.value.code), errors
        return Result(left.value.code, output, errors)

    return call
