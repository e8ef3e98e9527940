"""Fixtures of all tests: the folder of real data, and a home folder of each test's own."""

import os
from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that read the real collections."""
    for item in items:
        if "data_dir" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.data)


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of the real data; tests that need it are skipped where there is none."""
    folder = os.environ.get("TWEETRERANK_DATA")
    if not folder or not (Path(folder) / "microblog").is_dir():
        pytest.skip("no data (set TWEETRERANK_DATA or run scripts/fetch_data.py)")
    return Path(folder)


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is read from or written to the user's own cache."""
    monkeypatch.setenv("TWEETRERANK_HOME", str(tmp_path / "home"))
