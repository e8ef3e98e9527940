"""What a search prints for a person: measures of each stage, and one topic before and after."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pipeline.collections.trec import Run, Topic, ranked
from pipeline.command.errors import UsageError
from pipeline.evaluation.measures import evaluate, mean

if TYPE_CHECKING:
    from indexes.posts import Post
    from pipeline.collections.collection import Collection
    from pipeline.reranking import Candidates

SHOWN = 5
"""Posts shown of a topic."""

WIDTH = 100
"""Characters of a post that are shown."""


def print_measures(source: "Collection", runs: Mapping[str, Run]) -> None:
    """A row of measures for each stage, or why there are none."""
    if source.qrels is None:
        print(source.missing_judgments)
        return
    rows = []
    for name, run in runs.items():
        values = evaluate(source.qrels, run, source.measures)
        rows.append([name, *(f"{mean(values[m].values()):.4f}" for m in source.measures)])
    print(f"{source.name}, {len(source.qrels)} judged topics")
    print(table(["", *source.measures], rows))


def print_topic(
    source: "Collection", candidates: "Candidates", runs: Sequence[Run], query_id: str | None
) -> None:
    """The best posts of one topic in the first and in the last of ``runs``.

    Args:
        query_id: the topic; None is the first with results, ``none`` prints nothing.
    """
    if query_id == "none":
        return
    topic = _topic(source, candidates, query_id)
    if topic is None:
        return
    grades = (source.qrels or {}).get(topic.query_id, {})
    stages = [("before", runs[0])] if runs[0] is runs[-1] else [
        ("before", runs[0]), ("after", runs[-1])
    ]  # fmt: skip
    for stage, run in stages:
        print(f"\ntopic {topic.query_id} “{topic.text}”, {stage}:")
        for rank, (doc_id, score) in enumerate(ranked(run[topic.query_id])[:SHOWN], start=1):
            grade = grades.get(doc_id, "-")
            post = candidates.posts[doc_id]
            print(f"{rank:3} {score:9.4f}  [{grade}] {_one_line(post)}")
    if grades:
        print("[2] highly relevant  [1] relevant  [0] not relevant  [-] not judged")


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns of text, the first left- and the others right-aligned."""
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in [header, *rows]
    )


def _topic(source: "Collection", candidates: "Candidates", query_id: str | None) -> Topic | None:
    found = [topic for topic in source.topics if candidates.run.get(topic.query_id)]
    if query_id is None:
        return found[0] if found else None
    for topic in found:
        if topic.query_id == query_id:
            return topic
    raise UsageError(
        f"--show: found {query_id!r}, expected a topic with results: "
        f"{', '.join(topic.query_id for topic in found[:5])}, … or none"
    )


def _one_line(post: "Post") -> str:
    """A post's text and URL without line breaks and control characters, cut to a line."""
    text = " ".join(f"{post.text} {post.url}".split())
    printable = "".join(c if c.isprintable() else "�" for c in text)
    return printable if len(printable) <= WIDTH else printable[: WIDTH - 1] + "…"
