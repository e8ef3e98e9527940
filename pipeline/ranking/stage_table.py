"""Print tables of measures, one row for each run, and the best posts of a topic."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from tweetrerank.indexes.data_error import DataError
from tweetrerank.pipeline.collections.in_memory import qrels_of
from tweetrerank.pipeline.collections.topics import Topic
from tweetrerank.pipeline.collections.trec import Qrels, run_of
from tweetrerank.pipeline.defaults import DEFAULT_MEASURES
from tweetrerank.pipeline.evaluation.measures import Evaluator, Values, heading, mean
from tweetrerank.pipeline.text import counted, print_posts, table_lines
from tweetrerank.pipeline.usage_error import UsageError

if TYPE_CHECKING:
    import pandas

    from tweetrerank.pipeline.collections.collection import Collection
    from tweetrerank.pipeline.ranking.ranker import Ranking

SHOWN = 5  # Number of posts that are shown for a topic

Scores: TypeAlias = (
    "Ranking | Mapping[str, Mapping[str, float]] | Mapping[int, Mapping[int, float]]"
)
"""A ranking, or a run (query_id -> doc_id -> score)."""

Judgments: TypeAlias = (
    "str | Path | Sequence[str | Path] | Mapping[str, Mapping[str, int]]"
    " | Mapping[int, Mapping[int, int]] | Iterable[Mapping[str, object]]"
    " | pandas.DataFrame"
)
"""Judgments: one file, several files, query_id -> doc_id -> grade, or rows."""


@dataclass(frozen=True)
class Evaluation:
    """The measures of a ranking's stages.

    Printing it shows a table, one row for a stage.
    """

    title: str  # Collection and number of judged topics
    values: Mapping[str, Values]
    """Stage -> measure -> query_id -> value, for every judged topic."""
    milliseconds: Mapping[str, float] = field(default_factory=dict)
    """Stage -> milliseconds per topic, for the stages with a known time."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """Stage -> text at the end of its row."""

    def __getitem__(self, stage: str) -> dict[str, float]:
        """Return measure -> mean over the judged topics, for one stage."""
        values = self.values[stage]
        return {measure: mean(by_topic) for measure, by_topic in values.items()}

    def __str__(self) -> str:
        measures = next(iter(self.values.values()))
        header = [self.title]
        header += [heading(measure) for measure in measures]
        if self.milliseconds:
            header.append("ms/topic")
        rows = [self._row(stage) for stage in self.values]
        notes_column = len(header)
        header.append("")
        return "\n".join(table_lines(header, rows, left=[0, notes_column]))

    def _row(self, stage: str) -> list[str]:
        """Return the cells of a stage's row."""
        row = [stage]
        row += [f"{value:.4f}" for value in self[stage].values()]
        if self.milliseconds:
            milliseconds = self.milliseconds.get(stage)
            row.append("" if milliseconds is None else f"{milliseconds:.1f}")
        row.append(self.notes.get(stage, ""))
        return row


def evaluate(
    ranking: Scores,
    *measures: str,
    qrels: "Judgments | None" = None,
    title: str = "run",
) -> Evaluation:
    """Measure a run, or each stage of a ranking.

    Args:
        ranking: a result of a ranker, or a run in a form that
            :func:`tweetrerank.pipeline.collections.trec.run_of` reads.
        measures: names of measures in ir_measures, such as ``AP``, ``P@30`` or
            ``nDCG@20``, or one list of them. The default is the collection's measures.
        qrels: judgments: query_id -> doc_id -> grade, rows, or a file. The default is
            the collection's judgments.
        title: name of the run in the table. Rankings ignore it.

    Raises:
        DataError: there are no judgments.
        UsageError: a measure is unknown.
    """
    from tweetrerank.pipeline.ranking.ranker import Ranking

    if len(measures) == 1 and not isinstance(measures[0], str):
        (measures,) = measures
    collection: Collection | None = None
    milliseconds: dict[str, float] = {}
    if isinstance(ranking, Ranking):
        collection = ranking.collection
        stages = ranking.stages
        topics = max(1, len(ranking.candidates.topics))
        for stage, seconds in ranking.seconds.items():
            milliseconds[stage] = 1000 * seconds / topics
    else:
        stages = {title: run_of(ranking)}
    grades = _grades(qrels, collection)
    if not measures:
        measures = tuple(collection.measures) if collection else DEFAULT_MEASURES
    evaluator = Evaluator(grades, measures)
    topics_text = counted(len(grades), "judged topic")
    return Evaluation(
        f"{collection.name}, {topics_text}" if collection else topics_text,
        {name: evaluator(run) for name, run in stages.items()},
        milliseconds,
    )


def _grades(qrels: "Judgments | None", collection: "Collection | None") -> Qrels:
    """Return the grades of the judgments. The default is the collection's judgments.

    Raises DataError if there are none.
    """
    if qrels is not None:
        return qrels_of(qrels)
    if collection is None:
        raise DataError("found no judgments of these topics, expected `qrels`")
    grades = collection.qrels
    if grades is None:
        raise DataError(collection.missing_judgments)
    collection.check_judged_posts()
    return grades


def print_topic(ranking: "Ranking", qrels: Qrels | None, query_id: str | None) -> None:
    """Print the best posts of one topic in the first and the last stage of a ranking.

    With ``query_id`` None, the first topic with results is printed. With ``"none"``,
    nothing is printed.
    """
    topic = _topic_to_print(ranking, query_id)
    if topic is None:
        return
    grades = (qrels or {}).get(topic.query_id, {})
    names = list(ranking.stages)
    stages = {"before": names[0]}
    if len(names) > 1:
        stages["after"] = names[-1]
    for when, stage in stages.items():
        print(f"\ntopic {topic.query_id} “{topic.text}”, {when}:")
        hits = ranking.best(SHOWN, topic.query_id, stage)
        print_posts(hits, [f"[{grades.get(hit.doc_id, '-')}]" for hit in hits])
    if grades:
        print("[2] highly relevant  [1] relevant  [0] not relevant  [-] not judged")


def _topic_to_print(ranking: "Ranking", query_id: str | None) -> Topic | None:
    """Return the topic to print, or None if there is none.

    With ``query_id`` None, this is the first topic with results. Raises UsageError if
    the chosen topic has no results.
    """
    candidates = ranking.candidates
    topics = {
        topic.query_id: topic
        for topic in candidates.topics
        if candidates.run.get(topic.query_id)
    }
    if query_id is None:
        return next(iter(topics.values()), None)
    if query_id == "none":
        return None
    if query_id not in topics:
        examples = ", ".join(list(topics)[:5])
        raise UsageError(
            f"--show: found {query_id!r}, expected a topic with results: {examples}, … "
            "or none"
        )
    return topics[query_id]
