"""Adapt word vectors to the posts of a collection. No judgments or topics are needed.

    pip install 'tweetrerank[adapt]'
    python -m pipeline.adapt --collection my-posts.toml
    python -m pipeline.search --collection my-posts.toml

A sentence transformer, the teacher, encodes the posts once. Then each word gets a
vector. The vectors are chosen so that the sum of a post's word vectors is as near as
possible to the teacher's encoding of the post. They are written to the folder of the
models. Searches of the collection then compare meaning by these vectors, and do not run
the teacher.

Rare words count more than common ones. This command also counts the words of posts that
only a search engine has. For other posts the first search counts them.

Repeat the command to continue an interrupted run. Posts that are added to the index
later need no new adaptation unless many of their words are unknown. The share of
unknown words is printed by --check.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tweetrerank.indexes.analysis import ANALYZERS, UNDETERMINED
from tweetrerank.indexes.data_error import DataError
from tweetrerank.indexes.files import write_bytes
from tweetrerank.indexes.manifest import FILE_NAME, IndexManifest
from tweetrerank.indexes.posts import Post
from tweetrerank.pipeline.collections.collection import Collection, text_number
from tweetrerank.pipeline.collections.named import open_collection
from tweetrerank.pipeline.command.main import run
from tweetrerank.pipeline.command.options import option, positive_int
from tweetrerank.pipeline.runtime import bar, choose_device
from tweetrerank.pipeline.text import counted, say
from tweetrerank.pipeline.usage_error import UsageError

# Default number of posts to encode. More posts improve the vectors little.
MOST_POSTS = 200_000
# Approximate number of posts whose ids and texts are kept with the vectors, to tell
# later whether a collection is the one that they were fitted to
SAMPLED = 20
# Ending of the folder that keeps the encodings for an interrupted or a second run
ENCODINGS = "encodings"


@dataclass(frozen=True)
class Options:
    """The collection to adapt to, and the teacher."""

    collection: str | None = option(
        "collection (mb2012, my-posts.toml, …) whose posts are read",
        metavar="NAME|FILE",
    )
    index: Path | None = option(
        "index folder made by pipeline.index, whose posts are read",
        parse=Path,
        metavar="DIR",
    )
    teacher: str | None = option(
        "minilm (English), multilingual, or a folder of the library "
        "sentence-transformers (default: by the language of the collection, or of its "
        "index)",
        metavar="NAME|DIR",
    )
    posts: int = option(
        "posts to encode; of more a sample is drawn",
        default=MOST_POSTS,
        parse=positive_int,
    )
    check: bool = option(
        "only report what an earlier run made, and the words of the posts that it does "
        "not know",
        flag=True,
    )
    device: str = option(
        "where the teacher runs", default="auto", choices=("auto", "cpu", "cuda")
    )
    threads: int | None = option("CPU threads (default: all cores)", parse=positive_int)
    data: Path | None = option("data folder (default: $TWEETRERANK_DATA)", parse=Path)


def main(options: Options) -> None:
    """Fit and write word vectors, or report on those of an earlier run with --check."""
    if bool(options.collection) == bool(options.index):
        raise UsageError("give one of --collection NAME and --index DIR")
    collection = open_collection(options.collection, options.index, data=options.data)
    if collection.index_directory is None:
        raise UsageError(
            f"--collection: {collection.name} is not searched, its candidates are "
            "given; expected a collection with an index"
        )
    if options.check:
        _report(collection)
    else:
        adapt(options, collection)


def adapt(options: Options, collection: Collection) -> None:
    """Encode the posts, fit word vectors to the encodings, check and write them.

    The collection must have an index. Raises DataError if fewer than two of its posts
    have a text.
    """
    from tweetrerank.pipeline.adaptation.teacher import encode, open_teacher
    from tweetrerank.pipeline.adaptation.word_table import ROUNDS, check, fit
    from tweetrerank.pipeline.ranking.frequencies import file_of

    name = options.teacher or _teacher_of(collection)
    teacher = open_teacher(name, choose_device(options.device, options.threads))
    posts = _posts(collection, options.posts)
    texts = [post.text for post in posts]
    path = collection.adapted_path
    assert path is not None
    with bar(len(texts), f"encode by {teacher.name}", "post") as progress:
        folder = path.with_name(f"{path.stem}.{ENCODINGS}")
        encodings = encode(texts, teacher, folder, progress)
    with bar(2 * ROUNDS, "fit", "round") as progress:
        explained, agreement = check(texts, encodings, progress)
        space = fit(texts, encodings, progress)
    print(
        f"held-out posts: {explained:.1%} of the encodings' variance explained; "
        f"agreement with the teacher's order {agreement:.3f} (Spearman's ρ)"
    )
    sample = posts[:: len(posts) // SAMPLED + 1]
    identity = {post.doc_id: text_number(post.text) for post in sample}
    metadata = {
        "teacher": teacher.name,
        "fingerprint": teacher.fingerprint,
        "collection": collection.key,
        "posts": str(len(posts)),
        "sample": json.dumps(identity),
    }
    write_bytes(path, space.content(metadata))
    file_of(collection, texts)
    words = counted(len(space.words), "word")
    print(f"wrote {path}: {words}, {path.stat().st_size / 1e6:.1f} MB")


def _teacher_of(collection: Collection) -> str:
    """Return the name of the teacher for the language of the posts, and print it.

    If the collection names no language, the language is that of the index's analyzer.
    Without a local index it is English.
    """
    language = collection.language
    index = collection.index_directory
    if language in (None, UNDETERMINED):
        language = "en"
        if index and (index / FILE_NAME).is_file():
            name = IndexManifest.read(index).analyzer
            languages = (
                code for code, analyzer in ANALYZERS.items() if analyzer == name
            )
            language = next(languages, UNDETERMINED)
    teacher = "minilm" if language == "en" else "multilingual"
    say(f"teacher: {teacher}, for the language {language}")
    return teacher


def _posts(collection: Collection, most: int) -> Sequence[Post]:
    """Return the posts to encode. Raises DataError if fewer than two have a text."""
    posts = [post for post in collection.posts() if post.text.strip()]
    sample = _sample(posts, most)
    if len(sample) < 2:
        raise DataError(
            f"{collection.title}: found {len(sample)} posts with a text, expected more"
        )
    return sample


def _sample(posts: Sequence[Post], most: int) -> Sequence[Post]:
    """Return the posts, or ``most`` of them at random if there are more.

    The order of the posts is kept. The seed is fixed, so that a repeated run draws the
    same posts.
    """
    if len(posts) <= most:
        return posts
    import numpy as np

    rows = np.sort(np.random.default_rng(1).choice(len(posts), most, replace=False))
    say(f"a sample of {most:,} of {len(posts):,} posts")
    return [posts[row] for row in rows.tolist()]


def _report(collection: Collection) -> None:
    """Print which vectors there are, and the share of the posts' words without one.

    Raises DataError if the collection has no adapted vectors.
    """
    from tweetrerank.rerankers.text.lexicon import Lexicon
    from tweetrerank.rerankers.text.spaces import description_of

    space = collection.adapted_space
    path = collection.adapted_path
    if space is None or path is None:
        option_of = f"--collection {collection.file or collection.name}"
        if not (collection.file or collection.has_topics):
            option_of = f"--index {collection.index_directory}"
        raise DataError(
            f"{collection.title}: found no adapted word vectors, expected some in "
            f"{path}; make them by python -m pipeline.adapt {option_of}"
        )
    lexicon = Lexicon.from_texts([post.text for post in collection.posts()])
    rows = lexicon.texts.values.tolist()
    known = sum(space.knows(lexicon.words[row]) for row in rows)
    unknown = 1 - known / max(1, len(rows))
    metadata = description_of(path)
    words = counted(len(space.words), "word")
    posts = counted(int(metadata.get("posts", 0)), "post")
    print(
        f"{path}: {words}, by {metadata.get('teacher', '?')} on {posts}\n"
        f"{unknown:.1%} of the words of the {len(lexicon.texts):,} posts now in the "
        "collection are not among them and have general vectors alone"
    )


if __name__ == "__main__":
    run("adapt")
