"""What the tests share: where the real data is, and a home folder of their own."""

import os
from pathlib import Path

import pytest


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
