"""Train word vectors on the posts that are here, by skip-grams.

  python -m pipeline.vectors --output posts.bin
  python -m pipeline.train mp_hcnn --test mb2012 --vectors posts.bin

With --beside FILE a word's vector from the posts and its vector in FILE are joined and, together,
narrowed to --size numbers. No judgment is read, and posts of all years are, as an index has them
all. The training of a fusion joins them on its own the first time, and does not narrow them.
"""

import hashlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.command.main import run
from pipeline.command.options import existing_file, option, output_file, positive_int

if TYPE_CHECKING:
    from rerankers.text.vocabulary import WordVectors


@dataclass(frozen=True)
class Options:
    """What to train, and on what."""

    output: Path = option(
        "file to write, in word2vec's binary form", parse=output_file, required=True,
        metavar="FILE",
    )  # fmt: skip
    size: int = option("numbers of a vector", default=100, parse=positive_int)
    window: int = option("words on each side that a word is to predict", default=8,
                         parse=positive_int)  # fmt: skip
    epochs: int = option("passes over the posts", default=8, parse=positive_int)
    beside: Path | None = option(
        "general vectors, word2vec .bin or GloVe text, .gz or not, to be joined with those of the "
        "posts", parse=existing_file, metavar="FILE",
    )  # fmt: skip
    data: Path | None = option("data folder (default: $TWEETRERANK_DATA)", parse=Path)


def main(options: Options) -> None:
    """Train the vectors and write them."""
    from indexes.files import write_bytes
    from pipeline.training.training_set import microblog_training_set
    from rerankers.text.vectors import beside, narrowed, read_vectors, word2vec_bytes

    texts = microblog_training_set(None, options.data).texts
    general = read_vectors(options.beside) if options.beside else None
    vectors = train_on(texts, options.size, options.window, options.epochs)
    if general:
        vectors = narrowed(beside(vectors, general), options.size)
    write_bytes(options.output, word2vec_bytes(vectors))
    print(f"{len(vectors.words):,} words of {len(texts):,} posts\nwrote {options.output}")


def train_on(
    texts: Sequence[str], size: int = 100, window: int = 8, epochs: int = 8
) -> "WordVectors":
    """Vectors by :func:`rerankers.text.skip_gram.train`, with a progress bar."""
    from pipeline.command.runtime import bar
    from rerankers.text.skip_gram import train

    with bar(epochs, "word vectors", "epoch") as progress:
        return train(texts, size, window, epochs=epochs, progress=progress)


def of_posts(texts: Sequence[str], general: Path | None, home: Path) -> Path:
    """The file of vectors that were trained on these texts, which is made if it is not there.

    Args:
        texts: the posts.
        general: vectors from other texts that are to stand beside those, as far as it is there:
            a word's vector then has both, each of length 1, and a cosine is the mean of two.
        home: the folder of what was made here.
    """
    from indexes.files import write_bytes
    from rerankers.text.vectors import beside, read_vectors, word2vec_bytes

    known = general is not None and general.exists()
    digest = hashlib.sha256(str(general.stat().st_size if general and known else 0).encode())
    for text in texts:
        digest.update(text.encode() + b"\0")
    path = home / "vectors" / f"{digest.hexdigest()[:16]}.bin"
    if not path.exists():
        print(f"training word vectors on {len(texts):,} posts (once): {path}", file=sys.stderr)
        own = train_on(texts)
        if general and known:
            own = beside(own, read_vectors(general))
        write_bytes(path, word2vec_bytes(own))
    return path


if __name__ == "__main__":
    run("vectors")
