"""Child process of part 3: ``pipeline.search`` with a clock around its functions.

    python staged_search.py RESULT STARTED ARGUMENT…

``RESULT`` is the output file with the seconds of each stage, ``STARTED`` the start time of this
process in seconds since 1970; the other arguments go to ``pipeline.search``. The search is
unchanged, except that all modules are imported first.
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

STARTUP, JAVA = "start-up: Python, imports", "start-up: Java"
RETRIEVAL, LOADING, TOKENIZING = "retrieval", "loading the model", "tokenizing"
TABLES, MATCHING = "computing tables", "matching"
WRITING, REPORTS = "writing", "evaluation and reports"
STAGES = (STARTUP, JAVA, RETRIEVAL, LOADING, TOKENIZING, TABLES, MATCHING, WRITING, REPORTS)

ENDED = "ended"
"""End of the search in seconds since 1970; the interpreter's exit follows."""

# The stage of each timed function; a timed function inside another counts for its own stage only.
_FUNCTIONS = {
    ("indexes.jvm", "start"): JAVA,
    ("pipeline.ranking.ranker", "retriever_for"): RETRIEVAL,
    ("pipeline.ranking.ranker", "IndexRetriever.search"): RETRIEVAL,
    ("pipeline.ranking.checkpoints", "load_scorer"): LOADING,
    ("rerankers.scoring.batches", "score"): TOKENIZING,
    ("rerankers.scoring.batches", "score_tokenized"): MATCHING,
    ("rerankers.scoring.batches", "score_lists"): MATCHING,
    ("rerankers.scoring.fast_paths", "find"): TABLES,
    ("pipeline.collections.trec", "write_run"): WRITING,
    ("pipeline.evaluation.reports", "print_measures"): REPORTS,
    ("pipeline.evaluation.reports", "print_topic"): REPORTS,
}

# Further modules that the search imports, the slow ones among them.
_MODULES = (
    *("ir_measures", "jnius_config", "numpy", "torch", "tqdm", "wordfreq"),
    *("indexes.lucene", "pipeline.collections.named", "pipeline.ranking.fusion", "pipeline.search"),
    *(
        "rerankers.checkpoint",
        "rerankers.scoring.tokenized",
        "rerankers.scoring.fast_paths.mp_hcnn",
    ),
    "rerankers.models.mp_hcnn",
)


class Clock:
    """Seconds of each stage; within nested stages the innermost counts."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(STAGES, 0.0)
        self._running: list[str] = []
        self._since = time.perf_counter()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Charge the time inside to this stage."""
        self._charge()
        self._running.append(name)
        try:
            yield
        finally:
            self._charge()
            self._running.pop()

    def wrap(self, module: str, function: str, stage: str) -> None:
        """Time all calls of a module's function or method (``Class.function``)."""
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
    """Search, then write the seconds of each stage and :data:`ENDED` as JSON."""
    for module in [*_MODULES, *(module for module, _ in _FUNCTIONS)]:
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
