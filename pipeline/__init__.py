"""From topics to a ranking, in Python as on the command line.

::

    import pipeline

    best    = pipeline.ranker("my-posts.toml")
    ranking = best.rank(hits=1000)
    pipeline.write_run("mine.run", ranking.run)
    print(pipeline.evaluate(ranking, "AP", "P@30"))

The names of ``__all__`` are public; what is not among them may change. Each is loaded when it is
first used, so that importing the package costs nothing; type checkers read ``__init__.pyi``.
"""

import signal
import sys
from importlib import import_module
from typing import Any

if sys.argv[:1] == ["-m"] and sys.orig_argv[-len(sys.argv)].startswith("pipeline."):
    # A command: until command.options.run_command begins, Ctrl-C ends it without a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

_MODULES = {
    "DataError": "errors",
    "UsageError": "errors",
    "evaluate": "ranking.reports",
    "for_pyterrier": "notebook",
    "open_collection": "notebook",
    "ranker": "ranking.build",
    "read_run": "collections.trec",
    "write_run": "collections.trec",
}

__all__ = [*_MODULES, "__version__"]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("tweetrerank")
    if name in _MODULES:
        return getattr(import_module(f"pipeline.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
