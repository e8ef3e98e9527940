"""Folds of topics, and a model trained across them or on a training part.

A collection that has a development part is trained on its training part and stopped early by the
development part. Elsewhere validation is by topic. With K folds each topic is held out once: early
stopping watches the held-out fold, its scores (by a model that has not seen its judgments) serve to
tune λ, and the model that is kept is trained on all topics for the median of the folds' best
epochs. With one fold, 15 % of the topics are held out once and the model of the best epoch is kept.
"""

import dataclasses
import gzip
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pipeline.collections.trec import Run, format_run
from pipeline.training.training_set import JudgedCandidates

if TYPE_CHECKING:
    from rerankers.base import Reranker
    from rerankers.training.loop import Examples
    from rerankers.training.settings import Settings
    from rerankers.training.state import History

HELD_OUT = 0.15
"""Share of the topics that one fold alone holds out (the authors' code has the same)."""

Progress = Callable[[str, int, int, str], None]
"""Called with the part's name, the epoch, the step and a message."""


@dataclass(frozen=True)
class Fold:
    """Rows of pairs to train on, and those of held-out topics."""

    name: str
    training: npt.NDArray[np.int64]
    held_out: npt.NDArray[np.int64]


def folds_of(query_index: npt.NDArray[np.int64], count: int, seed: int) -> Iterator[Fold]:
    """Split pairs by topic into ``count`` folds; one fold holds out 15 % of the topics."""
    queries = np.random.default_rng(seed).permutation(np.unique(query_index))
    parts = (
        np.array_split(queries, count)
        if count > 1
        else [queries[: max(1, round(HELD_OUT * len(queries)))]]
    )
    for number, part in enumerate(parts, start=1):
        held_out = np.isin(query_index, part)
        yield Fold(f"fold {number}", np.flatnonzero(~held_out), np.flatnonzero(held_out))


@dataclass(frozen=True)
class FoldModel:
    """A model, and the query_ids of the topics that it has not seen."""

    model: "Reranker"
    held_out: frozenset[str]


@dataclass(frozen=True)
class Outcome:
    """A trained model and what is known of it.

    Attributes:
        model: the model to keep.
        held_out_run: neural scores of held-out topics by models that had not seen them.
        validation_map: MAP of each fold's held-out topics, by fold name.
        epochs: epochs that the kept model was trained for.
        histories: figures of every epoch, by part.
        folds: the models of folds, if there were any.
    """

    model: "Reranker"
    held_out_run: Run
    validation_map: Mapping[str, float]
    epochs: int
    histories: Mapping[str, "History"]
    folds: Sequence[FoldModel] = ()


def cross_train(
    build: Callable[[], "Reranker"],
    examples: "Examples",
    data: JudgedCandidates,
    settings: "Settings",
    folds: int,
    state_directory: Path,
    resume: bool,
    progress: Progress,
) -> Outcome:
    """Train with held-out topics as the module's docstring says.

    Args:
        build: makes a new model, the same one at every call.
        examples: all pairs with labels, in the order of ``data``.
        data: candidates and judgments.
        settings: how to train.
        folds: number of folds; 1 holds out 15 % of the topics once.
        state_directory: where each part's state is kept for ``resume``.
        resume: go on with what is there.
        progress: told about every step.
    """
    from rerankers.engine.scoring import score_tokenized
    from rerankers.training.loop import train

    def part(
        name: str, rows: npt.NDArray[np.int64], held_out: npt.NDArray[np.int64] | None,
        part_settings: "Settings",
    ) -> tuple["Reranker", "History"]:  # fmt: skip
        model = build()
        history = train(
            model,
            examples.subset(rows),
            None if held_out is None else examples.subset(held_out),
            lambda scores: data.mean_of(
                measure_of(settings),
                data.run_of(held_out, scores),  # type: ignore[arg-type]
            ),
            part_settings,
            state_directory / f"{name.replace(' ', '-')}.safetensors",
            resume,
            lambda epoch, step, message: progress(name, epoch, step, message),
        )
        return model, history

    held_out_run: Run = {}
    validation_map, histories, kept = {}, {}, []
    for fold in folds_of(examples.pairs.query_index, folds, settings.seed):
        model, history = part(fold.name, fold.training, fold.held_out, settings)
        scores = score_tokenized(model, examples.subset(fold.held_out).pairs)
        run = data.run_of(fold.held_out, scores)
        held_out_run |= run
        kept.append(FoldModel(model, frozenset(run)))
        validation_map[fold.name], histories[fold.name] = data.mean_of("AP", run), history
    epochs = round(statistics.median(history.best for history in histories.values()))
    if folds > 1:
        everything = np.arange(len(examples.pairs.query_index))
        final_settings = dataclasses.replace(settings, epochs=epochs)
        model, histories["all topics"] = part("all topics", everything, None, final_settings)
    return Outcome(model, held_out_run, validation_map, epochs, histories, kept)


def develop(
    model: "Reranker",
    training: "Examples",
    development: "Examples",
    data: JudgedCandidates,
    settings: "Settings",
    state_directory: Path,
    resume: bool,
    progress: Progress,
) -> Outcome:
    """Train on one part, stop early by another, and keep the model of the best epoch.

    Args:
        model: to train.
        training: pairs to learn from.
        development: pairs that choose the epoch, in the order of ``data``.
        data: candidates and judgments of the development part.
        settings: how to train.
        state_directory: where the state is kept for ``resume``.
        resume: go on with what is there.
        progress: told about every step.
    """
    from rerankers.engine.scoring import score_tokenized
    from rerankers.training.loop import train

    rows = np.arange(len(development.relevant))
    history = train(
        model, training, development,
        lambda scores: data.mean_of(measure_of(settings), data.run_of(rows, scores)),
        settings, state_directory / "training.safetensors", resume,
        lambda epoch, step, message: progress("training", epoch, step, message),
    )  # fmt: skip
    run = data.run_of(rows, score_tokenized(model, development.pairs))
    figures = {"development": data.mean_of("AP", run)}
    return Outcome(model, run, figures, history.best, {"training": history})


def measure_of(settings: "Settings") -> str:
    """The measure that chooses the best epoch, by its name."""
    return "RR" if settings.select == "mrr" else "AP"


def held_out_bytes(run: Run) -> bytes:
    """A run as a compressed file's content; the same run gives the same bytes."""
    return gzip.compress(
        "".join(f"{line}\n" for line in format_run(run, "held-out")).encode(), mtime=0
    )
