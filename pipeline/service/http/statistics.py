"""The first stage's score, computed here: for engines that send texts and no scores.

A score is the query likelihood of :class:`indexes.methods.QueryLikelihood` as Lucene computes it,
from the words' frequencies in an index.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from math import log
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, Self

import numpy as np
from cachetools import LRUCache, TTLCache

from indexes.engines.address import EngineAddress
from indexes.engines.client import CONNECTIONS, Engine, EngineError
from indexes.engines.index import describe
from indexes.engines.layout import CUT_HERE, TEXT, Layout, cut_words
from indexes.errors import CollectionError
from indexes.jvm import java_errors
from indexes.lucene import LuceneIndex
from indexes.methods import QueryLikelihood
from indexes.posts import well_formed
from pipeline.service.errors import RequestError
from pipeline.service.record import LOG

KEPT_TEXTS = 20_000  # Texts whose words are remembered
KEPT_QUERIES = 2_000  # Queries whose words and frequencies are remembered
AGE = 300.0  # Seconds after which a query's frequencies are asked for again: an index may grow
Words = Mapping[str, int]  # Word -> how often


class Query(NamedTuple):
    """Words of a query, with their frequencies in the index, and the number of all its words."""

    words: Words
    frequencies: Words
    total: int


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


class EngineWords:
    """An index in OpenSearch or Elasticsearch; raises CollectionError without it.

    An address of an index that is not ours has a ``text_field``.
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
        contents = cut(list(map(well_formed, [*queries, *texts])))
        docs = [self._doc(text, row < len(queries)) for row, text in enumerate(contents)]
        # Not patiently: a search waits for the response.
        response = self._engine.request("POST", "/_mtermvectors", {"docs": docs})
        vectors = [self._vector(doc) for doc in response["docs"]]
        terms = [vector.get("terms", {}) for vector in vectors]
        words = [{word: term["term_freq"] for word, term in row.items()} for row in terms]
        read = [
            Query(
                words[row],
                {word: term.get("ttf", 0) for word, term in terms[row].items()},
                vectors[row].get("field_statistics", {}).get("sum_ttf", 0),
            )
            for row in range(len(queries))
        ]
        return read, list(words[len(queries) :])

    def _doc(self, text: str, statistics: bool) -> dict[str, Any]:
        """A made-up post."""
        doc: Any = text
        for name in reversed(self._field.split(".")):
            doc = {name: doc}
        return {
            "_index": self._engine.address.index,
            "doc": doc,
            "fields": [self._field],
            "positions": False,
            "offsets": False,
            "term_statistics": statistics,
            "field_statistics": statistics,
        }

    def _vector(self, doc: Mapping[str, Any]) -> Mapping[str, Any]:
        if "error" in doc:
            reason = doc["error"].get("reason", "")
            address = self._engine.address
            raise EngineError(f"{address}: the engine gives no words of posts: {reason}")
        vector: Mapping[str, Any] = doc.get("term_vectors", {}).get(self._field, {})
        return vector

    def close(self) -> None:
        """Nothing is open."""


class LuceneWords:
    """A local index; raises CollectionError without it, or without Java."""

    threads = 1

    def __init__(self, directory: Path) -> None:
        self._index, self.mu = LuceneIndex.open(directory), QueryLikelihood().mu

    def read(self, queries: Sequence[str], texts: Sequence[str]) -> tuple[list[Query], list[Words]]:
        """The words of queries and of texts."""
        with java_errors(f"{self._index.directory}: no words of posts"):
            words = self._index.words([*queries, *texts])
            read = [Query(row, *self._index.occurrences(row)) for row in words[: len(queries)]]
        return read, list(words[len(queries) :])

    def close(self) -> None:
        """Close the index."""
        self._index.close()


WordIndex = EngineWords | LuceneWords  # ``threads`` may read at a time


def open_words(text: str, auth: Path | None = None) -> WordIndex:
    """The index ``URL/INDEX``, ``URL/INDEX/FIELD`` or folder; raises CollectionError."""
    if not text.startswith(("http://", "https://")):
        return LuceneWords(Path(text))
    scheme, _, rest = text.partition("://")
    host, *parts = rest.rstrip("/").split("/")
    if not 1 <= len(parts) <= 2 or not all(parts):
        raise CollectionError(
            f"--statistics: found {text!r}, expected URL/INDEX (or URL/INDEX/FIELD for an index "
            "that pipeline.index has not made), such as http://localhost:9200/posts/body"
        )
    field = parts[1] if len(parts) == 2 else None
    return EngineWords(EngineAddress(f"{scheme}://{host}", parts[0], auth, text_field=field))


class Statistics:
    """Scores of a first stage; reads its index in threads of its own, and remembers words.

    ``now`` is a clock, in seconds.
    """

    def __init__(
        self,
        index: WordIndex,
        now: Callable[[], float] = time.monotonic,
        open_again: Callable[[], WordIndex] | None = None,
    ) -> None:
        self._index, self._now, self._open_again = index, now, open_again
        self._lock = Lock()
        self._forget()
        self._threads = ThreadPoolExecutor(index.threads, thread_name_prefix="statistics")

    @classmethod
    def open(cls, text: str, auth: Path | None = None) -> Self:
        """Those of the index that ``--statistics`` names; raises CollectionError."""
        open_again = partial(open_words, text, auth)
        return cls(open_again(), open_again=open_again)

    def _forget(self) -> None:
        self._queries: TTLCache[str, Query] = TTLCache(KEPT_QUERIES, AGE, self._now)
        self._texts: LRUCache[str, Words] = LRUCache(KEPT_TEXTS)

    def reload(self) -> None:
        """Open the index again; the old one stays if that fails."""
        if (open_again := self._open_again) is None:
            return

        def work() -> None:
            try:
                old, self._index = self._index, open_again()
            except CollectionError as error:
                LOG.error("--statistics: the index stays as it was: %s", error)
                return
            with self._lock:
                self._forget()
            old.close()
            LOG.info("--statistics: opened again")

        self._threads.submit(work).result()

    async def scores(self, queries: Sequence[str], texts: Sequence[str]) -> list[float]:
        """[D] the score of each text for the only query, or for its own; raises RequestError."""
        call = partial(self.score, queries, texts)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, call)
        except CollectionError as error:
            problem = f"no statistics for the lexical score: {error}"
            raise RequestError("unready", problem) from None

    def score(self, queries: Sequence[str], texts: Sequence[str]) -> list[float]:
        """As :meth:`scores`; raises CollectionError."""
        with self._lock:
            read = {q: known for q in queries if (known := self._queries.get(q)) is not None}
            words = {t: kept for t in texts if (kept := self._texts.get(t)) is not None}
        new_queries = [query for query in dict.fromkeys(queries) if query not in read]
        new_texts = [text for text in dict.fromkeys(texts) if text not in words]
        if new_queries or new_texts:
            answers = self._index.read(new_queries, new_texts)
            read |= zip(new_queries, answers[0], strict=True)
            words |= zip(new_texts, answers[1], strict=True)
            with self._lock:
                self._queries.update(zip(new_queries, answers[0], strict=True))
                self._texts.update(zip(new_texts, answers[1], strict=True))
        owners = list(queries) * (len(texts) if len(queries) == 1 else 1)
        return [
            likelihood(read[query], words[text], self._index.mu)
            for query, text in zip(owners, texts, strict=True)
        ]

    def close(self) -> None:
        """End the threads and close the index."""
        self._threads.shutdown(cancel_futures=True)
        self._index.close()
