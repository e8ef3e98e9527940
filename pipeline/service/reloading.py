"""Reloads in a thread, on request by a signal."""

from collections.abc import Callable
from threading import BoundedSemaphore, Lock, Thread


class Reloader:
    """Runs ``work`` in a thread after each request for it.

    Only one run is in progress at a time, and at most one more waits for its end.
    """

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._may_wait = BoundedSemaphore(1)
        self._in_progress = Lock()

    def request(self) -> None:
        """Ask for a run. This does nothing if a run already waits."""
        if self._may_wait.acquire(blocking=False):
            Thread(target=self._run, name="reload", daemon=True).start()

    def _run(self) -> None:
        with self._in_progress:
            self._may_wait.release()
            self._work()
