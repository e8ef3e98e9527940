"""A trained model on disk: a folder of JSON, text and safetensors, nothing that runs
code.

``config.json``         model, hyperparameters, features, source of IDF; SHA-256 of all
files ``metrics.json``        training data, and validation results ``lambda.json``
λ, calibration, and figures on held-out topics ``model.txt``           trees, with
``model_2.txt`` and so on those of further objectives ``model.safetensors``   the
weights of a network, word vectors included ``vocabulary.json``     the words of a
network ``adapted.safetensors`` word vectors adapted to a collection, where trees read
them ``judgments.json``      judgments of a collection, where trees read them

Networks of one folder may share words, and weights that are alike, in a folder beside
them (``shared`` in ``config.json``), which a copy of theirs needs, too.

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

FORMAT = (
    2  # Format of ``config.json``, and meaning of the weights: how texts become terms
)
ADAPTED_FILE, FREQUENCIES = "adapted.safetensors", "frequencies.tsv"
GENERAL, OF_POSTS = "wordfreq", "posts"  # Sources of word frequencies besides a file
TUNING_ONLY = {"held_out.run.gz"}
"""Files that scoring does not read; those of the shipped models are in a checkout
alone.
"""

SHIPPED = Path(__file__).parent / "checkpoints"
"""The trained weights that come with the package: ``<model>/<test collection or
"all">``.
"""


def save(
    directory: Path, model: Model, extras: Mapping[str, bytes] | None = None
) -> None:
    """Write a checkpoint, with ``extras`` (file name -> content), into a folder, which
    is created. The caller sees to it that no half-written folder stays
    (``indexes.files.atomic_directory``). Raises RerankerError if the folder is not
    empty.
    """
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise RerankerError(
            f"{directory}: found files, expected an empty folder to write into"
        )
    _write_json(directory / "metrics.json", model.metrics)
    for file_name, content in {**model.files(), **(extras or {})}.items():
        (directory / file_name).write_bytes(content)
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
    ``replaced``: file name -> content, for new files or in place of the checkpoint's
    own; ``idf``: source of word frequencies in place of its own. Raises RerankerError
    if a file is missing, changed or foreign.
    """
    config = checked(directory, replaced)
    shutil.copytree(directory, target, dirs_exist_ok=True)
    if shared := _shared(directory, config):
        shutil.copy(shared / VOCABULARY, target)
        (target / WEIGHTS).write_bytes(packed(_weights(directory, shared)))
    for name, content in replaced.items():
        (target / name).write_bytes(content)
    idf = _portable(idf or config["idf"])
    kept = {key: value for key, value in config.items() if key != "shared"}
    write_config(target, {**kept, "idf": idf})


def _shared(directory: Path, config: Mapping[str, Any]) -> Path | None:
    """The folder beside a checkpoint that has its words and some of its weights."""
    return (
        directory / ".." / Path(str(config["shared"])).name
        if "shared" in config
        else None
    )


def write_config(directory: Path, config: Mapping[str, Any]) -> None:
    """Write ``config.json`` with the SHA-256 of the other files of a checkpoint, and
    its own.
    """
    found = (path for path in sorted(directory.iterdir()) if path.is_file())
    files = {path.name: _sha256(path) for path in found if path.name != "config.json"}
    if shared := _shared(directory, config):
        paths = (shared / VOCABULARY, shared / WEIGHTS)
        files |= {f"../{shared.name}/{path.name}": _sha256(path) for path in paths}
    content = {"format": FORMAT, **config, "files": files}
    _write_json(
        directory / "config.json", content | {"sha256": _sha256_of_config(content)}
    )


def version_of(directory: Path) -> str:
    """Hash of everything that a model's scores depend on, but for adapted word vectors:
    that of ``config.json``, which holds those of the other files. RerankerError if it
    cannot be read.
    """
    try:
        return _sha256(directory / "config.json")
    except OSError as error:
        raise RerankerError(
            f"{directory}: found no whole checkpoint ({error})"
        ) from None


def find(model: str | Path) -> Path:
    """The folder of a model that comes with the package, trained on all judged years,
    or a folder. A model has priority over a folder of its name; a ``Path`` is always a
    folder. Raises RerankerError if there is neither.
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
    similar = difflib.get_close_matches(model, names, n=1)
    raise RerankerError(
        f"found no model and no folder {model!r}, expected one of {', '.join(names)}, or the "
        "folder of a checkpoint" + (f"; did you mean {similar[0]}?" if similar else "")
    )


def load(
    directory: Path,
    name: str | None = None,
    device: Any = "cpu",
    idf: Callable[[str], Idf] | None = None,
    adapted: Path | None = None,
    batch_size: int = 256,
) -> Model:
    """Read a checkpoint folder of a model, or of the one with this ``name`` alone.

    ``idf``: source of word frequencies in training -> word frequencies, by default
    :func:`idf_from`; ``adapted``: file of adapted word vectors, in place of the
    folder's own. Of a network, ``device`` is ``auto``, ``cpu``, ``cuda`` or ``cuda:1``,
    and ``batch_size`` the pairs in a forward pass. Raises RerankerError if a file is
    missing, damaged, of another format or of another model, the device is not there, or
    PyTorch is missing for a network.
    """
    config, path = checked(directory), directory / "config.json"
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
    try:
        known = {
            "name": model_name,
            "config": type(next(iter(kind.configurations.values())))(
                **config["config"]
            ),
            "idf": (idf or idf_from)(frequencies_of(directory, config)),
            "metrics": read_json(directory / "metrics.json"),
            "directory": directory,
            "read_again": reloaded,
        }
        if registry.is_network(model_name):
            from tweetrerank.rerankers.networks.network import Network

            shared = _shared(directory, config)
            vocabulary = Vocabulary.load((shared or directory) / VOCABULARY)
            known |= {"vocabulary": vocabulary, "batch_size": batch_size}
            module = kind(known["config"], vocabulary)
            model: Model = Network.of(
                module, _weights(directory, shared), device, **known
            )
        else:
            from tweetrerank.rerankers.trees.boosting import files_of

            files = (directory / file_name for file_name in files_of(known["config"]))
            model = kind(
                lists=[path.read_text(encoding="utf-8") for path in files], **known
            )
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise RerankerError(
            f"{path}: found settings that {model_name} cannot use ({error}); "
            "train again with this version"
        ) from None
    trained, names = config["features"], list(features.names_of(model.families))
    if trained != names:
        raise RerankerError(
            f"{path}: found a model of the features {trained}, but this version has {names}; "
            "train again with this version"
        )
    return dataclasses.replace(
        model, resources=_resources(directory, adapted, model.families)
    )


def reloaded(
    directory: Path,
    name: str,
    device: str,
    source: str,
    batch_size: int,
    resources: Resources,
) -> Model:
    """A pickled model, read from its folder again."""
    model = load(directory, name, device, lambda _: idf_from(source), None, batch_size)
    return dataclasses.replace(model, resources=resources)


def _weights(directory: Path, shared: Path | None) -> dict[str, Any]:
    return (load_file(shared / WEIGHTS) if shared else {}) | load_file(
        directory / WEIGHTS
    )


def _resources(
    directory: Path, adapted: Path | None, families: Sequence[str]
) -> Resources:
    """Knowledge of a collection in the folder, for the model's features; ``adapted``:
    see load.
    """
    known: dict[str, Any] = {}
    path = adapted or directory / ADAPTED_FILE
    if (adapted or path.exists()) and f"meaning:{ADAPTED}" in families:
        known[ADAPTED] = AdaptedSpace.load(path)
    if JUDGED in families and (directory / JUDGMENTS).exists():
        known[JUDGED] = JudgedPosts.read(directory / JUDGMENTS)
    return known


def frequencies_of(directory: Path, config: Mapping[str, Any] | None = None) -> str:
    """The source of word frequencies of a checkpoint, for :func:`idf_from`; those of a
    collection's posts may be among its files.
    """
    source = str((config or read_json(directory / "config.json"))["idf"])
    path = directory / FREQUENCIES
    return f"{source}:{path}" if path.exists() else source


def _portable(source: str) -> str:
    """A source of frequencies without the place of a collection's."""
    return ":".join(source.split(":")[:2]) if source.startswith(OF_POSTS) else source


def idf_from(source: str) -> Idf:
    """Word frequencies by name: ``wordfreq``, ``wordfreq:LANGUAGE``, or the path of a
    file, with a RerankerError if it is missing or has another content;
    ``posts:LANGUAGE:FILE`` are those of a collection's posts, smoothed by general ones,
    and these alone without the file.
    """
    kind, language, path = (*source.split(":", 2), "", "")[:3]
    if kind not in (GENERAL, OF_POSTS):
        return Idf.read(Path(source))
    general = Idf.from_wordfreq(language or "en")
    if path:
        return Idf.read(Path(path)).smoothed(general, source)
    return dataclasses.replace(general, source=source) if kind == OF_POSTS else general


def checked(directory: Path, replaced: Collection[str] = ()) -> dict[str, Any]:
    """The configuration of a checkpoint, all of whose files are those that it names.
    The files ``replaced`` need not be as they were. Raises RerankerError if the format
    is another one, or a file is missing, changed or foreign.
    """
    path = directory / "config.json"
    config = read_json(path)
    if config.get("format") != FORMAT:
        raise RerankerError(
            f"{path}: found checkpoint format {config.get('format')}, expected {FORMAT}; "
            "train again with this version"
        )
    _require(path, _sha256_of_config(config), config.get("sha256"))
    for name, expected in config["files"].items():
        part = directory / name
        is_left_out = name in TUNING_ONLY and not part.exists()
        if name not in replaced and not is_left_out:
            _require(part, _sha256(part) if part.is_file() else "no file", expected)
    present = {each.name for each in directory.iterdir() if each.is_file()}
    foreign = {name for name in present if not name.startswith(".")} - config[
        "files"
    ].keys()
    foreign -= {"config.json", *replaced}
    if foreign == {TUNING_FILE}:  # Earlier versions wrote it without naming it.
        warn(
            f"{directory / TUNING_FILE}: {path} does not name it; it is used unchecked"
        )
    elif foreign:
        raise RerankerError(
            f"{directory}: found {', '.join(sorted(foreign))}, expected the files alone that "
            f"{path} names; remove what is no part of the model"
        )
    return config


def _require(path: Path, found: str, expected: object) -> None:
    """Raise RerankerError for a file of another SHA-256."""
    if found != expected:
        beside = (
            ""
            if ".." not in path.parts
            else " (a folder that must lie beside the checkpoint)"
        )
        raise RerankerError(
            f"{path}{beside}: found {found}, expected the SHA-256 {expected}: the file is lost, "
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


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file of a checkpoint; raises RerankerError if it is missing or damaged."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RerankerError(
            f"{path}: found no readable JSON ({error}), expected a checkpoint folder with "
            "config.json, metrics.json, and model.txt or model.safetensors and vocabulary.json"
        ) from None
    if not isinstance(content, dict):
        raise RerankerError(
            f"{path}: found a {type(content).__name__}, expected a JSON object"
        )
    return content


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(
        json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
    )
