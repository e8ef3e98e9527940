"""A batch job on a Ray cluster of three nodes of this machine, one of which dies."""

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Command
from helpers.batch_samples import nested, pairs, read_lines, scores, write_lines

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

ROOT = Path(__file__).resolve().parents[2]
NODE = {"num_cpus": 1, "object_store_memory": 80_000_000}
# A dead node is noticed after a second, not after half a minute.
QUICK = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 300,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 3,
}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Three nodes with one core each; the first is the head."""
    for name in ("RAY_USAGE_STATS_ENABLED", "RAY_DISABLE_DOCKER_CPU_WARNING"):
        monkeypatch.setenv(name, "0")
    from ray.cluster_utils import Cluster

    head = {**NODE, "include_dashboard": False, "_system_config": QUICK}
    nodes = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(2):
            nodes.add_node(**NODE, wait=False)
        nodes.wait_for_nodes()
        yield nodes
    finally:
        logs = nodes.head_node.get_session_dir_path()
        nodes.shutdown()
        shutil.rmtree(logs, ignore_errors=True)
    assert not [node for node in nodes.list_all_nodes() if node.any_processes_alive()]


def has_actor(node: Any) -> bool:
    """Whether one of the processes that a node has started is scoring."""
    (raylet,) = node.all_processes["raylet"]
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
            name = (folder / "cmdline").read_text()
        except OSError:  # It has ended.
            continue
        if int(parent) == raylet.process.pid and name.startswith("ray::MapWorker"):
            return True
    return False


def test_a_node_dies_and_every_row_comes_out_once(
    tmp_path: Path, command: Command, cluster: Any
) -> None:
    """Two processes, so that the third node takes over."""
    rows = pairs(nested(300, first_stage=True))
    source = write_lines(tmp_path / "in.jsonl", [*rows[:9000], "{", *rows[9000:]])
    job = ("batch", "--input", source, "--part-size", "30KB", "--threads", 1)
    alone, together = tmp_path / "alone", tmp_path / "together"
    assert command(*job, "--output", alone).code == 1  # A row cannot be read.
    parts = len([*alone.glob("part-*")])
    # A part of the work was done before, by one process.
    together.mkdir()
    for path in [alone / "_manifest.json", *sorted(alone.glob("part-*"))[:3]]:
        shutil.copy2(path, together)
    copied = {path: path.stat().st_mtime_ns for path in together.glob("part-*")}
    done_before: list[int] = []

    def kill() -> None:
        """End a node that scores, but not that of the driver, when some parts are done."""
        while len([*together.glob("part-*")]) < parts // 10:
            time.sleep(0.02)
        node = next(node for node in cluster.worker_nodes if has_actor(node))
        cluster.remove_node(node, allow_graceful=False)
        done_before.append(len([*together.glob("part-*")]))

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    on_cluster = ("--address", cluster.address, "--workers", 2, "--resume")
    # In a process of its own: Ray takes signals away that Java needs.
    words = [sys.executable, "-m", "pipeline.batch", *job[1:], "--output", together, *on_cluster]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*map(str, words)], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stderr
    assert f"{parts} parts, 3 of them done before" in done.stderr
    assert {path: path.stat().st_mtime_ns for path in copied} == copied
    assert parts // 10 <= done_before[0] < parts
    found, expected = read_lines(together), read_lines(alone)
    assert [(row["query_id"], row["doc_id"]) for row in found] == [
        (row["query_id"], row["doc_id"]) for row in rows
    ]
    np.testing.assert_allclose(scores(found), scores(expected), rtol=0, atol=1e-6)
    assert "1 row cannot be read" in done.stderr
    names = {path.name for path in together.rglob("*.jsonl")}
    assert names == {path.name for path in alone.rglob("*.jsonl")}
