"""Find similar questions in an archive of answered ones, and show their answers.

  python -m pipeline.retrieve --archive trecqa-raw --question "who invented the telephone?"
  python -m pipeline.retrieve --archive wikiqa --questions mine.tsv --output mine.run

The archive is the training part of a collection: its questions, each with its relevant answers.
The model is cntn (python -m pipeline.train cntn --collection NAME trains one). --output writes a
TREC run whose documents are the archive's questions, each scored by its best answer.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.collections import named
from pipeline.collections.topics import Topic, read_topics
from pipeline.collections.trec import write_run
from pipeline.command.errors import UsageError
from pipeline.command.main import run
from pipeline.command.options import existing_file, fraction, option, output_file, positive_int
from pipeline.command.runtime import choose_device, counted, one_line, print_posts

if TYPE_CHECKING:
    from pipeline.ranking.archive import Match, QuestionArchive

SHOWN = 5  # Questions of the archive shown per question

DEFAULT_ALPHA = 0.7
"""Section 6.3 of Qiu & Huang (2015) finds the best α near this value, in both languages."""


@dataclass(frozen=True)
class Options:
    """The archive, the questions, and files."""

    archive: str = option(
        "collection whose training part is the archive (trecqa-raw, trecqa-all-raw, wikiqa, …)",
        required=True,
        metavar="NAME",
    )
    checkpoint: Path | None = option(
        "folder of a trained cntn (default: the one trained on the archive's collection)",
        parse=Path,
        metavar="DIR",
    )
    question: str | None = option("the question", metavar="TEXT")
    questions: Path | None = option(
        "file of questions, qid<TAB>text a line", parse=existing_file, metavar="FILE"
    )
    alpha: float = option(
        "weight of the questions' similarity against the answer's score",
        default=DEFAULT_ALPHA,
        parse=fraction,
    )
    hits: int = option("questions of the archive per question", default=20, parse=positive_int)
    output: Path | None = option("run file to write", parse=output_file, metavar="RUN")
    runtag: str = option("last column of the run", default="tweetrerank")
    threads: int | None = option("CPU threads (default: all cores)", parse=positive_int)
    device: str = option("device of the model", default="auto", choices=("auto", "cpu", "cuda"))
    data: Path | None = option("data folder (default: $TWEETRERANK_DATA)", parse=Path)


def main(options: Options) -> None:
    """Open the archive, search it, show the results or write them as a run."""
    from pipeline.ranking.archive import mix

    started = time.perf_counter()
    topics = _topics(options)
    archive = _archive(options)
    opened = time.perf_counter()
    found = archive.search(topics, options.hits)
    scores = mix(found, options.alpha)
    if options.output:
        write_run(options.output, scores, options.runtag)
    if options.question is not None or not options.output:
        for topic in topics:
            _show(topic, found[topic.query_id], options.alpha)
    wrote = f"wrote {options.output}: " if options.output else ""
    now = time.perf_counter()
    print(
        f"{wrote}{sum(map(len, scores.values()))} of {counted(len(archive.pairs), 'question')} for "
        f"{len(topics)} in {now - started:.1f} s (archive {opened - started:.1f} s, search "
        f"{now - opened:.2f} s)",
        file=sys.stderr,
    )


def _topics(options: Options) -> list[Topic]:
    """The questions; raises UsageError for contradictory options."""
    problems = []
    if (options.question is None) == (options.questions is None):
        problems.append("give one of --question TEXT and --questions FILE")
    if options.question is not None and not options.question.strip():
        problems.append("--question: found an empty text, expected a question")
    if any(c.isspace() for c in options.runtag) or not options.runtag:
        problems.append(f"--runtag: found {options.runtag!r}, expected a word without spaces")
    if problems:
        raise UsageError(problems)
    if options.questions is not None:
        return read_topics(options.questions)
    return [Topic("question", options.question or "")]


def _archive(options: Options) -> QuestionArchive:
    from pipeline.ranking.archive import QuestionArchive, archived_pairs
    from pipeline.ranking.checkpoints import default_directory
    from rerankers import checkpoint

    collection = named.find_answers(options.archive, options.data)
    device = choose_device(options.device, options.threads)
    folder = options.checkpoint or default_directory("cntn", collection.name)
    loaded = checkpoint.load(folder, device=device)
    return QuestionArchive.build(archived_pairs(collection), loaded)


def _show(topic: Topic, matches: Sequence[Match], alpha: float) -> None:
    from pipeline.ranking.archive import best_pairs

    print(f"{topic.query_id} “{one_line(topic.text)}”:")
    rows = []
    for rank, match in enumerate(best_pairs(matches, alpha)[:SHOWN], start=1):
        pair = match.pair
        score = f"{match.mixed(alpha):.4f}"
        rows.append([str(rank), score, f"[{pair.query_id}]", pair.question])
        rows.append(["", "", "", pair.answer.text])
    print_posts(rows)


if __name__ == "__main__":
    run("retrieve")
