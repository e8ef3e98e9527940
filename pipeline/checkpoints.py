"""Which checkpoint and which λ a search uses when none is named."""

from pathlib import Path

from pipeline import answers
from pipeline.collections import home_directory
from pipeline.errors import DataError
from pipeline.interpolation import load_tuning

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
