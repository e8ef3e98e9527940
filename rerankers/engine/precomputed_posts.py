"""Posts that have been read, on disk: features begin with arrays, whatever the query.

In a folder of :mod:`rerankers.engine.precomputed_folder`:

``COLUMN.values.npy``, ``COLUMN.starts.npy``   the columns of a :class:`PostTable`
``words.json``                                 the words, and their stems
``word.WHAT.npy``                              what is known of them, by the checkpoint's IDF and
                                               vectors: see :class:`KnownWords`
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rerankers.base import Pairs
from rerankers.engine.precomputed_folder import Keys, describe, keys_of_posts
from rerankers.features._post_table import BLOCK, COLUMNS, PostTable
from rerankers.features._word_table import KnownWords, WordTable
from rerankers.text.ragged import Ragged
from rerankers.text.vectors import UnitVectors
from rerankers.text.vocabulary import Idf

_WORDS = "words.json"
_PARTS = ("values", "starts")
_KNOWN = ("idf", "stem", "vector", "is_stop_word", "is_personal")


@dataclass(frozen=True)
class PrecomputedPosts:
    """What a folder holds.

    Attributes:
        keys: its posts.
        posts: the same as a table, whose words are those of ``known``.
        known: words.
        idf: the source of their IDF.
    """

    keys: Keys
    posts: PostTable
    known: KnownWords
    idf: str

    @classmethod
    def open(cls, directory: Path, version: str, remedy: str) -> "PrecomputedPosts":
        """Map a folder into memory; see :meth:`rerankers.engine.precomputed_vectors.PrecomputedVectors.open`.

        Raises:
            RerankerError: it is no such folder, or of another checkpoint or format, or damaged.
        """
        description = describe(directory, version, remedy, ("idf",))
        keys = Keys.load(directory)
        columns = {
            name: Ragged(*(_mapped(directory / f"{name}.{part}.npy") for part in _PARTS))
            for name in COLUMNS
        }
        spelled = json.loads((directory / _WORDS).read_text(encoding="utf-8"))
        arrays = {what: _mapped(directory / f"word.{what}.npy") for what in _KNOWN}
        posts = PostTable(columns, np.arange(len(columns[COLUMNS[0]])))
        known = KnownWords(spelled["words"], spelled["stems"], **arrays)
        return cls(keys, posts, known, description["idf"])

    def words(self, idf: Idf, vectors: UnitVectors | None) -> WordTable:
        """A table of words, to which others can be added.

        Args:
            idf: where it is another source, IDF is looked up anew.
            vectors: the checkpoint's.
        """
        known = self.known
        if idf.source != self.idf:
            known = replace(known, idf=idf.weights(known.words))
        return WordTable(idf, vectors, known)

    def table(self, pairs: Pairs, numbers: npt.NDArray[np.int64], words: WordTable) -> PostTable:
        """The posts ``numbers`` [N] of pairs, of which those that are not stored are read now.

        Args:
            pairs: have the texts.
            numbers: as in ``pairs.post_index``.
            words: what :meth:`words` gave; grows by the words of posts that are not stored.
        """
        found = self.keys.find(keys_of_posts(pairs)[numbers])
        known, new = np.flatnonzero(found >= 0), np.flatnonzero(found < 0)
        stored = self.posts.take(found[known])
        if not len(new):
            return stored
        unread = numbers[new].tolist()
        read = PostTable.read(
            [pairs.texts[i] for i in unread], [pairs.urls[i] for i in unread], words
        )
        found[known], found[new] = np.arange(len(known)), len(known) + np.arange(len(new))
        return PostTable.joined([stored, read]).take(found)


def write(
    directory: Path, texts: Sequence[str], urls: Sequence[str], idf: Idf,
    vectors: UnitVectors | None, progress: Callable[[int], None],
) -> dict[str, Any]:  # fmt: skip
    """Read posts, and write them into a folder.

    Args:
        directory: is there.
        texts, urls: [N] of the posts, which are all different.
        idf: of words.
        vectors: of words; None where the checkpoint has none.
        progress: called with the number of posts of each finished block.

    Returns:
        What is to be in the folder's description.
    """
    words, blocks = WordTable(idf, vectors), []
    for start in range(0, max(1, len(texts)), BLOCK):
        these = slice(start, start + BLOCK)
        block = PostTable.read(texts[these], urls[these], words)
        blocks.append({name: block.column(name) for name in COLUMNS})
        progress(len(block))
    for name in COLUMNS:
        column = Ragged.joined([block[name] for block in blocks])
        for part in _PARTS:
            np.save(directory / f"{name}.{part}.npy", getattr(column, part), allow_pickle=False)
    words.look_up()
    known = words.known()
    spelled = {"words": known.words, "stems": known.stems}
    (directory / _WORDS).write_text(json.dumps(spelled), encoding="utf-8")
    for what in _KNOWN:
        np.save(directory / f"word.{what}.npy", getattr(known, what), allow_pickle=False)
    return {"idf": idf.source}


def _mapped(path: Path) -> npt.NDArray[Any]:
    """An array whose pages are read when they are asked for."""
    found: npt.NDArray[Any] = np.load(path, mmap_mode="c", allow_pickle=False)
    return found.view(np.ndarray)
