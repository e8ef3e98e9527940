"""What the judgments of a collection's topics say of its posts, for other queries."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import accumulate, chain
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


class JudgedPosts:
    """The topics that each post was judged for, and their nearness to queries.

    Args:
        topics: J judged topics.
        qrels: their judgments.
    """

    def __init__(self, topics: Sequence[Topic], qrels: Qrels) -> None:
        self._topics, self._qrels = list(topics), qrels
        texts = [words(topic.text) for topic in topics]
        self._vectors = _vectors(texts)  # [J, E]
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
            candidates = run.get(topic.query_id, {})
            judged = {d: self._judged[d] for d in candidates if d in self._judged}
            numbers = sorted({n for topics_of in judged.values() for n, _ in topics_of} - own)
            # No matrix product, whose rounding may depend on the number of rows: trees see it.
            nearness = np.einsum("je,e->j", self._vectors[numbers], _vectors([asked])[0])
            cosines = dict(zip(numbers, nearness.tolist(), strict=True))
            for doc_id, topics_of in judged.items():
                for row, wanted in enumerate((True, False)):
                    near = [cosines[n] for n, kind in topics_of if kind == wanted and n in cosines]
                    if near:
                        count, cosine = SIGNALS[2 * row : 2 * row + 2]
                        found[count].setdefault(topic.query_id, {})[doc_id] = float(len(near))
                        found[cosine].setdefault(topic.query_id, {})[doc_id] = max(near)
        return found


def _vectors(texts: Sequence[Sequence[str]]) -> npt.NDArray[np.float32]:
    """[T, E] sum of the vectors of each text's words, of length 1, or 0."""
    import torch

    rows = {word: row for row, word in enumerate(dict.fromkeys(chain.from_iterable(texts)))}
    sums = torch.nn.functional.embedding_bag(
        torch.tensor([rows[word] for text in texts for word in text], dtype=torch.int64),
        torch.from_numpy(general().vectors(list(rows))),
        torch.tensor([0, *accumulate(map(len, texts))][:-1]),
        mode="sum",
    )
    return torch.nn.functional.normalize(sums, eps=1e-6).numpy()
