"""Make topics and judgments of a click log.

  python -m pipeline.clicks log --output qrels.txt

The log is a file or a folder of JSON lines, .gz or not: that of pipeline.serve --log DIR
--log-queries plain, exports of OpenSearch's User Behavior Insights, or your own. Of these a line
has the posts in the order of the page, with a click or without, and perhaps the topic's "query_id":

  {"query": "storm damage", "shown": ["17", "4", "9"], "clicked": ["4"]}

Without it, the id is made of the text, the same in all logs. Other keys are ignored. Topics are
written beside the judgments, to qrels.topics.tsv.

A model of clicks, fitted to the whole log, tells how often each position is looked at, and how much
each post attracts those who look (pipeline/collections/clicks.py). Grades follow from the
probability that a post attracts more than those that are clicked by mistake.

  grade 2      clicked twice or more, probability of .9 or more
  grade 1      clicked, probability of .5 or more
  grade 0      clicked or skipped above a click, lower probability
  not judged   never clicked, and not skipped above a click, or not enough for a lower probability
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.command.main import run
from pipeline.command.options import argument, option, output_file, positive_float
from pipeline.errors import UsageError
from pipeline.text import print_table

if TYPE_CHECKING:
    from pipeline.collections.clicks import ClickLog, Floats
    from pipeline.collections.trec import Qrels

POSITIONS = 10  # Rows of the table of positions; those below are one row


@dataclass(frozen=True)
class Options:
    """Files, and what clicks are worth."""

    log: Path = argument("click log: a file of JSON lines, or a folder of them", parse=Path)
    output: Path = option(
        "file of judgments, in TREC's form", parse=output_file, required=True, metavar="FILE"
    )
    prior_strength: float = option(
        "impressions that the usual attractiveness counts for in the estimate of a post's own",
        default=10.0,
        parse=positive_float,
    )


def main(options: Options) -> None:
    """Read the log, estimate, write both files and report."""
    from pipeline.collections.clicks import fit, judgments, read_click_log
    from pipeline.collections.trec import written_file

    output = options.output
    topics_file = output.with_name(f"{output.name.split('.')[0]}.topics.tsv")
    if len({path.resolve() for path in (options.log, output, topics_file)}) < 3:
        problem = f"found {output}, expected another file than the log, and than {topics_file}"
        raise UsageError(f"--output: {problem}")
    log = read_click_log(options.log)
    examination, _, relevance = fit(log, options.prior_strength)
    qrels = judgments(log, relevance)
    # Neither is replaced if one fails.
    with written_file(topics_file) as topics, written_file(output) as judged:
        for query_id, text, *_ in log.topics:
            grades = sorted(qrels.get(query_id, {}).items(), key=lambda item: (-item[1], item[0]))
            topics.write(f"{query_id}\t{text}\n" if grades else "")
            judged.writelines(f"{query_id} 0 {doc_id} {grade}\n" for doc_id, grade in grades)
    if log.notes:
        print("\n".join(log.notes), file=sys.stderr)
    _report(log, examination, qrels)
    print(f"\nwrote {output} and {topics_file}")
    print(
        "the file of a collection with them has the lines\n"
        f'  topics = "{topics_file.name}"\n  qrels = "{output.name}"\n  judged_only = true'
    )


def _report(log: ClickLog, examination: Floats, qrels: Qrels) -> None:
    import numpy as np

    grades = Counter(grade for judged in qrels.values() for grade in judged.values())
    by_grade = ", ".join(f"{grades[grade]:,} of grade {grade}" for grade in (2, 1, 0))
    places = np.unique(np.column_stack((log.pair, log.position)), axis=0)
    moved = (np.bincount(places[:, 0]) > 1).sum()
    print(
        f"{log.impressions:,} impressions, {log.with_click:,} with a click\n"
        f"{len(log.topics):,} queries, {len(qrels):,} with judgments\n"
        f"{len(log.pairs):,} pairs of query and post, {grades.total():,} judged: {by_grade}\n"
        f"{moved:,} pairs were shown at several positions; these tell examination from relevance\n"
    )
    if not moved:
        problem = "found no pair at two positions; the examination of position k is"
        print(f"{problem} little more than the usual assumption, 1 / k", file=sys.stderr)
    shown, clicked = np.bincount(log.position), np.bincount(log.position, log.click)
    first = np.arange(min(len(shown), POSITIONS + 1))
    columns = (np.add.reduceat(values, first) for values in (shown, clicked, shown * examination))
    names = [f"{place + 1}" for place in first]
    names[-1] += f"-{len(shown)}" * (len(shown) > len(first))
    rows = [
        (name, f"{count:,}", f"{clicks / count:.3f}", f"{looks / count:.3f}")
        for name, count, clicks, looks in zip(names, *columns, strict=True)
    ]
    print_table(("position", "impressions", "click rate", "examination"), rows)


if __name__ == "__main__":
    run("clicks")
