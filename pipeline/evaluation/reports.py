"""Tables of runs' measures, and the best posts of a topic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pipeline.collections.trec import Qrels, Run, ranked
from pipeline.command.errors import UsageError
from pipeline.command.runtime import one_line, print_table
from pipeline.evaluation.measures import Evaluator, mean

if TYPE_CHECKING:
    from pipeline.collections.collection import Collection
    from pipeline.collections.topics import Topic
    from pipeline.ranking.ranker import Ranking
    from pipeline.ranking.retrievers import Candidates

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
    print(f"{collection.name}, {len(collection.qrels)} judged topics")
    print_means([(name, evaluator(run)) for name, run in runs.items()])


def print_topic(ranking: Ranking, qrels: Qrels | None, query_id: str | None) -> None:
    """Print the best posts of one topic in the first and in the last of a ranking's stages.

    ``query_id`` None is the first topic with results, ``none`` prints nothing.
    """
    candidates, runs = ranking.candidates, list(ranking.stages.values())
    topic = None if query_id == "none" else _topic(candidates, query_id)
    if topic is None:
        return
    grades = (qrels or {}).get(topic.query_id, {})
    stages = {"before": runs[0], "after": runs[-1]} if runs[1:] else {"before": runs[0]}
    for stage, run in stages.items():
        print(f"\ntopic {topic.query_id} “{topic.text}”, {stage}:")
        rows = []
        for rank, (doc_id, score) in enumerate(ranked(run[topic.query_id])[:SHOWN], start=1):
            post, grade = candidates.posts[doc_id], f"[{grades.get(doc_id, '-')}]"
            line = one_line(f"{post.text} {post.url}")
            rows.append([str(rank), f"{score:.4f}", grade, line])
        print_table([], rows, left=[2, 3])
    if grades:
        print("[2] highly relevant  [1] relevant  [0] not relevant  [-] not judged")


def _topic(candidates: Candidates, query_id: str | None) -> Topic | None:
    with_results = [topic for topic in candidates.topics if candidates.run.get(topic.query_id)]
    if query_id is None:
        return next(iter(with_results), None)
    for topic in with_results:
        if topic.query_id == query_id:
            return topic
    raise UsageError(
        f"--show: found {query_id!r}, expected a topic with results: "
        f"{', '.join(topic.query_id for topic in with_results[:5])}, … or none"
    )
