"""The service does what its OpenAPI description says, by schemathesis."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.service_samples import app_of, listening

KEY = "correct-horse"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with listening(app_of(keys=[KEY])) as opened:
        yield opened


@pytest.mark.slow
def test_the_service_keeps_to_its_description(address: str, tmp_path: Path) -> None:
    """All checks, by valid and invalid requests; a wrong key, too."""
    done = subprocess.run(
        [
            *(Path(sys.executable).with_name("schemathesis"), "run", f"{address}/openapi.json"),
            *("--checks", "all", "--mode", "all", "--max-examples", "40", "--seed", "1"),
            *("--header", f"Authorization: Bearer {KEY}", "--max-response-time", "5"),
            *("--no-color", "--generation-database", "none", "--continue-on-failure"),
        ],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": str(Path(__file__).parents[1] / "helpers"),
            "SCHEMATHESIS_HOOKS": "schemathesis_hooks",
        },
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr
    assert "Tested: 13" in done.stdout
    assert "Authentication failed" not in done.stdout
