"""What an index offers to whoever searches it, whichever program holds it."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

from indexes.errors import CollectionError
from indexes.methods import Method
from indexes.posts import Post
from indexes.store import is_number


class Topic(NamedTuple):
    """A query with an optional time limit.

    Attributes:
        query_id: key of its results; one word.
        text: the query.
        time: the time limit as a date, for an index that limits posts by their dates.
        max_doc_id: the newest post within the time limit, a whole number; None for no limit.
    """

    query_id: str
    text: str
    time: str | None = None
    max_doc_id: str | None = None


class Posts(Protocol):
    """The posts of an index."""

    def __iter__(self) -> Iterator[Post]:
        """All posts, each once."""

    def get_many(self, doc_ids: Iterable[str]) -> dict[str, Post]:
        """The posts with these ids, in this order; unknown ids are absent."""


class SearchIndex(Protocol):
    """An index that is open for searching."""

    @property
    def size(self) -> int:
        """Number of posts."""

    @property
    def posts(self) -> Posts:
        """The posts."""

    @property
    def id_range(self) -> tuple[str, str] | None:
        """The lowest and the highest id, None if the ids are not all whole numbers."""

    def search(
        self, topics: Iterable[Topic], method: Method, hits: int = 1000, threads: int = 2
    ) -> dict[str, dict[str, float]]:
        """Query_id -> doc_id -> score, best first, at most ``hits`` posts a topic."""

    def close(self) -> None:
        """Release files and connections."""


def id_limit(topic: Topic, numeric_ids: bool, index: object) -> int | None:
    """The number of the newest post within a topic's time limit, None without a limit.

    Raises:
        CollectionError: the limit is no number, or the ids of the index (its name) are not.
    """
    if topic.max_doc_id is None:
        return None
    if not numeric_ids:
        raise CollectionError(
            f"topic {topic.query_id} is limited to posts up to {topic.max_doc_id}, but the "
            f"ids of {index} are not all whole numbers; remove the time limit from "
            "the topic, or give the posts ids that grow with time"
        )
    if not is_number(topic.max_doc_id):
        raise CollectionError(
            f"topic {topic.query_id}: found the time limit {topic.max_doc_id!r}, "
            "expected the id of a post (a whole number)"
        )
    return int(topic.max_doc_id)
