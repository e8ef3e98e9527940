"""Which checkpoint and which λ a search uses when none is named."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.collections import answers
from pipeline.collections.named import home_directory
from pipeline.command.errors import DataError, UsageError
from pipeline.interpolation import load_tuning

if TYPE_CHECKING:
    from pipeline.collections.sources import Source
    from pipeline.reranking import NeuralReranker

TUNING_FILE = "lambda.json"
"""In a checkpoint's folder: the tuned λ and how it was found."""


def default_directory(model: str, collection: str) -> Path:
    """The checkpoint that has not seen ``collection``: one's own if there is one, else shipped.

    For a microblog collection with judgments it is the one trained without them, for an
    answer-selection collection the one trained on its training part, and for any other the one
    trained on all judged years.

    Raises:
        DataError: there is no checkpoint of the model; the message says how to train one.
    """
    from rerankers.checkpoint import SHIPPED

    own_training = collection in answers.NAMES
    # What ranks tweets knows nothing of answers.
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


def tuned_weight(directory: Path, normalization: str) -> tuple[float, str] | None:
    """λ and where it is from, or None if it was not tuned for this normalisation.

    Raises:
        DataError: the file that should tell is damaged.
    """
    path = directory / TUNING_FILE
    if not path.exists():
        return None
    tuning = load_tuning(path)
    if tuning.normalization != normalization:
        return None
    return tuning.weight, f"tuned on {', '.join(tuning.collections)}; {path}"


def load_reranker(
    name: str,
    source: "Source",
    checkpoint: Path | None = None,
    device: str = "auto",
    threads: int | None = None,
    idf: str | None = None,
) -> "NeuralReranker":
    """The trained model for a source, with a warning if it has seen the source's judgments.

    Args:
        name: of the model.
        source: what is to be reranked.
        checkpoint: folder; None is :func:`default_directory`.
        device: ``auto``, ``cpu`` or ``cuda``.
        threads: of the CPU; None leaves them as they are.
        idf: ``index``, ``wordfreq`` or a file; None is as trained.

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
    # A collection whose candidates are given has a training part, apart from what is ranked here.
    if source.given is None and source.name in seen:
        print(f"warning: {directory} was trained on {source.name}; its figures here mean nothing",
              file=sys.stderr)  # fmt: skip
    return reranker
