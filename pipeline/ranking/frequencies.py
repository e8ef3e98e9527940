"""Word frequencies of a collection's own posts, counted once and kept in a file."""

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
from tweetrerank.pipeline.collections.sources import PostSource
from tweetrerank.pipeline.runtime import bar
from tweetrerank.pipeline.text import note
from tweetrerank.rerankers.checkpoint import GENERAL, OF_POSTS
from tweetrerank.rerankers.text.vocabulary import document_frequencies

MOST_COUNTED = 100_000  # Posts whose words are counted, drawn at random from more


def named_frequencies(source: str, collection: Collection | None) -> str:
    """The source of word frequencies for a collection: general ones in its language, if wordfreq
    has it, and those of its posts, where the source names them and they can be counted, else those
    of the source's own file."""
    kind, known, path = (*source.split(":", 2), "", "")[:3]
    if collection is None or kind not in (GENERAL, OF_POSTS):
        return source
    from wordfreq import available_languages

    language = collection.language
    if language not in available_languages():
        language = known or "en"
    counted = file_of(collection) if kind == OF_POSTS else None
    return ":".join(
        [kind, language, *([str(counted or path)] if counted or path else [])]
    )


def file_of(collection: Collection, texts: Sequence[str] = ()) -> Path | None:
    """The file of :func:`tweetrerank.rerankers.text.vocabulary.document_frequencies` of a collection's posts,
    written at the first use. Posts in a search engine alone are counted where their ``texts`` are
    given. None if candidates are given, the posts are not here or have changed since they were
    indexed, or the file cannot be written."""
    if (place := collection.index) is None:
        return None
    indexed = place.directory / POSTS_FILE
    files = [indexed] if indexed.exists() else collection.post_files()
    if not all(path.exists() for path in files):
        return None
    states = [
        (path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files
    ]
    stamp = crc32(json.dumps([str(place), *states]).encode())
    path = home_directory() / "frequencies" / f"{place.directory.name}-{stamp:08x}.tsv"
    if path.exists():
        return path
    source = collection.post_source if place.engine else collection
    try:
        if source and files:
            texts = texts or _some_texts(source)
        if not texts:
            return None
        with bar(len(texts), "words", "post") as progress, atomic_file(path) as stream:
            stream.write(document_frequencies(texts, progress))
    except (
        OSError,
        DataError,
    ) as error:  # A service can do without; a search will say it, too.
        note(f"{collection.title}: words have general frequencies: {error}")
        return None
    return path


def _some_texts(source: Collection | PostSource) -> Sequence[str]:
    """Texts of the posts, or of :data:`MOST_COUNTED` of them."""
    drawn, rng = list[str](), np.random.default_rng(1)
    for number, post in enumerate(source.posts()):
        if number < MOST_COUNTED:
            drawn.append(post.text)
        elif (row := int(rng.integers(number + 1))) < MOST_COUNTED:
            drawn[row] = post.text
    return drawn
