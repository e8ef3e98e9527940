"""Input of a search: topics, retrieval methods with their parameters, and an open index.

The methods' defaults maximize the mean of the average precisions (AP) on the 2011 and the 2012
topics of TREC Microblog, with 1000 posts a topic and the topic's time limit, in the pool of both
years' candidates; where the best value was at the edge of the grid, the next one was taken. So the
figures of these methods on 2011 and 2012 are of parameters chosen there; 2013 and 2014 were not
used.

=================  =====  =====  ============================================================
method             2011   2012   tried
=================  =====  =====  ============================================================
QueryLikelihood    .3547  .2069  mu 5 to 2500 (1000, Anserini's usual: .3361 .1901)
BM25               .3640  .2055  k1 0.05 to 1.2, b 0 to 0.6 (0.9 and 0.4, usual: .3392 .2012)
RM3                .4043  .2369  fb_terms 5 to 50, fb_docs 3 to 30, original_weight 0.2 to 0.7,
                                 mu 20 to 100 (10, 10, 0.5, 100: .4035 .2293)
Axiomatic          .4164  .2352  fb_docs 5 to 30, pool_factor 3 to 30, beta 0.2 to 1.5,
                                 fb_terms 10 to 50, mu 50 and 100; figures are means of three
                                 seeds (20, 30, 0.4, 20, 100, one seed: .4139 .2184)
=================  =====  =====  ============================================================
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

from indexes.errors import CollectionError
from indexes.posts import Post
from indexes.store import is_number

_VALID: dict[str, Callable[[float], bool]] = {
    "mu": lambda value: value > 0,
    "k1": lambda value: value >= 0,
    "b": lambda value: 0 <= value <= 1,
    "fb_terms": lambda value: value >= 1,
    "fb_docs": lambda value: value >= 1,
    "original_weight": lambda value: 0 <= value <= 1,
    "pool_factor": lambda value: value >= 1,
    "beta": lambda value: value > 0,
    "seed": lambda value: True,
}


class _Parameters:
    """Raises CollectionError naming the parameters that are out of range."""

    def __post_init__(self) -> None:
        found = vars(self)
        if bad := [f"{name}={value}" for name, value in found.items() if not _VALID[name](value)]:
            raise CollectionError(
                f"{type(self).__name__}: found {', '.join(bad)}; "
                "expected values in the ranges that its description names"
            )


@dataclass(frozen=True)
class QueryLikelihood(_Parameters):
    """Query likelihood with Dirichlet smoothing (Zhai & Lafferty, 2001)."""

    name: ClassVar[str] = "ql"
    mu: float = 100.0
    """Weight of the collection's language model against the post's, in words; above 0."""


@dataclass(frozen=True)
class BM25(_Parameters):
    """Okapi BM25, in Lucene's form (without the constant factor k1 + 1)."""

    name: ClassVar[str] = "bm25"
    k1: float = 0.15  # Term frequency saturation; at least 0
    b: float = 0.0
    """Length normalization, 0 to 1. With 0 equal scores are frequent; new posts come first."""


@dataclass(frozen=True)
class RM3(_Parameters):
    """Pseudo-relevance feedback with the relevance model RM3 (Abdul-Jaleel et al., 2004)."""

    name: ClassVar[str] = "rm3"
    fb_terms: int = 30  # Number of words that are added to the query
    fb_docs: int = 5  # Number of best posts of the first round that supply them
    original_weight: float = 0.3  # Share of the original query in the new one, 0 to 1
    mu: float = 50.0  # Dirichlet smoothing of both rounds, as in :class:`QueryLikelihood`


@dataclass(frozen=True)
class Axiomatic(_Parameters):
    """Axiomatic semantic term matching as feedback (Yang & Lin, 2019; Fang & Zhai, 2006).

    Words are weighted by their mutual information with the query's words in a pool of the best
    posts and of random posts within the topic's time limit, which depend on the seed alone.
    """

    name: ClassVar[str] = "axiom"
    fb_docs: int = 10  # Number of best posts of the first round in the pool (``r`` in Anserini)
    pool_factor: int = 8  # Size of the pool in multiples of ``fb_docs`` (``n`` in Anserini)
    beta: float = 0.7  # Weight of added words, above 0
    fb_terms: int = 50  # Number of words in the new query, the original ones included (``top``)
    mu: float = 50.0  # Dirichlet smoothing of both rounds, as in :class:`QueryLikelihood`
    seed: int = 42  # Of the random draw


@dataclass(frozen=True)
class EngineQuery(_Parameters):
    """The query of an index in a search engine that ranks by its own (:mod:`indexes.engines`)."""

    name: ClassVar[str] = "the engine's own query"


Method = QueryLikelihood | BM25 | RM3 | Axiomatic | EngineQuery

METHODS: dict[str, type[Method]] = {
    method.name: method for method in (QueryLikelihood, BM25, RM3, Axiomatic)
}
"""Name on the command line -> method."""


class Topic(NamedTuple):
    """A query with an optional time limit."""

    query_id: str  # Key of its results; one word
    text: str  # The query
    time: str | None = None
    """The time limit as a date, for an index that limits posts by their dates."""
    max_doc_id: str | None = None
    """The newest post within the time limit, a whole number; None for no limit."""


def checked_topics(topics: Iterable[Topic], method: object, hits: object) -> list[Topic]:
    """The topics of a search; raises CollectionError if they, the method or the hits are none."""
    found = [topics] if isinstance(topics, Topic) else [*topics]
    parts = [getattr(each, name, None) for each in found for name in ("query_id", "text")]
    if not all(isinstance(part, str) for part in parts):
        raise CollectionError(f"topics: found {found[:1]!r}, expected a list of indexes.Topic")
    if not isinstance(method, _Parameters):
        raise CollectionError(f"method: found {method!r}, expected one such as indexes.BM25()")
    if isinstance(hits, bool) or not isinstance(hits, int) or hits < 1:
        raise CollectionError(f"hits: found {hits!r}, expected a whole number of at least 1")
    return found


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
