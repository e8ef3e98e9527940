"""Explain a topic's ranking: the ranks before and after, and reasons for some posts."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tweetrerank.indexes.data_error import DataError
from tweetrerank.pipeline.collections.topics import Topic
from tweetrerank.pipeline.text import did_you_mean, listed
from tweetrerank.pipeline.usage_error import UsageError
from tweetrerank.rerankers.explanation import Explanation, Reasons
from tweetrerank.rerankers.mixed import Mixed
from tweetrerank.rerankers.model import Model

MOVERS = 3
"""Number of posts to explain among those with the largest gains in rank, and again
among those with the largest losses."""

TEMPLATES = Path(__file__).parent / "templates"

SHARED_STYLE = TEMPLATES / "shared.css"
"""File of the colours and forms that all pages with explanations share."""

WORDS: Mapping[str, Sequence[str]] = json.loads((TEMPLATES / "words.json").read_bytes())
"""Name of a stage, a model or a feature family -> its plain name and its meaning."""

_GRADES = ("not relevant", "relevant", "highly relevant")

Record = Mapping[str, Any]
"""A post of :meth:`tweetrerank.pipeline.ranking.ranker.Ranking.to_dict`. It also has
its ``rank`` in the last stage, its ``gain`` in ranks (negative for a loss), and this
gain in words (``movement``)."""


@dataclass(frozen=True)
class ExplainedTopic:
    """The reranked candidates of one topic, and reasons for some of their ranks."""

    collection: str  # Name of the topic's collection, or ""
    topic: Topic
    facts: Mapping[str, str]  # Facts about the ranking as a whole
    posts: Mapping[str, Record]  # doc_id -> every candidate that was scored, best first
    grades: Mapping[str, int]  # doc_id -> judged relevance, for judged posts
    chosen: Mapping[str, Sequence[str]]
    """Heading -> doc_ids of the posts to explain. There is at least one heading."""
    explanation: Explanation  # Explanation of the chosen posts, in their order

    @property
    def reasons(self) -> dict[str, Reasons]:
        """doc_id -> reasons, for the chosen posts."""
        return dict(zip(_doc_ids(self.chosen), self.explanation.posts, strict=True))


def explain(
    model: Model,
    ranking: Any,
    before: str,
    doc_ids: Sequence[str],
    query_id: str,
    show: int,
) -> ExplainedTopic:
    """Explain the ranks of some posts of a topic.

    The posts are ``doc_ids`` if any are given. Otherwise they are the ``show`` best
    posts and those that moved most. ``ranking`` is a
    :class:`tweetrerank.pipeline.ranking.ranker.Ranking` that ``model`` made from the
    first stage named ``before``. If ``query_id`` is "", the ranking must have a single
    topic.

    Raises:
        UsageError: the model has no explanation, or the topic or a post is unknown.
        DataError: the topic has no candidates.
    """
    topic = _topic_of(query_id, ranking.candidates.topics)
    query_id = topic.query_id
    candidates = replace(ranking.candidates, topics=[topic])
    scores = candidates.run.get(query_id, {})
    if not scores:
        raise DataError(
            f"topic {query_id} “{topic.text}”: found no candidates to rank, expected "
            "some; try another topic or other candidates"
        )
    posts = _posts_of(ranking, candidates, query_id, before)
    if doc_ids:
        _check_doc_ids(doc_ids, posts, query_id)
        chosen = {"named posts": list(dict.fromkeys(doc_ids))}
    else:
        chosen = choose(posts, show)
    rows = {doc_id: row for row, doc_id in enumerate(scores)}
    chosen_rows = [rows[doc_id] for doc_id in _doc_ids(chosen)]
    explanation = model.explain(candidates.pairs(), chosen_rows)
    if explanation is None:
        raise UsageError(
            f"found {model.name}, expected a model with an explanation: mp_hcnn, "
            "window or a fusion"
        )
    collection = ranking.collection
    qrels = (collection and collection.qrels) or {}
    return ExplainedTopic(
        collection=collection.name if collection else "",
        topic=topic,
        facts=_facts(model, len(posts), before),
        posts=posts,
        grades=qrels.get(query_id, {}),
        chosen=chosen,
        explanation=explanation,
    )


def _posts_of(
    ranking: Any, candidates: Any, query_id: str, before: str
) -> dict[str, Record]:
    """Return doc_id -> record of each scored post, best first.

    ``candidates`` are those of the topic. Posts without a score rank below the others
    and have nothing to explain, so they are left out.
    """
    scores = candidates.run[query_id]
    result = ranking.run[query_id]
    scored = [doc_id for doc_id in scores if doc_id in result]
    runs = {name: run.get(query_id, {}) for name, run in ranking.stages.items()}
    runs[before] = scores  # The ranking itself may be cut to the best hits
    stages = {}
    for name, run in runs.items():
        stage = {doc_id: run[doc_id] for doc_id in scored if doc_id in run}
        stages[name] = {query_id: stage}
    of_topic = ranking._replace(stages=stages, candidates=candidates)
    (record,) = of_topic.to_dict()["topics"]
    return {
        post["doc_id"]: post | _movement(post["stages"], before)
        for post in record["posts"]
    }


def _movement(stages: Mapping[str, Mapping[str, Any]], before: str) -> dict[str, Any]:
    """Return the further values of a :data:`Record`: rank, gain and movement."""
    last = list(stages.values())[-1]
    old_rank = stages[before]["rank"]
    gain = old_rank - last["rank"]
    movement = "same rank as before"
    if gain > 0:
        movement = f"▲ {gain} from {old_rank}"
    elif gain < 0:
        movement = f"▼ {-gain} from {old_rank}"
    return {"rank": last["rank"], "gain": gain, "movement": movement}


def _check_doc_ids(
    doc_ids: Sequence[str], posts: Mapping[str, Record], query_id: str
) -> None:
    expected = f"expected one of the {len(posts)} candidates of topic {query_id}"
    examples = listed(list(posts), 8)
    problems = [
        f"`doc_id`: found {doc_id!r}, {expected}: {examples}"
        for doc_id in doc_ids
        if doc_id not in posts
    ]
    if problems:
        raise UsageError(problems)


def _facts(model: Model, candidates: int, before: str) -> dict[str, str]:
    weights = "/".join(model.directory.resolve().parts[-2:])
    facts = {
        "Candidates": f"{candidates}, by {both(before)}",
        "Model": f"{both(model.name)}, weights {weights}",
    }
    if isinstance(model, Mixed):
        origin, _, _ = model.origin.partition("; ")  # Leave out the path in the origin
        facts["Share of the model (λ)"] = f"{model.weight:g}, {origin}"
    return facts


def _doc_ids(chosen: Mapping[str, Sequence[str]]) -> Iterable[str]:
    for doc_ids in chosen.values():
        yield from doc_ids


def _topic_of(query_id: str, topics: Sequence[Topic]) -> Topic:
    if len(topics) == 1 and not query_id:
        return topics[0]
    return topic_named(query_id, topics, "the ranking")


def topic_named(query_id: str, topics: Sequence[Topic], source: str) -> Topic:
    """Return the topic with this id.

    Raises UsageError if ``source`` lacks it.
    """
    by_id = {topic.query_id: topic for topic in topics}
    if query_id not in by_id:
        known_ids = list(by_id)
        raise UsageError(
            f"`query_id`: found {query_id!r}, expected a topic of {source}: "
            f"{listed(known_ids, 8)}{did_you_mean(query_id, known_ids)}"
        )
    return by_id[query_id]


def choose(posts: Mapping[str, Record], best: int) -> dict[str, list[str]]:
    """Return heading -> doc_ids of the posts to explain.

    These are the ``best`` posts, and the largest gains and losses of the other posts.
    ``posts`` are in the order of the last ranking. Ties keep the earlier post.
    """
    doc_ids = list(posts)
    gains = {doc_id: posts[doc_id]["gain"] for doc_id in doc_ids[best:]}
    rose = sorted(gains, key=lambda doc_id: -gains[doc_id])[:MOVERS]
    fell = sorted(gains, key=lambda doc_id: gains[doc_id])[:MOVERS]
    sections = {
        "best of the new ranking": doc_ids[:best],
        "largest gains of the others": [d for d in rose if gains[d] > 0],
        "largest losses of the others": [d for d in fell if gains[d] < 0],
    }
    return {heading: section for heading, section in sections.items() if section}


def grade_text(grade: int | None) -> str:
    """Return a judged grade in words. None means that the post is not judged."""
    if grade is None:
        return "not judged"
    return _GRADES[min(max(grade, 0), 2)]


def plain(name: str) -> tuple[str, str]:
    """Return (plain name, meaning) of a stage, a model or a feature family.

    The plain name of a family ``signal:NAME`` is that of a search. The meaning is "" if
    it is not known.
    """
    kind, _, signal = name.partition(":")
    if kind == "number":
        meaning = (
            f"The post's {signal}, and how high it is among those of the other posts."
        )
        return signal, meaning
    method = signal.removeprefix("run_")
    if kind != "signal" or not method:
        title, meaning = WORDS.get(name, (name, ""))
        return title, meaning
    title, meaning = WORDS.get(method, (method, ""))
    search = "search" if signal == method else "official search"
    return f"{search}: {title}", meaning


def both(name: str) -> str:
    """Return ``plain name (technical name)``, or the technical name alone."""
    return f"{WORDS[name][0]} ({name})" if name in WORDS else name


def signed(value: float) -> str:
    """Return a number with three decimals and a sign. 0 has no sign."""
    text = f"{value:+.3f}"
    if float(text) == 0:
        return "0.000"
    return text
