"""Compare the served model with its challenger by users' clicks, and promote the better one.

  python -m pipeline.compare log
  python -m pipeline.compare log --promote
  python -m pipeline.compare log --rollback

The log is that of pipeline.serve --log DIR --challenger DIR. A search is a win of the challenger if
more of its posts were clicked than of the served model's. The test may be looked at any time: of
challengers that are no better, a share of 1 - --level at most is ever promoted (sources:
pipeline/loop/comparison.py). --promote gives the challenger the served model's place, as soon as
the level is reached; the old model is kept, and --rollback puts it back. SIGHUP tells the service.
"""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from pipeline.command.errors import DataError, UsageError
from pipeline.command.main import run
from pipeline.command.options import argument, fraction, option

if TYPE_CHECKING:
    from pipeline.collections.collection import SearchedCollection
    from pipeline.loop.comparison import Comparison

PREVIOUS = ".previous"  # At the end of the name of a folder or file that was replaced


@dataclass(frozen=True)
class Options:
    """The log, and what to do."""

    log: Path = argument("folder of the log", parse=Path)
    level: float = option("confidence that a promotion needs", default=0.95, parse=fraction)
    promote: bool = option("serve the challenger, if it is better at this level", flag=True)
    rollback: bool = option("serve the model before the last promotion", flag=True)


def main(options: Options) -> None:
    """Report, and move models."""
    from pipeline.loop.comparison import read_comparison

    if options.promote and options.rollback:
        raise UsageError("--promote and --rollback: found both, expected one of them")
    if not 0.5 <= options.level < 1:
        raise UsageError(f"--level: found {options.level:g}, expected from 0.5 to below 1")
    if options.rollback:
        rollback(options.log)
        return
    state = read_comparison(options.log)
    report(state, options.level)
    if options.promote:
        if not state.is_agreed(options.level):
            raise DataError(f"the challenger is not better at the level {options.level:g} (yet)")
        promote(options.log, state, options.level)


def report(state: Comparison, level: float) -> None:
    """Print outcomes, the test, and what it needs."""
    from pipeline.command.runtime import print_table

    if not state.searches:
        raise DataError("found no interleaved search, expected some by serve --challenger DIR")
    print(f"champion {state.champion[:12]}, challenger {state.challenger[:12]}")
    outcomes = ("searches", "wins", "losses", "ties")
    print_table(outcomes, [[f"{getattr(state, name):,}" for name in outcomes]], left=())
    low, high = state.interval(level)
    print(
        f"share of wins {state.share:.3f}, from {low:.3f} to {high:.3f} (each limit at the level "
        f"{level:g}, at any time)\n"
        f"evidence that the challenger is better: {state.evidence:.3g}, promotion needs "
        f"{1 / (1 - level):.3g}"
    )
    if state.is_agreed(level):
        print("the challenger is better: --promote serves it")
    elif (needed := state.needed(level)) is None:
        print("the challenger is not ahead: no number of searches like these would promote it")
    else:
        print(f"about {needed:,} more clicked searches would do, if the shares stay")


def promote(log: Path, state: Comparison, level: float) -> None:
    """Give the challenger the champion's place, and keep that.

    Raises DataError if the challenger is not the model that users saw, or the champion is a shipped
    model without a collection, which nothing can replace.
    """
    from dataclasses import asdict

    from indexes.files import write_bytes
    from pipeline.loop.log import append_promotion, read_serving
    from pipeline.ranking.build import Source, best_source
    from rerankers.checkpoint import ADAPTED_FILE

    serving = read_serving(log)
    challenger = Path(serving["challenger"])
    if Source(challenger).version != state.challenger:
        raise DataError(
            f"{challenger}: found another model than the one that was compared; send SIGHUP to the "
            "service, and compare the new one"
        )
    target, collection = _target(log, challenger)
    if target.exists():
        _copy(target, target.with_name(target.name + PREVIOUS))
    vectors = challenger / ADAPTED_FILE
    beside = collection and collection.adapted_path
    if beside and vectors.exists() and beside.exists():
        shutil.copy(beside, beside.with_name(beside.name + PREVIOUS))
        write_bytes(beside, vectors.read_bytes())
    _copy(challenger, target)
    record = {"action": "promote", "level": level, "folder": str(target)}
    append_promotion(log, record | asdict(state))
    shutil.rmtree(challenger)
    if collection and (best := best_source(collection).folder) != target:
        print(
            f"note: {best} is still preferred for {collection.title}, by its figure on held-out "
            "topics; move it away to serve the new model",
            file=sys.stderr,
        )
    print(f"promoted: {target} is the challenger now; send SIGHUP to the service")


def rollback(log: Path) -> None:
    """Change places of the promoted model and the one before; raises DataError without any."""
    from pipeline.loop.log import append_promotion, read_promotions

    records = read_promotions(log)
    if not records or records[-1]["action"] != "promote":
        raise DataError(f"{log}: found no promotion that is in force, expected one to take back")
    target = Path(records[-1]["folder"])
    previous = target.with_name(target.name + PREVIOUS)
    with TemporaryDirectory(dir=target.parent) as folder:
        promoted = target.rename(Path(folder) / "promoted")
        if previous.exists():
            previous.rename(target)
        promoted.rename(previous)
    _, collection = _target(log, previous)
    if beside := collection and collection.adapted_path:
        old = beside.with_name(beside.name + PREVIOUS)
        if old.exists():
            old.replace(beside)
    append_promotion(log, {"action": "rollback", "folder": str(target)})
    print(f"taken back: the model is kept in {previous}; send SIGHUP to the service")


def _target(log: Path, model: Path) -> tuple[Path, SearchedCollection | None]:
    """The folder that a model is to be served from, and its collection; raises DataError."""
    from pipeline.collections import named
    from pipeline.collections.collection import SearchedCollection, home_directory
    from pipeline.loop.log import read_serving
    from pipeline.ranking.checkpoints import ADAPTED_SUFFIX
    from rerankers import checkpoint as checkpoints

    serving = read_serving(log)
    if serving["collection"] is None:
        folder = Path(serving["checkpoint"])
        if folder.is_relative_to(checkpoints.SHIPPED):
            raise DataError(
                f"{folder}: found a shipped model, which stays as it is; serve a folder of your "
                "own by --checkpoint, or a --collection"
            )
        return folder, None
    collection = named.find(serving["collection"])
    assert isinstance(collection, SearchedCollection)
    is_adapted = (model / checkpoints.ADAPTED_FILE).exists()
    folder = home_directory() / "checkpoints" / checkpoints.load(model).name
    return folder / (collection.key + ADAPTED_SUFFIX * is_adapted), collection


def _copy(source: Path, target: Path) -> None:
    from indexes.files import atomic_directory

    with atomic_directory(target) as new:
        shutil.copytree(source, new, dirs_exist_ok=True)


if __name__ == "__main__":
    run("compare")
