"""Count the words of a collection's own posts, once, and keep the counts in a file."""

import json
from collections.abc import Sequence
from pathlib import Path
from zlib import crc32

import numpy as np

from tweetrerank.indexes.data_error import DataError
from tweetrerank.indexes.files import atomic_file
from tweetrerank.indexes.store import POSTS_FILE
from tweetrerank.pipeline.collections.collection import Collection
from tweetrerank.pipeline.collections.folders import home_directory
from tweetrerank.pipeline.collections.index_place import IndexPlace
from tweetrerank.pipeline.collections.sources import PostSource
from tweetrerank.pipeline.runtime import bar
from tweetrerank.pipeline.text import note
from tweetrerank.rerankers.checkpoint import GENERAL, OF_POSTS
from tweetrerank.rerankers.text.vocabulary import document_frequencies

# If there are more posts, this many are drawn at random and counted
MOST_COUNTED = 100_000


def named_frequencies(source: str, collection: Collection | None) -> str:
    """Return the source of word frequencies for a collection.

    ``source`` is the source used in training: ``wordfreq:LANGUAGE``,
    ``posts:LANGUAGE:FILE``, or a file. Its language is replaced by the collection's
    language if wordfreq has it. Its file is replaced by the file of the collection's
    posts if these can be counted.
    """
    fields = source.split(":", 2)
    kind = fields[0]
    if collection is None or kind not in (GENERAL, OF_POSTS):
        return source
    from wordfreq import available_languages

    language = collection.language
    if language not in available_languages():
        training_language = fields[1] if len(fields) > 1 else ""
        language = training_language or "en"
    path = fields[2] if len(fields) > 2 else ""
    if kind == OF_POSTS:
        path = str(file_of(collection) or path)
    return f"{kind}:{language}:{path}" if path else f"{kind}:{language}"


def file_of(collection: Collection, texts: Sequence[str] = ()) -> Path | None:
    """Return the file with the word frequencies of a collection's posts.

    The file is written at the first use, by
    :func:`tweetrerank.rerankers.text.vocabulary.document_frequencies`. Posts that lie
    only in a search engine can be counted only if they are given as ``texts``.

    Returns:
        None if the collection has given candidates, if its posts are not on this
        machine or have changed since they were indexed, or if the file cannot be
        written.
    """
    place = collection.index
    if place is None:
        return None
    indexed = place.directory / POSTS_FILE
    files = [indexed] if indexed.exists() else collection.post_files()
    if not all(file.exists() for file in files):
        return None
    path = _path(place, files)
    if path.exists():
        return path
    try:
        if not texts and files:
            texts = _texts_of(collection)
        if not texts:
            return None
        _write(path, texts)
    except (OSError, DataError) as error:
        # A service works without these frequencies, and a search reports the error
        # itself.
        note(f"{collection.title}: words have general frequencies: {error}")
        return None
    return path


def _write(path: Path, texts: Sequence[str]) -> None:
    """Write the word frequencies of texts, with a progress bar."""
    with bar(len(texts), "words", "post") as progress, atomic_file(path) as stream:
        stream.write(document_frequencies(texts, progress))


def _path(place: IndexPlace, files: Sequence[Path]) -> Path:
    """Return the path of the word frequencies of posts in these files.

    The path changes when the size or the time of a file changes.
    """
    states: list[object] = [str(place)]
    for file in files:
        status = file.stat()
        states.append((file.name, status.st_size, status.st_mtime_ns))
    stamp = crc32(json.dumps(states).encode())
    name = f"{place.directory.name}-{stamp:08x}.tsv"
    return home_directory() / "frequencies" / name


def _texts_of(collection: Collection) -> Sequence[str]:
    """Return the texts of the posts that can be read on this machine.

    Posts that lie only in a search engine are left out.
    """
    if not collection.engine:
        return _some_texts(collection)
    return _some_texts(collection.post_source) if collection.post_source else ()


def _some_texts(source: Collection | PostSource) -> Sequence[str]:
    """Return the texts of all posts, or of a sample of :data:`MOST_COUNTED` posts."""
    sample: list[str] = []
    rng = np.random.default_rng(1)
    for number, post in enumerate(source.posts()):
        if number < MOST_COUNTED:
            sample.append(post.text)
            continue
        row = int(rng.integers(number + 1))
        if row < MOST_COUNTED:
            sample[row] = post.text
    return sample
