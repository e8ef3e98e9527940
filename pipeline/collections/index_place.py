"""Places of a collection's index."""

from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from tweetrerank.indexes.engines.address import EngineAddress
from tweetrerank.pipeline.collections.folders import home_directory


class IndexPlace(NamedTuple):
    """Place of an index: the home folder, another folder, or a search engine."""

    # Name in the home folder; collections of a group share their posts
    group: str = ""
    folder: Path | None = None  # Instead of the home folder's
    engine: EngineAddress | None = None  # Instead of a folder

    @property
    def directory(self) -> Path:
        """Folder of the index, built or not; for an engine, of the local copies."""
        if self.engine:
            digest = crc32(str(self.engine).encode())
            name = f"{self.engine.index}-{digest:08x}"
            return home_directory() / "engines" / name
        return self.folder or home_directory() / "indexes" / self.group

    def __str__(self) -> str:
        return str(self.engine or self.directory)
