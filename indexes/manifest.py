"""Describe an index in a file, and check the index against it when it is opened."""

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple, Self

from tweetrerank.indexes.analysis import ANALYZERS, ENGLISH, STANDARD
from tweetrerank.indexes.data_error import DataError
from tweetrerank.indexes.files import sha256_of

FORMAT = 1
"""Version of the folder's layout. It is raised when older indexes cannot be read."""

FILE_NAME = "manifest.json"

SMALL = 10_000_000
"""Size in bytes up to which all files of an index are read when it is opened.

Reading that many bytes takes some 20 ms.
"""

_CHECKSUM = "manifest_sha256"  # Key of the SHA-256 of the manifest's other fields


class Source(NamedTuple):
    """A file of posts as it was at the time of indexing."""

    name: str
    size: int  # Bytes
    mtime_ns: int  # Time of the last change, in nanoseconds
    sha256: str

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return the description of a file. Raises DataError if it cannot be read."""
        try:
            status = path.stat()
            return cls(path.name, status.st_size, status.st_mtime_ns, sha256_of(path))
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror}") from None

    def matches(self, path: Path) -> bool:
        """Return whether the file at ``path`` has the same name and content.

        The file is read only if its time has changed.
        """
        try:
            status = path.stat()
        except OSError:
            return False
        if path.name != self.name or status.st_size != self.size:
            return False
        if status.st_mtime_ns == self.mtime_ns:
            return True
        return Source.read(path).sha256 == self.sha256


@dataclass(frozen=True)
class IndexManifest:
    """The content of ``manifest.json``."""

    posts: int  # Number of posts
    empties: int  # Number of posts with an empty text, which no search finds
    numeric_ids: bool
    """Whether all ids are whole numbers below 2^63. A time limit requires this."""
    analyzer: str  # Name of an analyzer in :mod:`tweetrerank.indexes.analysis`
    sources: tuple[Source, ...]  # Files of the posts
    files: dict[str, int]  # Name -> size in bytes of every file of the index
    rebuild: str  # Command that builds the index again
    versions: dict[str, str]  # Software that built the index -> its version
    format: int = FORMAT
    sha256: dict[str, str] = field(default_factory=dict)
    """Name of every file of the index -> its SHA-256. Empty for a search engine."""

    def fields(self) -> dict[str, Any]:
        """Return the manifest as a dictionary that JSON can hold."""
        fields = dataclasses.asdict(self)
        fields["sources"] = [source._asdict() for source in self.sources]
        if not self.sha256:
            del fields["sha256"]
        return fields

    @classmethod
    def from_fields(cls, place: str, content: Mapping[str, Any]) -> Self:
        """Return the manifest with this content.

        ``place`` names the index in messages. Raises DataError if the manifest is of
        another version. Raises ValueError, TypeError, KeyError or AttributeError if it
        is damaged.
        """
        form = content["format"]
        if form != FORMAT:
            remedy = f"build it again with\n  {content.get('rebuild')}"
            if isinstance(form, int) and form > FORMAT:
                remedy = f"a newer version wrote it: update this program, or {remedy}"
            raise DataError(
                f"{place}: found an index of format {form}, expected {FORMAT}; {remedy}"
            )
        fields = dict(content)
        fields["sources"] = tuple(Source(**source) for source in content["sources"])
        # Earlier versions had only the English analyzer, under another name.
        if fields["analyzer"] not in (*ANALYZERS.values(), STANDARD):
            fields["analyzer"] = ENGLISH
        # Earlier versions had this field in place of the SHA-256.
        fields.pop("posts_crc", None)
        return cls(**fields)

    def write(self, directory: Path) -> None:
        """Write ``manifest.json`` into a folder."""
        fields = self.fields()
        fields[_CHECKSUM] = json_sha256(fields)
        text = json.dumps(fields, indent=2, ensure_ascii=False)
        (directory / FILE_NAME).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def read(cls, directory: Path) -> Self:
        """Read the manifest of an index.

        Raises DataError if the folder is missing or is not an index, or if the manifest
        is damaged or of another version.
        """
        path = directory / FILE_NAME
        if not path.is_file():
            problem = "no such folder"
            if directory.is_dir():
                problem = "a folder that is not an index"
            raise DataError(
                f"{directory}: found {problem}, expected an index; build one with "
                f"`{build_call(directory)}`"
            )
        try:
            fields = json.loads(path.read_text(encoding="utf-8"))
            checksum = fields.pop(_CHECKSUM, None)
            if checksum not in (None, json_sha256(fields)):
                raise ValueError(f"another SHA-256 than {checksum}")
            return cls.from_fields(str(directory), fields)
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise DataError(
                f"{path}: not a readable manifest of an index "
                f"({type(error).__name__}: {error}); "
                f"remove {directory} and build it again"
            ) from None

    def check(
        self, directory: Path, sources: Sequence[Path] | None, whole: bool = False
    ) -> None:
        """Raise DataError if the index in a folder is damaged or has other posts.

        The message has the command that rebuilds the index. If ``sources`` are given,
        they must be the files that the index was built from. All files of the index
        must have the right size. The SHA-256 is checked for all files if the index is
        small or ``whole`` is set. Otherwise it is checked only for files newer than the
        manifest. No file should be newer, because the manifest is written last.
        """
        names = {path.name for path in directory.iterdir() if path.name[0] != "."}
        strays = sorted(names - self.files.keys() - {FILE_NAME})
        problems = [f"found {name}, no file of it" for name in strays]
        problems += self._damages(directory, whole)
        if whole and not self.sha256:
            problems.append("an earlier version built it, without SHA-256 of its files")
        if sources is not None:
            difference = self.difference(sources)
            if difference:
                problems.append(f"it was {difference}")
        if problems:
            raise self.unusable(directory, "; ".join(problems))

    def _damages(self, directory: Path, whole: bool) -> Iterator[str]:
        """Yield a message for each file of the index that is missing or damaged."""
        manifest_time = (directory / FILE_NAME).stat().st_mtime_ns
        read_all = whole or sum(self.files.values()) <= SMALL
        for name, expected in self.files.items():
            path = directory / name
            size = path.stat().st_size if path.is_file() else None
            if size != expected:
                state = "is missing" if size is None else f"has {size} bytes"
                yield (
                    f"its file {name} {state}, expected {expected} bytes: it is damaged"
                )
                continue
            must_read = read_all or path.stat().st_mtime_ns > manifest_time
            if self.sha256 and must_read and sha256_of(path) != self.sha256.get(name):
                yield f"found another SHA-256 in {name}: damaged"

    def difference(self, sources: Sequence[Path]) -> str | None:
        """Return how ``sources`` differ from the files that the index was built from.

        The result is None if they do not differ.
        """
        built = [source.name for source in self.sources]
        names = [path.name for path in sources]
        if sorted(built) != sorted(names):
            return f"built from {built}, expected {names}"
        for path in sources:
            if not any(source.matches(path) for source in self.sources):
                state = "does not exist any more"
                if path.exists():
                    state = "has changed since"
                return f"built from {path}, which {state}"
        return None

    def unusable(self, directory: Path, problem: str) -> DataError:
        """Return the error for an index that must be built again."""
        return DataError(
            f"{directory}: this index cannot be used: {problem}; build it again with\n"
            f"  {self.rebuild}"
        )


def build_call(directory: Path) -> str:
    """Return the Python call that builds an index in a folder, for messages."""
    return f"tweetrerank.indexes.lucene_index.build(posts, {str(directory)!r})"


def json_sha256(fields: Mapping[str, Any]) -> str:
    """Return the SHA-256 of fields in JSON. It does not depend on their order."""
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def check_replaceable(directory: Path) -> None:
    """Raise DataError if a new index would replace anything but an old index."""
    if not directory.exists() or (directory / FILE_NAME).is_file():
        return
    if directory.is_dir():
        if not any(directory.iterdir()):
            return
        obstacle = "a folder that is not an index"
    else:
        obstacle = "a file"
    raise DataError(
        f"{directory}: found {obstacle}, expected an index or nothing; it is left as "
        "it is: remove it or choose another folder"
    )


def software_versions(**others: str) -> dict[str, str]:
    """Return the versions to record in a manifest, by name.

    They are the given ones, and those of Pyserini and of this package.
    """
    for package in ("pyserini", "tweetrerank"):
        try:
            others[package] = version(package)
        except PackageNotFoundError:  # A checkout that is not installed
            others[package] = "unknown"
    return others
