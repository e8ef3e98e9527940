"""Disguise the language of lists by substituting their letters.

The letters of another alphabet simulate a language that no source of words knows.
"""

import string
from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from tweetrerank.pipeline.ranking.retrievers import Candidates, doc_ids_of
from tweetrerank.pipeline.training.training_set import JudgedCandidates
from tweetrerank.rerankers.text.vocabulary import Idf
from tweetrerank.rerankers.text.words import MENTION_OR_LINK

Value = TypeVar("Value")

PREFIX = "disguised/"  # Prefix of the doc_ids of disguised posts

_GEORGIAN_A = 0x10D0

_LOWERCASE = {
    ord(letter): chr(_GEORGIAN_A + number)
    for number, letter in enumerate(string.ascii_lowercase)
}
_UPPERCASE = {ord(a): _LOWERCASE[ord(a.lower())] for a in string.ascii_uppercase}

LETTERS = _LOWERCASE | _UPPERCASE
"""Code of a Latin letter -> Georgian letter. Georgian has no capitals and no
accents."""

_LATIN = {ord(georgian): chr(latin) for latin, georgian in _LOWERCASE.items()}


def disguised(lists: JudgedCandidates) -> JudgedCandidates:
    """Return lists with substituted letters, and the judgments of their topics.

    Scores, links and mentions stay as they are.
    """
    candidates = lists.candidates
    run = {}
    for topic in candidates.topics:
        scores = candidates.run.get(topic.query_id)
        if scores is not None:
            run[topic.query_id] = scores
    posts = {}
    for doc_id in doc_ids_of(run):
        post = candidates.posts[doc_id]
        posts[PREFIX + doc_id] = post._replace(text=_disguised_text(post.text))
    topics = [
        topic._replace(text=_disguised_text(topic.text)) for topic in candidates.topics
    ]
    return JudgedCandidates(
        Candidates(
            topics,
            {query_id: _renamed(scores) for query_id, scores in run.items()},
            posts,
        ),
        {
            query_id: _renamed(grades)
            for query_id, grades in lists.qrels.items()
            if query_id in run
        },
    )


def disguised_frequencies(idf: Idf) -> Idf:
    """Return word frequencies for posts with substituted letters."""

    def share(word: str) -> float:
        return idf.share(word.translate(_LATIN))

    return replace(idf, share=share)


def _disguised_text(text: str) -> str:
    """Substitute the letters of a text, except in mentions and links."""
    parts = MENTION_OR_LINK.split(text)
    separators = MENTION_OR_LINK.findall(text)
    result = parts[0].translate(LETTERS)
    for separator, part in zip(separators, parts[1:], strict=True):
        result += separator + part.translate(LETTERS)
    return result


def _renamed(values: Mapping[str, Value]) -> dict[str, Value]:
    """Return the values under the doc_ids of the disguised posts."""
    return {PREFIX + doc_id: value for doc_id, value in values.items()}
