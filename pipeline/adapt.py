"""Adapt word vectors to a collection's posts, without judgments, topics or a query log.

    pip install 'tweetrerank[adapt]'
    python -m pipeline.adapt --collection my-posts.toml
    python -m pipeline.search --collection my-posts.toml

A sentence transformer, the teacher, encodes the posts once. Then every word gets a vector, so that
the sums of these vectors are as near as possible to the encodings. They are written beside
the models, and searches of the collection compare meaning by them: the teacher is not needed again.
The words of posts that are in a search engine alone are counted, too, as those of others are by the
first search: the rarer, the more a word counts.
An interrupted run continues when the command is repeated. Posts that are added to the index later
need no new adaptation unless many of their words are unknown: --check says how many.
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

MOST_POSTS = 200_000  # Posts to encode, by default: more improve little
DRAWN = 20  # Posts by which the vectors' collection is known again, about
KEPT = "encodings"  # Folder beside the index with the encodings of an unfinished or repeated run


@dataclass(frozen=True)
class Options:
    """Collection and teacher."""

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
        "minilm (English), multilingual, or a folder of the library sentence-transformers "
        "(default: by the language of the collection, or of its index)",
        metavar="NAME|DIR",
    )
    posts: int = option(
        "posts to encode; of more a sample is drawn",
        default=MOST_POSTS,
        parse=positive_int,
    )
    check: bool = option(
        "only report what an earlier run made, and the words of the posts that it does not know",
        flag=True,
    )
    device: str = option(
        "where the teacher runs", default="auto", choices=("auto", "cpu", "cuda")
    )
    threads: int | None = option("CPU threads (default: all cores)", parse=positive_int)
    data: Path | None = option("data folder (default: $TWEETRERANK_DATA)", parse=Path)


def main(options: Options) -> None:
    """Encode, fit, check, write."""
    if bool(options.collection) == bool(options.index):
        raise UsageError("give one of --collection NAME and --index DIR")
    collection = open_collection(options.collection, options.index, data=options.data)
    if collection.index_directory is None:
        raise UsageError(
            f"--collection: {collection.name} is not searched, its candidates are given; expected "
            "a collection with an index"
        )
    if options.check:
        _report(collection)
    else:
        adapt(options, collection)


def adapt(options: Options, collection: Collection) -> None:
    """Encode the posts, fit word vectors to the encodings, check and write them."""
    from tweetrerank.pipeline.adaptation.teacher import encode, open_teacher
    from tweetrerank.pipeline.adaptation.word_table import ROUNDS, check, fit
    from tweetrerank.pipeline.ranking.frequencies import file_of

    name = options.teacher or _teacher_of(collection)
    teacher = open_teacher(name, choose_device(options.device, options.threads))
    posts = _sample(
        [post for post in collection.posts() if post.text.strip()], options.posts
    )
    texts = [post.text for post in posts]
    if len(texts) < 2:
        raise DataError(
            f"{collection.title}: found {len(texts)} posts with a text, expected more"
        )
    path = collection.adapted_path
    assert path is not None
    with bar(len(texts), f"encode by {teacher.name}", "post") as progress:
        encodings = encode(
            texts, teacher, path.with_name(f"{path.stem}.{KEPT}"), progress
        )
    with bar(2 * ROUNDS, "fit", "round") as progress:
        explained, agreement = check(texts, encodings, progress)
        space = fit(texts, encodings, progress)
    print(
        f"held-out posts: {explained:.1%} of the encodings' variance explained; agreement "
        f"with the teacher's order {agreement:.3f} (Spearman's ρ)"
    )
    drawn = {
        post.doc_id: text_number(post.text)
        for post in posts[:: len(posts) // DRAWN + 1]
    }
    made = {"teacher": teacher.name, "fingerprint": teacher.fingerprint}
    made |= {
        "collection": collection.key,
        "posts": str(len(posts)),
        "sample": json.dumps(drawn),
    }
    write_bytes(path, space.content(made))
    file_of(collection, texts)
    print(
        f"wrote {path}: {counted(len(space.words), 'word')}, {path.stat().st_size / 1e6:.1f} MB"
    )


def _teacher_of(collection: Collection) -> str:
    """The teacher for the language of the posts, which the index tells if nobody says it."""
    language, index = collection.language, collection.index_directory
    if language in (None, UNDETERMINED):
        language = "en"
        if index and (index / FILE_NAME).is_file():
            name = IndexManifest.read(index).analyzer
            language = next(
                (code for code, of in ANALYZERS.items() if of == name), UNDETERMINED
            )
    teacher = "minilm" if language == "en" else "multilingual"
    say(f"teacher: {teacher}, for the language {language}")
    return teacher


def _sample(posts: Sequence[Post], most: int) -> Sequence[Post]:
    """All posts, or ``most`` of them, drawn at random in their order, always the same."""
    if len(posts) <= most:
        return posts
    import numpy as np

    rows = np.sort(np.random.default_rng(1).choice(len(posts), most, replace=False))
    say(f"a sample of {most:,} of {len(posts):,} posts")
    return [posts[row] for row in rows.tolist()]


def _report(collection: Collection) -> None:
    """The drift of the posts: words that the vectors were not fitted to."""
    from tweetrerank.rerankers.text.lexicon import Lexicon
    from tweetrerank.rerankers.text.spaces import description_of

    space, path = collection.adapted_space, collection.adapted_path
    if space is None or path is None:
        where = f"--collection {collection.file or collection.name}"
        if not (collection.file or collection.has_topics):
            where = f"--index {collection.index_directory}"
        raise DataError(
            f"{collection.title}: found no adapted word vectors, expected some in {path}; make "
            f"them by python -m pipeline.adapt {where}"
        )
    lexicon, made = (
        Lexicon.from_texts([p.text for p in collection.posts()]),
        description_of(path),
    )
    known = sum(
        space.knows(lexicon.words[row]) for row in lexicon.texts.values.tolist()
    )
    unknown = 1 - known / max(1, len(lexicon.texts.values))
    print(
        f"{path}: {counted(len(space.words), 'word')}, by {made.get('teacher', '?')} on "
        f"{counted(int(made.get('posts', 0)), 'post')}\n"
        f"{unknown:.1%} of the words of the {len(lexicon.texts):,} posts now in the collection are "
        "not among them and have general vectors alone"
    )


if __name__ == "__main__":
    run("adapt")
