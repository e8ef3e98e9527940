"""For which other topics a post was judged, and how near these are to the query.

A post that answered a query in other words is likely to answer this one, and one that answered an
unlike query is not. Xue et al., *Optimizing Web Search Using Web Click-Through Data* (CIKM 2004),
spread clicks over similar queries; here trees decide how far they reach. Judgments of the query
itself are never among them, so features of judged topics and of new ones spread alike.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from tweetrerank.rerankers.features.candidates import CandidateList, Columns, family
from tweetrerank.rerankers.reranker_error import RerankerError
from tweetrerank.rerankers.text.spaces import text_vectors
from tweetrerank.rerankers.text.words import words

JUDGED = "judged"  # Name of this family, and of the resource that it reads
JUDGMENTS = "judgments.json"  # File of :meth:`JudgedPosts.content` in a checkpoint


@family("relevant relevant_cosine other other_cosine")
def judged(candidates: CandidateList) -> Columns:
    """Judgments of a post for other topics.

    ``relevant``: number of other topics that the post was judged relevant for.
    ``relevant_cosine``: highest cosine of the query and one of these topics, as sums of the general
    vectors of their words; NaN if there is none.
    ``other``, ``other_cosine``: the same for topics that it was judged, and not relevant, for.
    All are NaN if no judgments are known.
    """
    known: JudgedPosts | None = candidates.resources.get(JUDGED)
    if known is None:
        return [np.full(len(candidates), np.nan)] * 4
    return [*known.features(candidates.query, candidates.texts).T]


class JudgedPosts:
    """Topics with their judgments of posts, which are known by their texts wherever they come from.

    ``topics``: text of each of J topics, and key of a post -> its grade.
    """

    def __init__(self, topics: Sequence[tuple[str, Mapping[str, int]]]) -> None:
        self._topics = topics
        self._vectors = text_vectors([text for text, _ in topics])  # [J, E]
        self._words = [words(text) for text, _ in topics]
        self._judged = defaultdict[str, list[tuple[int, bool]]](list)
        """Key of a post -> number of each topic it was judged for, and whether it is relevant."""
        for number, (_, grades) in enumerate(topics):
            for key, grade in grades.items():
                self._judged[key].append((number, grade > 0))

    @classmethod
    def of(
        cls, topics: Sequence[tuple[str, Mapping[str, int]]], texts: Mapping[str, str]
    ) -> Self:
        """The judgments of a collection: text of each topic, and doc_id -> grade.

        ``texts``: doc_id -> text; a judged post without one is left out.
        """
        keys = {doc_id: key_of(text) for doc_id, text in texts.items() if text}
        known = (
            {keys[d]: grade for d, grade in of.items() if d in keys} for _, of in topics
        )
        return cls(
            [(text, grades) for (text, _), grades in zip(topics, known, strict=True)]
        )

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file of :meth:`content`; raises RerankerError if it is missing or damaged."""
        try:
            topics = json.loads(path.read_text(encoding="utf-8"))
            return cls([(str(text), dict(grades)) for text, grades in topics])
        except (OSError, ValueError, TypeError) as error:
            raise RerankerError(
                f"{path}: found no judgments that can be read ({error}); train the model again"
            ) from None

    def content(self) -> bytes:
        """The topics, as JSON."""
        return json.dumps(self._topics, ensure_ascii=False).encode(errors="replace")

    def features(self, query: str, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Features [N, 4] of posts with these texts.

        A topic of the same words as the query says nothing: a judged topic is ranked as a new one.
        """
        asked, judged = (
            words(query),
            [self._judged.get(key_of(text), []) for text in texts],
        )
        known = {number for found in judged for number, _ in found}
        numbers = sorted(number for number in known if self._words[number] != asked)
        # No matrix product, whose rounding may depend on the number of rows: trees see it.
        nearness = np.einsum(
            "je,e->j", self._vectors[numbers], text_vectors([query])[0]
        )
        cosines = dict(zip(numbers, nearness.tolist(), strict=True))
        values = np.tile(
            np.array([0, np.nan, 0, np.nan], dtype=np.float32), (len(texts), 1)
        )
        for row, found in enumerate(judged):
            for column, wanted in ((0, True), (2, False)):
                if near := [
                    cosines[n] for n, kind in found if kind == wanted and n in cosines
                ]:
                    values[row, column : column + 2] = len(near), max(near)
        return values


def key_of(text: str) -> str:
    """64 bits of BLAKE2b of a post's text."""
    return hashlib.blake2b(
        text.encode(errors="surrogatepass"), digest_size=8
    ).hexdigest()
