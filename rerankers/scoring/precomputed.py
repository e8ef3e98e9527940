"""Posts read for features once, before any query: a folder of arrays that scoring maps into memory.

``precomputed.json``       types and shapes of the arrays, the checkpoint and its source of IDF
``keys`` [N, 2], ``rows``  hash of each distinct post (text and URL), ascending, and its row below
``column.NAME.values``, ``column.NAME.starts``  columns of a :class:`PostTable`, ragged
``known.NAME``             its words, see :class:`KnownWords`

Posts are found by their content, not by an id: a post that is missing, or whose text has changed,
is read when it is scored.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from rerankers.base import Pairs, Reranker
from rerankers.errors import RerankerError
from rerankers.features._tables import COLUMNS, KnownWords, PostTable, WordColumns, WordTable
from rerankers.text.ragged import Ragged, Rows
from rerankers.text.vocabulary import Idf

FORMAT = 2
"""Version of the files, and of how texts are read: folders of another version are refused."""

DESCRIPTION = "precomputed.json"
"""Name of a folder's description: with types and shapes, a missing or cut file is noticed."""

BLOCK = 4096
"""Posts that are computed together; more would need more memory."""

Progress = Callable[[int], None]
"""Called with the number of posts of each finished block."""

Texts = Sequence[str]

TextAndUrl = tuple[str, str]


def can_precompute(model: Reranker) -> bool:
    """Whether a model scores faster with precomputed posts: one over features alone."""
    return bool(model.feature_families) and not model.post_inputs


def precompute(
    checkpoint: Path,
    idf: Idf,
    posts: Iterable[TextAndUrl],
    directory: Path,
    progress: Progress = lambda posts_done: None,
) -> int:
    """Write the precomputed posts of a checkpoint into an empty folder.

    Memory grows with the vocabulary, and by some bytes for each post. The caller removes a
    half-written folder (``indexes.files.atomic_directory``).

    Args:
        checkpoint: folder of a model over features alone.
        idf: of its encoder.
        posts: text and URL ("" without one) of each; equal posts are written once. They are
            iterated over several times, so not an iterator.
        directory: empty or missing.
        progress: called with the number of posts of each finished block.

    Returns:
        Bytes written.

    Raises:
        RerankerError: the folder is not empty or cannot be written.
    """
    description = {
        "version": version_of(checkpoint),
        "checkpoint": "/".join(checkpoint.resolve().parts[-2:]),
        "directory": str(checkpoint.resolve()),
        "idf": idf.source,
    }
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise RerankerError(f"{directory}: found files, expected an empty folder")
        distinct = _Posts(posts)
        with _ArrayWriter(directory, description) as writer:
            writer.append("keys", distinct.keys)
            writer.append("rows", distinct.rows)
            _write_posts(idf, distinct, writer, progress)
    except OSError as error:
        raise RerankerError(f"{directory}: cannot be written ({error})") from None
    return writer.size


def open_precomputed(checkpoint: Path, directory: Path, remedy: str) -> PrecomputedPosts:
    """Map the precomputed posts of a checkpoint into memory.

    Args:
        checkpoint: folder of the one in use.
        directory: filled by :func:`precompute`.
        remedy: how to make the folder again, for messages.

    Raises:
        RerankerError: there is no such folder, or it belongs to another checkpoint or format, or
            is damaged.
    """
    arrays = _Arrays(directory, remedy)
    written, version = str(arrays.description.get("version")), version_of(checkpoint)
    if written != version:
        raise arrays.error(
            directory,
            f"found posts precomputed by the checkpoint {arrays.description.get('checkpoint')} as "
            f"it was ({written[:12]}), expected those of the one in use ({version[:12]})",
        )
    return PrecomputedPosts(arrays)


def checkpoint_of(directory: Path) -> Path:
    """The checkpoint that precomputed the posts of a folder.

    Raises:
        RerankerError: the folder's description is damaged, or older than this entry.
    """
    arrays = _Arrays(directory, "precompute its posts again")
    if folder := arrays.description.get("directory"):
        return Path(folder)
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
    texts, urls, known = pairs.memo.get("keys", (None, None, None))
    # dataclasses.replace may have given the pairs other posts, but the same memo.
    if texts is not pairs.texts or urls is not pairs.urls:
        known = keys_of(pairs.texts, pairs.urls)
        pairs.memo["keys"] = pairs.texts, pairs.urls, known
    keys: npt.NDArray[np.uint64] = known
    return keys


class _Posts:
    """The distinct posts of a collection, in its order, where retweets are neighbours.

    Memory holds 16 bytes for each post of the collection.

    Args:
        posts: of the collection; iterated over several times.

    Attributes:
        keys: [N, 2] sorted :func:`keys_of` the posts.
        rows: [N] number of each.
    """

    def __init__(self, posts: Iterable[TextAndUrl]) -> None:
        self._posts = posts
        blocks = [keys_of(*zip(*block, strict=True)) for block in self._blocks(self._all())]
        keys = np.concatenate(blocks)
        order = np.lexsort((keys[:, 1], keys[:, 0]))
        is_first = np.append(True, (keys[order[1:]] != keys[order[:-1]]).any(axis=1))
        place = order[is_first]  # Of equal posts the first, as the order is stable.
        self.keys = keys[place]
        self.rows = np.argsort(np.argsort(place))
        self._is_first = np.zeros(len(keys), dtype=np.bool_)
        self._is_first[place] = True

    def __iter__(self) -> Iterator[tuple[Texts, Texts]]:
        """Texts and URLs, block by block."""
        for block in self._blocks(itertools.compress(self._all(), self._is_first)):
            yield [text for text, _ in block], [url for _, url in block]

    def _all(self) -> Iterator[TextAndUrl]:
        # Candidates from runs may have no text.
        return itertools.chain(self._posts, [("", "")])

    @staticmethod
    def _blocks(posts: Iterator[TextAndUrl]) -> Iterator[list[TextAndUrl]]:
        while block := list(itertools.islice(posts, BLOCK)):
            yield block


class _ArrayWriter:
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
        self._ends: dict[str, int] = {}
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
        if name not in self._ends:
            self.append(f"{name}.starts", np.zeros(1, np.int64))
            self._ends[name] = 0
        self.append(f"{name}.starts", self._ends[name] + np.cumsum(lists.lengths))
        self._ends[name] += len(lists.values)

    def __enter__(self) -> _ArrayWriter:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        with self._files:
            if error is not None:
                return
        content = {**self._description, "arrays": self._arrays}
        text = json.dumps(content, indent=2, ensure_ascii=False)
        (self._directory / DESCRIPTION).write_text(f"{text}\n", encoding="utf-8")


class _Arrays:
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
            bytes_there = path.stat().st_size if path.is_file() else None
            if bytes_there != size:
                state = "is missing" if bytes_there is None else f"has {bytes_there} bytes"
                raise self.error(path, f"{state}, expected {size} bytes; the folder is damaged")

    def error(self, path: Path, problem: str) -> RerankerError:
        """An error about a file, with the remedy."""
        return RerankerError(f"{path}: {problem}; {self._remedy}")

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        if name not in self._arrays:
            raise self.error(self.directory / DESCRIPTION, f"found no array {name}")
        dtype, shape = self._arrays[name]
        if not math.prod(shape):
            return np.zeros(shape, dtype)  # An empty file cannot be mapped.
        # Copy-on-write, as PyTorch has no read-only tensors; nothing is written.
        mapped: npt.NDArray[Any] = np.memmap(self.directory / name, dtype, "c", shape=shape)
        return mapped.view(np.ndarray)

    def ragged(self, name: str) -> Ragged:
        """A ragged array."""
        return Ragged(self[f"{name}.values"], self[f"{name}.starts"])


class PrecomputedPosts:
    """Posts as a table for features, whose words have been looked up.

    Attributes:
        idf: source of the words' IDF.
    """

    def __init__(self, arrays: _Arrays) -> None:
        self._keys, self._rows = arrays["keys"], arrays["rows"]
        self._columns = {name: arrays.ragged(f"column.{name}") for name in COLUMNS}
        words, stems = (_split(arrays[f"known.{name}"]) for name in ("words", "stems"))
        known: Any = (arrays[f"known.{name}"] for name in WordColumns._fields)
        self.known = KnownWords(words, stems, WordColumns(*known))
        self.idf = str(arrays.description.get("idf"))

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, pairs: Pairs) -> Rows:
        """The row [D] of each post of pairs, -1 for missing ones."""
        return self.rows_of(keys_of_posts(pairs))

    def rows_of(self, wanted: npt.NDArray[np.uint64]) -> Rows:
        """The row [D] of each of the :func:`keys_of` posts [D, 2], -1 for missing ones."""
        if not len(self) or not len(wanted):
            return np.full(len(wanted), -1, dtype=np.int64)
        # Of two keys with the same first half one is never found: then its post is read.
        # Not np.searchsorted, which would copy the column of all keys.
        places, step = np.zeros(len(wanted), dtype=np.int64), 1 << len(self).bit_length()
        while step := step >> 1:
            later = places + step
            is_below = self._keys[np.minimum(later, len(self)) - 1, 0] < wanted[:, 0]
            places = np.where(is_below & (later <= len(self)), later, places)
        places = places.clip(max=len(self) - 1)
        is_found = (self._keys[places] == wanted).all(axis=1)
        return np.where(is_found, self._rows[places], -1)

    def take(self, rows: Rows) -> PostTable:
        """The posts ``rows`` [M], in this order."""
        return PostTable(self._columns, rows)

    def words(self, idf: Idf) -> WordTable:
        """A table of the words, which can grow. With another ``idf``, all are looked up in it."""
        known = self.known
        if idf.source != self.idf:
            new = known.columns._replace(idf=idf.weights(known.words))
            known = replace(known, columns=new)
        return WordTable(idf, known)

    def reader(self, pairs: Pairs, words: WordTable) -> Callable[[Rows], PostTable]:
        """A function from posts [N] of pairs to their table; it reads posts that are missing here.

        Those add their words to ``words``, a table of :meth:`words`.
        """
        rows = self.find(pairs)

        def read(posts: Rows) -> PostTable:
            places = rows[posts]
            known, new = np.flatnonzero(places >= 0), np.flatnonzero(places < 0)
            table = self.take(places[known])
            if not len(new):
                return table
            texts = [pairs.texts[post] for post in posts[new].tolist()]
            urls = [pairs.urls[post] for post in posts[new].tolist()]
            places[known], places[new] = np.arange(len(known)), len(known) + np.arange(len(new))
            return PostTable.joined([table, PostTable.read(texts, urls, words)]).take(places)

        return read


def _write_posts(idf: Idf, posts: _Posts, writer: _ArrayWriter, progress: Progress) -> None:
    """The columns of a :class:`PostTable`, and its words."""
    words = WordTable(idf)
    for texts, urls in posts:
        block = PostTable.read(texts, urls, words)
        for name in COLUMNS:
            writer.append_lists(f"column.{name}", block.column(name))
        progress(len(block))
    table = words.known()
    writer.append("known.words", _lines(table.words))
    writer.append("known.stems", _lines(table.stems))
    for name, column in table.columns._asdict().items():
        writer.append(f"known.{name}", column)


def _lines(words: Sequence[str]) -> npt.NDArray[np.uint8]:
    """Words without line ends as UTF-8, each with a line end."""
    text = "".join(f"{word}\n" for word in words)
    return np.frombuffer(text.encode(errors="surrogatepass"), dtype=np.uint8)


def _split(lines: npt.NDArray[np.uint8]) -> list[str]:
    """The words of :func:`_lines`."""
    return lines.tobytes().decode(errors="surrogatepass").split("\n")[:-1]
