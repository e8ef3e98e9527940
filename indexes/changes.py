"""Adding posts to an index, and removing posts from it, without the files that it was built from.

The changed index equals one built from the resulting posts: its word statistics count no removed
post, and its posts are in the same order. Lucene's own updates give neither: a new post belongs
between older ones, whose numbers are their places, and deleted posts stay in the statistics. So
Lucene's files are written again from the stored posts, which takes less time than merging Lucene's
segments in another order (measured: 6 s against 9 s for 85,000 posts).
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from indexes import lucene
from indexes.errors import CollectionError
from indexes.files import atomic_directory
from indexes.lines import listed
from indexes.manifest import Change, IndexManifest, Source
from indexes.posts import Post, places_of, read_posts
from indexes.store import POSTS_FILE, PostStore, RepeatedIdError


def change(
    directory: Path | str,
    command: str,
    add: Sequence[Path | str] = (),
    remove: Iterable[str] = (),
    *,
    replace: bool = False,
    finish: Callable[[Path], None] = lambda folder: None,
) -> IndexManifest:
    """Remove posts from an index, then add others; the old index is replaced at the very end.

    A search that has opened the old index still reads it whole. After an error or an interruption
    the old index is there as it was. The added posts are held in memory. The last change of the
    returned manifest is this one, unless there was nothing to do.

    Args:
        command: repeats this change; for the manifest.
        replace: an added post takes the place of one with the same id; else that is an error.
        finish: called with the folder of the complete new index, before it replaces the old one.

    Raises:
        CollectionError: the index cannot be used, or was changed by another process meanwhile; an
            id is repeated, unknown, or taken; no post would be left.
    """
    directory = Path(directory)
    manifest = IndexManifest.read(directory)
    manifest.check(directory, None)
    sources = [Source.read(Path(path)) for path in add]
    new = _read(add)
    with PostStore(directory / POSTS_FILE) as old:
        removed = _removed(old, remove, directory)
        replaced = old.get_many(new).keys() - removed
        if replaced and not replace:
            first = listed([repr(doc_id) for doc_id in new if doc_id in replaced])
            raise CollectionError(
                f"{directory}: found posts with the added ids {first}, expected new ids; with "
                "`replace` the new texts replace the old ones"
            )
        if not removed and not new:
            return manifest
        if len(removed) == len(old) and not new:
            raise CollectionError(
                f"{directory}: found all {len(old):,} posts among those to remove, expected that "
                "at least one is left; remove the folder instead"
            )
        done = Change(
            added=len(new) - len(replaced),
            replaced=len(replaced),
            removed=len(removed),
            files=tuple(source.name for source in sources),
            command=command,
            time=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        gone, texts = removed | replaced, new.values()
        with atomic_directory(directory) as folder:
            changed = lucene.write(
                itertools.chain((post for post in old if post.doc_id not in gone), texts),
                folder,
                directory,
                (*manifest.sources, *sources),
                f"{manifest.rebuild}\n  {command}",
                (*manifest.changes, done),
            )
            finish(folder)
            if IndexManifest.read(directory) != manifest:
                raise CollectionError(
                    f"{directory}: another process has changed this index meanwhile; it is left "
                    "as that process wrote it: try again"
                )
    return changed


def _read(files: Sequence[Path | str]) -> dict[str, Post]:
    """The posts of files by id."""
    new: dict[str, Post] = {}
    for path in files:
        size = len(new)
        for post in lucene.progress(read_posts(path), None, "reading"):
            if post.doc_id in new:
                raise RepeatedIdError(post.doc_id, places_of(post.doc_id, files))
            new[post.doc_id] = post
        if len(new) == size:
            raise CollectionError(f"{path}: found no posts, expected at least one")
    return new


def _removed(old: PostStore, doc_ids: Iterable[str], directory: Path) -> set[str]:
    """The ids to remove, all of which the index must have."""
    wanted = list(dict.fromkeys(doc_ids))
    known = old.get_many(wanted).keys()
    if len(known) < len(wanted):
        first = listed([repr(doc_id) for doc_id in wanted if doc_id not in known])
        raise CollectionError(
            f"{directory}: found no posts with the ids {first}, expected ids of its posts, or a "
            "file of them, one a line"
        )
    return set(known)
