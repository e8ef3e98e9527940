"""Tell where the index of a collection is."""

from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from tweetrerank.indexes.engines.address import EngineAddress
from tweetrerank.pipeline.collections.folders import home_directory


class IndexPlace(NamedTuple):
    """The place of an index: the home folder, another folder, or a search engine."""

    # Name of the index in the home folder. Collections with the same posts share it.
    group: str = ""
    folder: Path | None = None  # A folder to use instead of the one in the home folder
    engine: EngineAddress | None = None  # A search engine to use instead of a folder

    @property
    def directory(self) -> Path:
        """The folder of the index, which may not be built yet.

        For a search engine it is the folder of the local copies of posts.
        """
        if self.engine:
            digest = crc32(str(self.engine).encode())
            name = f"{self.engine.index}-{digest:08x}"
            return home_directory() / "engines" / name
        return self.folder or home_directory() / "indexes" / self.group

    def __str__(self) -> str:
        return str(self.engine or self.directory)
