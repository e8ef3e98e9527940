"""Mixtures λ · NN + (1 − λ) · LM of runs, and tuned λs with their files.

NN is the neural score and LM the lexical one. Shipped files are never written: a λ that
is tuned here for a shipped checkpoint is stored below the folder of models, in
``lambda/<model>/<checkpoint>.json``, or for a user's collection in
``lambda/<model>/<checkpoint>/<collection>.json``.
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
    """P(relevant) = 1 / (1 + exp(−(slope · score + intercept))) with slope > 0.

    Source: Platt (1999).
    """

    slope: float = 1.0
    intercept: float = 0.0


@dataclass(frozen=True)
class Tuning:
    """A tuned λ, and how it was obtained."""

    weight: float  # λ, the share of the neural score
    curve: dict[float, float]  # λ -> mean of the measure over all topics
    cross_validated: float
    """Mean of the measure over all topics, where each topic is measured at the λ chosen
    without its fold. Unlike the maximum of the curve, it is not biased by the
    choice."""
    fold_weights: tuple[float, ...]  # The λ chosen for each fold
    measure: str  # The measure that was maximised, by its name in ir_measures
    normalization: str
    folds: int
    seed: int
    topics: tuple[str, ...]
    collections: tuple[str, ...] = ()
    first_stage: str = ""
    checkpoint: str = ""  # Checkpoint of the neural scores, ``<model>/<name>``
    date: str = ""
    calibration: Calibration | None = None
    """None if the scores do not grow with relevance."""
    path: Path | None = dataclasses.field(default=None, compare=False)
    """The file that the tuning was read from."""

    @property
    def origin(self) -> str:
        """The collections that λ was tuned on, and the file of the tuning."""
        return f"tuned on {', '.join(self.collections)}; {self.path}"

    def content(self) -> bytes:
        """Return the content of the tuning's file, JSON with its own SHA-256."""
        fields = dataclasses.asdict(self)
        del fields["path"]
        fields["curve"] = {f"{weight:g}": value for weight, value in self.curve.items()}
        fields["sha256"] = json_sha256(fields)
        text = json.dumps(fields, indent=2, ensure_ascii=False, allow_nan=False)
        return f"{text}\n".encode()

    def save(self, path: Path | str) -> None:
        """Write the tuning atomically.

        In a checkpoint's folder, the file becomes one of the checkpoint's files.
        """
        folder = Path(path).parent
        if not (folder / "config.json").exists():
            write_bytes(path, self.content())
            return
        with atomic_directory(folder) as new:
            checkpoints.copy_whole(folder, new, {Path(path).name: self.content()})

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Read a file that :meth:`save` wrote.

        Raises DataError if the file cannot be read, was changed, or holds no tuning.
        """
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
    """Return the fields of a tuning, converted to their types from JSON.

    Raises ValueError if the weight is not from 0 to 1.
    """
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

    The first file is the one to write. Shipped checkpoints are read-only, so a λ tuned
    for one of them lies in the folder of models. ``collection`` is the key of a
    collection; a λ tuned on a user's own collection applies to that collection only.
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
    """Return the tuning of a checkpoint, or None if no λ was tuned.

    Raises DataError if a file is damaged, or belongs to another checkpoint or
    collection.
    """
    for path in tuning_files(checkpoint, collection):
        if path.exists():
            tuning = Tuning.load(path)
            if path.parent != checkpoint:
                _check_origin(tuning, path, checkpoint)
            return tuning
    return None


def _check_origin(tuning: Tuning, path: Path, checkpoint: Path) -> None:
    """Raise DataError if a file outside the checkpoint was tuned for another one."""
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

    Raises DataError if a score is NaN or infinite.
    """
    single_precision(scores, query_id)
    return dict(zip(scores, minmax(list(scores.values())), strict=True))


def interpolate(lexical: ManyScores, neural: ManyScores, weight: float) -> Run:
    """Return ``weight`` · neural + (1 − ``weight``) · lexical for each lexical result.

    The scores of each topic are normalised to [0, 1] before they are mixed.

    Neural scores of documents outside the lexical run are ignored, and do not affect
    the normalisation.

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
    """Return (lexical scores, neural scores) of one topic, normalised to [0, 1].

    Both have the documents of the lexical run, in the same order. Raises DataError if a
    neural score is missing, or if a score is NaN or infinite.
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
