"""The service as a process of its own."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

import httpx

from helpers.processes import ROOT, end_with_parent
from helpers.service_samples import WIRES

BODY = WIRES["tei"].body(raw_scores=True)


class Running(NamedTuple):
    """A service, its address, and the lines of its log until now."""

    process: "subprocess.Popen[str]"
    address: str
    lines: list[str]

    def post(
        self, body: object = BODY, path: str = "/rerank", auth: tuple[str, str] | None = None
    ) -> httpx.Response:
        return httpx.post(f"{self.address}{path}", json=body, timeout=60, auth=auth)

    def wait_for(self, text: str, seconds: float = 60) -> str:
        """The first line of the log with this text."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if with_text := [line for line in self.lines if text in line]:
                return with_text[0]
            time.sleep(0.02)
        raise AssertionError(f"no {text!r} in {self.lines[-5:]}")

    def reload(self, text: str) -> None:
        """Send SIGHUP, and wait for this text in the log."""
        self.process.send_signal(signal.SIGHUP)
        self.wait_for(text)


@contextmanager
def running(*arguments: object, is_read: bool = True, is_ready: bool = True) -> Iterator[Running]:
    """A service, whose log is read to its end or up to its address; perhaps before it is ready."""
    process = subprocess.Popen(
        [sys.executable, "-m", "pipeline.serve", "--port", "0", *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=end_with_parent,
    )
    lines: list[str] = []
    stderr = process.stderr
    assert stderr

    def read() -> None:
        while line := stderr.readline():
            lines.append(line)
            if not is_read and "serving " in line:
                return

    reader = threading.Thread(target=read)
    reader.start()
    service = Running(process, "", lines)
    try:
        if is_ready:
            service.wait_for("serving ")
            assert process.stdout
            loading, address = (process.stdout.readline() for _ in range(2))
            assert loading.startswith("loading ")
            service = service._replace(address=address.strip())
        yield service
    finally:
        process.kill()
        process.wait()
        # Its processes that score are deaf to SIGTERM, and a test may have stopped one.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        reader.join()
