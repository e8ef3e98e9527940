"""The contract of a model: it scores lists of posts; ranking is built on it.

:class:`tweetrerank.rerankers.trees.boosting.Trees` and :class:`tweetrerank.rerankers.networks.network.Network`
implement it.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property
from numbers import Integral, Real
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from tweetrerank.rerankers import features
from tweetrerank.rerankers.devices import one_thread_each
from tweetrerank.rerankers.explanation import Explanation
from tweetrerank.rerankers.pairs import (
    FIRST_STAGE,
    NUMBER,
    ORDER,
    PRIOR,
    Pairs,
    Resources,
    lists_of,
    number_of,
    numbers_of,
    places_of,
    prior_of_rank,
)
from tweetrerank.rerankers.reranker_error import RerankerError, warn
from tweetrerank.rerankers.text.passages import best_passages
from tweetrerank.rerankers.text.vocabulary import Idf

Reads = Literal["posts", "lists", "searches"]
"""``posts``: each post alone, to mix with a first stage's scores; ``lists``: given candidates as a
whole, with scores or order of their first stage, or neither; ``searches``: the scores of several
searches, whose best posts are its candidates."""

Progress = Callable[
    [int], object
]  # Called with numbers of pairs scored since the last call

FEW = 2000
"""Pairs that :meth:`Model.predict` scores one block after the other, as a service does;
of more it computes what is repeated only once."""

SOME = Pairs(
    ["cuts"], ["bbc cuts jobs", "lunch"], ["", ""], np.zeros(2, np.int64), np.arange(2)
)
"""Pairs to see whether a model works."""

VOCABULARY, WEIGHTS = (
    "vocabulary.json",
    "model.safetensors",
)  # Files of a network in a checkpoint
TUNING_FILE = "lambda.json"  # In a checkpoint's folder: the tuned λ and its provenance

Post = str | tuple[str, str | None] | Mapping[str, Any]
"""A post's text, its text and the URL that it links to, or a record with ``text`` and perhaps
``url``. None is no URL; ``id`` comes back with the post."""


class _Ranked(NamedTuple):
    index: int  # type: ignore[assignment]  # Hides tuple.index
    score: float
    text: str


class RankedPost(_Ranked):
    """A post with its score, and its place in the list that was ranked. ``id`` is that of a record
    with ``id`` or ``doc_id``, else None; it is no item of the tuple."""

    id: Any = None


def silent(pairs_done: int) -> None:
    """Report nothing."""


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Model(ABC):
    """A trained model that scores pairs of queries and posts. Safe in several threads."""

    reads: ClassVar[Reads]

    name: str  # Of its kind; see :mod:`tweetrerank.rerankers.registry`
    config: Any  # Hyperparameters
    idf: Idf  # Word frequencies
    metrics: Mapping[str, Any] = dataclasses.field(
        default_factory=dict
    )  # Of ``metrics.json``
    directory: Path = Path()  # Folder of its checkpoint
    resources: Resources = dataclasses.field(default_factory=dict)
    """Knowledge of a collection, for pairs without their own."""
    read_again: Callable[..., Model] | None = None
    """Reads its folder in another process; None of a model that was not read from one."""

    @property
    @abstractmethod
    def families(self) -> Sequence[str]:
        """Families of ``rerankers/features`` that it reads."""

    @property
    def device(self) -> str:
        """Type of the device that it computes on."""
        return "cpu"

    @property
    def description(self) -> str:
        """Use of a first stage's scores, for reports."""
        return "λ = 1 (its score contains the first stage's)"

    @abstractmethod
    def score(
        self, pairs: Pairs, progress: Progress = silent
    ) -> npt.NDArray[np.floating]:
        """Scores [P], higher is better; RerankerError if one is not a finite number, or a batch
        does not fit into memory."""

    def stages(
        self,
        pairs: Pairs,
        progress: Progress = silent,
        first_stage: str = "first stage",
    ) -> Iterator[tuple[str, npt.NDArray[np.floating]]]:
        """Names and scores [P] of the steps to the result, which is the last one; ``first_stage``
        is the name of the search that found the pairs."""
        yield self.name, self.score(pairs, progress)

    @abstractmethod
    def files(self) -> Mapping[str, bytes]:
        """File name -> content of its own files in a checkpoint."""

    @property
    def reads_given(self) -> bool:
        """Whether texts, and what a first stage gives of scores and order, suffice for it."""
        return self.reads == "lists" or (
            self.reads == "posts" and self.signals <= {PRIOR}
        )

    @property
    def explains(self) -> Literal["matches", "contributions", ""]:
        """Kind of the reasons that it gives for its scores, if it does."""
        return ""

    def explain(self, pairs: Pairs, rows: Sequence[int]) -> Explanation | None:
        """Reasons for the scores of the pairs ``rows``, None of a model that gives none; the pairs
        are the list of one query, which also says how its other posts do."""
        return None

    @cached_property
    def signals(self) -> set[str]:
        """Names of the signals that it reads; see :attr:`tweetrerank.rerankers.pairs.Pairs.signals`."""
        return features.signals_of(self.families)

    @property
    def numbers(self) -> list[str]:
        """Names of the numbers beside the text that it reads."""
        return numbers_of(self.signals)

    def unknown_numbers(self, pairs: Pairs) -> str:
        """Numbers of posts without a number that it reads, for messages; "" if all have all."""
        known = {name: pairs.signals.get(NUMBER + name) for name in self.numbers}
        counts = {
            n: len(pairs) if v is None else np.isnan(v).sum() for n, v in known.items()
        }
        found = [f"{name} of {count:,}" for name, count in counts.items() if count]
        problem = f"{self.name} reads numbers that are not known: {', '.join(found)}"
        return f"{problem} of {len(pairs):,} posts" if found else ""

    def remembering(self, max_bytes: int) -> Self:
        """A model that keeps what it reads of the last posts, if it has use for that."""
        return self

    @property
    def counts(self) -> Counter[str]:
        """``hits``, posts found among the kept ones; ``misses``; and ``bytes`` of the kept ones."""
        return Counter()

    def warm_up(self) -> None:
        """Score pairs as requests bring them: first uses would make the first ones slow."""
        self.score(SOME)

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickled model, or a copy, is its folder, which is read again."""
        if self.read_again is None or not (self.directory / "config.json").exists():
            raise RerankerError(
                f"found {self.name} without a folder, which cannot be copied to another process; "
                "save it by rerankers.checkpoint.save, and load it"
            )
        place = self.directory.absolute(), self.name, self.device, self.idf.source
        return self.read_again, (
            *place,
            getattr(self, "batch_size", 256),
            dict(self.resources),
        )

    def __repr__(self) -> str:
        return f"Model({self.name!r}, {str(self.directory)!r})"

    def rank(
        self,
        query: str,
        posts: Iterable[Post],
        top_k: int | None = None,
        scores: Iterable[float] | None = None,
        weight: float | None = None,
        in_order: bool = False,
    ) -> list[RankedPost]:
        """Rank posts for a query, best first; posts of equal scores keep their order.

        They are texts, (text, URL) of posts with a link, or records with ``text``, ``url``, and the
        :attr:`numbers` that the model reads. ``top_k`` None returns all. For a first stage's
        ``scores``, the model's share ``weight``, ``in_order`` and errors see :meth:`predict`.
        """
        # The items of a mapping are its keys.
        if isinstance(posts, str | bytes | Mapping) or not isinstance(posts, Iterable):
            raise RerankerError(
                f"posts: found {short(posts)}, expected a list of posts"
            )
        if not isinstance(query, str):
            raise RerankerError(f"query: found {short(query)}, expected a text")
        posts = list(posts)  # In a pandas.Series, a number is a label.
        if top_k is not None and (not isinstance(top_k, Integral) or top_k < 0):
            raise RerankerError(
                f"top_k: found {top_k}, expected 0 or more, or None for all posts"
            )
        values = self.predict(
            [(query, post) for post in posts], scores, weight, in_order
        )
        ranked = []
        for row in np.argsort(-values, kind="stable")[:top_k].tolist():
            ranked.append(
                RankedPost(row, float(values[row]), _text_and_url(posts[row])[0])
            )
            if isinstance(record := posts[row], Mapping):
                ranked[-1].id = record.get("id", record.get("doc_id"))
        return ranked

    def predict(
        self,
        pairs: Iterable[tuple[str, Post]],
        scores: Iterable[float] | None = None,
        weight: float | None = None,
        in_order: bool = False,
    ) -> npt.NDArray[np.floating]:
        """Score (query, post) pairs: [P] in the order of the pairs, higher is better.

        With the ``scores`` [P] of a first stage, the result is their mixture: λ · model + (1 − λ) ·
        first stage, after both were scaled to [0, 1] over the pairs of each query; λ is ``weight``,
        or the one tuned with the checkpoint. Models over features take the pairs of a query as its
        list of candidates, and these scores as a feature; their own score is the result unless
        there is a ``weight``. ``window`` does without scores, and then reads an order, best first,
        if the pairs are ``in_order``. The others miss the scores of the lexical rankers, which
        ``pipeline.search`` gives them, and then rank worse, with a warning.

        For forms of a post see :meth:`rank`; a text of more than 1,000 characters has the score of
        its best passage. Raises RerankerError if a pair or a score is none, or λ is missing.
        """
        if not isinstance(pairs, Iterable):
            raise RerankerError(
                f"pairs: found {short(pairs)}, expected a list of (query, post)"
            )
        pairs = [*pairs]
        known = _distinct(pairs)
        records = [post if isinstance(post, Mapping) else {} for _, post in pairs]
        signals: dict[str, npt.NDArray[np.floating]] = {
            NUMBER + name: np.array([number_of(record.get(name)) for record in records])
            for name in self.numbers
        }
        first = None if scores is None else _checked(scores, len(known))
        if first is None and weight is not None:
            raise RerankerError(
                f"weight: found {weight} without scores to mix, expected `scores`"
            )
        if weight is not None and not (isinstance(weight, Real) and 0 <= weight <= 1):
            raise RerankerError(
                f"weight: found {weight}, expected a number from 0 to 1"
            )
        is_few = len(known) <= FEW and self.device == "cpu"
        model = self._of_few if is_few else self
        places = places_of(
            known.query_index, np.zeros(len(known)) if first is None else first
        )
        if first is not None:
            model = model.mixed() if weight is None else Mixed.of(model, weight)
            priors = prior_of_rank(places.astype(np.int64))
            signals |= {FIRST_STAGE: first, ORDER: places, PRIOR: priors}
        elif in_order:
            signals[ORDER] = places
        known = dataclasses.replace(known, signals=signals)
        self._warn_of_missing(known)
        # Of few, waiting for a second thread takes longer than its share.
        with one_thread_each() if is_few else nullcontext():
            return model.score(known)

    def _warn_of_missing(self, pairs: Pairs) -> None:
        """Warn of signals that the model was trained with and the pairs lack."""
        if self.reads != "lists" and (
            missing := sorted(self.signals - pairs.signals.keys())
        ):
            warn(
                f"{self.name} was trained with {', '.join(missing)}, which texts alone do not "
                "have; without them window ranks better"
            )
        if unknown := self.unknown_numbers(pairs):
            warn(unknown)

    def tuned_weight(self) -> float | None:
        """The λ that was tuned with the checkpoint; None of a model that is not mixed."""
        return None

    def mixed(self, weight: float | None = None, origin: str = "tuned") -> Model:
        """The model with λ, by default the tuned one; as it is, if its score contains a first
        stage's."""
        weight = self.tuned_weight() if weight is None else weight
        if weight is None or self.reads != "posts":
            return self
        return Mixed.of(self, weight, origin)

    @cached_property
    def _of_few(self) -> Self:
        """It remembers the words that it has read, but no post."""
        return self.remembering(0)


def _of_model(name: str) -> Any:
    """A member of :class:`Mixed` that is its model's."""
    return property(lambda mixed: getattr(mixed.model, name))


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Mixed(Model):
    """λ · a model's score + (1 − λ) · the first stage's (Rao et al. 2019, equation 2). It reads
    lists: both scores are scaled to [0, 1] over the pairs of each query. Without scores of a first
    stage its score is the model's, and where they are unknown its order."""

    reads = "lists"

    model: Model
    weight: float  # λ, the model's share
    origin: str = "given"  # Origin of λ, for reports

    # The model's own.
    families, device, reads_given = map(
        _of_model, ("families", "device", "reads_given")
    )
    explains, explain, files = map(_of_model, ("explains", "explain", "files"))
    counts, warm_up = map(_of_model, ("counts", "warm_up"))
    _warn_of_missing = _of_model("_warn_of_missing")

    @classmethod
    def of(cls, model: Model, weight: float, origin: str = "given") -> Mixed:
        """A model with its λ."""
        known = {
            field.name: getattr(model, field.name)
            for field in dataclasses.fields(Model)
        }
        return cls(model=model, weight=weight, origin=origin, **known)

    def __reduce__(self) -> tuple[Any, ...]:
        return Mixed.of, (self.model, self.weight, self.origin)

    @cached_property
    def signals(self) -> set[str]:
        """The model's, and the scores that are mixed with its own."""
        return self.model.signals | ({FIRST_STAGE} if self.weight < 1 else set())

    @property
    def description(self) -> str:
        """λ and its origin."""
        return f"λ = {self.weight:g} ({self.origin})"

    def score(
        self, pairs: Pairs, progress: Progress = silent
    ) -> npt.NDArray[np.floating]:
        """The mixture [P], from 0 to 1."""
        *_, (_, scores) = self.stages(pairs, progress)
        return scores

    def stages(
        self,
        pairs: Pairs,
        progress: Progress = silent,
        first_stage: str = "first stage",
    ) -> Iterator[tuple[str, npt.NDArray[np.floating]]]:
        """The model's scores, and the mixture unless λ is 1."""
        scores = self.model.score(pairs, progress)
        yield self.name, scores
        first = pairs.signals.get(FIRST_STAGE)
        if self.weight == 1 or first is None:
            return
        mixture = np.zeros(len(pairs))
        for rows in lists_of(pairs.query_index):
            known = (
                np.nan_to_num(first[rows])
                if np.isnan(first[rows]).all()
                else first[rows]
            )
            lexical, own = minmax(known.tolist()), minmax(scores[rows].tolist())
            mixture[rows] = mix(lexical, own, self.weight)
        check_finite(mixture)
        yield f"{self.name} + {first_stage} (λ = {self.weight:g})", mixture

    def remembering(self, max_bytes: int) -> Self:
        """The mixture of a model that keeps what it reads of the last posts."""
        return dataclasses.replace(self, model=self.model.remembering(max_bytes))


def minmax(scores: Sequence[float]) -> list[float]:
    """(s − min) / (max − min) of each score, from 0 to 1; 0.5 if all are equal. Libraries choose 0,
    0.5 or 1 then; a constant does not change a ranking."""
    low, high = min(scores, default=0.0), max(scores, default=0.0)
    if low == high:
        return [0.5] * len(scores)
    return [(score - low) / (high - low) for score in scores]


def mix(
    lexical: Sequence[float], neural: Sequence[float], weight: float
) -> list[float]:
    """``weight`` · neural + (1 − ``weight``) · lexical, of normalised scores in the same order."""
    both = zip(lexical, neural, strict=True)
    return [weight * new + (1 - weight) * first for first, new in both]


def short(value: object) -> str:
    """The beginning of a value, for messages."""
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:59]}…"


def check_finite(scores: npt.NDArray[np.floating]) -> None:
    """Raise RerankerError unless all scores are finite numbers."""
    if not np.isfinite(scores).all():
        raise RerankerError(
            f"found {int((~np.isfinite(scores)).sum())} scores that are not finite numbers among "
            f"{len(scores)}, expected none: the checkpoint's weights are damaged or training "
            "diverged; train again with a smaller learning rate or restore the checkpoint"
        )


def _checked(scores: Iterable[float], count: int) -> npt.NDArray[np.float64]:
    """Scores of a first stage [P]."""
    try:
        values = np.array([*scores], dtype=np.float64).reshape(-1)
    except (TypeError, ValueError):
        raise RerankerError(
            f"scores: found {short(scores)}, expected {count} numbers"
        ) from None
    is_right = np.abs(values) <= np.finfo(np.float32).max
    if len(values) != count or not is_right.all():
        raise RerankerError(
            f"scores: found {len(values)} numbers, {int((~is_right).sum())} of them not finite in "
            f"single precision, expected a finite one for each of {count} posts"
        )
    return values


def _distinct(pairs: Sequence[Any]) -> Pairs:
    """Pairs, checked, in which a query and a post stand once; of long texts the best passages."""
    found = []
    for pair in pairs:
        if not (
            isinstance(pair, tuple | list)
            and len(pair) == 2
            and isinstance(pair[0], str)
        ):
            raise RerankerError(f"found the pair {pair!r}, expected (query, post)")
        found.append((pair[0], *_text_and_url(pair[1])))
    queries: dict[str, int] = {}
    posts: dict[tuple[str, str], int] = {}
    read = best_passages([query for query, *_ in found], [text for _, text, _ in found])
    places = [
        (
            queries.setdefault(query, len(queries)),
            posts.setdefault((text, url), len(posts)),
        )
        for (query, _, url), text in zip(found, read, strict=True)
    ]
    rows = np.array(places, dtype=np.int64).reshape(-1, 2)
    texts, urls = [text for text, _ in posts], [url for _, url in posts]
    return Pairs(list(queries), texts, urls, rows[:, 0], rows[:, 1])


def _text_and_url(post: Any) -> tuple[str, str]:
    """A post's text and its URL ("" without one), checked."""
    if isinstance(post, str):
        return post, ""
    text, url = None, None
    if isinstance(post, Mapping):
        text, url = post.get("text"), post.get("url")
    elif isinstance(post, tuple | list) and len(post) == 2:
        text, url = post
    if isinstance(text, str) and (
        isinstance(url, str) or url is None or url != url
    ):  # NaN
        return text, url if isinstance(url, str) else ""
    raise RerankerError(
        f"found the post {post!r}, expected a text, (text, URL), or a record with text and url"
    )
