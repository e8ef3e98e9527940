"""List the models trained on this machine, with their figures and folders.

python -m pipeline.models
"""

from dataclasses import dataclass
from pathlib import Path

from tweetrerank.indexes.data_error import DataError
from tweetrerank.pipeline.collections.folders import models_directory
from tweetrerank.pipeline.command.main import run
from tweetrerank.pipeline.text import print_table

HEADER = ["collection", "model", "date", "held-out topics", "folder"]


@dataclass(frozen=True)
class Options:
    """This command has no options."""


def main(options: Options) -> None:
    """Print a row for each trained checkpoint and each file of adapted word vectors."""
    root = models_directory()
    rows = []
    for path in sorted((root / "checkpoints").rglob("config.json")):
        folder = path.parent
        model, *collection = folder.relative_to(root / "checkpoints").parts
        date, figures = _figures(folder)
        rows.append(["/".join(collection), model, date, figures, str(folder)])
    for path in sorted((root / "adapted").rglob("*.safetensors")):
        name = path.relative_to(root / "adapted").with_suffix("").as_posix()
        rows.append([name, "word vectors", "", "", str(path)])
    if rows:
        print_table(HEADER, rows, range(len(HEADER)))
    else:
        print(f"nothing was trained here: found no model in {root}")


def _figures(folder: Path) -> tuple[str, str]:
    """Return the date of a checkpoint's tuning, and its measure before and after.

    Both texts are empty if the checkpoint was not tuned.
    """
    from tweetrerank.pipeline.evaluation.measures import heading
    from tweetrerank.pipeline.ranking.interpolation import TUNING_FILE, Tuning

    try:
        tuning = Tuning.load(folder / TUNING_FILE)
    except DataError:
        return "", ""
    first_stage = tuning.curve.get(0.0, 0.0)
    change = f"{first_stage:.4f} -> {tuning.cross_validated:.4f}"
    figures = f"{heading(tuning.measure)} {change}"
    if tuning.weight == 0:
        figures += " (not used)"
    return tuning.date, figures


if __name__ == "__main__":
    run("models")
