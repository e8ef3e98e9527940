"""Trained models on disk: folders of JSON, text and safetensors files, without code.

``config.json``         model, hyperparameters, features, source of IDF, and the SHA-256
                        of all files
``metrics.json``        training data and validation results
``lambda.json``         λ, calibration, and figures on held-out topics
``model.txt``           trees; ``model_2.txt`` and so on hold further objectives
``model.safetensors``   weights of a network, with its word vectors
``vocabulary.json``     words of a network
``adapted.safetensors`` word vectors adapted to a collection, for trees that read them
``judgments.json``      judgments of a collection, for trees that read them

Networks may share their words, and weights that are equal, in a sibling folder, which
``shared`` in ``config.json`` names. Whoever copies such a network must copy that folder
as well.

:func:`checked` compares every file with its SHA-256 before any of them is read.
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
"""Version of ``config.json``, and of the rules by which texts are cut into words."""

CONFIG = "config.json"
METRICS = "metrics.json"
ADAPTED_FILE = "adapted.safetensors"
FREQUENCIES = "frequencies.tsv"

# Sources of word frequencies other than a file
GENERAL = "wordfreq"
OF_POSTS = "posts"

TUNING_ONLY = {"held_out.run.gz"}
"""Files that scoring does not read. The models in an installed package lack them."""

SHIPPED = Path(__file__).parent / "checkpoints"
"""Folder of the trained models in the package.

A model's folder is ``<model>/<test collection>``, or ``<model>/all``.
"""


def save(
    directory: Path, model: Model, extras: Mapping[str, bytes] | None = None
) -> None:
    """Write a model, and ``extras`` (file name -> content), into a new folder.

    The write is not atomic: a caller who wants no half-written folder to remain uses
    :func:`tweetrerank.indexes.files.atomic_directory`. Raises RerankerError if the
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
    """Copy a checkpoint into an empty folder, so that the copy needs no other folder.

    The copy of a network includes the words and weights that it shares with others.

    Args:
        directory: folder of the checkpoint.
        target: folder of the copy.
        replaced: file name -> content of files to add or to write in place of the
            checkpoint's.
        idf: source of word frequencies to name in place of the checkpoint's; "" keeps
            the checkpoint's.

    Raises:
        RerankerError: a file of the checkpoint is missing or changed, or the folder has
            a file that is not part of it.
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
    """Return the sibling folder that a checkpoint shares, or None if it shares none."""
    if "shared" not in config:
        return None
    return directory / ".." / Path(str(config["shared"])).name


def write_config(directory: Path, config: Mapping[str, Any]) -> None:
    """Write ``config.json`` with the SHA-256 of each other file of the checkpoint.

    The file also contains the SHA-256 of its own content, so it must be written last.
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
    """Return a SHA-256 that identifies the files of a checkpoint.

    It is the hash of ``config.json``, which contains the hashes of the other files.
    Adapted word vectors from outside the folder do not change it. Raises RerankerError
    if ``config.json`` cannot be read.
    """
    try:
        return _sha256(directory / CONFIG)
    except OSError as error:
        raise RerankerError(
            f"{directory}: found no whole checkpoint ({error})"
        ) from None


def find(model: str | Path) -> Path:
    """Return the folder of a model, given its name or the folder itself.

    A name stands for the model in the package that was trained on all judged years. If
    a text is both a model's name and a folder, the model is taken. A ``Path`` is always
    a folder, and is returned unchecked. Raises RerankerError if a text is neither.
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
        name: name of the only model that is accepted; None accepts all.
        device: device of a network: ``auto``, ``cpu``, ``cuda`` or ``cuda:1``. Other
            models run on the CPU.
        idf: function that returns the word frequencies for the name of the source that
            the model was trained with. Default: :func:`idf_from`.
        adapted: file of adapted word vectors to read in place of the folder's.
        batch_size: number of pairs that a network scores in one forward pass.

    Raises:
        RerankerError: a file is missing, damaged, or of another format or model; the
            machine lacks the device; or a network needs PyTorch, which is missing.
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
    """Return the hyperparameters as an object of the class that the model uses."""
    default = next(iter(kind.configurations.values()))
    return type(default)(**values)


def _network(
    directory: Path,
    config: Mapping[str, Any],
    kind: Any,
    device: str,
    fields: dict[str, Any],
) -> Model:
    """Read a network with its words and weights."""
    from tweetrerank.rerankers.networks.network import Network

    shared = _shared(directory, config)
    vocabulary = Vocabulary.load((shared or directory) / VOCABULARY)
    module = kind(fields["config"], vocabulary)
    weights = _weights(directory, shared)
    return Network.of(module, weights, device, vocabulary=vocabulary, **fields)


def _trees(directory: Path, kind: Any, fields: dict[str, Any]) -> Model:
    """Read a model of boosted trees, with the list of trees of each objective."""
    from tweetrerank.rerankers.trees.boosting import files_of

    lists = []
    for name in files_of(fields["config"]):
        lists.append((directory / name).read_text(encoding="utf-8"))
    model: Model = kind(lists=lists, **fields)
    return model


def _check_features(path: Path, trained: Sequence[str], model: Model) -> None:
    """Raise RerankerError if this version has other features than the training had."""
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
    """Read a pickled model again from its folder, in the process that unpickles it."""
    model = load(
        directory, name, device, lambda _: idf_from(source), batch_size=batch_size
    )
    return dataclasses.replace(model, resources=resources)


def _weights(directory: Path, shared: Path | None) -> dict[str, Any]:
    """Return the weights of a network, by name. Its own override shared ones."""
    weights: dict[str, Any] = {}
    if shared:
        weights |= load_file(shared / WEIGHTS)
    weights |= load_file(directory / WEIGHTS)
    return weights


def _resources(
    directory: Path, adapted: Path | None, families: Sequence[str]
) -> Resources:
    """Read what the folder knows about a collection and the model's features need.

    A missing file is no error: the features that need it are unknown. For ``adapted``
    see :func:`load`.
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
    """Return the source of a checkpoint's word frequencies, for :func:`idf_from`.

    If the folder has a file with the frequencies of a collection's posts, the source
    includes its path.
    """
    if not config:
        config = read_json(directory / CONFIG)
    source = str(config["idf"])
    path = directory / FREQUENCIES
    if path.exists():
        return f"{source}:{path}"
    return source


def _portable(source: str) -> str:
    """Return a source of word frequencies without the path of a collection's file."""
    if source.startswith(OF_POSTS):
        return ":".join(source.split(":")[:2])
    return source


def idf_from(source: str) -> Idf:
    """Read word frequencies by the name of their source.

    ``wordfreq`` and ``wordfreq:LANGUAGE`` are the frequencies of general usage.
    ``posts:LANGUAGE:FILE`` are those of a collection's posts, smoothed by general ones.
    ``posts:LANGUAGE`` without a file means general frequencies alone. Anything else is
    the path of a file. Raises RerankerError if the file is missing or malformed.
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
    """Check all files of a checkpoint and return the content of its ``config.json``.

    The files named in ``replaced`` are not checked. Raises RerankerError if the
    checkpoint has another format, if a file is missing or changed, or if the folder has
    a file that ``config.json`` does not name.
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
    """Raise RerankerError if a folder has files other than the expected ones.

    Hidden files are ignored. A lone ``lambda.json`` only causes a warning.
    """
    foreign = set()
    for path in directory.iterdir():
        is_hidden = path.name.startswith(".")
        if path.is_file() and not is_hidden and path.name not in expected:
            foreign.add(path.name)
    # Earlier versions wrote this file without naming it in config.json.
    if foreign == {TUNING_FILE}:
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
    """Raise RerankerError if the digest of a file is not the expected SHA-256."""
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
    """Return the SHA-256 of a configuration without its entry ``sha256``."""
    content = {key: value for key, value in config.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file of a checkpoint.

    Raises RerankerError if the file is missing, damaged or not an object.
    """
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
