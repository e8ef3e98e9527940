"""The command scripts/fetch_data.py."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parent.parent / "scripts" / "fetch_data.py"


def fetch_data(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, arguments)], capture_output=True, text=True
    )


def test_list_shows_paths_and_what_is_missing(tmp_path: Path) -> None:
    result = fetch_data("mb11", "--list", "--data", tmp_path)
    assert result.returncode == 0
    assert "microblog/topics.microblog2011.txt" in result.stdout
    assert "0 of" in result.stdout


def test_check_fails_and_names_each_missing_file(tmp_path: Path) -> None:
    result = fetch_data("mb2013", "--check", "--data", tmp_path)
    assert result.returncode == 1
    assert "microblog/qrels.microblog2013.txt" in result.stdout
    assert "missing or damaged" in result.stderr


def test_unknown_names_are_usage_errors(tmp_path: Path) -> None:
    result = fetch_data("mb2021", "--bogus", "--data", tmp_path)
    assert result.returncode == 2
    assert "--bogus" in result.stderr
    assert "Traceback" not in result.stderr
    result = fetch_data("mb2021", "--data", tmp_path)
    assert result.returncode == 2
    assert "did you mean 'mb20" in result.stderr


def test_check_of_the_data(data_dir: Path) -> None:
    result = fetch_data("mb2012", "--check", "--data", data_dir)
    assert result.returncode == 0, result.stderr
