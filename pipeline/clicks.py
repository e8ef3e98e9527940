"""Make topics and judgments of a click log.

  python -m pipeline.clicks log.jsonl --output qrels.txt
  python -m pipeline.clicks log --output qrels.txt
  python -m pipeline.evaluate qrels.txt my.run

The second reads a folder: that of pipeline.serve --log DIR --log-queries plain, or exports of
OpenSearch's User Behavior Insights. Files are JSON lines, .gz or not. Of your own, a line is a list
of results, with a click or without:

  {"query": "storm damage", "shown": ["17", "4", "9"], "clicked": ["4"]}

"shown" is in the order of the page. An optional "query_id" names the topic; without it the id is
made of the text, the same in all logs. Other keys (session, time, …) are ignored.

People look at the first positions most: a position-based model, fitted to the whole log, tells how
often each position is looked at, and how much each post attracts those who look. Grades follow from
the probability that a post attracts more than those that are clicked by mistake.

  grade 2      clicked twice or more, probability of .9 or more
  grade 1      clicked, probability of .5 or more
  grade 0      clicked or skipped above a click, lower probability
  not judged   never clicked, and not skipped above a click, or not enough for a lower probability

Model: Chuklin, Markov & de Rijke, Click Models for Web Search (2015), section 3.3; Wang et al.,
WSDM 2018, section 4. Estimation: pipeline/collections/clicks.py.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.command.errors import UsageError
from pipeline.command.main import run
from pipeline.command.options import argument, option, output_file, positive_float
from pipeline.command.runtime import print_table

if TYPE_CHECKING:
    from pipeline.collections.clicks import ClickLog, ClickModel
    from pipeline.collections.trec import Qrels

POSITIONS = 10  # Rows of the table of positions; those below are one row


@dataclass(frozen=True)
class Options:
    """Files, and what clicks are worth."""

    log: Path = argument("click log: a file of JSON lines, or a folder of them", parse=Path)
    output: Path = option(
        "file of judgments to write, in TREC's form",
        parse=output_file,
        required=True,
        metavar="FILE",
    )
    topics: Path | None = option(
        "file of topics to write, lines of query_id<TAB>text (default: .topics.tsv beside the "
        "judgments)",
        parse=output_file,
        metavar="FILE",
    )
    prior_strength: float = option(
        "impressions that the usual attractiveness counts for in the estimate of a post's own",
        default=2.0,
        parse=positive_float,
    )


def main(options: Options) -> None:
    """Read the log, estimate, write both files and report."""
    from pipeline.collections.clicks import fit, judgments, read_click_log
    from pipeline.collections.trec import written_file

    output = options.output
    topics_file = options.topics or output.with_name(f"{output.name.split('.')[0]}.topics.tsv")
    files = {"log": options.log, "--output": output, "--topics": topics_file}
    for (name, path), (other, second) in combinations(files.items(), 2):
        if path.resolve() == second.resolve():
            raise UsageError(f"{other}: found {second}, expected another file than that of {name}")
    log = read_click_log(options.log)
    model = fit(log, options.prior_strength)
    qrels = judgments(log, model.relevance)
    # Neither is replaced if one fails.
    with written_file(topics_file) as topics, written_file(output) as judged:
        for query_id, text, *_ in log.topics:
            grades = sorted(qrels.get(query_id, {}).items(), key=lambda item: (-item[1], item[0]))
            topics.write(f"{query_id}\t{text}\n" if grades else "")
            judged.writelines(f"{query_id} 0 {doc_id} {grade}\n" for doc_id, grade in grades)
    if log.notes:
        print("\n".join(log.notes), file=sys.stderr)
    _report(log, model, qrels, options.log)
    print(f"\nwrote {output} and {topics_file}")
    print(
        "the file of a collection with them has the lines\n"
        f'  topics = "{topics_file.name}"\n  qrels = "{output.name}"\n  judged_only = true'
    )


def _report(log: ClickLog, model: ClickModel, qrels: Qrels, path: Path) -> None:
    import numpy as np

    grades = Counter(grade for judged in qrels.values() for grade in judged.values())
    print(f"{log.impressions:,} impressions, {log.with_click:,} with a click")
    print(f"{len(log.topics):,} queries, {len(qrels):,} with judgments")
    by_grade = ", ".join(f"{grades[grade]:,} of grade {grade}" for grade in (2, 1, 0))
    print(f"{len(log.pairs):,} pairs of query and post, {grades.total():,} judged: {by_grade}")
    places = np.unique(np.column_stack((log.pair, log.position)), axis=0)
    moved = int((np.bincount(places[:, 0]) > 1).sum())
    print(f"{moved:,} pairs were shown at several positions; these tell examination from relevance")
    if not moved:
        print(
            f"{path}: found no pair at two positions; the examination of position k is "
            "little more than the usual assumption, 1 / k",
            file=sys.stderr,
        )
    print()
    shown, clicked = np.bincount(log.position), np.bincount(log.position, weights=log.click)
    rows = []
    for first in range(min(len(shown), POSITIONS + 1)):
        last = first + 1 if first < POSITIONS else len(shown)
        part = slice(first, last)
        name = f"{last}" if last == first + 1 else f"{first + 1}-{last}"
        rate = clicked[part].sum() / shown[part].sum()
        examination = np.average(model.examination[part], weights=shown[part])
        rows.append((name, f"{shown[part].sum():,}", f"{rate:.3f}", f"{examination:.3f}"))
    print_table(("position", "impressions", "click rate", "examination"), rows)


if __name__ == "__main__":
    run("clicks")
