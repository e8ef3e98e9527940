"""A trained reranker on disk: a folder of JSON and safetensors, nothing that runs code.

``config.json``         model, hyperparameters, features, source of IDF, and SHA-256 of all files
``model.safetensors``   the weights, word vectors included
``vocabulary.json``     the words
``adapted.safetensors`` word vectors adapted to a collection, where the model reads them
``metrics.json``        training data, and validation results

Models that are no tensors have files of their own (``model.txt``: the trees of LambdaMART). A
model that reads other models' scores has their checkpoints in sub-folders of their names
(``sm_cnn/``), as its weights fit the scores of these checkpoints only.

Checkpoints with the same words can share these and the weights that are alike, above all word
vectors, in a folder beside them, which a copy of theirs needs, too: see :func:`share`.

Loading compares every file with its SHA-256 before reading it. A file that is added later is not
compared (``lambda.json``, which tuning writes).
"""

import dataclasses
import difflib
import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from rerankers import features, models
from rerankers.base import Reranker, Resources
from rerankers.errors import RerankerError
from rerankers.features.judged import JUDGED, JUDGMENTS, JudgedPosts
from rerankers.reranker import TUNING_FILE, TrainedReranker
from rerankers.text.inputs import TextEncoder
from rerankers.text.spaces import ADAPTED, AdaptedSpace
from rerankers.text.vocabulary import Idf, Vocabulary

FORMAT = 2  # Format of ``config.json``, and meaning of the weights: how texts become terms
VOCABULARY, WEIGHTS = SHARED_FILES = ("vocabulary.json", "model.safetensors")
ADAPTED_FILE = "adapted.safetensors"
SHIPPED = Path(__file__).parent / "checkpoints"
"""The trained weights that come with the package: ``<model>/<test collection or "all">``."""


def save(
    directory: Path,
    name: str,
    model: Reranker,
    encoder: TextEncoder,
    metrics: Mapping[str, Any],
    extras: Mapping[str, bytes] | None = None,
) -> None:
    """Write a checkpoint into an empty folder, which is created if it is missing.

    The caller sees to it that no half-written folder stays (``indexes.files.atomic_directory``).

    Args:
        metrics: content of ``metrics.json``.
        extras: file name -> content of further files.

    Raises:
        RerankerError: the folder is not empty.
    """
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise RerankerError(f"{directory}: found files, expected an empty folder to write into")
    _write_json(directory / "metrics.json", metrics)
    encoder.vocabulary.save(directory / VOCABULARY)
    weights = {key: value.cpu().contiguous() for key, value in model.state_dict().items()}
    _save_weights(weights, directory / WEIGHTS)
    for file_name, content in {**model.files(), **(extras or {})}.items():
        (directory / file_name).write_bytes(content)
    config = {
        "model": name,
        "idf": encoder.idf.source,
        "config": dataclasses.asdict(model.config),
        "features": list(features.names_of(model.feature_families)),
    }
    write_config(directory, config)


def share(directories: Sequence[Path], name: str) -> None:
    """Keep once what several checkpoints, folders beside one another, have alike.

    Their vocabulary and all weights that are the same in each go to a new folder ``name`` beside
    them, which ``config.json`` names as ``shared``.

    Raises:
        RerankerError: the checkpoints lie in several folders or have different words, one of them
            shares its words already, or the new folder exists.
    """
    shared = directories[0].parent / name
    configs = [_read_json(directory / "config.json") for directory in directories]
    if shared.exists() or any("shared" in config for config in configs):
        raise RerankerError(f"{shared}: found words that are shared already")
    words = {_sha256(directory / VOCABULARY) for directory in directories}
    if len({directory.parent for directory in directories}) > 1 or len(words) > 1:
        raise RerankerError("found checkpoints of several folders, or of different words")
    weights = [load_file(directory / WEIGHTS) for directory in directories]
    alike = {
        key: value
        for key, value in weights[0].items()
        if all(key in others and torch.equal(value, others[key]) for others in weights)
    }
    shared.mkdir()
    _save_weights(alike, shared / WEIGHTS)
    shutil.copy(directories[0] / VOCABULARY, shared)
    for directory, config, own in zip(directories, configs, weights, strict=True):
        _save_weights({key: own[key] for key in own.keys() - alike.keys()}, directory / WEIGHTS)
        (directory / VOCABULARY).unlink()
        kept = {key: value for key, value in config.items() if key != "sha256"}
        write_config(directory, {**kept, "shared": name})


def copy_whole(directory: Path, target: Path, adapted: Path | None = None) -> None:
    """Copy a checkpoint, without a λ, into an empty folder that needs no other one.

    Args:
        directory: of the checkpoint; what it shares with others is copied into the new folder.
        target: the new folder.
        adapted: file of adapted word vectors, if it is to have others than its own.

    Raises:
        RerankerError: a file is missing or damaged.
    """
    config = _read_json(directory / "config.json")
    _check_files(directory, config)
    without = shutil.ignore_patterns(TUNING_FILE)
    shutil.copytree(directory, target, ignore=without, dirs_exist_ok=True)
    if shared := _shared(directory, config):
        shutil.copy(shared / VOCABULARY, target)
        weights = load_file(shared / WEIGHTS) | load_file(directory / WEIGHTS)
        _save_weights(weights, target / WEIGHTS)
    if adapted:
        shutil.copy(adapted, target / ADAPTED_FILE)
    left_out = ("shared", "sha256", "files", "format")
    write_config(target, {key: value for key, value in config.items() if key not in left_out})


def _shared(directory: Path, config: Mapping[str, Any]) -> Path | None:
    """The folder beside a checkpoint that has its words and some of its weights."""
    return directory / ".." / Path(str(config["shared"])).name if "shared" in config else None


def _save_weights(weights: Mapping[str, torch.Tensor], path: Path) -> None:
    save_file(dict(weights), path)
    path.chmod(0o644)  # save_file makes it readable for its owner only.


def write_config(directory: Path, config: Mapping[str, Any]) -> None:
    """Write ``config.json`` with the SHA-256 of the other files of a checkpoint, and its own."""
    files = {
        path.relative_to(directory).as_posix(): _sha256(path)
        for path in sorted(directory.glob("*"))
        if path.is_file() and path != directory / "config.json"
    }
    if shared := _shared(directory, config):
        files |= {f"../{shared.name}/{name}": _sha256(shared / name) for name in SHARED_FILES}
    content = {"format": FORMAT, **config, "files": files}
    _write_json(directory / "config.json", content | {"sha256": _sha256_of_config(content)})


def version_of(directory: Path) -> str:
    """Hash of everything that a model's scores depend on, but for adapted word vectors.

    ``config.json`` holds the SHA-256 of the checkpoint's other files.

    Raises:
        RerankerError: it cannot be read.
    """
    try:
        return _sha256(directory / "config.json")
    except OSError as error:
        raise RerankerError(f"{directory}: found no whole checkpoint ({error})") from None


def find(model: str | Path) -> Path:
    """The checkpoint folder of a model that comes with the package, or a folder given by its path.

    The model's checkpoint is that trained on all judged years. Its name has priority over a folder
    with this name; a ``Path`` is always a folder.

    Raises:
        RerankerError: there is no such model or folder.
    """
    if isinstance(model, Path):
        return model
    names = sorted(path.parent.name for path in SHIPPED.glob("*/all"))
    if model in names:
        return SHIPPED / model / "all"
    if Path(model).is_dir():
        return Path(model)
    similar = difflib.get_close_matches(model, names, n=1)
    raise RerankerError(
        f"found no model and no folder {model!r}, expected one of {', '.join(names)}, or the "
        "folder of a checkpoint" + (f"; did you mean {similar[0]}?" if similar else "")
    )


def load(
    directory: Path,
    name: str | None = None,
    device: torch.device | str = "cpu",
    idf: Idf | None = None,
    adapted: Path | None = None,
) -> TrainedReranker:
    """Read a checkpoint folder.

    Args:
        name: expected model; None accepts any.
        idf: word frequencies instead of those in training.
        adapted: file of adapted word vectors, in place of the folder's own.

    Raises:
        RerankerError: a file is missing, damaged, of another format or of another model.
    """
    config = _read_json(directory / "config.json")
    if config.get("format") != FORMAT:
        raise RerankerError(
            f"{directory / 'config.json'}: found checkpoint format {config.get('format')}, "
            f"expected {FORMAT}; train again with this version"
        )
    _check_files(directory, config)
    model_name, path = str(config.get("model")), directory / "config.json"
    if name is not None and model_name != name:
        raise RerankerError(
            f"{directory}: found a checkpoint of {model_name}, expected one of {name}; "
            f"name {model_name} as `reranker`, or another `checkpoint`"
        )
    try:
        model_type: Any = models.find(model_name)
    except RerankerError as error:
        raise RerankerError(f"{path}: {error}") from None
    shared = _shared(directory, config)
    vocabulary = Vocabulary.load((shared or directory) / VOCABULARY)
    try:
        model = model_type(model_type.config_type(**config["config"]), vocabulary)
        idf_source = str(config["idf"])
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise RerankerError(
            f"{path}: found settings that {model_name} cannot use ({error}); "
            "train again with this version"
        ) from None
    trained, known = config["features"], list(features.names_of(model.feature_families))
    if trained != known:
        raise RerankerError(
            f"{path}: found a model of the features {trained}, but this version has {known}; "
            "train again with this version"
        )
    _load_weights(model, directory / WEIGHTS, shared)
    model.read_files(directory)
    encoder = TextEncoder(vocabulary, idf or idf_from(idf_source))
    model, metrics = model.to(device).eval(), _read_json(directory / "metrics.json")
    resources = _resources(directory, adapted, model)
    return TrainedReranker(model_name, model, encoder, metrics, directory, resources=resources)


def _resources(directory: Path, adapted: Path | None, model: Reranker) -> Resources:
    """What the folder has of its collection for the model's features; for ``adapted`` see load."""
    known: dict[str, Any] = {}
    path = adapted or directory / ADAPTED_FILE
    if (adapted or path.exists()) and f"meaning:{ADAPTED}" in model.feature_families:
        known[ADAPTED] = AdaptedSpace.load(path)
    path = directory / JUDGMENTS
    if path.exists() and JUDGED in model.feature_families:
        known[JUDGED] = JudgedPosts.read(path)
    return known


def idf_from(source: str) -> Idf:
    """Word frequencies by name: ``wordfreq``, ``wordfreq:LANGUAGE``, or the path of a file.

    Raises:
        RerankerError: the file is missing or has another content.
    """
    kind, _, language = source.partition(":")
    if kind == "wordfreq":
        return Idf.from_wordfreq(language or "en")
    return Idf.read(Path(source))


def _check_files(directory: Path, config: Mapping[str, Any]) -> None:
    """Compare the files of a checkpoint with the SHA-256 in its configuration."""
    # The configuration first, as it names the other files.
    expected_of = {"config.json": config.get("sha256"), **config.get("files", {})}
    for name, expected in expected_of.items():
        path = directory / name
        if name == "config.json":
            digest = _sha256_of_config(config)
        else:
            digest = _sha256(path) if path.is_file() else "no file"
        if digest != expected:
            beside = " (a folder that must lie beside the checkpoint)" if "../" in name else ""
            raise RerankerError(
                f"{path}{beside}: found {digest}, expected the SHA-256 {expected}: the file is "
                "damaged or was changed after training; restore it (for a checkpoint that comes "
                "with the package: install the package again), or train again"
            )


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _sha256_of_config(config: Mapping[str, Any]) -> str:
    """SHA-256 of a configuration's content without its own ``sha256``."""
    content = {key: value for key, value in config.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _load_weights(model: Reranker, path: Path, shared: Path | None) -> None:
    alike = load_file(shared / WEIGHTS) if shared else {}
    try:
        model.load_state_dict(alike | load_file(path), strict=True)
    except RuntimeError as error:
        reasons = "; ".join(line.strip() for line in str(error).splitlines()[1:4])
        raise RerankerError(
            f"{path}: the weights do not fit the model of config.json: {reasons}"
        ) from None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RerankerError(
            f"{path}: found no readable JSON ({error}), expected a checkpoint folder with "
            "config.json, model.safetensors, vocabulary.json and metrics.json"
        ) from None
    if not isinstance(content, dict):
        raise RerankerError(f"{path}: found a {type(content).__name__}, expected a JSON object")
    return content


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
