"""List what was trained here: models by collection, their figures, and where they lie.

python -m pipeline.models
"""

from contextlib import suppress
from dataclasses import dataclass

from tweetrerank.indexes.data_error import DataError
from tweetrerank.pipeline.collections.folders import models_directory
from tweetrerank.pipeline.command.main import run
from tweetrerank.pipeline.text import print_table


@dataclass(frozen=True)
class Options:
    """No options."""


def main(options: Options) -> None:
    """Print a row for each trained checkpoint and each file of adapted word vectors."""
    from tweetrerank.pipeline.evaluation.measures import heading
    from tweetrerank.pipeline.ranking.interpolation import TUNING_FILE, Tuning

    root = models_directory()
    rows = []
    for path in sorted((root / "checkpoints").rglob("config.json")):
        folder, date, figures = path.parent, "", ""
        model, *name = folder.relative_to(root / "checkpoints").parts
        with suppress(DataError):  # It was not tuned.
            tuning = Tuning.load(folder / TUNING_FILE)
            unused = " (not used)" * (tuning.weight == 0)
            first, trained = tuning.curve.get(0.0, 0.0), tuning.cross_validated
            measured = f"{heading(tuning.measure)} {first:.4f} -> {trained:.4f}"
            date, figures = tuning.date, f"{measured}{unused}"
        rows.append(["/".join(name), model, date, figures, str(folder)])
    for path in sorted((root / "adapted").rglob("*.safetensors")):
        name = [*path.relative_to(root / "adapted").with_suffix("").parts]
        rows.append(["/".join(name), "word vectors", "", "", str(path)])
    if not rows:
        print(f"nothing was trained here: found no model in {root}")
        return
    print_table(
        ["collection", "model", "date", "held-out topics", "folder"],
        rows,
        [0, 1, 2, 3, 4],
    )


if __name__ == "__main__":
    run("models")
