"""Tables of runs' measures, and the best posts of a topic."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tweetrerank.indexes.data_error import DataError
from tweetrerank.pipeline.collections.in_memory import qrels_of
from tweetrerank.pipeline.collections.trec import Qrels, Run, run_of
from tweetrerank.pipeline.defaults import DEFAULT_MEASURES
from tweetrerank.pipeline.evaluation.measures import Evaluator, Values, heading, mean
from tweetrerank.pipeline.text import counted, print_posts, table_lines
from tweetrerank.pipeline.usage_error import UsageError

if TYPE_CHECKING:
    from tweetrerank.pipeline.ranking.ranker import Ranking

SHOWN = 5  # Posts shown of a topic


@dataclass(frozen=True)
class Evaluation:
    """Measures of the stages of a ranking; printed, a table with a row for each."""

    title: str  # Collection and number of judged topics
    values: Mapping[
        str, Values
    ]  # Stage -> measure -> query_id -> value, for every judged topic
    milliseconds: Mapping[str, float] = field(default_factory=dict)
    """Stage -> milliseconds a topic, where they are known."""
    notes: Mapping[str, str] = field(
        default_factory=dict
    )  # Stage -> text at the end of its row

    def __getitem__(self, stage: str) -> dict[str, float]:
        """Measure -> mean over the judged topics, of one stage."""
        return {
            measure: mean(by_topic) for measure, by_topic in self.values[stage].items()
        }

    def __str__(self) -> str:
        header, rows = [self.title, *map(heading, next(iter(self.values.values())))], []
        header += ["ms/topic"] if self.milliseconds else []
        for stage in self.values:
            row = [stage, *(f"{value:.4f}" for value in self[stage].values())]
            if self.milliseconds:
                known = self.milliseconds.get(stage)
                row.append("" if known is None else f"{known:.1f}")
            rows.append([*row, self.notes.get(stage, "")])
        return "\n".join(table_lines([*header, ""], rows, left=[0, len(header)]))


def evaluate(
    ranking: "Ranking | Run",
    *measures: str,
    qrels: Qrels | None = None,
    title: str = "run",
) -> Evaluation:
    """Measures of a ranking, every stage beside the others, or of a run.

    Raises DataError without judgments, UsageError for an unknown measure.

    Args:
        ranking: for a run see :func:`tweetrerank.pipeline.collections.trec.run_of`.
        measures: names of ir_measures, ``AP``, ``P@30``, ``nDCG@20``; else the collection's.
        qrels: query_id -> doc_id -> grade, rows, or a file; else the collection's.
    """
    if len(measures) == 1 and not isinstance(measures[0], str):
        (measures,) = measures
    collection = getattr(ranking, "collection", None)
    stages: Mapping[str, Run] = getattr(ranking, "stages", None) or {
        title: run_of(ranking)
    }
    if qrels is None:
        if collection is None:
            raise DataError("found no judgments of these topics, expected `qrels`")
        if (qrels := collection.qrels) is None:
            raise DataError(collection.missing_judgments)
        collection.check_judged_posts()
    else:
        qrels = qrels_of(qrels)
    usual = collection.measures if collection else DEFAULT_MEASURES
    evaluator = Evaluator(qrels, measures or usual)
    topics, seconds = 1, getattr(ranking, "seconds", {})
    if candidates := getattr(ranking, "candidates", None):
        topics = max(1, len(candidates.topics))
    return Evaluation(
        f"{f'{collection.name}, ' if collection else ''}{counted(len(qrels), 'judged topic')}",
        {name: evaluator(run) for name, run in stages.items()},
        {name: 1000 * value / topics for name, value in seconds.items()},
    )


def print_topic(ranking: "Ranking", qrels: Qrels | None, query_id: str | None) -> None:
    """Print the best posts of one topic in the first and in the last of a ranking's stages.
    ``query_id`` None is the first topic with results, ``none`` prints nothing."""
    candidates, names = ranking.candidates, list(ranking.stages)
    topics = {
        t.query_id: t for t in candidates.topics if candidates.run.get(t.query_id)
    }
    query_id = next(iter(topics), "none") if query_id is None else query_id
    if query_id == "none":
        return
    if query_id not in topics:
        raise UsageError(
            f"--show: found {query_id!r}, expected a topic with results: "
            f"{', '.join([*topics][:5])}, … or none"
        )
    grades = (qrels or {}).get(query_id, {})
    stages = (
        {"before": names[0], "after": names[-1]} if names[1:] else {"before": names[0]}
    )
    for when, stage in stages.items():
        print(f"\ntopic {query_id} “{topics[query_id].text}”, {when}:")
        hits = ranking.best(SHOWN, query_id, stage)
        print_posts(hits, [f"[{grades.get(hit.doc_id, '-')}]" for hit in hits])
    if grades:
        print("[2] highly relevant  [1] relevant  [0] not relevant  [-] not judged")
