"""Posts precomputed for one checkpoint: a folder of arrays that scoring maps into memory.

``precomputed.json``       types and shapes of the arrays, the checkpoint and its source of IDF
``keys`` [N, 2], ``rows``  hash of each distinct post (text and URL), ascending, and its row below

For a model over features alone (:class:`PrecomputedPosts`):

``column.NAME.values``, ``column.NAME.starts``  columns of a :class:`PostTable`, ragged
``known.NAME``                                  its words, see :class:`KnownWords`

For a model whose fast path can precompute posts (:class:`PrecomputedVectors`):

``input.NAME.values``, ``input.NAME.starts``    token ids, ragged; of an input that a tower encodes,
                                                the row of each place's window at every depth
``tower.NAME.DEPTH``                            vectors [U, F] of distinct windows, or of posts

Posts are found by their content, not by an id: a post that is missing, or whose text has changed,
is computed when it is scored.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rerankers.base import Pairs, Reranker
from rerankers.engine import fast_paths
from rerankers.engine.windows import (
    WINDOWS,
    QueryVectors,
    TabulatedTower,
    TowerInput,
    WindowSimilarities,
)
from rerankers.errors import RerankerError
from rerankers.features._tables import COLUMNS, KnownWords, PostTable, WordColumns, WordTable
from rerankers.text.inputs import TokenIds
from rerankers.text.ragged import Ragged, Rows, distinct
from rerankers.text.vectors import UnitVectors
from rerankers.text.vocabulary import Idf

if TYPE_CHECKING:
    from rerankers.checkpoint import TrainedReranker

FORMAT = 2
"""Version of the files, and of how texts are read: folders of another version are refused."""

DESCRIPTION = "precomputed.json"
"""Name of a folder's description: with types and shapes, a missing or cut file is noticed."""

BLOCK = 4096
"""Posts that are computed together; more would need more memory."""

Progress = Callable[[int], None]
"""Called with the number of posts of each finished block."""

Texts = Sequence[str]


def can_precompute(model: Reranker) -> bool:
    """Whether a model scores faster with precomputed posts."""
    return _has_features_alone(model) or fast_paths.can_precompute(fast_paths.way_of(model))


def precompute(
    checkpoint: TrainedReranker,
    posts: Sequence[tuple[str, str]],
    directory: Path,
    progress: Progress = lambda posts_done: None,
    known: PrecomputedVectors | PrecomputedPosts | None = None,
) -> int:
    """Write the precomputed posts of a checkpoint into an empty folder.

    The caller removes a half-written folder (``indexes.files.atomic_directory``).

    Args:
        checkpoint: on the CPU.
        posts: text and URL ("" without one) of each; equal posts are written once.
        directory: empty or missing.
        progress: called with the number of posts of each finished block.
        known: of the same checkpoint. Posts that it has are copied, only the others are computed.

    Returns:
        Bytes written.

    Raises:
        RerankerError: precomputed posts are of no use to the model, or the folder is not empty or
            cannot be written.
    """
    model = checkpoint.model
    if not can_precompute(model):
        raise RerankerError(
            f"{checkpoint.directory}: found a model {checkpoint.name}, expected a model over "
            f"features alone, or one of {', '.join(fast_paths.precomputable())}; precomputed posts "
            "do not make other models faster"
        )
    is_table = _has_features_alone(model)
    if is_table:
        posts = [*posts, ("", "")]  # Candidates from runs may have no text.
    # In the order of the collection, where retweets are neighbours.
    distinct_posts = list(dict.fromkeys(posts))
    texts, urls = [text for text, _ in distinct_posts], [url for _, url in distinct_posts]
    keys, kept = keys_of(texts, urls), np.zeros(0, np.int64)
    if known is not None:
        found = known.rows_of(keys)
        # Posts that are copied come first.
        order = np.argsort(found < 0, kind="stable")
        kept = found[found >= 0]
        keys, new = keys[order], order[len(kept) :].tolist()
        texts, urls = [texts[post] for post in new], [urls[post] for post in new]
    rows = np.lexsort((keys[:, 1], keys[:, 0]))
    description = {
        "version": version_of(checkpoint.directory),
        "checkpoint": "/".join(checkpoint.directory.resolve().parts[-2:]),
        "directory": str(checkpoint.directory.resolve()),
        "idf": checkpoint.encoder.idf.source,
    }
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise RerankerError(f"{directory}: found files, expected an empty folder")
        with ArrayWriter(directory, description) as writer:
            writer.append("keys", keys[rows])
            writer.append("rows", rows)
            progress(len(kept))
            if is_table:
                posts_known = known if isinstance(known, PrecomputedPosts) else None
                _write_posts(checkpoint, texts, urls, writer, progress, posts_known, kept)
            else:
                if isinstance(known, PrecomputedVectors) and len(kept):
                    _copy_vectors(checkpoint.model, known, kept, writer)
                if texts:
                    _write_vectors(checkpoint, texts, urls, writer, progress)
    except OSError as error:
        raise RerankerError(f"{directory}: cannot be written ({error})") from None
    return writer.size


def open_precomputed(
    checkpoint: TrainedReranker, directory: Path, remedy: str
) -> PrecomputedVectors | PrecomputedPosts:
    """Map the precomputed posts of a checkpoint into memory.

    Args:
        checkpoint: in use.
        directory: filled by :func:`precompute`.
        remedy: how to make the folder again, for messages.

    Raises:
        RerankerError: there is no such folder, or it belongs to another checkpoint or format, or
            is damaged.
    """
    arrays = Arrays(directory, remedy)
    found, version = str(arrays.description.get("version")), version_of(checkpoint.directory)
    if found != version:
        raise arrays.error(
            directory,
            f"found posts precomputed by the checkpoint {arrays.description.get('checkpoint')} as "
            f"it was ({found[:12]}), expected those of the one in use ({version[:12]})",
        )
    is_table = _has_features_alone(checkpoint.model)
    return PrecomputedPosts(arrays) if is_table else PrecomputedVectors(arrays)


def checkpoint_of(directory: Path) -> Path:
    """The checkpoint that precomputed the posts of a folder.

    Raises:
        RerankerError: the folder's description is damaged, or older than this entry.
    """
    arrays = Arrays(directory, "precompute its posts again")
    if found := arrays.description.get("directory"):
        return Path(found)
    raise arrays.error(directory / DESCRIPTION, "found no folder of its checkpoint")


def version_of(checkpoint: Path) -> str:
    """Hash of everything that precomputed posts depend on.

    ``config.json`` holds the SHA-256 of the checkpoint's other files.

    Raises:
        RerankerError: it cannot be read.
    """
    try:
        config = (checkpoint / "config.json").read_bytes()
    except OSError as error:
        raise RerankerError(f"{checkpoint}: found no whole checkpoint ({error})") from None
    return hashlib.sha256(f"{FORMAT} ".encode() + config).hexdigest()


def _has_features_alone(model: Reranker) -> bool:
    return bool(model.feature_families) and not model.post_inputs


def keys_of(texts: Texts, urls: Texts) -> npt.NDArray[np.uint64]:
    """128 bits of BLAKE2b for each of N posts: [N, 2]."""
    # Some posts hold half a surrogate pair.
    digests = [
        hashlib.blake2b(f"{text}\0{url}".encode(errors="surrogatepass"), digest_size=16).digest()
        for text, url in zip(texts, urls, strict=True)
    ]
    return np.frombuffer(b"".join(digests), dtype="<u8").reshape(-1, 2)


def keys_of_posts(pairs: Pairs) -> npt.NDArray[np.uint64]:
    """:func:`keys_of` the posts of pairs, computed once: [D, 2]."""
    texts, urls, found = pairs.memo.get("keys", (None, None, None))
    # dataclasses.replace may have given the pairs other posts, but the same memo.
    if texts is not pairs.texts or urls is not pairs.urls:
        found = keys_of(pairs.texts, pairs.urls)
        pairs.memo["keys"] = pairs.texts, pairs.urls, found
    keys: npt.NDArray[np.uint64] = found
    return keys


class ArrayWriter:
    """Writes arrays into an empty folder, and their description at the end of the ``with`` block.

    Args:
        directory: an empty folder.
        description: more content of the description.

    Attributes:
        size: bytes of all arrays.
    """

    def __init__(self, directory: Path, description: Mapping[str, Any]) -> None:
        self._directory, self._description = directory, description
        self._files = ExitStack()
        self._streams: dict[str, IO[bytes]] = {}
        self._arrays: dict[str, dict[str, Any]] = {}
        self._lengths: dict[str, list[Rows]] = {}
        self.size = 0

    def append(self, name: str, rows: npt.NDArray[Any]) -> None:
        """Append rows [N, …] to an array; the first ones decide its type."""
        if name not in self._arrays:
            self._streams[name] = self._files.enter_context((self._directory / name).open("wb"))
            dtype = rows.dtype.newbyteorder("<").str
            self._arrays[name] = {"dtype": dtype, "shape": [0, *rows.shape[1:]]}
        array = self._arrays[name]
        rows.astype(array["dtype"], copy=False).tofile(self._streams[name])
        array["shape"][0] += len(rows)
        self.size += rows.nbytes

    def append_lists(self, name: str, lists: Ragged) -> None:
        """Append lists to a ragged array."""
        self.append(f"{name}.values", lists.values)
        self._lengths.setdefault(name, []).append(lists.lengths)

    def rows(self, name: str) -> int:
        """Rows of an array so far."""
        return int(self._arrays[name]["shape"][0])

    def __enter__(self) -> ArrayWriter:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        with self._files:
            if error is not None:
                return
            for name, lengths in self._lengths.items():
                self.append(f"{name}.starts", np.cumsum(np.concatenate([[0], *lengths])))
        content = {**self._description, "arrays": self._arrays}
        text = json.dumps(content, indent=2, ensure_ascii=False)
        (self._directory / DESCRIPTION).write_text(f"{text}\n", encoding="utf-8")


class Arrays:
    """Arrays of a folder, mapped into memory: their pages are read on use.

    Args:
        directory: the folder.
        remedy: how to make it again, for messages.

    Raises:
        RerankerError: the description or a file is missing or damaged.
    """

    def __init__(self, directory: Path, remedy: str) -> None:
        self.directory, self._remedy = directory, remedy
        path = directory / DESCRIPTION
        try:
            self.description: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            self._arrays = {
                name: (np.dtype(array["dtype"]), tuple(array["shape"]))
                for name, array in self.description["arrays"].items()
            }
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise self.error(
                path, f"found no description of precomputed posts ({error!r})"
            ) from None
        for name, (dtype, shape) in self._arrays.items():
            path, size = directory / name, math.prod(shape) * dtype.itemsize
            found = path.stat().st_size if path.is_file() else None
            if found != size:
                state = "is missing" if found is None else f"has {found} bytes"
                raise self.error(path, f"{state}, expected {size} bytes; the folder is damaged")

    def error(self, path: Path, problem: str) -> RerankerError:
        """An error about a file, with the remedy."""
        return RerankerError(f"{path}: {problem}; {self._remedy}")

    def names(self, group: str) -> list[str]:
        """NAME of all arrays ``GROUP.NAME`` and ``GROUP.NAME.…``, in the order of writing."""
        prefix = f"{group}."
        names = [n.removeprefix(prefix) for n in self._arrays if n.startswith(prefix)]
        return list(dict.fromkeys(name.partition(".")[0] for name in names))

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        if name not in self._arrays:
            raise self.error(self.directory / DESCRIPTION, f"found no array {name}")
        dtype, shape = self._arrays[name]
        if not math.prod(shape):
            return np.zeros(shape, dtype)  # An empty file cannot be mapped.
        # Copy-on-write, as PyTorch has no read-only tensors; nothing is written.
        found: npt.NDArray[Any] = np.memmap(self.directory / name, dtype, "c", shape=shape)
        return found.view(np.ndarray)

    def ragged(self, name: str) -> Ragged:
        """A ragged array."""
        return Ragged(self[f"{name}.values"], self[f"{name}.starts"])


class Precomputed:
    """The posts of a folder."""

    def __init__(self, arrays: Arrays) -> None:
        self._keys, self._rows = arrays["keys"], arrays["rows"]

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, pairs: Pairs) -> Rows:
        """The row [D] of each post of pairs, -1 for missing ones."""
        return self.rows_of(keys_of_posts(pairs))

    def rows_of(self, wanted: npt.NDArray[np.uint64]) -> Rows:
        """The row [D] of each of the :func:`keys_of` posts [D, 2], -1 for missing ones."""
        if not len(self) or not len(wanted):
            return np.full(len(wanted), -1, dtype=np.int64)
        # Of two keys with the same first half one is never found: then its post is computed.
        places = np.searchsorted(self._keys[:, 0], wanted[:, 0]).clip(max=len(self) - 1)
        is_found = (self._keys[places] == wanted).all(axis=1)
        return np.where(is_found, self._rows[places], -1)


class PrecomputedPosts(Precomputed):
    """Posts as a table for features, whose words have been looked up.

    Attributes:
        idf: source of the words' IDF.
    """

    def __init__(self, arrays: Arrays) -> None:
        super().__init__(arrays)
        columns = {name: arrays.ragged(f"column.{name}") for name in COLUMNS}
        self.posts = PostTable(columns, np.arange(len(columns[COLUMNS[0]])))
        words, stems = (_split(arrays[f"known.{name}"]) for name in ("words", "stems"))
        known: Any = (arrays[f"known.{name}"] for name in WordColumns._fields)
        self.known = KnownWords(words, stems, WordColumns(*known))
        self.idf = str(arrays.description.get("idf"))

    def words(self, idf: Idf, vectors: UnitVectors | None) -> WordTable:
        """A table of the words, which can grow. With another ``idf``, all are looked up in it."""
        known = self.known
        if idf.source != self.idf:
            new = known.columns._replace(idf=idf.weights(known.words))
            known = replace(known, columns=new)
        return WordTable(idf, vectors, known)

    def reader(self, pairs: Pairs, words: WordTable) -> Callable[[Rows], PostTable]:
        """A function from posts [N] of pairs to their table; it reads posts that are missing here.

        Those add their words to ``words``, a table of :meth:`words`.
        """
        rows = self.find(pairs)

        def read(posts: Rows) -> PostTable:
            found = rows[posts]
            known, new = np.flatnonzero(found >= 0), np.flatnonzero(found < 0)
            table = self.posts.take(found[known])
            if not len(new):
                return table
            texts = [pairs.texts[post] for post in posts[new].tolist()]
            urls = [pairs.urls[post] for post in posts[new].tolist()]
            found[known], found[new] = np.arange(len(known)), len(known) + np.arange(len(new))
            return PostTable.joined([table, PostTable.read(texts, urls, words)]).take(found)

        return read


class PrecomputedTower(NamedTuple):
    """Vectors ``levels`` [U, F] of distinct windows at each depth, like those of a tower."""

    levels: Sequence[Tensor]

    def similarities(self, posts: Ragged, query: QueryVectors) -> list[WindowSimilarities]:
        """Similarities of a query with posts [T, depth + 1], at each depth."""
        found = []
        for depth, (level, asked) in enumerate(zip(self.levels, query.levels, strict=True)):
            windows = posts.values[:, depth]
            first, rows = distinct([windows], is_exact=False)
            used, columns = torch.from_numpy(windows[first]), asked.T.contiguous()
            parts = [
                level.index_select(0, used[start : start + WINDOWS]) @ columns
                for start in range(0, len(used), WINDOWS)
            ]
            found.append(WindowSimilarities(torch.cat([*parts, query.padding]), rows, posts))
        return found


class PrecomputedVectors(Precomputed):
    """Vectors of posts, which only have to be compared with the query's.

    Attributes:
        inputs: input -> token ids, or rows of windows.
        towers: tower -> its vectors.
    """

    def __init__(self, arrays: Arrays) -> None:
        super().__init__(arrays)
        self.inputs = {
            name: TokenIds(arrays[f"input.{name}.values"], arrays[f"input.{name}.starts"])
            for name in arrays.names("input")
        }
        self.towers = {
            name: PrecomputedTower(
                [
                    torch.from_numpy(arrays[f"tower.{name}.{depth}"])
                    for depth in arrays.names(f"tower.{name}")
                ]
            )
            for name in arrays.names("tower")
        }


def _write_posts(
    checkpoint: TrainedReranker,
    texts: Texts,
    urls: Texts,
    writer: ArrayWriter,
    progress: Progress,
    known: PrecomputedPosts | None,
    kept: Rows,
) -> None:
    """The columns of a :class:`PostTable`, and its words; first the rows ``kept`` of ``known``."""
    words = WordTable(checkpoint.encoder.idf, checkpoint.model.unit_vectors())
    if known is not None:
        _copy_posts(known, kept, words, writer)
    for start in range(0, len(texts), BLOCK):
        block = PostTable.read(texts[start : start + BLOCK], urls[start : start + BLOCK], words)
        for name in COLUMNS:
            writer.append_lists(f"column.{name}", block.column(name))
        progress(len(block))
    found = words.known()
    writer.append("known.words", _lines(found.words))
    writer.append("known.stems", _lines(found.stems))
    for name, column in found.columns._asdict().items():
        writer.append(f"known.{name}", column)


def _copy_posts(known: PrecomputedPosts, kept: Rows, words: WordTable, writer: ArrayWriter) -> None:
    """The columns of the posts ``kept``, with the rows of their words in another table."""
    table = known.posts.take(kept)
    for name in COLUMNS:
        column = table.column(name)
        if name in ("words", "hashtag_words"):
            used, places = np.unique(column.values, return_inverse=True)
            rows = words.rows([known.known.words[row] for row in used.tolist()])
            column = Ragged(rows[places].astype(column.values.dtype), column.starts)
        writer.append_lists(f"column.{name}", column)


def _copy_vectors(
    model: Reranker, known: PrecomputedVectors, kept: Rows, writer: ArrayWriter
) -> None:
    """The inputs and vectors of the posts ``kept``; windows that only others have are left out."""
    way = fast_paths.way_of(model)
    inputs: dict[str, Ragged] = {name: ids.take(kept) for name, ids in known.inputs.items()}
    if hasattr(way, "PostVectors"):
        vectors = known.towers[way.VECTOR_INPUT].levels[0]
        writer.append(f"tower.{way.VECTOR_INPUT}.0", vectors.numpy()[kept])
    else:
        for tower, (levels,) in known.towers.items():
            names = [name for name, read in way.tower_inputs(model).items() if read.tower == tower]
            windows = Ragged.joined([inputs[name] for name in names]).values
            renumbered = np.empty_like(windows)
            for depth, level in enumerate(levels):
                used, renumbered[:, depth] = np.unique(windows[:, depth], return_inverse=True)
                writer.append(f"tower.{tower}.{depth}", level.numpy()[used])
            start = 0
            for name in names:
                end = start + len(inputs[name].values)
                inputs[name] = Ragged(renumbered[start:end], inputs[name].starts)
                start = end
    for name, lists in inputs.items():
        writer.append_lists(f"input.{name}", lists)


@torch.inference_mode()
def _write_vectors(
    checkpoint: TrainedReranker, texts: Texts, urls: Texts, writer: ArrayWriter, progress: Progress
) -> None:
    """The inputs of a model, and the vectors that its fast path gives."""
    model, way = checkpoint.model, fast_paths.way_of(checkpoint.model)
    inputs = checkpoint.encoder.posts(texts, urls, model.post_inputs)
    blocks = np.split(np.arange(len(texts)), range(BLOCK, len(texts), BLOCK))
    if hasattr(way, "PostVectors"):
        for name, ids in inputs.items():
            writer.append_lists(f"input.{name}", ids)
        vectors = way.PostVectors(model, inputs[way.VECTOR_INPUT])
        writer.append(f"tower.{way.VECTOR_INPUT}.0", np.zeros((0, vectors.size), np.float32))
        for rows in blocks:
            writer.append(f"tower.{way.VECTOR_INPUT}.0", vectors.vectors(rows).numpy())
            progress(len(rows))
        return
    read: dict[str, TowerInput] = way.tower_inputs(model)
    towers = {
        name: _TowerWriter(name, tower, writer) for name, tower in way.towers(model, inputs).items()
    }
    for name in inputs.keys() - read.keys():
        writer.append_lists(f"input.{name}", inputs[name])
    for name, (tower, _) in read.items():
        nothing = np.zeros((0, len(towers[tower].tower.sizes)), np.int32)
        writer.append_lists(f"input.{name}", Ragged(nothing, np.zeros(1, np.int64)))
    for rows in blocks:
        for name, (tower, longest) in read.items():
            windows = towers[tower].windows_of(inputs[name].take(rows, longest))
            writer.append_lists(f"input.{name}", windows)
        progress(len(rows))


class _TowerWriter:
    """Writes the distinct windows of blocks of posts."""

    def __init__(self, name: str, tower: TabulatedTower, writer: ArrayWriter) -> None:
        self.tower, self._writer = tower, writer
        self._names = [f"tower.{name}.{depth}" for depth in range(len(tower.sizes))]
        for array, size in zip(self._names, tower.sizes, strict=True):
            writer.append(array, np.zeros((0, size), np.float32))
        self._first_term = writer.rows(self._names[0])
        writer.append(self._names[0], tower.terms.numpy())

    def windows_of(self, posts: Ragged) -> Ragged:
        """The row of each place's window at every depth: lists of [T, depth + 1]."""
        written = [self._first_term, *(self._writer.rows(name) for name in self._names[1:])]
        found = self.tower.walk(posts, self._append)
        rows = np.stack(found, axis=1) + written
        if rows.max(initial=0) > (most := np.iinfo(np.int32).max):
            raise RerankerError(
                f"found more than {most:,} distinct windows, expected fewer; precompute the "
                "collection in parts"
            )
        return Ragged(rows.astype(np.int32), posts.starts)

    def _append(self, depth: int, vectors: Tensor) -> None:
        self._writer.append(self._names[depth], (vectors * self.tower.scale(vectors)).numpy())


def _lines(words: Sequence[str]) -> npt.NDArray[np.uint8]:
    """Words without line ends as UTF-8, each with a line end."""
    text = "".join(f"{word}\n" for word in words)
    return np.frombuffer(text.encode(errors="surrogatepass"), dtype=np.uint8)


def _split(lines: npt.NDArray[np.uint8]) -> list[str]:
    """The words of :func:`_lines`."""
    return lines.tobytes().decode(errors="surrogatepass").split("\n")[:-1]
