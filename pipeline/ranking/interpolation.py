"""Mixtures λ · NN + (1 − λ) · LM of runs, and tuned λs with their files.

Shipped files are never written. A λ that is tuned here for a shipped checkpoint is
``lambda/<model>/<collection>.json`` below the folder of models.
"""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

from tweetrerank.indexes.data_error import DataError
from tweetrerank.indexes.files import atomic_directory, write_bytes
from tweetrerank.indexes.manifest import json_sha256
from tweetrerank.pipeline.collections.collection import OWN
from tweetrerank.pipeline.collections.folders import models_directory
from tweetrerank.pipeline.collections.trec import Run, single_precision
from tweetrerank.pipeline.usage_error import UsageError
from tweetrerank.rerankers import checkpoint as checkpoints
from tweetrerank.rerankers.mixed import minmax, mix
from tweetrerank.rerankers.model import TUNING_FILE

Scores = Mapping[str, float]
ManyScores = Mapping[str, Scores]


class Calibration(NamedTuple):
    """P(relevant) = 1 / (1 + exp(−(slope · score + intercept))), slope > 0.

    Source: Platt (1999).
    """

    slope: float = 1.0
    intercept: float = 0.0


@dataclass(frozen=True)
class Tuning:
    """A tuned λ with its provenance."""

    weight: float  # λ, the neural score's share
    curve: dict[float, float]  # λ -> mean measure over all topics
    cross_validated: float
    """Mean of the measure over topics, each at the λ chosen without the topic's fold.
    The choice does not bias it, unlike the curve's maximum."""
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
    calibration: Calibration | None = None
    """None: the scores do not grow with relevance."""
    path: Path | None = dataclasses.field(default=None, compare=False)
    """The file that it was read from."""

    @property
    def origin(self) -> str:
        """The collections of the tuning, and its file."""
        return f"tuned on {', '.join(self.collections)}; {self.path}"

    def content(self) -> bytes:
        """Return the content of its file: JSON with its own SHA-256."""
        fields = dataclasses.asdict(self)
        del fields["path"]
        fields["curve"] = {f"{weight:g}": value for weight, value in self.curve.items()}
        fields["sha256"] = json_sha256(fields)
        text = json.dumps(fields, indent=2, ensure_ascii=False, allow_nan=False)
        return f"{text}\n".encode()

    def save(self, path: Path | str) -> None:
        """Write the tuning, atomically.

        In a checkpoint's folder it becomes one of the checkpoint's files.
        """
        folder = Path(path).parent
        if not (folder / "config.json").exists():
            write_bytes(path, self.content())
            return
        with atomic_directory(folder) as new:
            checkpoints.copy_whole(folder, new, {Path(path).name: self.content()})

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Read a file of :meth:`save`; raise DataError for another one."""
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
            if content.pop("sha256", None) not in (None, json_sha256(content)):
                raise ValueError("it was changed")
            fields = _fields(content)
            fields["path"] = Path(path)
            return cls(**fields)
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror}") from None
        except (ValueError, KeyError, TypeError, AttributeError, UsageError) as error:
            raise DataError(
                f"{path}: found no tuned λ ({error!r}), expected a file of tweetrerank "
                "tune; tune again, or remove it"
            ) from None


def _fields(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a tuning in their types, from the JSON of its file."""
    fields = dict(content)
    fields["curve"] = {
        float(weight): float(value) for weight, value in content["curve"].items()
    }
    for name in ("fold_weights", "topics", "collections"):
        fields[name] = tuple(content[name])
    weight = float(content["weight"])
    if not 0 <= weight <= 1:
        raise ValueError(f"the weight {weight} is not from 0 to 1")
    fields["weight"] = weight
    calibration = content.get("calibration")
    if calibration:
        fields["calibration"] = Calibration(*map(float, calibration))
    return fields


def tuning_files(checkpoint: Path, collection: str = "") -> list[Path]:
    """Return the files that may hold a checkpoint's λ, in the order of reading.

    The first one is the one to write. Shipped checkpoints are read-only, so a λ tuned
    for them lies in the home folder. A λ tuned on a user's ``collection`` (its key) is
    for this collection only.
    """
    resolved = checkpoint.resolve()
    shipped = checkpoints.SHIPPED.resolve()
    within = checkpoint / TUNING_FILE
    if not resolved.is_relative_to(shipped):
        return [within]
    name = resolved.relative_to(shipped)
    tuned_here = models_directory() / "lambda"
    files = [tuned_here / f"{name}.json", within]
    if collection.startswith(OWN):
        files.insert(0, tuned_here / name / f"{collection}.json")
    return files


def tuning_of(checkpoint: Path, collection: str = "") -> Tuning | None:
    """Return the tuning of a checkpoint, or None if none was tuned.

    Raises DataError for a file of another checkpoint or collection.
    """
    for path in tuning_files(checkpoint, collection):
        if path.exists():
            tuning = Tuning.load(path)
            if path.parent != checkpoint:
                _check_origin(tuning, path, checkpoint)
            return tuning
    return None


def _check_origin(tuning: Tuning, path: Path, checkpoint: Path) -> None:
    """Raise DataError if a tuning outside of the checkpoint belongs to another one."""
    expected = "/".join(checkpoint.resolve().parts[-2:])
    is_own = path.parent.name == OWN.strip("/")
    is_of_checkpoint = tuning.checkpoint == expected
    is_of_collection = not is_own or path.stem in tuning.collections
    if is_of_checkpoint and is_of_collection:
        return
    if is_own:
        expected += f" tuned on {path.stem}"
    names = ", ".join(tuning.collections)
    raise DataError(
        f"{path}: found a λ of {tuning.checkpoint} tuned on {names}, expected one of "
        f"{expected}; tune again, or remove it"
    )


def normalize(scores: Scores, query_id: str = "?") -> dict[str, float]:
    """Return one topic's scores, scaled to [0, 1].

    Raises DataError for NaN and infinite scores.
    """
    single_precision(scores, query_id)
    return dict(zip(scores, minmax(list(scores.values())), strict=True))


def interpolate(lexical: ManyScores, neural: ManyScores, weight: float) -> Run:
    """Return ``weight`` · neural + (1 − ``weight``) · lexical for the lexical run.

    Neural scores of other documents are ignored, also by the normalisation.

    Raises:
        UsageError: the weight is not from 0 to 1.
        DataError: a score is missing, NaN or infinite.
    """
    if not 0 <= weight <= 1:
        raise UsageError(f"λ: found {weight}, expected a number from 0 to 1")
    run: Run = {}
    for query_id, scores in lexical.items():
        first, new = normalized_pair(query_id, scores, neural)
        mixture = mix(list(first.values()), list(new.values()), weight)
        run[query_id] = dict(zip(scores, mixture, strict=True))
    return run


def normalized_pair(
    query_id: str, lexical: Scores, neural: ManyScores
) -> tuple[dict[str, float], dict[str, float]]:
    """Return one topic's lexical and neural scores, normalised.

    Both have the same documents in one order.
    """
    neural_scores = neural.get(query_id, {})
    missing = [doc_id for doc_id in lexical if doc_id not in neural_scores]
    if missing:
        raise DataError(
            f"topic {query_id}: found no neural score for {len(missing)} of its "
            f"{len(lexical)} documents (the first is {missing[0]}), expected one for "
            "each"
        )
    new = {doc_id: neural_scores[doc_id] for doc_id in lexical}
    return normalize(lexical, query_id), normalize(new, query_id)
