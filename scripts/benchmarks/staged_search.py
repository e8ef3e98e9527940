"""A child process of part 3: ``pipeline.search`` with a clock around the functions it calls.

    python staged_search.py RESULT STARTED ARGUMENT…

``RESULT`` is the file for the seconds of each stage, ``STARTED`` the time (in seconds since 1970)
at which this process was started; what follows goes to ``pipeline.search``. Nothing of the search
is changed but that functions note their time, and that all modules are imported first.
"""

import functools
import importlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from indexes.files import atomic_file
from pipeline.command.runtime import keep_allocations

STARTUP = "start-up: Python, imports"
STAGES = (
    STARTUP, "start-up: Java", "retrieval", "loading the model", "reading texts", "tabulating",
    "matching", "writing", "evaluation and reports",
)  # fmt: skip
ENDED = "ended"
"""When the search was done, in seconds since 1970; what follows is the interpreter's leaving."""

# Modules that the search imports on its way, the slow ones among them.
_MODULES = (
    "ir_measures", "jnius_config", "numpy", "torch", "tqdm", "wordfreq",
    "indexes.jvm", "indexes.lucene", "pipeline.checkpoints", "pipeline.fusion",
    "pipeline.evaluation.reports",
    "pipeline.reranking", "pipeline.search",
    "pipeline.collections.named", "pipeline.collections.trec",
    "rerankers.checkpoint", "rerankers.engine.tokenized", "rerankers.engine.fast_paths.mp_hcnn",
    "rerankers.engine.scoring", "rerankers.models.mp_hcnn",
)  # fmt: skip

# Module and name of a function -> the stage that its time belongs to; what a function calls that
# is here as well counts for that stage alone.
_FUNCTIONS = {
    ("indexes.jvm", "start"): "start-up: Java",
    ("pipeline.reranking", "retriever_for"): "retrieval",
    ("pipeline.reranking", "LuceneRetriever.search"): "retrieval",
    ("pipeline.checkpoints", "load_reranker"): "loading the model",
    ("rerankers.engine.scoring", "score"): "reading texts",
    ("rerankers.engine.scoring", "score_tokenized"): "matching",
    ("rerankers.engine.fast_paths", "find"): "tabulating",
    ("pipeline.collections.trec", "write_run"): "writing",
    ("pipeline.evaluation.reports", "print_measures"): "evaluation and reports",
    ("pipeline.evaluation.reports", "print_topic"): "evaluation and reports",
}


class Clock:
    """Seconds of each stage; of stages within one another the innermost counts."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(STAGES, 0.0)
        self._running: list[str] = []
        self._since = time.perf_counter()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """What runs inside belongs to this stage."""
        self._charge()
        self._running.append(name)
        try:
            yield
        finally:
            self._charge()
            self._running.pop()

    def wrap(self, module: str, function: str, stage: str) -> None:
        """Have every call of a module's function, or of a class's (``Class.function``), counted."""
        *owners, function = function.split(".")
        owner: Any = functools.reduce(getattr, owners, importlib.import_module(module))
        inner: Callable[..., Any] = getattr(owner, function)

        def timed(*arguments: Any, **named: Any) -> Any:
            with self.stage(stage):
                return inner(*arguments, **named)

        setattr(owner, function, timed)

    def _charge(self) -> None:
        now = time.perf_counter()
        if self._running:
            self.seconds[self._running[-1]] += now - self._since
        self._since = now


def main(result: Path, started: float, arguments: list[str]) -> None:
    """Search, then write the seconds of each stage, and :data:`ENDED`, as JSON."""
    for module in _MODULES:
        importlib.import_module(module)
    from pipeline import search
    from pipeline.command.options import parse_arguments

    clock = Clock()
    for (module, function), stage in _FUNCTIONS.items():
        clock.wrap(module, function, stage)
    clock.seconds[STARTUP] = time.time() - started
    search.main(parse_arguments(search.Options, "pipeline.search", None, arguments))
    with atomic_file(result) as stream:
        json.dump({**clock.seconds, ENDED: time.time()}, stream)


if __name__ == "__main__":
    keep_allocations()
    main(Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3:])
