"""Define topics, and retrieval methods with their parameters.

The README of this folder tells how the default parameters were chosen.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from tweetrerank.indexes.data_error import DataError
from tweetrerank.indexes.store import is_number

_TINY = 1e-300
_INFINITE = float("inf")

_RANGES: dict[str, tuple[float, float]] = {
    "mu": (_TINY, _INFINITE),
    "beta": (_TINY, _INFINITE),
    "b": (0, 1),
    "original_weight": (0, 1),
    "fb_terms": (1, _INFINITE),
    "fb_docs": (1, _INFINITE),
    "pool_factor": (1, _INFINITE),
    "k1": (0, _INFINITE),
    "seed": (-_INFINITE, _INFINITE),
}
"""Parameter -> its smallest and its largest allowed value."""


class _Parameters:
    def __post_init__(self) -> None:
        """Raise DataError with the names of all parameters that are out of range."""
        problems = []
        for name, value in vars(self).items():
            lowest, highest = _RANGES[name]
            if not lowest <= value <= highest:
                problems.append(f"{name}={value}")
        if problems:
            raise DataError(
                f"{type(self).__name__}: found {', '.join(problems)}; "
                "expected values in the ranges that its description names"
            )


@dataclass(frozen=True)
class QueryLikelihood(_Parameters):
    """Query likelihood with Dirichlet smoothing (Zhai & Lafferty, 2001)."""

    name: ClassVar[str] = "ql"
    mu: float = 100.0
    """Weight of the collection's language model, as a number of words above 0."""


@dataclass(frozen=True)
class BM25(_Parameters):
    """Okapi BM25, in Lucene's form (without the constant factor k1 + 1)."""

    name: ClassVar[str] = "bm25"
    k1: float = 0.15  # Term frequency saturation; at least 0
    b: float = 0.0
    """Length normalization, from 0 to 1. With 0, ties are frequent. Of posts with equal
    scores, new ones come first."""


@dataclass(frozen=True)
class RM3(_Parameters):
    """Pseudo-relevance feedback with the relevance model RM3.

    A second search adds words from the best posts of the first one (Abdul-Jaleel et
    al., 2004).
    """

    name: ClassVar[str] = "rm3"
    fb_terms: int = 30  # Number of words that are added to the query
    fb_docs: int = 5  # Number of best posts of the first round that the words come from
    original_weight: float = 0.3  # Share of the original query in the new one, 0 to 1
    mu: float = 50.0  # Dirichlet smoothing of both rounds; see :class:`QueryLikelihood`


@dataclass(frozen=True)
class Axiomatic(_Parameters):
    """Axiomatic semantic term matching as feedback (Fang & Zhai, 2006).

    It follows Yang & Lin, 2019. The added words are weighted by their mutual
    information with the query's words in a pool of posts. The pool has the best posts
    of the first round, and random posts within the topic's time limit. The random posts
    depend only on the seed and that limit.
    """

    name: ClassVar[str] = "axiom"
    fb_docs: int = 10
    """Number of best posts of the first round in the pool (``r`` in Anserini)."""
    pool_factor: int = 8
    """Size of the pool in multiples of ``fb_docs`` (``n`` in Anserini)."""
    beta: float = 0.7  # Weight of the added words, above 0
    fb_terms: int = 50
    """Number of words in the new query, including the original ones (``top``)."""
    mu: float = 50.0  # Dirichlet smoothing of both rounds; see :class:`QueryLikelihood`
    seed: int = 42  # Seed of the random posts


@dataclass(frozen=True)
class EngineQuery(_Parameters):
    """The method of an index in a search engine that is ranked by its own query.

    See :mod:`tweetrerank.indexes.engines`.
    """

    name: ClassVar[str] = "the engine's own query"


Method = QueryLikelihood | BM25 | RM3 | Axiomatic | EngineQuery

METHODS: dict[str, type[Method]] = {
    method.name: method for method in (QueryLikelihood, BM25, RM3, Axiomatic)
}
"""Name on the command line -> method."""


class Topic(NamedTuple):
    """A query, and an optional time limit for its posts."""

    query_id: str  # Key of the topic in a run; one word
    text: str  # The query
    time: str | None = None
    """The time limit as a date. It is used by an index that limits posts by dates."""
    max_doc_id: str | None = None
    """Id of the newest post within the time limit, a whole number. None is no limit."""


def id_limit(topic: Topic, numeric_ids: bool, index: object) -> int | None:
    """Return the largest id that a topic's time limit allows, None without a limit.

    ``numeric_ids`` is true if all ids of the index are whole numbers. ``index`` is
    the name of the index for messages. Raises DataError if the topic has a limit, and
    the limit or an id of the index is not a whole number.
    """
    if topic.max_doc_id is None:
        return None
    if not numeric_ids:
        raise DataError(
            f"topic {topic.query_id} is limited to posts up to {topic.max_doc_id}, but "
            f"the ids of {index} are not all whole numbers; remove the time limit from "
            "the topic, or give the posts ids that grow with time"
        )
    if not is_number(topic.max_doc_id):
        raise DataError(
            f"topic {topic.query_id}: found the time limit {topic.max_doc_id!r}, "
            "expected the id of a post (a whole number)"
        )
    return int(topic.max_doc_id)
