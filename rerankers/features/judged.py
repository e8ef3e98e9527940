"""Judgments of a post for other topics, and the similarity of these to the query.

A post that answered a query in other words is likely to answer this query. A post that
answered a different query is not. Xue et al., *Optimizing Web Search Using Web
Click-Through Data* (CIKM 2004), spread clicks over similar queries; here trees decide
how far they reach. Judgments of the query itself are left out, so that the features
have the same distribution for judged topics and for new ones.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from tweetrerank.rerankers.features.candidates import CandidateList
from tweetrerank.rerankers.features.family import Columns, family
from tweetrerank.rerankers.reranker_error import RerankerError
from tweetrerank.rerankers.text.spaces import text_vectors
from tweetrerank.rerankers.text.words import words

JUDGED = "judged"  # Name of this family, and of the resource that it reads
JUDGMENTS = "judgments.json"  # File of :meth:`JudgedPosts.content` in a checkpoint

_NO_JUDGMENTS = (0, np.nan, 0, np.nan)  # Features of a post without judgments

JudgedTopic = tuple[str, Mapping[str, int]]
"""Text of a topic, and identifier or key of a post -> its grade."""


@family("relevant relevant_cosine other other_cosine")
def judged(candidates: CandidateList) -> Columns:
    """Judgments of a post for other topics.

    ``relevant``: number of other topics that the post was judged relevant for.
    ``relevant_cosine``: highest cosine of the query and one of these topics, as sums of
    the general vectors of their words; NaN without such topics.
    ``other``, ``other_cosine``: the same for topics that it was judged not relevant
    for. All are NaN if the collection has no judgments.
    """
    judged_posts: JudgedPosts | None = candidates.resources.get(JUDGED)
    if judged_posts is None:
        return [np.full(len(candidates), np.nan)] * 4
    return list(judged_posts.features(candidates.query, candidates.texts).T)


class JudgedPosts:
    """Topics with their judgments of posts, which are identified by their texts.

    ``topics``: J topics, with the grades of posts by :func:`key_of` their texts.
    """

    def __init__(self, topics: Sequence[JudgedTopic]) -> None:
        self._topics = topics
        self._vectors = text_vectors([text for text, _ in topics])  # [J, E]
        self._words = [words(text) for text, _ in topics]
        self._judgments = defaultdict[str, list[tuple[int, bool]]](list)
        """Key of a post -> number of each topic, and whether the post is relevant."""
        for number, (_, grades) in enumerate(topics):
            for key, grade in grades.items():
                self._judgments[key].append((number, grade > 0))

    @classmethod
    def of(
        cls,
        topics: Sequence[JudgedTopic],
        texts: Mapping[str, str],
    ) -> Self:
        """Judgments of a collection.

        Args:
            topics: text of each topic, and doc_id -> grade.
            texts: doc_id -> text. A judged post without a text is left out.
        """
        keys = {}
        for doc_id, text in texts.items():
            if text:
                keys[doc_id] = key_of(text)
        topics_by_key = []
        for topic, grades in topics:
            grades_by_key = {}
            for doc_id, grade in grades.items():
                if doc_id in keys:
                    grades_by_key[keys[doc_id]] = grade
            topics_by_key.append((topic, grades_by_key))
        return cls(topics_by_key)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file of :meth:`content`.

        Raises RerankerError if it is missing or damaged.
        """
        try:
            topics = json.loads(path.read_text(encoding="utf-8"))
            judgments = [(str(text), dict(grades)) for text, grades in topics]
            return cls(judgments)
        except (OSError, ValueError, TypeError) as error:
            raise RerankerError(
                f"{path}: found no judgments that can be read ({error}); "
                "train the model again"
            ) from None

    def content(self) -> bytes:
        """Return the topics as JSON."""
        topics = json.dumps(self._topics, ensure_ascii=False)
        return topics.encode(errors="replace")

    def features(
        self,
        query: str,
        texts: Sequence[str],
    ) -> npt.NDArray[np.float32]:
        """Return the features of posts with these texts: [N, 4].

        A topic of the same words as the query is left out, so that a judged topic is
        ranked as a new one.
        """
        judgments = [self._judgments.get(key_of(text), []) for text in texts]
        topics = set[int]()
        for post_judgments in judgments:
            topics.update(number for number, _ in post_judgments)
        cosine_of = self._cosines(query, topics)
        shape = (len(texts), len(_NO_JUDGMENTS))
        values = np.empty(shape, dtype=np.float32)
        values[:] = _NO_JUDGMENTS
        for row, post_judgments in enumerate(judgments):
            relevant: list[float] = []
            other: list[float] = []
            for number, is_relevant in post_judgments:
                if number in cosine_of:
                    cosines = relevant if is_relevant else other
                    cosines.append(cosine_of[number])
            if relevant:
                values[row, :2] = len(relevant), max(relevant)
            if other:
                values[row, 2:] = len(other), max(other)
        return values

    def _cosines(
        self,
        query: str,
        topics: set[int],
    ) -> dict[int, float]:
        """Topic -> cosine with the query; topics of the query's words are left out."""
        query_words = words(query)
        numbers = [
            number for number in sorted(topics) if self._words[number] != query_words
        ]
        # No matrix product: its rounding may depend on the number of rows, and trees
        # react to it.
        vector = text_vectors([query])[0]
        cosines = np.einsum("je,e->j", self._vectors[numbers], vector)
        return dict(zip(numbers, cosines.tolist(), strict=True))


def key_of(text: str) -> str:
    """Return 64 bits of BLAKE2b of a post's text, in hexadecimal digits."""
    content = text.encode(errors="surrogatepass")
    return hashlib.blake2b(content, digest_size=8).hexdigest()
