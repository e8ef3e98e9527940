"""λ · NN + (1 − λ) · LM of runs, and a tuned λ: its file, provenance, and the scores' calibration.

Shipped files are never written: a λ tuned here for a shipped checkpoint is
``lambda/<model>/<collection>.json`` below the folder of models.
"""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

from tweetrerank.indexes.data_error import DataError
from tweetrerank.indexes.files import atomic_directory, write_bytes
from tweetrerank.indexes.manifest import json_sha256
from tweetrerank.pipeline.collections.collection import OWN
from tweetrerank.pipeline.collections.folders import models_directory
from tweetrerank.pipeline.collections.trec import Run, single_precision
from tweetrerank.pipeline.usage_error import UsageError
from tweetrerank.rerankers import checkpoint as checkpoints
from tweetrerank.rerankers.reranker import TUNING_FILE, minmax, mix

Scores = Mapping[str, float]
ManyScores = Mapping[str, Scores]


class Calibration(NamedTuple):
    """P(relevant) = 1 / (1 + exp(−(``slope`` · score + ``intercept``))), slope > 0 (Platt 1999)."""

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
    fold_weights: tuple[float, ...]  # λ of each fold
    measure: str  # The maximised one, by ir_measures' name
    normalization: str
    folds: int
    seed: int
    topics: tuple[str, ...]
    collections: tuple[str, ...] = ()
    first_stage: str = ""
    checkpoint: str = ""  # Source of the neural scores, ``<model>/<name>``
    date: str = ""
    calibration: Calibration | None = (
        None  # None: the scores do not grow with relevance
    )
    path: Path | None = dataclasses.field(
        default=None, compare=False
    )  # Its file, once it is read

    @property
    def origin(self) -> str:
        """The collections that it was tuned on, and its file."""
        return f"tuned on {', '.join(self.collections)}; {self.path}"

    def content(self) -> bytes:
        """The content of its file: JSON with its own SHA-256."""
        fields = dataclasses.asdict(self)
        del fields["path"]
        fields["curve"] = {f"{weight:g}": value for weight, value in self.curve.items()}
        fields["sha256"] = json_sha256(fields)
        return (
            json.dumps(fields, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        ).encode()

    def save(self, path: Path | str) -> None:
        """Write the tuning, atomically; a checkpoint trained here gets it as one of its files."""
        folder = Path(path).parent
        if not (folder / "config.json").exists():
            write_bytes(path, self.content())
            return
        with atomic_directory(folder) as new:
            checkpoints.copy_whole(folder, new, {Path(path).name: self.content()})

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Read a file of :meth:`save`."""
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
            if content.pop("sha256", None) not in (None, json_sha256(content)):
                raise ValueError("it was changed")
            curve = {
                float(weight): float(value)
                for weight, value in content["curve"].items()
            }
            tuples = {
                k: tuple(content[k]) for k in ("fold_weights", "topics", "collections")
            }
            if not 0 <= (weight := float(content["weight"])) <= 1:
                raise ValueError(f"the weight {weight} is not from 0 to 1")
            if calibration := content.get("calibration"):
                content["calibration"] = Calibration(*map(float, calibration))
            content |= {**tuples, "curve": curve, "weight": weight, "path": Path(path)}
            return cls(**content)
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
    an own ``collection`` (its key) is for this collection only."""
    within, shipped = checkpoint.resolve(), checkpoints.SHIPPED.resolve()
    if not within.is_relative_to(shipped):
        return [checkpoint / TUNING_FILE]
    name, tuned = within.relative_to(shipped), models_directory() / "lambda"
    own = [tuned / name / f"{collection}.json"] if collection.startswith(OWN) else []
    return [*own, tuned / f"{name}.json", checkpoint / TUNING_FILE]


def tuning_of(checkpoint: Path, collection: str = "") -> Tuning | None:
    """The tuning of a checkpoint, or None if none was tuned; DataError if it is of another one."""
    path = next(
        (path for path in tuning_files(checkpoint, collection) if path.exists()), None
    )
    if path is None:
        return None
    tuning, expected = Tuning.load(path), "/".join(checkpoint.resolve().parts[-2:])
    is_own, names = path.parent.name == OWN.strip("/"), ", ".join(tuning.collections)
    if path.parent != checkpoint and (
        tuning.checkpoint != expected
        or (is_own and path.stem not in tuning.collections)
    ):
        raise DataError(
            f"{path}: found a λ of {tuning.checkpoint} tuned on {names}, expected one of "
            f"{expected}{f' tuned on {path.stem}' * is_own}; tune again, or remove it"
        )
    return tuning


def normalize(scores: Scores, query_id: str = "?") -> dict[str, float]:
    """One topic's scores, scaled to [0, 1]; raises DataError for NaN and infinite ones."""
    single_precision(scores, query_id)
    return dict(zip(scores, minmax([*scores.values()]), strict=True))


def interpolate(lexical: ManyScores, neural: ManyScores, weight: float) -> Run:
    """``weight`` · neural + (1 − ``weight``) · lexical, for each document of the lexical run.
    Neural scores of other documents are ignored, also by the normalisation. Raises UsageError for a
    weight that is not from 0 to 1, DataError if a score is missing, NaN or infinite."""
    if not 0 <= weight <= 1:
        raise UsageError(f"λ: found {weight}, expected a number from 0 to 1")
    run: Run = {}
    for query_id, scores in lexical.items():
        first, new = normalized_pair(query_id, scores, neural)
        mixed = mix([*first.values()], [*new.values()], weight)
        run[query_id] = dict(zip(scores, mixed, strict=True))
    return run


def normalized_pair(
    query_id: str, lexical: Scores, neural: ManyScores
) -> tuple[dict[str, float], dict[str, float]]:
    """One topic's lexical and neural scores, normalised, for the same documents in one order."""
    found = neural.get(query_id, {})
    if missing := [doc_id for doc_id in lexical if doc_id not in found]:
        raise DataError(
            f"topic {query_id}: found no neural score for {len(missing)} of its {len(lexical)} "
            f"documents (the first is {missing[0]}), expected one for each"
        )
    new = {doc_id: found[doc_id] for doc_id in lexical}
    return normalize(lexical, query_id), normalize(new, query_id)
