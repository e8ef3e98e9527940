"""Make topics and judgments of a click log.

  python -m pipeline.clicks log.jsonl --output qrels.txt
  python -m pipeline.clicks log --output qrels.txt
  python -m pipeline.clicks --engine http://localhost:9200 --output qrels.txt
  python -m pipeline.evaluate qrels.txt my.run

The second reads the folder of pipeline.serve --log DIR --log-queries plain, with the events that
were posted to the service; the third OpenSearch's User Behavior Insights, the indexes ubi_queries
and ubi_events. A file, which may be .gz, has one list of results a line, with a click or without:

  {"query": "storm damage", "shown": ["17", "4", "9"], "clicked": ["4"]}

"shown" is in the order of the page. An optional "query_id" names the topic; without it the id is
made of the text, the same in all logs. Other keys (session, time, …) are ignored.

A post that was clicked is relevant, one that was skipped above a click is not, and one that was
only shown without a click below it is not judged. People look at the first positions most: a
position-based model, fitted to the whole log, tells how often each position is looked at, and how
much each post attracts those who look. Where the service has interleaved two models, the first
follows from posts that were shown at several positions by chance. Neither a click nor a skip is
certainty: the estimate starts from the attractiveness that is usual at a post's place or, in the
log of a service, for its score. Grades follow from the probability that a post attracts more than
those that are clicked by mistake.

  grade 2      clicked twice or more, probability of --highly-relevant or more
  grade 1      clicked, probability of --relevant or more
  grade 0      clicked or skipped above a click, lower probability
  not judged   never clicked, and not skipped above a click, or not enough for a lower probability

Model: Chuklin, Markov & de Rijke, Click Models for Web Search (2015), section 3.3; Wang et al.,
WSDM 2018, section 4. Estimation: pipeline/collections/clicks/model.py.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.command.errors import UsageError
from pipeline.command.main import run
from pipeline.command.options import (
    argument,
    existing_file,
    fraction,
    option,
    output_file,
    positive_float,
)
from pipeline.command.ranking import addresses
from pipeline.command.runtime import bar, print_table

if TYPE_CHECKING:
    from indexes.engines.address import EngineAddress
    from pipeline.collections.clicks.log import ClickLog
    from pipeline.collections.clicks.model import ClickModel
    from pipeline.collections.trec import Qrels

POSITIONS = 10  # Rows of the table of positions; those below are one row


def existing(text: str) -> Path:
    """A file or folder that is there."""
    return Path(text) if Path(text).is_dir() else existing_file(text)


@dataclass(frozen=True)
class LogOptions:
    """A log of searches and clicks."""

    log: Path | None = argument(
        "click log: JSON lines, .gz or not, or the folder of serve --log",
        parse=existing,
        required=False,
    )
    engine: str | None = option(
        "read the log of OpenSearch's User Behavior Insights in the engine at this address",
        parse=addresses,
        metavar="URL",
    )
    log_index: str = option(
        "its index of queries; that of events has events for queries",
        default="ubi_queries",
        metavar="NAME",
    )
    engine_auth: Path | None = option(
        "file of user and password, or api_key, and ca (default: $TWEETRERANK_ENGINE_USER, …)",
        parse=existing_file,
        metavar="FILE",
    )

    @property
    def source(self) -> Path | EngineAddress:
        """Where the log is; raises UsageError unless there is one place."""
        from indexes.engines.address import EngineAddress

        if (self.log is None) == (self.engine is None):
            raise UsageError("give one of a log and --engine URL")
        return self.log or EngineAddress(self.engine or "", self.log_index, self.engine_auth)


@dataclass(frozen=True)
class Options(LogOptions):
    """Files, and what clicks are worth."""

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
    relevant: float = option("least probability of grade 1", default=0.5, parse=fraction)
    highly_relevant: float = option("least probability of grade 2", default=0.9, parse=fraction)
    prior_strength: float = option(
        "impressions that the usual attractiveness counts for in the estimate of a post's own",
        default=2.0,
        parse=positive_float,
    )

    @property
    def topics_file(self) -> Path:
        """``qrels.txt`` -> ``qrels.topics.tsv``."""
        return self.topics or self.output.with_name(f"{self.output.name.split('.')[0]}.topics.tsv")


def main(options: Options) -> None:
    """Read the log, estimate, write both files and report."""
    from pipeline.collections.clicks.log import judgments, read_click_log
    from pipeline.loop.impressions import fitted, read_logged

    _check(options)
    source = options.source
    with bar(0, "reading", "impression") as progress:
        if isinstance(source, Path) and source.is_file():
            log = read_click_log(source, progress)
        else:
            log = read_logged(source, progress)
    model = fitted(log, options.prior_strength)
    qrels = judgments(log, model.relevance, options.relevant, options.highly_relevant)
    write_judgments(options.topics_file, options.output, log, qrels)
    _report(options, log, model, qrels)


def _check(options: Options) -> None:
    problems = []
    if options.highly_relevant < options.relevant:
        problems.append(
            f"--highly-relevant: found {options.highly_relevant:g}, expected at least "
            f"{options.relevant:g}, the probability of --relevant"
        )
    files = [
        ("log", options.log or Path()),
        ("--output", options.output),
        ("--topics", options.topics_file),
    ]
    for index, (name, path) in enumerate(files):
        for other, earlier in files[:index]:
            if path.resolve() == earlier.resolve():
                problems.append(f"{name}: found {path}, expected another file than that of {other}")
    if problems:
        raise UsageError(problems)


def write_judgments(topics_file: Path, output: Path, log: ClickLog, qrels: Qrels) -> None:
    """Write judgments and the topics that have any; neither is replaced if one fails."""
    from pipeline.collections.trec import written_file

    topics = (query.topic for query in log.queries)
    with written_file(topics_file) as topics_stream, written_file(output) as qrels_stream:
        for topic in topics:
            if topic.query_id in qrels:
                topics_stream.write(f"{topic.query_id}\t{topic.text}\n")
        for query_id, grades in qrels.items():
            for doc_id, grade in sorted(grades.items(), key=lambda item: (-item[1], item[0])):
                qrels_stream.write(f"{query_id} 0 {doc_id} {grade}\n")


def _report(options: Options, log: ClickLog, model: ClickModel, qrels: Qrels) -> None:
    grades = Counter(grade for judged in qrels.values() for grade in judged.values())
    print(f"{log.impressions:,} impressions, {log.impressions_with_click:,} with a click")
    print(f"{len(log.queries):,} queries, {len(qrels):,} with judgments")
    by_grade = ", ".join(f"{grades[grade]:,} of grade {grade}" for grade in (2, 1, 0))
    print(f"{len(log.pairs):,} pairs of query and post, {grades.total():,} judged: {by_grade}")
    moved = log.pairs_at_several_positions
    print(f"{moved:,} pairs were shown at several positions; these tell examination from relevance")
    if not moved:
        print(
            f"{options.source}: found no pair at two positions; the examination of position k is "
            "little more than the usual assumption, 1 / k",
            file=sys.stderr,
        )
    print()
    print_table(("position", "impressions", "click rate", "examination"), _positions(log, model))
    print(f"\nwrote {options.output} and {options.topics_file}")
    print(
        "the file of a collection with them has the lines\n"
        f'  topics = "{options.topics_file.name}"\n  qrels = "{options.output.name}"\n'
        "  judged_only = true"
    )


def _positions(log: ClickLog, model: ClickModel) -> list[tuple[str, ...]]:
    """Rows of the table: the first positions, and the mean of the others."""
    import numpy as np

    shown = np.bincount(log.position)
    clicked = np.bincount(log.position, weights=log.click)
    ends = [*range(1, min(len(shown), POSITIONS) + 1)]
    parts = [slice(end - 1, end) for end in ends]
    if len(shown) > POSITIONS:
        parts.append(slice(POSITIONS, len(shown)))
    return [
        (
            f"{part.start + 1}" if part.stop == part.start + 1 else f"{part.start + 1}-{part.stop}",
            f"{shown[part].sum():,}",
            f"{clicked[part].sum() / shown[part].sum():.3f}",
            f"{np.average(model.examination[part], weights=shown[part]):.3f}",
        )
        for part in parts
    ]


if __name__ == "__main__":
    run("clicks")
