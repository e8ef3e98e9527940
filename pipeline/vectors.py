"""Train word vectors (skip-grams) on the posts of all local collections.

  python -m pipeline.vectors --output posts.bin
  python -m pipeline.train mp_hcnn --test mb2012 --vectors posts.bin
  python -m pipeline.vectors --collection my-posts.toml --output mine.bin

With --concatenate FILE each word gets its vector from the posts and its vector from FILE, reduced
together to --size dimensions. No judgment is read; posts of all years are read, as by an index.
The training of a fusion concatenates both on its own the first time, without reduction.
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from indexes.files import write_bytes
from pipeline.command.main import run
from pipeline.command.options import existing_file, option, output_file, positive_int
from pipeline.command.runtime import counted

if TYPE_CHECKING:
    from rerankers.text.vectors import WordVectors


@dataclass(frozen=True)
class Options:
    """Sizes of the training, and files."""

    output: Path = option(
        "word2vec .bin or .bin.gz file to write", parse=output_file, required=True, metavar="FILE"
    )
    size: int = option("dimensions of a vector", default=100, parse=positive_int)
    window: int = option("words on each side that a word predicts", default=8, parse=positive_int)
    epochs: int = option("passes over the posts", default=8, parse=positive_int)
    concatenate: Path | None = option(
        "general vectors to add, word2vec .bin or GloVe text, .gz or not",
        parse=existing_file,
        metavar="FILE",
    )
    collection: str | None = option(
        "train on the posts of this collection alone", metavar="NAME|FILE"
    )
    data: Path | None = option("data folder (default: $TWEETRERANK_DATA)", parse=Path)


def main(options: Options) -> None:
    """Make the vectors and write them."""
    from rerankers.text.vectors import word2vec_bytes

    vectors = _train_on_posts(options)
    content = word2vec_bytes(vectors)
    packed = options.output.suffix == ".gz"
    write_bytes(options.output, gzip.compress(content, mtime=0) if packed else content)
    print(f"wrote {options.output}")


def _train_on_posts(options: Options) -> WordVectors:
    """Vectors of the posts, with general ones if they are given."""
    from pipeline.collections.named import find
    from pipeline.training.training_set import microblog_training_set
    from pipeline.training.word_vectors import train_vectors
    from rerankers.text.vectors import concatenated, read_vectors, reduced

    if options.collection:
        texts = [post.text for post in find(options.collection, options.data).posts()]
    else:
        texts = list(microblog_training_set(None, options.data).texts)
    general = read_vectors(options.concatenate) if options.concatenate else None
    vectors = train_vectors(texts, options.size, options.window, options.epochs)
    if general:
        vectors = reduced(concatenated(vectors, general), options.size)
    print(f"{counted(len(vectors.words), 'word')} of {counted(len(texts), 'post')}")
    return vectors


if __name__ == "__main__":
    run("vectors")
