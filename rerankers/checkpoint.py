"""A trained model on disk: a folder of JSON, text and safetensors, without code.

``config.json``         model, hyperparameters, features, source of IDF, and the SHA-256
                        of all files
``metrics.json``        training data and validation results
``lambda.json``         λ, calibration, and figures on held-out topics
``model.txt``           trees; ``model_2.txt`` and so on hold further objectives
``model.safetensors``   weights of a network, with its word vectors
``vocabulary.json``     words of a network
``adapted.safetensors`` word vectors adapted to a collection, for trees that read them
``judgments.json``      judgments of a collection, for trees that read them

Networks may share words and equal weights in a sibling folder (``shared`` in
``config.json``). A copy of such a network needs that folder, too.

:func:`checked` compares every file with its SHA-256 before one is read.
"""

import dataclasses
import difflib
import hashlib
import json
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file
from safetensors.numpy import save as packed

from tweetrerank.rerankers import features, registry
from tweetrerank.rerankers.devices import placed
from tweetrerank.rerankers.features.judged import JUDGED, JUDGMENTS, JudgedPosts
from tweetrerank.rerankers.model import TUNING_FILE, VOCABULARY, WEIGHTS, Model
from tweetrerank.rerankers.pairs import Resources
from tweetrerank.rerankers.reranker_error import RerankerError, warn
from tweetrerank.rerankers.text.spaces import ADAPTED, AdaptedSpace
from tweetrerank.rerankers.text.vocabulary import Idf, Vocabulary

FORMAT = 2
"""Version of ``config.json``, and of the way texts become terms of the weights."""

CONFIG = "config.json"
METRICS = "metrics.json"
ADAPTED_FILE = "adapted.safetensors"
FREQUENCIES = "frequencies.tsv"

# Sources of word frequencies other than a file
GENERAL = "wordfreq"
OF_POSTS = "posts"

TUNING_ONLY = {"held_out.run.gz"}
"""Files that scoring does not read. Installed packages lack those of shipped models."""

SHIPPED = Path(__file__).parent / "checkpoints"
"""The trained weights in the package: ``<model>/<test collection or "all">``."""


def save(
    directory: Path, model: Model, extras: Mapping[str, bytes] | None = None
) -> None:
    """Write a checkpoint, with ``extras`` (file name -> content), into a new folder.

    The caller must see to it that no half-written folder stays
    (:func:`tweetrerank.indexes.files.atomic_directory`). Raises RerankerError if the
    folder is not empty.
    """
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise RerankerError(
            f"{directory}: found files, expected an empty folder to write into"
        )
    _write_json(directory / METRICS, model.metrics)
    contents = {**model.files(), **(extras or {})}
    for name, content in contents.items():
        (directory / name).write_bytes(content)
    config = {
        "model": model.name,
        "idf": _portable(model.idf.source),
        "config": dataclasses.asdict(model.config),
        "features": list(features.names_of(model.families)),
    }
    write_config(directory, config)


def copy_whole(
    directory: Path, target: Path, replaced: Mapping[str, bytes], idf: str = ""
) -> None:
    """Copy a checkpoint, with all that it shares with others, into an empty folder.

    Args:
        directory: folder of the checkpoint.
        target: folder of the copy.
        replaced: file name -> content, for new files or in place of the checkpoint's.
        idf: source of word frequencies in place of the checkpoint's.

    Raises:
        RerankerError: a file is missing, changed or foreign.
    """
    config = checked(directory, replaced)
    shutil.copytree(directory, target, dirs_exist_ok=True)
    shared = _shared(directory, config)
    if shared:
        shutil.copy(shared / VOCABULARY, target)
        (target / WEIGHTS).write_bytes(packed(_weights(directory, shared)))
    for name, content in replaced.items():
        (target / name).write_bytes(content)
    copy = {key: value for key, value in config.items() if key != "shared"}
    copy["idf"] = _portable(idf or config["idf"])
    write_config(target, copy)


def _shared(directory: Path, config: Mapping[str, Any]) -> Path | None:
    """The sibling folder with a checkpoint's words and some of its weights."""
    if "shared" not in config:
        return None
    return directory / ".." / Path(str(config["shared"])).name


def write_config(directory: Path, config: Mapping[str, Any]) -> None:
    """Write ``config.json`` with the SHA-256 of a checkpoint's other files.

    It also contains the SHA-256 of its own content.
    """
    files = {}
    for path in sorted(directory.iterdir()):
        if path.is_file() and path.name != CONFIG:
            files[path.name] = _sha256(path)
    shared = _shared(directory, config)
    if shared:
        for path in (shared / VOCABULARY, shared / WEIGHTS):
            files[f"../{shared.name}/{path.name}"] = _sha256(path)
    content = {"format": FORMAT, **config, "files": files}
    signed = content | {"sha256": _sha256_of_config(content)}
    _write_json(directory / CONFIG, signed)


def version_of(directory: Path) -> str:
    """SHA-256 of all that a model's scores depend on, without adapted word vectors.

    It is the hash of ``config.json``, which contains those of the other files. Raises
    RerankerError if it cannot be read.
    """
    try:
        return _sha256(directory / CONFIG)
    except OSError as error:
        raise RerankerError(
            f"{directory}: found no whole checkpoint ({error})"
        ) from None


def find(model: str | Path) -> Path:
    """The folder of a model in the package, trained on all judged years, or a folder.

    A model has priority over a folder of its name; a ``Path`` is always a folder.
    Raises RerankerError if there is neither.
    """
    if isinstance(model, Path):
        return model
    if not isinstance(model, str):
        raise RerankerError(f"found the model {model!r}, expected its name or folder")
    names = sorted(path.parent.name for path in SHIPPED.glob("*/all"))
    if model in names:
        return SHIPPED / model / "all"
    if Path(model).is_dir():
        return Path(model)
    hint = ""
    similar = difflib.get_close_matches(model, names, n=1)
    if similar:
        hint = f"; did you mean {similar[0]}?"
    raise RerankerError(
        f"found no model and no folder {model!r}, expected one of {', '.join(names)}, "
        f"or the folder of a checkpoint{hint}"
    )


def load(
    directory: Path,
    name: str | None = None,
    device: Any = "cpu",
    idf: Callable[[str], Idf] | None = None,
    adapted: Path | None = None,
    batch_size: int = 256,
) -> Model:
    """Read a checkpoint folder.

    Args:
        directory: folder of the checkpoint.
        name: the only model that is accepted; None accepts all.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:1``, of a network.
        idf: source of word frequencies in training -> word frequencies; default
            :func:`idf_from`.
        adapted: file of adapted word vectors, in place of the folder's.
        batch_size: pairs in a forward pass of a network.

    Raises:
        RerankerError: a file is missing, damaged, of another format or of another
            model, the device is missing, or a network lacks PyTorch.
    """
    config = checked(directory)
    path = directory / CONFIG
    model_name = str(config.get("model"))
    if name is not None and model_name != name:
        raise RerankerError(
            f"{directory}: found a checkpoint of {model_name}, expected one of {name}; "
            f"name {model_name} as `reranker`, or another `checkpoint`"
        )
    try:
        kind = registry.find(model_name)
    except RerankerError as error:
        raise RerankerError(f"{path}: {error}") from None
    device = placed(device, registry.is_network(model_name))
    read_idf = idf or idf_from
    try:
        fields = {
            "name": model_name,
            "config": _hyperparameters(kind, config["config"]),
            "idf": read_idf(frequencies_of(directory, config)),
            "metrics": read_json(directory / METRICS),
            "directory": directory,
            "read_again": reloaded,
        }
        if registry.is_network(model_name):
            fields["batch_size"] = batch_size
            model = _network(directory, config, kind, device, fields)
        else:
            model = _trees(directory, kind, fields)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise RerankerError(
            f"{path}: found settings that {model_name} cannot use ({error}); "
            "train again with this version"
        ) from None
    _check_features(path, config["features"], model)
    resources = _resources(directory, adapted, model.families)
    return dataclasses.replace(model, resources=resources)


def _hyperparameters(kind: Any, values: Mapping[str, Any]) -> Any:
    """The hyperparameters of a model, in the class of its configurations."""
    default = next(iter(kind.configurations.values()))
    return type(default)(**values)


def _network(
    directory: Path,
    config: Mapping[str, Any],
    kind: Any,
    device: str,
    fields: dict[str, Any],
) -> Model:
    """A network with its words and weights."""
    from tweetrerank.rerankers.networks.network import Network

    shared = _shared(directory, config)
    vocabulary = Vocabulary.load((shared or directory) / VOCABULARY)
    module = kind(fields["config"], vocabulary)
    weights = _weights(directory, shared)
    return Network.of(module, weights, device, vocabulary=vocabulary, **fields)


def _trees(directory: Path, kind: Any, fields: dict[str, Any]) -> Model:
    """Boosted trees of all their objectives."""
    from tweetrerank.rerankers.trees.boosting import files_of

    lists = []
    for name in files_of(fields["config"]):
        lists.append((directory / name).read_text(encoding="utf-8"))
    model: Model = kind(lists=lists, **fields)
    return model


def _check_features(path: Path, trained: Sequence[str], model: Model) -> None:
    """Raise RerankerError if the features have changed since the training."""
    names = list(features.names_of(model.families))
    if trained != names:
        raise RerankerError(
            f"{path}: found a model of the features {trained}, but this version has "
            f"{names}; train again with this version"
        )


def reloaded(
    directory: Path,
    name: str,
    device: str,
    source: str,
    batch_size: int,
    resources: Resources,
) -> Model:
    """Read the folder of a pickled model."""
    model = load(
        directory, name, device, lambda _: idf_from(source), batch_size=batch_size
    )
    return dataclasses.replace(model, resources=resources)


def _weights(directory: Path, shared: Path | None) -> dict[str, Any]:
    """Weights of a network; its own override shared ones."""
    weights: dict[str, Any] = {}
    if shared:
        weights |= load_file(shared / WEIGHTS)
    weights |= load_file(directory / WEIGHTS)
    return weights


def _resources(
    directory: Path, adapted: Path | None, families: Sequence[str]
) -> Resources:
    """Knowledge of a collection in the folder, for the model's features.

    ``adapted``: see :func:`load`.
    """
    resources: dict[str, Any] = {}
    if f"meaning:{ADAPTED}" in families:
        path = adapted or directory / ADAPTED_FILE
        if adapted or path.exists():
            resources[ADAPTED] = AdaptedSpace.load(path)
    if JUDGED in families and (directory / JUDGMENTS).exists():
        resources[JUDGED] = JudgedPosts.read(directory / JUDGMENTS)
    return resources


def frequencies_of(directory: Path, config: Mapping[str, Any] | None = None) -> str:
    """Source of a checkpoint's word frequencies, for :func:`idf_from`.

    Frequencies of a collection's posts may be among the checkpoint's files.
    """
    if not config:
        config = read_json(directory / CONFIG)
    source = str(config["idf"])
    path = directory / FREQUENCIES
    if path.exists():
        return f"{source}:{path}"
    return source


def _portable(source: str) -> str:
    """A source of word frequencies, without the path of a collection's."""
    if source.startswith(OF_POSTS):
        return ":".join(source.split(":")[:2])
    return source


def idf_from(source: str) -> Idf:
    """Read word frequencies by the name of their source.

    ``wordfreq`` and ``wordfreq:LANGUAGE`` are general ones. ``posts:LANGUAGE:FILE`` are
    those of a collection's posts, smoothed by general ones; without the file they are
    general. Anything else is the path of a file; RerankerError if it is missing or
    malformed.
    """
    kind, language, path = (*source.split(":", 2), "", "")[:3]
    if kind not in (GENERAL, OF_POSTS):
        return Idf.read(Path(source))
    general = Idf.from_wordfreq(language or "en")
    if path:
        return Idf.read(Path(path)).smoothed(general, source)
    if kind == OF_POSTS:
        return dataclasses.replace(general, source=source)
    return general


def checked(directory: Path, replaced: Collection[str] = ()) -> dict[str, Any]:
    """Return the configuration of a checkpoint after a check of all its files.

    The files ``replaced`` may differ. Raises RerankerError if the format is another
    one, or if a file is missing, changed or foreign.
    """
    path = directory / CONFIG
    config = read_json(path)
    if config.get("format") != FORMAT:
        raise RerankerError(
            f"{path}: found checkpoint format {config.get('format')}, expected "
            f"{FORMAT}; train again with this version"
        )
    _require(path, _sha256_of_config(config), config.get("sha256"))
    for name, expected in config["files"].items():
        part = directory / name
        if name in replaced or (name in TUNING_ONLY and not part.exists()):
            continue
        digest = _sha256(part) if part.is_file() else "no file"
        _require(part, digest, expected)
    _check_foreign(directory, {*config["files"], *replaced, CONFIG})
    return config


def _check_foreign(directory: Path, expected: set[str]) -> None:
    """Raise RerankerError if a folder has files that the configuration lacks."""
    foreign = set()
    for path in directory.iterdir():
        is_hidden = path.name.startswith(".")
        if path.is_file() and not is_hidden and path.name not in expected:
            foreign.add(path.name)
    if foreign == {TUNING_FILE}:  # Earlier versions wrote it without naming it.
        warn(
            f"{directory / TUNING_FILE}: {directory / CONFIG} does not name it; it is "
            "used unchecked"
        )
    elif foreign:
        raise RerankerError(
            f"{directory}: found {', '.join(sorted(foreign))}, expected the files "
            f"alone that {directory / CONFIG} names; remove files that are no part of "
            "the model"
        )


def _require(path: Path, digest: str, expected: object) -> None:
    """Raise RerankerError for a file of another SHA-256."""
    if digest == expected:
        return
    place = ""
    if ".." in path.parts:
        place = " (a folder that must lie beside the checkpoint)"
    raise RerankerError(
        f"{path}{place}: found {digest}, expected the SHA-256 {expected}: the file is "
        "lost, damaged or was changed after training; restore it (for a checkpoint "
        "that comes with the package: install the package again), or train again"
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _sha256_of_config(config: Mapping[str, Any]) -> str:
    """SHA-256 of a configuration's content without its own ``sha256``."""
    content = {key: value for key, value in config.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file of a checkpoint; RerankerError if it is missing or damaged."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RerankerError(
            f"{path}: found no readable JSON ({error}), expected a checkpoint folder "
            "with config.json, metrics.json, and model.txt or model.safetensors and "
            "vocabulary.json"
        ) from None
    if not isinstance(content, dict):
        raise RerankerError(
            f"{path}: found a {type(content).__name__}, expected a JSON object"
        )
    return content


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    text = json.dumps(content, indent=2, ensure_ascii=False)
    path.write_text(f"{text}\n", encoding="utf-8")
