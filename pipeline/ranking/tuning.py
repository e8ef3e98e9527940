"""A tuned λ: its file, its provenance, and the calibration of the scores.

Shipped files are never written: a λ tuned here for a shipped checkpoint is
``lambda/<model>/<collection>.json`` below the folder of models.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from indexes.files import atomic_directory, write_bytes
from pipeline.collections.collection import OWN, models_directory
from pipeline.errors import DataError, UsageError
from rerankers import checkpoint as checkpoints
from rerankers.reranker import TUNING_FILE


def _sha256(fields: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


class Calibration(NamedTuple):
    """Logistic calibration (Platt 1999) of a checkpoint's scores.

    P(relevant) = 1 / (1 + exp(−(``slope`` · score + ``intercept``))), with a positive slope.
    """

    slope: float = 1.0
    intercept: float = 0.0


@dataclass(frozen=True)
class Tuning:
    """A tuned λ with its provenance."""

    weight: float  # λ, the neural score's share
    curve: dict[float, float]  # λ -> mean measure over all topics
    cross_validated: float
    """Mean over topics of the measure at the λ chosen without the topic's fold; unlike the curve's
    maximum it is not biased by the choice."""
    fold_weights: tuple[float, ...]  # Those λ, one a fold
    measure: str  # The maximised one, by ir_measures' name
    normalization: str
    folds: int
    seed: int
    topics: tuple[str, ...]
    collections: tuple[str, ...] = ()
    first_stage: str = ""
    checkpoint: str = ""  # Source of the neural scores, ``<model>/<name>``
    date: str = ""
    calibration: Calibration | None = None
    """Of the neural scores; None for those that do not grow with relevance."""
    path: Path | None = dataclasses.field(default=None, compare=False)
    """Its file, once it is read."""

    @property
    def origin(self) -> str:
        """The collections that it was tuned on, and its file."""
        return f"tuned on {', '.join(self.collections)}; {self.path}"

    @property
    def is_no_gain(self) -> bool:
        """Whether a model without λ gained nothing."""
        return self.weight == 0 and self.normalization == "none"

    def content(self) -> bytes:
        """The content of its file: JSON with its own SHA-256."""
        fields = dataclasses.asdict(self)
        del fields["path"]
        fields["curve"] = {f"{weight:g}": value for weight, value in self.curve.items()}
        fields["sha256"] = _sha256(fields)
        text = json.dumps(fields, indent=2, ensure_ascii=False, allow_nan=False)
        return f"{text}\n".encode()

    def save(self, path: Path | str) -> None:
        """Write the tuning, atomically; a checkpoint trained here gets it as one of its files."""
        folder = Path(path).parent
        if not (folder / "config.json").exists():
            write_bytes(path, self.content())
            return
        with atomic_directory(folder) as new:
            checkpoints.copy_whole(folder, new, {Path(path).name: self.content()})

    @classmethod
    def load(cls, path: Path | str) -> Tuning:
        """Read a file of :meth:`save`."""
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
            if content.pop("sha256", None) not in (None, _sha256(content)):
                raise ValueError("it was changed")
            curve = {float(weight): float(value) for weight, value in content["curve"].items()}
            tuples = {k: tuple(content[k]) for k in ("fold_weights", "topics", "collections")}
            weight = float(content["weight"])
            if not 0 <= weight <= 1:
                raise ValueError(f"the weight {weight} is not from 0 to 1")
            if calibration := content.get("calibration"):
                content["calibration"] = Calibration(*map(float, calibration))
            return cls(
                **{**content, **tuples, "curve": curve, "weight": weight, "path": Path(path)}
            )
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror}") from None
        except (ValueError, KeyError, TypeError, AttributeError, UsageError) as error:
            raise DataError(
                f"{path}: found no tuned λ ({error!r}), expected a file of tweetrerank tune; tune "
                "again, or remove it"
            ) from None


def tuning_files(checkpoint: Path, collection: str = "") -> list[Path]:
    """Files that may hold a checkpoint's λ, in the order of reading; the first is the one to write.

    Shipped checkpoints are read-only, so their λ tuned here lies in the home folder; a λ tuned on
    an own ``collection`` (its key) is for this collection only.
    """
    within, shipped = checkpoint.resolve(), checkpoints.SHIPPED.resolve()
    if not within.is_relative_to(shipped):
        return [checkpoint / TUNING_FILE]
    name, tuned = within.relative_to(shipped), models_directory() / "lambda"
    own = [tuned / name / f"{collection}.json"] if collection.startswith(OWN) else []
    return [*own, tuned / f"{name}.json", checkpoint / TUNING_FILE]


def tuning_of(checkpoint: Path, collection: str = "") -> Tuning | None:
    """The tuning of a checkpoint, or None if none was tuned.

    Raises:
        DataError: the file is damaged, or of another checkpoint or collection.
    """
    path = next((path for path in tuning_files(checkpoint, collection) if path.exists()), None)
    if path is None:
        return None
    tuning, expected = Tuning.load(path), "/".join(checkpoint.resolve().parts[-2:])
    is_own, names = path.parent.name == OWN.strip("/"), ", ".join(tuning.collections)
    if path.parent != checkpoint and (
        tuning.checkpoint != expected or (is_own and path.stem not in tuning.collections)
    ):
        raise DataError(
            f"{path}: found a λ of {tuning.checkpoint} tuned on {names}, expected one of "
            f"{expected}{f' tuned on {path.stem}' * is_own}; tune again, or remove it"
        )
    return tuning
