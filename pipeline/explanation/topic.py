"""A topic's posts: ranks before and after reranking, and reasons for the scores of some."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.collections.trec import Place, places
from pipeline.errors import DataError, UsageError
from pipeline.text import did_you_mean, listed
from rerankers.reranker import Mixed

if TYPE_CHECKING:
    from indexes.posts import Post
    from pipeline.collections.collection import Collection
    from pipeline.collections.topics import Topic
    from pipeline.collections.trec import Run
    from pipeline.ranking.retrievers import Candidates
    from rerankers.explanation import Explanation, Reasons
    from rerankers.reranker import Model

MOVERS = 3
"""Posts shown of those with the largest gains in rank, and of those with the largest losses."""

TEMPLATES = Path(__file__).parent / "templates"
SHARED_STYLE = TEMPLATES / "shared.css"
"""Colours and forms of all pages with explanations."""

WORDS: Mapping[str, Sequence[str]] = json.loads((TEMPLATES / "words.json").read_bytes())
"""Name of a stage, a model or a family of features -> plain name, and what it means."""

_GRADES = ("not relevant", "relevant", "highly relevant")


@dataclass(frozen=True)
class RankChange:
    """A post's places in successive rankings, by name; the last is the result."""

    places: Mapping[str, Place]
    before: str  # Name of the ranking before reranking

    @property
    def last(self) -> Place:
        """Place after reranking."""
        return list(self.places.values())[-1]

    @property
    def gain(self) -> int:
        """Ranks gained by reranking; negative for a loss."""
        return self.places[self.before].rank - self.last.rank

    @property
    def movement(self) -> str:
        """The gain in words."""
        if self.gain == 0:
            return "same rank as before"
        arrow = "▲" if self.gain > 0 else "▼"
        return f"{arrow} {abs(self.gain)} from {self.last.rank + self.gain}"


@dataclass(frozen=True)
class ExplainedTopic:
    """The reranked candidates of one topic, and reasons for the ranks of some."""

    collection: str  # Name of the topic's source
    topic: Topic
    facts: Mapping[str, str]  # About the ranking as a whole
    changes: Mapping[str, RankChange]  # doc_id -> rank change, for every candidate
    grades: Mapping[str, int]  # doc_id -> judged relevance, for judged posts
    chosen: Mapping[str, Sequence[str]]  # Heading -> doc_ids of the posts to explain, at least one
    posts: Mapping[str, Post]
    explanation: Explanation  # Of the chosen posts, in order

    @property
    def reasons(self) -> dict[str, Reasons]:
        """doc_id -> reasons, of the chosen posts."""
        doc_ids = [doc_id for doc_ids in self.chosen.values() for doc_id in doc_ids]
        return dict(zip(doc_ids, self.explanation.posts, strict=True))


def explain(
    model: Model,
    candidates: Candidates,
    stages: Mapping[str, Run],
    before: str,
    collection: Collection | None = None,
    doc_ids: Sequence[str] = (),
    query_id: str = "",
    show: int = 10,
) -> ExplainedTopic:
    """Reasons for the ranks of a topic's posts.

    Args:
        stages: name -> run; the last one is the result by ``model``, ``before`` the first stage's.
        doc_ids: posts to explain; else the ``show`` best ones and those that moved most.
        query_id: the topic; "" is the only one.

    Raises:
        UsageError: the model has no explanation, or the posts or the topic are not there.
        DataError: the topic has no candidates.
    """
    query_id = query_id or (candidates.topics[0].query_id if len(candidates.topics) == 1 else "")
    topic = topic_named(query_id, candidates.topics, "the ranking")
    candidates = replace(candidates, topics=[topic])
    if not (scored := candidates.run.get(query_id, {})):
        raise DataError(
            f"topic {query_id} “{topic.text}”: found no candidates to rank, expected some; try "
            "another topic or other candidates"
        )
    *_, result = stages.values()
    # Posts that are not scored follow below, and have nothing to explain; the result has its best.
    kept = [doc_id for doc_id in scored if doc_id in result[query_id]]
    of_topic = {name: run.get(query_id, {}) for name, run in stages.items()}
    of_topic[before] = scored  # In ``stages`` it may be cut to the number of hits.
    changes = rank_changes(
        {name: {d: run[d] for d in kept if d in run} for name, run in of_topic.items()}, before
    )
    if unknown := [doc_id for doc_id in doc_ids if doc_id not in changes]:
        expected = f"expected one of the {len(changes)} candidates of topic {topic.query_id}"
        known = listed(list(changes), 8)
        raise UsageError([f"`doc_id`: found {d!r}, {expected}: {known}" for d in unknown])
    named = {"named posts": list(dict.fromkeys(doc_ids))}
    chosen = named if doc_ids else choose(changes, show)
    places_of = {doc_id: row for row, doc_id in enumerate(scored)}
    rows = [places_of[doc_id] for doc_ids in chosen.values() for doc_id in doc_ids]
    explanation = model.explain(candidates.pairs(), rows)
    if explanation is None:
        raise UsageError(
            f"found {model.name}, expected a model with an explanation: mp_hcnn, window or a fusion"
        )
    weights = "/".join(model.directory.resolve().parts[-2:])
    facts = {
        "Candidates": f"{len(changes)}, by {both(before)}",
        "Model": f"{both(model.name)}, weights {weights}",
    }
    if isinstance(model, Mixed):
        origin, _, _ = model.origin.partition("; ")  # Without its path
        facts["Share of the model (λ)"] = f"{model.weight:g}, {origin}"
    return ExplainedTopic(
        collection.name if collection else "",
        topic,
        facts,
        changes,
        ((collection.qrels if collection else None) or {}).get(query_id, {}),
        chosen,
        candidates.posts,
        explanation,
    )


def topic_named(query_id: str, topics: Sequence[Topic], source: str) -> Topic:
    """The topic of an id; raises UsageError if ``source`` has none."""
    known = {topic.query_id: topic for topic in topics}
    if query_id not in known:
        raise UsageError(
            f"`query_id`: found {query_id!r}, expected a topic of {source}: "
            f"{listed(list(known), 8)}{did_you_mean(query_id, list(known))}"
        )
    return known[query_id]


def rank_changes(
    rankings: Mapping[str, Mapping[str, float]], before: str = ""
) -> dict[str, RankChange]:
    """doc_id -> rank change, in the order of the last ranking; ``rankings`` are first to last.

    A post may be missing in others than the last and ``before``, by default the first.
    """
    before = before or next(iter(rankings))
    found = {name: places(scores) for name, scores in rankings.items()}
    *_, last = found.values()
    return {
        doc_id: RankChange(
            {n: by_id[doc_id] for n, by_id in found.items() if doc_id in by_id}, before
        )
        for doc_id in last
    }


def choose(changes: Mapping[str, RankChange], best: int) -> dict[str, list[str]]:
    """Heading -> doc_ids: the ``best`` of the last ranking; largest gains and losses of the rest.

    The order of ``changes`` is the last ranking, which also breaks ties between movers.
    """
    shown, others = list(changes)[:best], list(changes)[best:]
    rose = sorted(others, key=lambda doc_id: -changes[doc_id].gain)[:MOVERS]
    fell = sorted(others, key=lambda doc_id: changes[doc_id].gain)[:MOVERS]
    sections = {
        "best of the new ranking": shown,
        "largest gains of the others": [d for d in rose if changes[d].gain > 0],
        "largest losses of the others": [d for d in fell if changes[d].gain < 0],
    }
    return {heading: doc_ids for heading, doc_ids in sections.items() if doc_ids}


def grade_text(grade: int | None) -> str:
    """A judged grade in words."""
    return "not judged" if grade is None else _GRADES[min(max(grade, 0), 2)]


def plain(name: str) -> tuple[str, str]:
    """Plain name and meaning of a stage, a model or a family; a signal is the score of a search."""
    kind, _, signal = name.partition(":")
    if kind == "number" and signal:
        return signal, f"The post's {signal}, and how high it is among those of the other posts."
    if kind == "signal" and signal:
        method = signal.removeprefix("run_")
        title, meaning = WORDS.get(method, (method, ""))
        return f"{'search' if signal == method else 'official search'}: {title}", meaning
    title, meaning = WORDS.get(name, (name, ""))
    return title, meaning


def both(name: str) -> str:
    """``plain name (technical name)``."""
    return f"{WORDS[name][0]} ({name})" if name in WORDS else name
