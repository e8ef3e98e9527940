"""The class that users hold: it ranks or scores posts by a trained model."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from numbers import Integral, Real
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tweetrerank.rerankers.devices import one_thread_each
from tweetrerank.rerankers.mixed import Mixed, with_weight
from tweetrerank.rerankers.model import Model, Scores
from tweetrerank.rerankers.pairs import (
    FIRST_STAGE,
    NUMBER,
    ORDER,
    PRIOR,
    Pairs,
    number_of,
    places_of,
    prior_of_rank,
)
from tweetrerank.rerankers.reranker_error import RerankerError, warn
from tweetrerank.rerankers.text.passages import best_passages

Post = str | tuple[str, str | None] | Mapping[str, object]
"""A post is a text, a (text, URL) tuple, or a record with ``text`` and perhaps ``url``.

A URL of None means that the post has none. The ``id`` of a record comes back with the
ranked post.
"""

FEW = 2000
"""Largest number of pairs that :meth:`Reranker.predict` scores on one thread, with a
cache of words. For more pairs it uses all threads and reads a repeated post only once.
"""


class _Ranked(NamedTuple):
    index: int  # type: ignore[assignment]  # Hides tuple.index
    score: float
    text: str


class RankedPost(_Ranked):
    """A post with its score and its index in the list that was ranked.

    The attribute ``id`` is the ``id`` or ``doc_id`` of a record, or None for other
    posts. It is not an item of the tuple.
    """

    id: object = None


class Reranker:
    """A trained model that ranks posts for a query. It is thread-safe."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def __repr__(self) -> str:
        return f"Reranker({self.name!r}, {str(self.directory)!r})"

    def __reduce__(self) -> tuple[type[Reranker], tuple[Model]]:
        return Reranker, (self.model,)

    @property
    def name(self) -> str:
        """Name of the model."""
        return self.model.name

    @property
    def directory(self) -> Path:
        """Folder of the model's checkpoint."""
        return self.model.directory

    @property
    def numbers(self) -> list[str]:
        """Names of the numeric fields of records that the model reads."""
        return self.model.numbers

    def rank(
        self,
        query: str,
        posts: Iterable[Post],
        top_k: int | None = None,
        scores: Iterable[float] | None = None,
        weight: float | None = None,
        in_order: bool = False,
    ) -> list[RankedPost]:
        """Return the posts for a query, best first. Ties keep the order of the posts.

        Each post is a text, a (text, URL) tuple, or a record with ``text``, ``url`` and
        the :attr:`numbers` of the model. At most ``top_k`` posts are returned; None
        returns all. For the first-stage ``scores``, the model's share ``weight``,
        ``in_order`` and errors see :meth:`predict`. Also raises RerankerError if the
        query is not a text, ``posts`` is not a list, or ``top_k`` is negative.
        """
        _check_query(query)
        posts = _list_of_posts(posts)
        _check_top_k(top_k)
        pairs = [(query, post) for post in posts]
        values = self.predict(pairs, scores, weight, in_order)
        best_first = np.argsort(-values, kind="stable")[:top_k]
        return [
            _ranked_post(row, float(values[row]), posts[row])
            for row in best_first.tolist()
        ]

    def predict(
        self,
        pairs: Iterable[tuple[str, Post]],
        scores: Iterable[float] | None = None,
        weight: float | None = None,
        in_order: bool = False,
    ) -> Scores:
        """Return a score for each (query, post) pair, in the same order [P].

        A higher score is better. If the ``scores`` [P] of a first stage are given, both
        kinds of scores are mixed: λ · model + (1 − λ) · first stage. Before that, each
        is scaled to [0, 1] over the pairs of a query. λ is ``weight``, or by default
        the one tuned with the checkpoint.

        A model over features takes all pairs of a query as its list of candidates, and
        reads the first-stage scores as a feature. Its score is the result, unless
        ``weight`` asks for a mixture. ``window`` needs no scores. If ``in_order`` is
        true, the pairs come best first, and ``window`` reads this order. The other
        models over features were trained with the scores of lexical rankers. They rank
        worse without them, and a warning is issued.

        :meth:`rank` describes the forms of a post. A text of more than 1,000 characters
        gets the score of its best passage. Raises RerankerError for a malformed pair,
        for a score that is not a finite number, for ``scores`` if the checkpoint has no
        tuned λ, and for a ``weight`` outside [0, 1] or without ``scores``.
        """
        if not isinstance(pairs, Iterable):
            raise RerankerError(
                f"pairs: {short(pairs)} is no list; give a list of (query, post)"
            )
        pairs = list(pairs)
        distinct = _distinct(pairs)
        first: Scores | None = None
        if scores is not None:
            first = _checked_scores(scores, len(distinct))
        _check_weight(weight, has_scores=first is not None)
        is_few = len(distinct) <= FEW and self.model.device == "cpu"
        model = self.model
        if is_few:
            model = self._remembering_words
        if first is not None:
            model = _mixture(model, weight)
        signals = self._numbers_of(pairs)
        signals.update(_first_stage_signals(distinct, first, in_order))
        distinct = dataclasses.replace(distinct, signals=signals)
        _warn_of_missing(self.model, distinct)
        with _threads(is_few):
            return model.score(distinct)

    def _numbers_of(self, pairs: Sequence[tuple[str, Post]]) -> dict[str, Scores]:
        """Return the values [P] of each numeric field, by signal name.

        Posts that are not records have NaN.
        """
        if not self.numbers:
            return {}
        records: list[Mapping[str, object]] = []
        for _, post in pairs:
            records.append(post if isinstance(post, Mapping) else {})
        return {
            NUMBER + name: np.array([number_of(record.get(name)) for record in records])
            for name in self.numbers
        }

    @cached_property
    def _remembering_words(self) -> Model:
        """The model with a cache of words, but without a cache of posts."""
        return self.model.remembering(0)


def _threads(is_few: bool) -> AbstractContextManager[object]:
    """Return a context in which few pairs are scored on one thread.

    For so few pairs, waiting for a second thread takes longer than the work it does.
    """
    if is_few:
        return one_thread_each()
    return nullcontext()


def _mixture(model: Model, weight: float | None) -> Model:
    if weight is None:
        return with_weight(model)
    return Mixed.of(model, weight)


def _first_stage_signals(
    pairs: Pairs, scores: Scores | None, in_order: bool
) -> dict[str, Scores]:
    """Return the signals [P] that the first-stage scores or the order give, by name.

    The scores give their own order, so ``in_order`` counts only without scores.
    """
    if scores is not None:
        places = places_of(pairs.query_index, scores)
        prior = prior_of_rank(places.astype(np.int64))
        return {FIRST_STAGE: scores, ORDER: places, PRIOR: prior}
    if in_order:
        return {ORDER: places_of(pairs.query_index, np.zeros(len(pairs)))}
    return {}


def _warn_of_missing(model: Model, pairs: Pairs) -> None:
    """Warn if the model was trained with signals or numbers that the pairs lack."""
    if isinstance(model, Mixed):
        model = model.model
    missing = sorted(model.signals - pairs.signals.keys())
    if model.reads != "lists" and missing:
        warn(
            f"{model.name} was trained with {', '.join(missing)}, which texts alone do "
            "not have; without them window ranks better"
        )
    message = model.unknown_numbers(pairs)
    if message:
        warn(message)


def _ranked_post(index: int, score: float, post: Post) -> RankedPost:
    text, _ = _text_and_url(post)
    ranked = RankedPost(index, score, text)
    if isinstance(post, Mapping):
        ranked.id = post.get("id", post.get("doc_id"))
    return ranked


# Checks of arguments


def short(value: object) -> str:
    """Return the ``repr`` of a value for messages, cut to 60 characters."""
    text = repr(value)
    if len(text) <= 60:
        return text
    return f"{text[:59]}…"


def _check_query(query: object) -> None:
    if not isinstance(query, str):
        raise RerankerError(f"query: {short(query)} is no text")


def _list_of_posts(posts: Iterable[Post]) -> list[Post]:
    # A mapping is refused, because iterating over it would yield its keys.
    if isinstance(posts, str | bytes | Mapping) or not isinstance(posts, Iterable):
        raise RerankerError(f"posts: {short(posts)} is no list of posts")
    # A copy, because an index into a pandas.Series would be taken for a label.
    return list(posts)


def _check_top_k(top_k: object) -> None:
    if top_k is None:
        return
    if not isinstance(top_k, Integral) or top_k < 0:
        raise RerankerError(
            f"top_k: found {top_k}, expected 0 or more, or None for all posts"
        )


def _check_weight(weight: float | None, has_scores: bool) -> None:
    if weight is None:
        return
    if not has_scores:
        raise RerankerError(
            f"weight: {weight} needs scores to mix with; give `scores` of a first stage"
        )
    if not isinstance(weight, Real) or not 0 <= weight <= 1:
        raise RerankerError(f"weight: found {weight}, expected a number from 0 to 1")


def _checked_scores(scores: Iterable[float], count: int) -> npt.NDArray[np.float64]:
    """Return the first-stage scores as an array [P].

    Raises RerankerError unless there are ``count`` numbers that are finite in single
    precision.
    """
    try:
        values = np.array(list(scores), dtype=np.float64).reshape(-1)
    except (TypeError, ValueError):
        raise RerankerError(
            f"scores: found {short(scores)}, expected {count} numbers"
        ) from None
    is_finite = np.abs(values) <= np.finfo(np.float32).max
    if len(values) != count or not is_finite.all():
        raise RerankerError(
            f"scores: found {len(values)} numbers, {int((~is_finite).sum())} of them "
            "not finite in single precision, expected a finite one for each of "
            f"{count} posts"
        )
    return values


def _distinct(pairs: Sequence[object]) -> Pairs:
    """Check the pairs and number their distinct queries and posts.

    A long text is replaced by its best passage for the query. Raises RerankerError for
    a malformed pair.
    """
    queries: list[str] = []
    texts: list[str] = []
    urls: list[str] = []
    for pair in pairs:
        query, post = _checked_pair(pair)
        text, url = _text_and_url(post)
        queries.append(query)
        texts.append(text)
        urls.append(url)
    rows_of_queries: dict[str, int] = {}
    rows_of_posts: dict[tuple[str, str], int] = {}
    query_index = []
    post_index = []
    for query, text, url in zip(
        queries, best_passages(queries, texts), urls, strict=True
    ):
        query_row = rows_of_queries.setdefault(query, len(rows_of_queries))
        post_row = rows_of_posts.setdefault((text, url), len(rows_of_posts))
        query_index.append(query_row)
        post_index.append(post_row)
    return Pairs(
        list(rows_of_queries),
        [text for text, _ in rows_of_posts],
        [url for _, url in rows_of_posts],
        np.array(query_index, dtype=np.int64),
        np.array(post_index, dtype=np.int64),
    )


def _checked_pair(pair: object) -> tuple[str, object]:
    if isinstance(pair, tuple | list) and len(pair) == 2:
        query, post = pair
        if isinstance(query, str):
            return query, post
    raise RerankerError(f"the pair {pair!r} is no (query, post)")


def _text_and_url(post: object) -> tuple[str, str]:
    """Return (text, URL) of a post; the URL is "" if the post has none.

    Raises RerankerError if the post has no text.
    """
    if isinstance(post, str):
        return post, ""
    text: object = None
    url: object = None
    if isinstance(post, Mapping):
        text = post.get("text")
        url = post.get("url")
    elif isinstance(post, tuple | list) and len(post) == 2:
        text, url = post
    if url is None or url != url:  # NaN in a column of a data frame
        url = ""
    if isinstance(text, str) and isinstance(url, str):
        return text, url
    raise RerankerError(
        f"the post {post!r} has no text; give a text, (text, URL), or a record with "
        "text and url"
    )
