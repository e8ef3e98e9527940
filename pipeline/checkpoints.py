"""Default checkpoint and λ of a search.

Checkpoints trained here lie in ``$TWEETRERANK_HOME/checkpoints/<model>/<collection>`` and are
preferred to shipped ones. Shipped files are never written: a λ tuned here for a shipped checkpoint
is ``$TWEETRERANK_HOME/lambda/<model>/<collection>.json``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.collections import answers
from pipeline.collections.named import home_directory
from pipeline.command.errors import DataError, UsageError
from pipeline.training.tuning import Tuning

if TYPE_CHECKING:
    from pipeline.collections.sources import Source
    from pipeline.reranking import NeuralReranker

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

    own_training = collection in answers.NAMES
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


def load_reranker(
    name: str,
    source: Source,
    checkpoint: Path | None = None,
    device: str = "auto",
    threads: int | None = None,
    idf: str | None = None,
) -> NeuralReranker:
    """The trained model for a source, with a warning if it was trained on the source's judgments.

    Args:
        name: of the model.
        source: topics and posts to rerank.
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
    from rerankers import models
    from rerankers.checkpoint import idf_from

    if name not in models.names():
        raise UsageError(
            f"--reranker: found {name!r}, expected one of {', '.join([*models.names(), 'none'])}"
        )
    device = runtime.choose_device(device, threads)
    frequencies = None
    if idf:
        frequencies = source.idf() if idf == "index" else idf_from(idf)
    directory = checkpoint or default_directory(name, source.name)
    reranker = NeuralReranker.load(directory, name, device, frequencies)
    seen = reranker.checkpoint.metrics.get("trained_on", [])
    # The training part of a collection with given candidates is apart from the part ranked here.
    if source.given is None and source.name in seen:
        print(
            f"warning: {directory} was trained on {source.name}; its figures here mean nothing",
            file=sys.stderr,
        )
    return reranker
