"""Word vectors trained on posts, once for the same posts."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from indexes.files import write_bytes
from pipeline.command.runtime import bar, counted

if TYPE_CHECKING:
    from rerankers.text.vectors import WordVectors


def cached_vectors(texts: Sequence[str], general: Path | None, home: Path) -> Path:
    """File of vectors trained on these posts, which is written if it does not exist.

    Those of the file ``general`` are concatenated, if it exists: a word's vector then has both,
    each of length 1, and a cosine is the mean of two.
    """
    from rerankers.text.vectors import concatenated, read_vectors, word2vec_bytes

    known = general if general and general.exists() else None
    digest = hashlib.sha256(str(known.stat().st_size if known else 0).encode())
    for text in texts:
        digest.update(text.encode() + b"\0")
    path = home / "vectors" / f"{digest.hexdigest()[:16]}.bin"
    if not path.exists():
        print(
            f"training word vectors on {counted(len(texts), 'post')} (once): {path}",
            file=sys.stderr,
        )
        vectors = train_vectors(texts)
        if known:
            vectors = concatenated(vectors, read_vectors(known))
        write_bytes(path, word2vec_bytes(vectors))
    return path


def train_vectors(
    texts: Sequence[str], size: int = 100, window: int = 8, epochs: int = 8
) -> WordVectors:
    """:func:`rerankers.text.skip_gram.train` with a progress bar."""
    from rerankers.text.skip_gram import train

    with bar(epochs, "word vectors", "epoch") as progress:
        return train(texts, size, window, epochs=epochs, progress=progress)
