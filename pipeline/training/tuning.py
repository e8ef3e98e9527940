"""Tuning λ on scores of held-out training topics, and keeping it with its provenance."""

import dataclasses
import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline import interpolation
from pipeline.checkpoints import TUNING_FILE, default_directory
from pipeline.collections.named import find, training_collections
from pipeline.collections.trec import Qrels, Run, read_run
from pipeline.command.errors import DataError
from pipeline.interpolation import Tuning

HELD_OUT_FILE = "held_out.run.gz"
"""In a checkpoint's folder: neural scores of training topics by models that had not seen them."""


@dataclass(frozen=True)
class HeldOut:
    """Scores of held-out training topics.

    Attributes:
        collections: names of the training collections.
        lexical: first-stage scores of their topics.
        neural: neural scores of the same posts.
        qrels: judgments of those topics.
        checkpoint: whose scores they are.
    """

    collections: Sequence[str]
    lexical: Run
    neural: Run
    qrels: Qrels
    checkpoint: Path


def held_out_scores(
    model: str, test: str, checkpoint: Path | None, data: Path | None
) -> tuple[Path, HeldOut]:
    """The checkpoint's folder and its scores of held-out topics.

    Raises:
        DataError: there are none, or they are of the collection that must not be looked at.
    """
    test = find(test, data).name
    directory = checkpoint or default_directory(model, test)
    path = directory / HELD_OUT_FILE
    if not path.exists():
        raise DataError(
            f"{path}: there are no scores of held-out topics; train again with "
            f"`python -m pipeline.train {model} --test {test}`"
        )
    neural = read_run(path)
    names: list[str] = []
    lexical: Run = {}
    qrels: Qrels = {}
    for name in training_collections(test, data):
        collection = find(name, data)
        judgments = collection.qrels() or {}
        topics = set(judgments) & set(neural)
        if topics:
            names.append(name)
            official = read_run(collection.runs["ql"])
            lexical |= {query_id: official[query_id] for query_id in topics}
            qrels |= {query_id: judgments[query_id] for query_id in topics}
    if unknown := sorted(set(neural) - set(lexical)):
        raise DataError(
            f"{path}: found scores of topics {', '.join(unknown[:3])} …, which belong to none of "
            f"the collections that {test} may be tuned on; name the checkpoint trained without it"
        )
    return directory, HeldOut(names, lexical, neural, qrels, directory)


def tune(held_out: HeldOut, measure: str, normalization: str, folds: int, seed: int) -> Tuning:
    """λ by cross-validation over the held-out topics; see :func:`interpolation.tune_weight`."""
    return interpolation.tune_weight(
        held_out.lexical, held_out.neural, held_out.qrels,
        folds=folds, measure=measure, normalization=normalization, seed=seed,
    )  # fmt: skip


def save(directory: Path, output: Path | None, held_out: HeldOut, tuning: Tuning) -> Path:
    """Write λ with its provenance; gives the file's path."""
    path = output or directory / TUNING_FILE
    described = dataclasses.replace(
        tuning,
        collections=tuple(held_out.collections),
        first_stage="official query-likelihood runs",
        checkpoint=f"{directory.parent.name}/{directory.name}",
        date=datetime.date.today().isoformat(),
    )
    interpolation.save_tuning(path, described)
    return path
