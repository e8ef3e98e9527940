"""Features of how a post was judged for other topics that are similar to the query.

A post that is relevant to a similar topic is likely to be relevant to this query. A
post that is relevant to a very different topic is not. Xue et al., *Optimizing Web
Search Using Web Click-Through Data* (CIKM 2004), spread clicks over similar queries.
Here trees decide how similar a topic must be. Judgments for the query itself are left
out, so that the features have the same distribution for judged topics and for new ones.
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
# File in a checkpoint with what :meth:`JudgedPosts.content` returns
JUDGMENTS = "judgments.json"

_NO_JUDGMENTS = (0, np.nan, 0, np.nan)  # Features of a post without judgments

JudgedTopic = tuple[str, Mapping[str, int]]
"""(text of a topic, grade of each judged post by its doc id or its key)"""


@family("relevant relevant_cosine other other_cosine")
def judged(candidates: CandidateList) -> Columns:
    """Return how the posts were judged for topics other than the query.

    ``relevant``: number of other topics for which the post was judged relevant.
    ``relevant_cosine``: cosine of the query and the most similar of these topics. Both
    are represented by the sum of the general vectors of their words. NaN if there is no
    such topic.
    ``other``, ``other_cosine``: the same for topics for which the post was judged not
    relevant.
    All four are NaN if the collection has no judgments. They are 0, NaN, 0 and NaN for
    a post without judgments in a collection that has some.
    """
    judged_posts: JudgedPosts | None = candidates.resources.get(JUDGED)
    if judged_posts is None:
        return [np.full(len(candidates), np.nan)] * 4
    return list(judged_posts.features(candidates.query, candidates.texts).T)


class JudgedPosts:
    """Judged topics and the posts that were judged for them.

    A post is identified by its text, so that judgments also hold for copies of a post.
    ``topics`` are J topics with their posts' grades, by the :func:`key_of` each text. A
    grade above 0 means relevant.
    """

    def __init__(self, topics: Sequence[JudgedTopic]) -> None:
        self._topics = topics
        self._vectors = text_vectors([text for text, _ in topics])  # [J, E]
        self._words = [words(text) for text, _ in topics]
        self._judgments = defaultdict[str, list[tuple[int, bool]]](list)
        """Key of a post -> (number of a topic, whether the post is relevant), …"""
        for number, (_, grades) in enumerate(topics):
            for key, grade in grades.items():
                self._judgments[key].append((number, grade > 0))

    @classmethod
    def of(
        cls,
        topics: Sequence[JudgedTopic],
        texts: Mapping[str, str],
    ) -> Self:
        """Return the judgments of a collection.

        Args:
            topics: the topics, with grades by doc id.
            texts: texts of the judged posts by doc id. A post without a text is left
                out.
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
        """Read a file that :meth:`content` made.

        Raises RerankerError if the file is missing or damaged.
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
        """Return the topics with their grades as JSON."""
        topics = json.dumps(self._topics, ensure_ascii=False)
        return topics.encode(errors="replace")

    def features(
        self,
        query: str,
        texts: Sequence[str],
    ) -> npt.NDArray[np.float32]:
        """Return the four features of each post [N, 4], in the order of :func:`judged`.

        ``texts`` are the texts of the posts. A topic with the same words as the query
        is left out, so that a judged topic is treated like a new one.
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
        """Return the cosine of each topic with the query, by the topic's number.

        Topics with the same words as the query are left out.
        """
        query_words = words(query)
        numbers = [
            number for number in sorted(topics) if self._words[number] != query_words
        ]
        # Not a matrix product, because its rounding may depend on the number of rows,
        # and a small difference can change the scores of trees.
        vector = text_vectors([query])[0]
        cosines = np.einsum("je,e->j", self._vectors[numbers], vector)
        return dict(zip(numbers, cosines.tolist(), strict=True))


def key_of(text: str) -> str:
    """Return the key of a post: 16 hexadecimal digits, a BLAKE2b hash of its text."""
    content = text.encode(errors="surrogatepass")
    return hashlib.blake2b(content, digest_size=8).hexdigest()
