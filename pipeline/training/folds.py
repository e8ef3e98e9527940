"""Folds of topics, and training with held-out topics or a development part.

A collection with a development part is trained on its training part and stopped early by the
development part. Elsewhere validation is by topic. With K folds each topic is held out once: its
fold stops the training early, its scores (by a model that has not seen its judgments) serve to
tune λ, and the model that is kept is trained on all topics for the median of the folds' best
epochs. With one fold, 15 % of the topics are held out once and the model of the best epoch is kept.
"""

from __future__ import annotations

import dataclasses
import gzip
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pipeline.collections.trec import Run, format_run
from pipeline.training.training_set import JudgedCandidates
from rerankers.base import Pairs, Reranker
from rerankers.engine.scoring import score, score_tokenized
from rerankers.text.inputs import TextEncoder
from rerankers.training.examples import Examples, Rows
from rerankers.training.loop import train
from rerankers.training.settings import Settings
from rerankers.training.state import History

HELD_OUT = 0.15
"""Share of the topics that a single fold holds out, as in the code of MP-HCNN's authors."""

Progress = Callable[[str, int, int, str], None]
"""Called with the part's name, the epoch, the step and a message."""


@dataclass(frozen=True)
class Fold:
    """Rows of pairs to train on, and rows of held-out topics."""

    name: str
    training: Rows
    held_out: Rows


def split_topics(query_index: Rows, count: int, seed: int) -> Iterator[Fold]:
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
    """A fold's model, and the query_ids of its held-out topics."""

    model: Reranker
    held_out: frozenset[str]


@dataclass(frozen=True)
class Outcome:
    """A trained model with its validation figures.

    Attributes:
        model: the model to keep.
        held_out_run: neural scores of held-out topics by models that had not seen them.
        validation_map: fold -> MAP of its held-out topics.
        epochs: epochs of the kept model.
        histories: fold or part -> figures of every epoch.
        folds: the folds' models; none with a development part.
    """

    model: Reranker
    held_out_run: Run
    validation_map: Mapping[str, float]
    epochs: int
    histories: Mapping[str, History]
    folds: Sequence[FoldModel] = ()

    def held_out_file(self) -> bytes:
        """The held-out run as gzip; the same run gives the same bytes."""
        lines = (f"{line}\n" for line in format_run(self.held_out_run, "held-out"))
        return gzip.compress("".join(lines).encode(), mtime=0)

    def unseen_scores(
        self, pairs: Pairs, query_ids: Sequence[str], encoder: TextEncoder
    ) -> npt.NDArray[np.float32]:
        """Scores [P] of each query's pairs by the fold model that has not seen the query.

        Args:
            pairs: P pairs.
            query_ids: [Q] of the pairs' queries; each is held out in one fold.
            encoder: of all fold models.
        """
        of_pairs = np.array(query_ids)[pairs.query_index]
        scores = np.full(len(pairs), np.nan, dtype=np.float32)
        for fold in self.folds:
            rows = np.flatnonzero(np.isin(of_pairs, sorted(fold.held_out)))
            scores[rows] = score(fold.model, pairs.part(rows), encoder)
        return scores


def cross_train(
    build: Callable[[], Reranker],
    examples: Examples,
    data: JudgedCandidates,
    settings: Settings,
    folds: int,
    state_directory: Path,
    resume: bool,
    progress: Progress,
) -> Outcome:
    """Train with held-out topics, see the module's docstring.

    Args:
        build: returns a new model, the same at every call.
        examples: all pairs with labels, in the order of ``data``.
        data: candidates and judgments.
        settings: how to train.
        folds: number of folds; 1 holds out 15 % of the topics once.
        state_directory: folder of each part's state.
        resume: continue from these states.
        progress: called after every step and epoch.
    """

    def train_part(
        name: str, rows: Rows, held_out: Rows | None, settings: Settings
    ) -> tuple[Reranker, History]:
        model = build()
        history = train(
            model,
            examples.subset(rows),
            None if held_out is None else examples.subset(held_out),
            lambda scores: data.mean_of(
                measure_of(settings),
                data.run_of(held_out, scores),  # type: ignore[arg-type]
            ),
            settings,
            state_directory / f"{name.replace(' ', '-')}.safetensors",
            resume,
            lambda epoch, step, message: progress(name, epoch, step, message),
        )
        return model, history

    held_out_run: Run = {}
    validation_map, histories, kept = {}, {}, []
    for fold in split_topics(examples.pairs.query_index, folds, settings.seed):
        model, history = train_part(fold.name, fold.training, fold.held_out, settings)
        scores = score_tokenized(model, examples.subset(fold.held_out).pairs)
        run = data.run_of(fold.held_out, scores)
        held_out_run |= run
        kept.append(FoldModel(model, frozenset(run)))
        validation_map[fold.name], histories[fold.name] = data.mean_of("AP", run), history
    epochs = round(statistics.median(history.best for history in histories.values()))
    if folds > 1:
        everything = np.arange(len(examples.relevant))
        final_settings = dataclasses.replace(settings, epochs=epochs)
        model, histories["all topics"] = train_part("all topics", everything, None, final_settings)
    return Outcome(model, held_out_run, validation_map, epochs, histories, kept)


def train_with_development(
    model: Reranker,
    training: Examples,
    development: Examples,
    data: JudgedCandidates,
    settings: Settings,
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
        state_directory: folder of the training's state.
        resume: continue from this state.
        progress: called after every step and epoch.
    """
    rows = np.arange(len(development.relevant))
    history = train(
        model,
        training,
        development,
        lambda scores: data.mean_of(measure_of(settings), data.run_of(rows, scores)),
        settings,
        state_directory / "training.safetensors",
        resume,
        lambda epoch, step, message: progress("training", epoch, step, message),
    )
    run = data.run_of(rows, score_tokenized(model, development.pairs))
    figures = {"development": data.mean_of("AP", run)}
    return Outcome(model, run, figures, history.best, {"training": history})


def measure_of(settings: Settings) -> str:
    """Name of the measure that chooses the best epoch."""
    return "RR" if settings.select == "mrr" else "AP"
