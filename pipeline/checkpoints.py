"""Default checkpoint and λ of a search.

Checkpoints trained here lie in ``$TWEETRERANK_HOME/checkpoints/<model>/<collection>`` and are
preferred to shipped ones. Shipped files are never written: a λ tuned here for a shipped checkpoint
is ``$TWEETRERANK_HOME/lambda/<model>/<collection>.json``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.collections.locations import home_directory
from pipeline.collections.named import ANSWERS
from pipeline.command.errors import DataError, UsageError
from pipeline.training.tuning import Tuning

if TYPE_CHECKING:
    from pipeline.collections.collection import Collection
    from pipeline.reranking import Mixing, NeuralReranker

UNTUNED_WEIGHT = 0.5

TUNING_FILE = "lambda.json"
"""In a checkpoint's folder: the tuned λ and its provenance."""


def default_directory(model: str, collection: str) -> Path:
    """The checkpoint that has not seen ``collection``, trained here or else shipped.

    For a judged microblog collection it was trained without that collection, for an
    answer-selection collection on its training part, for any other on all judged years.

    Raises:
        DataError: there is no such checkpoint; the message says how to train one.
    """
    from rerankers.checkpoint import SHIPPED

    own_training = collection in ANSWERS
    # A model trained on posts alone does not fit questions and answers.
    names = [collection] if own_training else [collection, "all"]
    folders = [
        root / model / name
        for name in names
        for root in (home_directory() / "checkpoints", SHIPPED)
    ]
    for folder in folders:
        if (folder / "config.json").exists():
            return folder
    option = "--collection" if own_training else "--test"
    raise DataError(
        f"there is no {model} trained for {collection} here; train one with "
        f"`python -m pipeline.train {model} {option} {collection}` or name a --checkpoint"
    )


def tuning_files(checkpoint: Path) -> list[Path]:
    """Files that may hold a checkpoint's λ, in the order of reading; the first is the one to write.

    Shipped checkpoints are read-only, so their λ tuned here lies in the home folder.
    """
    from rerankers.checkpoint import SHIPPED

    within, shipped = checkpoint.resolve(), SHIPPED.resolve()
    if not within.is_relative_to(shipped):
        return [checkpoint / TUNING_FILE]
    name = within.relative_to(shipped)
    return [home_directory() / "lambda" / f"{name}.json", checkpoint / TUNING_FILE]


def tuned_weight(checkpoint: Path, normalization: str) -> tuple[float, str] | None:
    """λ and its origin, or None if none was tuned with this normalisation.

    Raises:
        DataError: a file of λ is damaged.
    """
    for path in tuning_files(checkpoint):
        if path.exists():
            tuning = Tuning.load(path)
            if tuning.normalization == normalization:
                return tuning.weight, f"tuned on {', '.join(tuning.collections)}; {path}"
    return None


def choose_mixing(
    weight: float | None,
    normalization: str,
    is_scored: bool,
    checkpoint: Path,
    collection: Collection,
) -> Mixing:
    """λ: as given, else as tuned for the checkpoint.

    Args:
        weight: λ as given, or None.
        normalization: of scores before mixing.
        is_scored: whether the candidates have scores to mix with.
        checkpoint: folder of the model.
        collection: to be ranked.
    """
    from pipeline.reranking import Mixing

    if weight is not None:
        return Mixing(weight, normalization)
    if not is_scored:
        reason = "nothing to mix: the candidates are given without scores"
        return Mixing(1.0, normalization, reason)
    if tuned := tuned_weight(checkpoint, normalization):
        return Mixing(tuned[0], normalization, tuned[1])
    # There is no official run of a training part to tune it on.
    advice = (
        "run scripts/tune_lambda.py for this checkpoint and normalisation"
        if collection.given_candidates is None
        else "choose one by --lambda"
    )
    return Mixing(UNTUNED_WEIGHT, normalization, f"not tuned: {advice}")


def load_reranker(
    name: str,
    collection: Collection,
    checkpoint: Path | None = None,
    device: str = "auto",
    threads: int | None = None,
    idf: str | None = None,
) -> NeuralReranker:
    """The trained model for a collection, with a warning if it has seen the collection's judgments.

    Args:
        name: of the model.
        collection: to be ranked.
        checkpoint: folder; None is :func:`default_directory`.
        device: ``auto``, ``cpu`` or ``cuda``.
        threads: of the CPU; None leaves them unchanged.
        idf: ``index``, ``wordfreq`` or a file; None is the one used in training.

    Raises:
        UsageError: there is no model of that name, or no such device.
        DataError: there is no checkpoint.
        RerankerError: the checkpoint or the file of frequencies is damaged.
    """
    from pipeline.command import runtime

    runtime.import_nltk_alone()
    from pipeline.reranking import NeuralReranker
    from rerankers import checkpoint as checkpoints
    from rerankers import models

    if name not in models.names():
        raise UsageError(
            f"--reranker: found {name!r}, expected one of {', '.join([*models.names(), 'none'])}"
        )
    device = runtime.choose_device(device, threads)
    frequencies = None
    if idf:
        frequencies = collection.idf() if idf == "index" else checkpoints.idf_from(idf)
    directory = checkpoint or default_directory(name, collection.name)
    reranker = NeuralReranker(checkpoints.load(directory, name, device, frequencies))
    seen = reranker.checkpoint.metrics.get("trained_on", [])
    # The training part of a collection with given candidates is apart from the part ranked here.
    if collection.given_candidates is None and collection.name in seen:
        print(
            f"warning: {directory} was trained on {collection.name}; its figures here mean nothing",
            file=sys.stderr,
        )
    return reranker
