"""What the judgments of a collection's topics say of its posts, for other queries."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from pipeline.collections.topics import Topic
from pipeline.collections.trec import Qrels, Run
from pipeline.command.errors import DataError
from rerankers.features.judged import SIGNALS
from rerankers.text.spaces import general
from rerankers.text.words import words

JUDGMENTS = "judgments.json"
"""File of a fusion's checkpoint."""


class JudgedPosts:
    """The topics that each post was judged for, and their nearness to queries.

    Args:
        topics: J judged topics.
        qrels: their judgments.
    """

    def __init__(self, topics: Sequence[Topic], qrels: Qrels) -> None:
        self._topics, self._qrels = list(topics), qrels
        texts = [words(topic.text) for topic in topics]
        self._vectors = np.stack([_vector(text) for text in texts])  # [J, E]
        self._topics_of: dict[str, list[int]] = {}
        """Words of a topic -> numbers of the topics that have these words."""
        self._judged: dict[str, list[tuple[int, bool]]] = {}
        """doc_id -> number of each topic it was judged for, and whether it is relevant."""
        for number, (topic, text) in enumerate(zip(topics, texts, strict=True)):
            self._topics_of.setdefault(" ".join(text), []).append(number)
            for doc_id, grade in qrels.get(topic.query_id, {}).items():
                self._judged.setdefault(doc_id, []).append((number, grade > 0))

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file of :meth:`content`; raises DataError if it is missing or damaged."""
        try:
            judged = json.loads(path.read_text(encoding="utf-8"))
            topics = [Topic(query_id, text) for query_id, (text, _) in judged.items()]
            return cls(topics, {query_id: grades for query_id, (_, grades) in judged.items()})
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise DataError(
                f"{path}: found no judgments that can be read ({error}); train the fusion again"
            ) from None

    def content(self) -> bytes:
        """query_id -> text and judgments of each topic, as JSON."""
        judged = {t.query_id: (t.text, self._qrels.get(t.query_id, {})) for t in self._topics}
        return json.dumps(judged, ensure_ascii=False).encode()

    def signals(self, topics: Sequence[Topic], run: Run) -> dict[str, Run]:
        """The signals of the feature family ``judged`` for the candidates of a run.

        A topic of the same words as the query says nothing: a judged topic is ranked as a new one.
        """
        found: dict[str, Run] = {name: {} for name in SIGNALS}
        for topic in topics:
            asked = words(topic.text)
            own = set(self._topics_of.get(" ".join(asked), []))
            # No matrix product, whose rounding may depend on the number of rows: trees see it.
            cosines = np.einsum("je,e->j", self._vectors, _vector(asked)).tolist()
            for doc_id in run.get(topic.query_id, {}):
                judged = [(n, kind) for n, kind in self._judged.get(doc_id, ()) if n not in own]
                for row, wanted in enumerate((True, False)):
                    if near := [cosines[number] for number, kind in judged if kind == wanted]:
                        count, cosine = SIGNALS[2 * row : 2 * row + 2]
                        found[count].setdefault(topic.query_id, {})[doc_id] = float(len(near))
                        found[cosine].setdefault(topic.query_id, {})[doc_id] = max(near)
        return found


def _vector(text: Sequence[str]) -> npt.NDArray[np.float32]:
    """[E] sum of the words' vectors, of length 1, or 0."""
    total = general().vectors(text).sum(axis=0)
    return np.asarray(total / max(float(np.linalg.norm(total)), 1e-6), dtype=np.float32)
