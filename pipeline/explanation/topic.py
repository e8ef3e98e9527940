"""A topic's posts: ranks before and after reranking, and reasons for the scores of some."""

import json
from collections.abc import Mapping, Sequence
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
"""Posts shown of those with the largest gains in rank, and of those with the largest losses."""

TEMPLATES = Path(__file__).parent / "templates"
SHARED_STYLE = (
    TEMPLATES / "shared.css"
)  # Colours and forms of all pages with explanations

WORDS: Mapping[str, Sequence[str]] = json.loads((TEMPLATES / "words.json").read_bytes())
"""Name of a stage, a model or a family of features -> plain name, and what it means."""

_GRADES = ("not relevant", "relevant", "highly relevant")

Record = Mapping[str, Any]
"""A post of :meth:`tweetrerank.pipeline.ranking.ranker.Ranking.to_dict`, with its ``rank`` in the last stage,
the ranks that it has gained (``gain``, negative for a loss), and these in words (``movement``)."""


@dataclass(frozen=True)
class ExplainedTopic:
    """The reranked candidates of one topic, and reasons for the ranks of some."""

    collection: str  # Name of the topic's source
    topic: Topic
    facts: Mapping[str, str]  # About the ranking as a whole
    posts: Mapping[str, Record]  # By doc_id, every candidate, best first
    grades: Mapping[str, int]  # doc_id -> judged relevance, for judged posts
    chosen: Mapping[
        str, Sequence[str]
    ]  # Heading -> doc_ids of the posts to explain, at least one
    explanation: Explanation  # Explanation of the chosen posts, in order

    @property
    def reasons(self) -> dict[str, Reasons]:
        """doc_id -> reasons, of the chosen posts."""
        doc_ids = [doc_id for doc_ids in self.chosen.values() for doc_id in doc_ids]
        return dict(zip(doc_ids, self.explanation.posts, strict=True))


def explain(
    model: Model,
    ranking: Any,
    before: str,
    doc_ids: Sequence[str],
    query_id: str,
    show: int,
) -> ExplainedTopic:
    """Reasons for the ranks of posts ``doc_ids``, or the ``show`` best and those that moved most.
    ``ranking`` is a :class:`tweetrerank.pipeline.ranking.ranker.Ranking` by ``model`` with the first stage
    ``before``; a ``query_id`` of "" is its only topic. UsageError: the model has no explanation, or
    posts or topic are not there. DataError: the topic has no candidates."""
    topics, collection = ranking.candidates.topics, ranking.collection
    topic = topics[0] if len(topics) == 1 and not query_id else None
    topic = topic or topic_named(query_id, topics, "the ranking")
    query_id = topic.query_id
    candidates = replace(ranking.candidates, topics=[topic])
    if not (scored := candidates.run.get(query_id, {})):
        raise DataError(
            f"topic {query_id} “{topic.text}”: found no candidates to rank, expected some; try "
            "another topic or other candidates"
        )
    # Posts that are not scored follow below, and have nothing to explain; the result has its best.
    kept = [doc_id for doc_id in scored if doc_id in ranking.run[query_id]]
    runs = {name: run.get(query_id, {}) for name, run in ranking.stages.items()}
    runs[before] = scored  # In the ranking it may be cut to the number of hits.
    stages = {
        n: {query_id: {d: run[d] for d in kept if d in run}} for n, run in runs.items()
    }
    (record,) = ranking._replace(stages=stages, candidates=candidates).to_dict()[
        "topics"
    ]
    posts = {
        post["doc_id"]: post | _moves(post["stages"], before)
        for post in record["posts"]
    }
    if unknown := [doc_id for doc_id in doc_ids if doc_id not in posts]:
        expected = (
            f"expected one of the {len(posts)} candidates of topic {topic.query_id}"
        )
        known = listed(list(posts), 8)
        raise UsageError(
            [f"`doc_id`: found {d!r}, {expected}: {known}" for d in unknown]
        )
    chosen = (
        {"named posts": [*dict.fromkeys(doc_ids)]} if doc_ids else choose(posts, show)
    )
    places = {doc_id: row for row, doc_id in enumerate(scored)}
    rows = [places[doc_id] for doc_ids in chosen.values() for doc_id in doc_ids]
    if (explanation := model.explain(candidates.pairs(), rows)) is None:
        raise UsageError(
            f"found {model.name}, expected a model with an explanation: mp_hcnn, window or a fusion"
        )
    facts = {
        "Candidates": f"{len(posts)}, by {both(before)}",
        "Model": f"{both(model.name)}, weights {'/'.join(model.directory.resolve().parts[-2:])}",
    }
    if isinstance(model, Mixed):
        origin, _, _ = model.origin.partition("; ")  # Without its path
        facts["Share of the model (λ)"] = f"{model.weight:g}, {origin}"
    grades = ((collection and collection.qrels) or {}).get(query_id, {})
    name = collection.name if collection else ""
    return ExplainedTopic(name, topic, facts, posts, grades, chosen, explanation)


def _moves(stages: Mapping[str, Mapping[str, Any]], before: str) -> dict[str, Any]:
    *_, last = stages.values()
    gain = stages[before]["rank"] - last["rank"]
    movement = f"{'▲' if gain > 0 else '▼'} {abs(gain)} from {stages[before]['rank']}"
    movement = movement if gain else "same rank as before"
    return {"rank": last["rank"], "gain": gain, "movement": movement}


def topic_named(query_id: str, topics: Sequence[Topic], source: str) -> Topic:
    """The topic of an id; raises UsageError if ``source`` has none."""
    if query_id not in (known := {topic.query_id: topic for topic in topics}):
        raise UsageError(
            f"`query_id`: found {query_id!r}, expected a topic of {source}: "
            f"{listed(list(known), 8)}{did_you_mean(query_id, list(known))}"
        )
    return known[query_id]


def choose(posts: Mapping[str, Record], best: int) -> dict[str, list[str]]:
    """Heading -> doc_ids: the ``best`` of the last ranking, the order of ``posts``, which breaks
    ties; largest gains and losses of the rest."""
    others = sorted(list(posts)[best:], key=lambda doc_id: posts[doc_id]["gain"])
    rose = sorted(list(posts)[best:], key=lambda doc_id: -posts[doc_id]["gain"])
    sections = {
        "best of the new ranking": list(posts)[:best],
        "largest gains of the others": [
            d for d in rose[:MOVERS] if posts[d]["gain"] > 0
        ],
        "largest losses of the others": [
            d for d in others[:MOVERS] if posts[d]["gain"] < 0
        ],
    }
    return {heading: doc_ids for heading, doc_ids in sections.items() if doc_ids}


def grade_text(grade: int | None) -> str:
    """A judged grade in words."""
    return "not judged" if grade is None else _GRADES[min(max(grade, 0), 2)]


def plain(name: str) -> tuple[str, str]:
    """Plain name and meaning of a stage, a model or a family; a signal is the score of a search."""
    kind, _, signal = name.partition(":")
    if kind == "number":
        return (
            signal,
            f"The post's {signal}, and how high it is among those of the other posts.",
        )
    method = signal.removeprefix("run_") if kind == "signal" else ""
    title, meaning = WORDS.get(method or name, (method or name, ""))
    if method:
        title = f"{'search' if signal == method else 'official search'}: {title}"
    return title, meaning


def both(name: str) -> str:
    """``plain name (technical name)``."""
    return f"{WORDS[name][0]} ({name})" if name in WORDS else name


def signed(value: float) -> str:
    """A number with three decimals, and with a sign unless all digits are 0."""
    text = f"{value:+.3f}"
    return text if float(text) else "0.000"
