"""Tables of runs' measures, and the best posts of a topic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pipeline.collections.trec import Run, ranked
from pipeline.command.errors import UsageError
from pipeline.command.runtime import counted, print_posts, print_table
from pipeline.evaluation.measures import Evaluator, mean

if TYPE_CHECKING:
    from pipeline.collections.collection import Collection
    from pipeline.collections.topics import Topic
    from pipeline.ranking.ranker import Candidates

Values = Mapping[str, Mapping[str, float]]
"""Measure -> query_id -> value."""

SHOWN = 5
"""Posts shown of a topic."""


def print_means(results: Sequence[tuple[str, Values]]) -> None:
    """Print a row of mean values for each run, by name; all have the same measures."""
    rows = [
        [name, *(f"{mean(by_topic):.4f}" for by_topic in values.values())]
        for name, values in results
    ]
    print_table(["", *results[0][1]], rows)


def print_measures(collection: Collection, runs: Mapping[str, Run]) -> None:
    """Print a row of mean values for each stage of a search, or why there are none."""
    if collection.qrels is None:
        print(collection.missing_judgments)
        return
    evaluator = Evaluator(collection.qrels, collection.measures)
    print(f"{collection.name}, {counted(len(collection.qrels), 'judged topic')}")
    print_means([(name, evaluator(run)) for name, run in runs.items()])


def print_topic(
    collection: Collection, candidates: Candidates, runs: Sequence[Run], query_id: str | None
) -> None:
    """Print the best posts of one topic in the first and in the last of the stages' runs.

    ``query_id`` None is the first topic with results, ``none`` prints nothing.
    """
    topic = None if query_id == "none" else _topic(collection, candidates, query_id)
    if topic is None:
        return
    grades = (collection.qrels or {}).get(topic.query_id, {})
    stages = {"before": runs[0], "after": runs[-1]} if runs[1:] else {"before": runs[0]}
    for stage, run in stages.items():
        print(f"\ntopic {topic.query_id} “{topic.text}”, {stage}:")
        rows = []
        for rank, (doc_id, score) in enumerate(ranked(run[topic.query_id])[:SHOWN], start=1):
            post, grade = candidates.posts[doc_id], f"[{grades.get(doc_id, '-')}]"
            rows.append([str(rank), f"{score:.4f}", grade, f"{post.text} {post.url}"])
        print_posts(rows)
    if grades:
        print("[2] highly relevant  [1] relevant  [0] not relevant  [-] not judged")


def _topic(collection: Collection, candidates: Candidates, query_id: str | None) -> Topic | None:
    found = [topic for topic in collection.topics if candidates.run.get(topic.query_id)]
    if query_id is None:
        return found[0] if found else None
    for topic in found:
        if topic.query_id == query_id:
            return topic
    raise UsageError(
        f"--show: found {query_id!r}, expected a topic with results: "
        f"{', '.join(topic.query_id for topic in found[:5])}, … or none"
    )
