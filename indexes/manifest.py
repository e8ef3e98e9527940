"""What a built index says about itself, so that one that does not fit is noticed when opened."""

import dataclasses
import hashlib
import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple, Self

from indexes.errors import CollectionError

FORMAT = 1
"""Raised whenever an index of the former layout can no longer be read."""

FILE_NAME = "manifest.json"


class Source(NamedTuple):
    """A file that posts were read from, as it was then (size in bytes, time in nanoseconds)."""

    name: str
    size: int
    mtime_ns: int
    sha256: str

    @classmethod
    def of(cls, path: Path) -> Self:
        """Describe a file. Raises CollectionError if it cannot be read."""
        try:
            status = path.stat()
            with path.open("rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
        except OSError as error:
            raise CollectionError(f"{path}: cannot be read: {error.strerror}") from None
        return cls(path.name, status.st_size, status.st_mtime_ns, digest)

    def still_is(self, path: Path) -> bool:
        """Whether the file has the content described; it is read only if its time has changed."""
        try:
            status = path.stat()
        except OSError:
            return False
        if path.name != self.name or status.st_size != self.size:
            return False
        return status.st_mtime_ns == self.mtime_ns or Source.of(path).sha256 == self.sha256


@dataclass(frozen=True)
class Manifest:
    """The description that is stored beside an index.

    Attributes:
        posts: number of posts.
        empties: how many of them have an empty text; no search finds these.
        numeric_ids: all ids are whole numbers below 2^63, so that a time limit can be applied.
        analyzer: how texts were cut into terms.
        sources: the files that the posts came from.
        files: name -> size in bytes of every file of the index.
        rebuild: the command that builds it again.
        versions: of the software that wrote it.
        format: layout of the folder.
    """

    posts: int
    empties: int
    numeric_ids: bool
    analyzer: str
    sources: tuple[Source, ...]
    files: dict[str, int]
    rebuild: str
    versions: dict[str, str]
    format: int = FORMAT

    def write(self, directory: Path) -> None:
        """Write ``manifest.json`` into a folder."""
        fields = dataclasses.asdict(self) | {"sources": [s._asdict() for s in self.sources]}
        text = json.dumps(fields, indent=2, ensure_ascii=False)
        (directory / FILE_NAME).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def read(cls, directory: Path) -> Self:
        """Read the manifest of an index.

        Raises:
            CollectionError: the folder is missing or no index, its manifest is damaged, or it was
                written by another version of this program.
        """
        path = directory / FILE_NAME
        if not path.is_file():
            found = "a folder that is not an index" if directory.is_dir() else "no such folder"
            raise CollectionError(
                f"{directory}: found {found}, expected an index; build one with\n"
                f"  python -m pipeline.index --posts FILE --index {shlex.quote(str(directory))}"
            )
        try:
            fields = json.loads(path.read_text(encoding="utf-8"))
            check_format(directory, fields["format"], fields.get("rebuild"))
            return cls(**fields | {"sources": tuple(Source(**s) for s in fields["sources"])})
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise CollectionError(
                f"{path}: not a readable manifest of an index "
                f"({type(error).__name__}: {error}); remove {directory} and build it again"
            ) from None

    def check(self, directory: Path, sources: Sequence[Path] | None) -> None:
        """Check that the index is whole and, if sources are given, that it was built from them.

        Raises:
            CollectionError: naming the first file that differs and the command that rebuilds.
        """
        for name, size in self.files.items():
            path = directory / name
            found = path.stat().st_size if path.is_file() else None
            if found != size:
                state = "is missing" if found is None else f"has {found} bytes"
                raise self._stale(
                    directory, f"its file {name} {state}, expected {size} bytes: it is damaged"
                )
        if sources is None:
            return
        names = [source.name for source in self.sources]
        if names != [path.name for path in sources]:
            raise self._stale(
                directory, f"it was built from {names}, expected {[path.name for path in sources]}"
            )
        for source, path in zip(self.sources, sources, strict=True):
            if not source.still_is(path):
                state = "has changed since" if path.exists() else "is not there any more"
                raise self._stale(directory, f"it was built from {path}, which {state}")

    def _stale(self, directory: Path, problem: str) -> CollectionError:
        return CollectionError(
            f"{directory}: this index cannot be used: {problem}; "
            f"build it again with\n  {self.rebuild}"
        )


def check_format(directory: Path, found: Any, rebuild: str | None) -> None:
    """Raise CollectionError unless an index of this format can be read."""
    if found == FORMAT:
        return
    newer = isinstance(found, int) and found > FORMAT
    remedy = f"update this program, or build the index again with\n  {rebuild}"
    raise CollectionError(
        f"{directory}: found an index of format {found}, expected {FORMAT}; "
        + (f"a newer version wrote it: {remedy}" if newer else f"build it again with\n  {rebuild}")
    )


def rebuild_command(sources: Sequence[Path | str], directory: Path) -> str:
    """The command that builds an index of one's own posts."""
    posts = [word for path in sources for word in ("--posts", str(Path(path).absolute()))]
    place = str(directory.absolute())
    return shlex.join(["python", "-m", "pipeline.index", *posts, "--index", place])


def software_versions(lucene: str) -> dict[str, str]:
    """Versions to record in a manifest."""
    versions = {"lucene": lucene}
    for package in ("pyserini", "tweetrerank"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:  # run from a checkout that is not installed
            versions[package] = "unknown"
    return versions
