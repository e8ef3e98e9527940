"""Types of posts, topics and judgments in memory."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from tweetrerank.indexes.methods import Topic


class DataFrame(Protocol):
    """Data frame, such as pandas'."""

    @property
    def columns(self) -> object:
        """Names of the columns."""

    def notna(self) -> object:
        """Which values are present."""


Row = Mapping[str, object] | tuple[object, ...]
"""Dictionary or named tuple."""

Rows = Iterable[Row] | DataFrame

TopicsLike = (
    str
    | Topic
    | Mapping[str, str]
    | Mapping[int, str]
    | Iterable[str | Row]
    | DataFrame
)
"""One topic or text, query_id -> text, texts, rows, or a data frame."""

JudgmentsLike = (
    str
    | Path
    | Sequence[str | Path]
    | Mapping[str, Mapping[str, int]]
    | Mapping[int, Mapping[int, int]]
    | Rows
)
"""A file or several, query_id -> doc_id -> grade, rows, or a data frame."""
