"""The description stored with a built index, and the checks against it when the index is opened."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple, Self

from tweetrerank.indexes.analysis import ANALYZERS, ENGLISH, STANDARD
from tweetrerank.indexes.data_error import DataError
from tweetrerank.indexes.files import sha256_of

FORMAT = (
    1  # Version of the folder's layout, raised when older indexes can no longer be read
)
FILE_NAME = "manifest.json"
SMALL = 10_000_000  # Bytes of an index up to which opening reads all of its files, in some 20 ms
_OWN = "manifest_sha256"  # Key of the SHA-256 of the manifest's other fields


class Source(NamedTuple):
    """A file of posts at the time of indexing (size in bytes, time in nanoseconds)."""

    name: str
    size: int
    mtime_ns: int
    sha256: str

    @classmethod
    def read(cls, path: Path) -> Self:
        """Describe a file; raises DataError if it cannot be read."""
        try:
            status = path.stat()
            return cls(path.name, status.st_size, status.st_mtime_ns, sha256_of(path))
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror}") from None

    def matches(self, path: Path) -> bool:
        """Whether the file has this content; it is read only if its time has changed."""
        try:
            status = path.stat()
        except OSError:
            return False
        if path.name != self.name or status.st_size != self.size:
            return False
        return (
            status.st_mtime_ns == self.mtime_ns
            or Source.read(path).sha256 == self.sha256
        )


@dataclass(frozen=True)
class IndexManifest:
    """The content of ``manifest.json``."""

    posts: int  # Number of posts
    empties: int  # Number of posts with an empty text, which no search finds
    numeric_ids: bool  # All ids are whole numbers below 2^63, so that a time limit can be applied
    analyzer: str  # Name in :mod:`tweetrerank.indexes.analysis`
    sources: tuple[Source, ...]  # Files of the posts
    files: dict[str, int]  # Name -> size in bytes of every file of the index
    rebuild: str  # Command that builds the index again
    versions: dict[str, str]  # Of the software that built it
    format: int = FORMAT
    sha256: dict[str, str] = field(default_factory=dict)
    """Name -> SHA-256 of every file of the index; none in a search engine."""

    def fields(self) -> dict[str, Any]:
        """The manifest as JSON."""
        fields = dataclasses.asdict(self) | {
            "sources": [s._asdict() for s in self.sources]
        }
        return {name: v for name, v in fields.items() if v or name != "sha256"}

    @classmethod
    def from_fields(cls, place: str, found: Mapping[str, Any]) -> Self:
        """The manifest with this content, of an index at ``place``; raises DataError for one
        of another version, and ValueError, TypeError, KeyError or AttributeError for damage."""
        if (form := found["format"]) != FORMAT:
            remedy = f"build it again with\n  {found.get('rebuild')}"
            if isinstance(form, int) and form > FORMAT:
                remedy = f"a newer version wrote it: update this program, or {remedy}"
            raise DataError(
                f"{place}: found an index of format {form}, expected {FORMAT}; {remedy}"
            )
        fields = {
            **found,
            "sources": tuple(Source(**source) for source in found["sources"]),
        }
        # Names began with the analyzers of other languages.
        if fields["analyzer"] not in (*ANALYZERS.values(), STANDARD):
            fields["analyzer"] = ENGLISH
        fields.pop("posts_crc", None)  # Of earlier versions, which had no SHA-256
        return cls(**fields)

    def write(self, directory: Path) -> None:
        """Write ``manifest.json`` into a folder."""
        fields = self.fields()
        fields[_OWN] = json_sha256(fields)
        text = json.dumps(fields, indent=2, ensure_ascii=False)
        (directory / FILE_NAME).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def read(cls, directory: Path) -> Self:
        """Read the manifest of an index; raises DataError if the folder is missing or no
        index, or its manifest is damaged or of another version."""
        if not (path := directory / FILE_NAME).is_file():
            found = (
                "a folder that is not an index"
                if directory.is_dir()
                else "no such folder"
            )
            raise DataError(
                f"{directory}: found {found}, expected an index; build one with "
                f"`indexes.build(posts, {str(directory)!r})`"
            )
        try:
            fields = json.loads(path.read_text(encoding="utf-8"))
            if (expected := fields.pop(_OWN, None)) not in (None, json_sha256(fields)):
                raise ValueError(f"another SHA-256 than {expected}")
            return cls.from_fields(str(directory), fields)
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise DataError(
                f"{path}: not a readable manifest of an index "
                f"({type(error).__name__}: {error}); remove {directory} and build it again"
            ) from None

    def check(
        self, directory: Path, sources: Sequence[Path] | None, whole: bool = False
    ) -> None:
        """Raise DataError, with the command that rebuilds, unless the index is complete and
        ``sources``, if given, are its files of posts.

        The content of files is read, too, if the index is small, or ``whole``; else of those that
        are newer than the manifest, which is written last.
        """
        written = (directory / FILE_NAME).stat().st_mtime_ns
        read_all = whole or sum(self.files.values()) <= SMALL
        present = {path.name for path in directory.iterdir() if path.name[0] != "."}
        problems = [
            f"found {name}, no file of it"
            for name in present - {*self.files, FILE_NAME}
        ]
        for name, size in self.files.items():
            path = directory / name
            found = path.stat().st_size if path.is_file() else None
            if found != size:
                state = "is missing" if found is None else f"has {found} bytes"
                problems.append(
                    f"its file {name} {state}, expected {size} bytes: it is damaged"
                )
                continue
            is_read = read_all or path.stat().st_mtime_ns > written
            if self.sha256 and is_read and sha256_of(path) != self.sha256.get(name):
                problems.append(f"found another SHA-256 in {name}: damaged")
        if whole and not self.sha256:
            problems.append("an earlier version built it, without SHA-256 of its files")
        if sources is not None and (difference := self.difference(sources)):
            problems.append(f"it was {difference}")
        if problems:
            raise self.unusable(directory, "; ".join(problems))

    def difference(self, sources: Sequence[Path]) -> str | None:
        """How these differ from the files of its posts, None if they do not."""
        built, names = (
            [source.name for source in self.sources],
            [path.name for path in sources],
        )
        if sorted(built) != sorted(names):
            return f"built from {built}, expected {names}"
        for path in sources:
            if not any(source.matches(path) for source in self.sources):
                state = (
                    "has changed since" if path.exists() else "does not exist any more"
                )
                return f"built from {path}, which {state}"
        return None

    def unusable(self, directory: Path, problem: str) -> DataError:
        """The error for an index that must be built again."""
        return DataError(
            f"{directory}: this index cannot be used: {problem}; build it again with\n"
            f"  {self.rebuild}"
        )


def json_sha256(fields: Mapping[str, Any]) -> str:
    """SHA-256 of the JSON of some fields, whatever their order."""
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def check_replaceable(directory: Path) -> None:
    """Raise DataError if a new index would destroy anything but an old one."""
    is_folder = directory.is_dir()
    if not directory.exists() or (directory / FILE_NAME).is_file():
        return
    if not is_folder or any(directory.iterdir()):
        found = "a folder that is not an index" if is_folder else "a file"
        raise DataError(
            f"{directory}: found {found}, expected an index or nothing; it is left as it is: "
            "remove it or choose another folder"
        )


def software_versions(**others: str) -> dict[str, str]:
    """Versions to record in a manifest: of ``others``, and of packages."""
    for package in ("pyserini", "tweetrerank"):
        try:
            others[package] = version(package)
        except PackageNotFoundError:  # a checkout that is not installed
            others[package] = "unknown"
    return others
