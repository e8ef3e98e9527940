"""The first stage's score, computed here: for engines that send texts and no scores.

A score is the query likelihood of :class:`indexes.methods.QueryLikelihood` as Lucene computes it,
from the words' frequencies in an index.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from math import log
from pathlib import Path
from threading import Lock
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar

import numpy as np

from indexes.engines.address import EngineAddress
from indexes.engines.client import CONNECTIONS, Engine, EngineError
from indexes.engines.index import describe
from indexes.engines.layout import CUT_HERE, TEXT, Layout, cut_words
from indexes.errors import CollectionError
from indexes.jvm import java_errors
from indexes.lucene import LuceneIndex
from indexes.methods import QueryLikelihood
from indexes.posts import well_formed
from pipeline.service.http.errors import Fault
from pipeline.service.http.record import LOG

KEPT_TEXTS = 20_000
"""Texts whose words are remembered."""

KEPT_QUERIES = 2_000
"""Queries whose words and frequencies are remembered."""

AGE = 300.0
"""Seconds after which a query's frequencies are asked for again: an index may grow."""

Words = Mapping[str, int]
"""Word -> how often."""


class Query(NamedTuple):
    """Words of a query, with their frequencies in the index, and the number of all its words."""

    words: Words
    frequencies: Words
    total: int


class Source(Protocol):
    """An index that tells words and their frequencies.

    Attributes:
        mu: Dirichlet smoothing of its query likelihood.
        threads: that may ask it at a time.
    """

    mu: float
    threads: int

    def read(self, queries: Sequence[str], texts: Sequence[str]) -> tuple[list[Query], list[Words]]:
        """The words of queries and of texts; raises CollectionError."""

    def close(self) -> None:
        """Close files."""


def likelihood(query: Query, text: Words, mu: float) -> float:
    """The query likelihood of a text as Lucene computes it, in single precision.

    As there, absent words take nothing off, and a word that is rarer in the text than in the index
    counts 0.
    """
    length = stored_length(sum(text.values()))
    total = 0.0
    for word, times in query.words.items():
        if count := text.get(word):
            chance = (query.frequencies.get(word, 0) + 1) / (query.total + 1)
            score = log(1 + count / (mu * chance)) + log(mu / (length + mu))
            total += float(np.float32(max(0.0, times * score)))
    return float(np.float32(total))


def stored_length(length: int) -> int:
    """A text's number of words as Lucene keeps it: exact to 40, then four significant bits."""
    if length < 40:
        return length
    shift = (length - 24).bit_length() - 4
    return 24 + ((length - 24) >> shift << shift)


class EngineSource:
    """An index in OpenSearch or Elasticsearch.

    Args:
        address: of the index; with a ``text_field`` if it is not one of ours.

    Raises:
        CollectionError: there is no such index.
    """

    threads = CONNECTIONS

    def __init__(self, address: EngineAddress) -> None:
        self._engine = Engine.connect(address)
        description = describe(self._engine)
        self.mu, self._field, self._cut = QueryLikelihood().mu, address.text_field or TEXT, False
        if address.has_methods:
            layout = Layout.read(address, description)
            self._field, self._cut = layout.field, layout.analyzer == CUT_HERE
            self.mu = layout.similarities[QueryLikelihood.name]["mu"]

    def read(self, queries: Sequence[str], texts: Sequence[str]) -> tuple[list[Query], list[Words]]:
        """The words of queries and of texts, by one request."""
        cut = cut_words if self._cut else list[str]
        asked = cut(list(map(well_formed, [*queries, *texts])))
        docs = [self._doc(text, row < len(queries)) for row, text in enumerate(asked)]
        # Not patiently: a search waits for the answer.
        found = self._engine.request("POST", "/_mtermvectors", {"docs": docs})["docs"]
        vectors = [self._vector(one) for one in found]
        words = [{w: t["term_freq"] for w, t in one.get("terms", {}).items()} for one in vectors]
        read = [
            Query(
                words[row],
                {w: t.get("ttf", 0) for w, t in one.get("terms", {}).items()},
                one.get("field_statistics", {}).get("sum_ttf", 0),
            )
            for row, one in enumerate(vectors[: len(queries)])
        ]
        return read, list(words[len(queries) :])

    def _doc(self, text: str, statistics: bool) -> dict[str, Any]:
        """A made-up post."""
        found: Any = text
        for name in reversed(self._field.split(".")):
            found = {name: found}
        return {
            "_index": self._engine.address.index,
            "doc": found,
            "fields": [self._field],
            "positions": False,
            "offsets": False,
            "term_statistics": statistics,
            "field_statistics": statistics,
        }

    def _vector(self, one: Mapping[str, Any]) -> Mapping[str, Any]:
        if "error" in one:
            reason = one["error"].get("reason", "")
            address = self._engine.address
            raise EngineError(f"{address}: the engine gives no words of posts: {reason}")
        found: Mapping[str, Any] = one.get("term_vectors", {}).get(self._field, {})
        return found

    def close(self) -> None:
        """Nothing is open."""


class LuceneSource:
    """A local index.

    Args:
        directory: of the index.

    Raises:
        CollectionError: there is no such index, or no Java.
    """

    threads = 1

    def __init__(self, directory: Path) -> None:
        self._index, self.mu = LuceneIndex.open(directory), QueryLikelihood().mu

    def read(self, queries: Sequence[str], texts: Sequence[str]) -> tuple[list[Query], list[Words]]:
        """The words of queries and of texts."""
        with java_errors(f"{self._index.directory}: no words of posts"):
            words = self._index.words([*queries, *texts])
            read = [Query(one, *self._index.occurrences(one)) for one in words[: len(queries)]]
        return read, list(words[len(queries) :])

    def close(self) -> None:
        """Close the index."""
        self._index.close()


def source_of(text: str, auth: Path | None = None) -> Source:
    """The index that ``--statistics`` names: ``URL/INDEX``, ``URL/INDEX/FIELD`` or a folder.

    Raises:
        CollectionError: there is no such index.
    """
    if not text.startswith(("http://", "https://")):
        return LuceneSource(Path(text))
    scheme, _, rest = text.partition("://")
    host, *parts = rest.rstrip("/").split("/")
    if not 1 <= len(parts) <= 2 or not all(parts):
        raise CollectionError(
            f"--statistics: found {text!r}, expected URL/INDEX (or URL/INDEX/FIELD for an index "
            "that pipeline.index has not made), such as http://localhost:9200/posts/body"
        )
    field = parts[1] if len(parts) == 2 else None
    return EngineSource(EngineAddress(f"{scheme}://{host}", parts[0], auth, text_field=field))


Value = TypeVar("Value")


class _Kept(Generic[Value]):
    """The values that were used last, at most ``size``."""

    def __init__(self, size: int) -> None:
        self._size, self._lock = size, Lock()
        self._values: OrderedDict[str, Value] = OrderedDict()

    def get(self, key: str) -> Value | None:
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
            return self._values.get(key)

    def put(self, key: str, value: Value) -> None:
        with self._lock:
            self._values[key] = value
            self._values.move_to_end(key)
            while len(self._values) > self._size:
                self._values.popitem(last=False)


@dataclass(frozen=True)
class _Asked:
    """A query that was asked for at a time."""

    query: Query
    time: float


class Statistics:
    """Scores of a first stage; asks its index in threads of its own, and remembers the answers.

    Args:
        source: the index.
        now: a clock, in seconds.
        open_again: the index as it is now.
    """

    def __init__(
        self,
        source: Source,
        now: Callable[[], float] = time.monotonic,
        open_again: Callable[[], Source] | None = None,
    ) -> None:
        self._source, self._now, self._open_again = source, now, open_again
        self._forget()
        self._threads = ThreadPoolExecutor(source.threads, thread_name_prefix="statistics")

    @classmethod
    def open(cls, text: str, auth: Path | None = None) -> Self:
        """Those of the index that ``--statistics`` names; raises CollectionError."""
        open_again = partial(source_of, text, auth)
        return cls(open_again(), open_again=open_again)

    def _forget(self) -> None:
        self._queries, self._texts = _Kept[_Asked](KEPT_QUERIES), _Kept[Words](KEPT_TEXTS)

    def reload(self) -> None:
        """Open the index again; the old one stays if that fails."""
        if (open_again := self._open_again) is None:
            return

        def work() -> None:
            try:
                old, self._source = self._source, open_again()
            except CollectionError as error:
                LOG.error("--statistics: the index stays as it was: %s", error)
                return
            self._forget()
            old.close()
            LOG.info("--statistics: opened again")

        self._threads.submit(work).result()

    async def scores(self, queries: Sequence[str], texts: Sequence[str]) -> list[float]:
        """[D] the score of each text for the only query, or for its own.

        Raises:
            Fault: the index does not answer.
        """
        call = partial(self.score, queries, texts)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, call)
        except CollectionError as error:
            raise Fault("unready", f"no statistics for the lexical score: {error}") from None

    def score(self, queries: Sequence[str], texts: Sequence[str]) -> list[float]:
        """As :meth:`scores`; raises CollectionError."""
        oldest = self._now() - AGE
        asked = {
            q: k.query for q in set(queries) if (k := self._queries.get(q)) and k.time > oldest
        }
        words = {t: w for t in set(texts) if (w := self._texts.get(t)) is not None}
        new_queries = [query for query in dict.fromkeys(queries) if query not in asked]
        new_texts = [text for text in dict.fromkeys(texts) if text not in words]
        if new_queries or new_texts:
            found = self._source.read(new_queries, new_texts)
            for query, read in zip(new_queries, found[0], strict=True):
                asked[query] = read
                self._queries.put(query, _Asked(read, self._now()))
            for text, read_words in zip(new_texts, found[1], strict=True):
                words[text] = read_words
                self._texts.put(text, read_words)
        owners = list(queries) * (len(texts) if len(queries) == 1 else 1)
        return [
            likelihood(asked[query], words[text], self._source.mu)
            for query, text in zip(owners, texts, strict=True)
        ]

    def close(self) -> None:
        """End the threads and close the index."""
        self._threads.shutdown(cancel_futures=True)
        self._source.close()
