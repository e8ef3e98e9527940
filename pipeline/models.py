"""List what was trained here: models by collection, their figures, and where they lie.

python -m pipeline.models
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from pipeline.collections.collection import models_directory
from pipeline.command.main import run
from pipeline.errors import DataError
from pipeline.text import print_table


@dataclass(frozen=True)
class Options:
    """None."""


def main(options: Options) -> None:
    """Print a row for each trained checkpoint and each file of adapted word vectors."""
    from pipeline.ranking.checkpoints import TUNING_FILE, Tuning

    root = models_directory()
    rows = []
    for path in sorted((root / "checkpoints").rglob("config.json")):
        folder = path.parent
        model, *name = folder.relative_to(root / "checkpoints").parts
        row = ["/".join(name), model, "", ""]
        try:
            tuning = Tuning.load(folder / TUNING_FILE)
            first = tuning.curve.get(0.0, 0.0)
            gain = f"{tuning.measure} {first:.4f} -> {tuning.cross_validated:.4f}"
            row[2:] = [tuning.date, gain + " (not used)" * (tuning.weight == 0)]
        except DataError:  # It was not tuned.
            row[2] = _date(folder / "metrics.json")
        rows.append([*row, str(folder)])
    for path in sorted((root / "adapted").rglob("*.safetensors")):
        name = str(path.relative_to(root / "adapted").with_suffix(""))
        rows.append([name, "word vectors", "", "", str(path)])
    if not rows:
        print(f"nothing was trained here: found no model in {root}")
        return
    print_table(["collection", "model", "date", "held-out topics", "folder"], rows, [0, 1, 2, 3, 4])


def _date(path: Path) -> str:
    try:
        return str(json.loads(path.read_text(encoding="utf-8")).get("date", ""))
    except (OSError, ValueError):
        return ""


if __name__ == "__main__":
    run("models")
