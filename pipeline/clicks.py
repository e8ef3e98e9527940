"""Make topics and judgments from a click log.

  python -m pipeline.clicks log --output qrels.txt

The log is a file of JSON lines or a folder of such files, which may end in .gz. It is
the log of pipeline.serve --log DIR --log-queries plain, an export of OpenSearch's User
Behavior Insights, or a log from another source. A line from another source names the
posts in the order of the page, and those that were clicked. It may have the "query_id"
of the topic. Other keys are ignored.

  {"query": "storm damage", "shown": ["17", "4", "9"], "clicked": ["4"]}

Without a query_id, the id is made from the text, so it is the same in all logs. The
topics are written to a file next to the judgments (qrels.topics.tsv). The grades follow
from a model of clicks that is fitted to the whole log
(pipeline/collections/click_model.py). For each post it estimates a probability: that
the post attracts people who look at its position more than a post that is only clicked
by mistake.

  grade 2      the post was clicked at least twice, and the probability is at least .9
  grade 1      it was clicked, and the probability is at least .5
  grade 0      it was clicked or skipped above a click, and the probability is lower
  not judged   it was never clicked, and was skipped above a click too rarely or never
"""

from dataclasses import dataclass
from pathlib import Path

from tweetrerank.pipeline.command.main import run
from tweetrerank.pipeline.command.options import argument, option, output_file
from tweetrerank.pipeline.text import say
from tweetrerank.pipeline.usage_error import UsageError


@dataclass(frozen=True)
class Options:
    """The log to read, and the file to write."""

    log: Path = argument(
        "click log: a file of JSON lines, or a folder of them",
        parse=Path,
    )
    output: Path = option(
        "file of judgments, in TREC's form",
        parse=output_file,
        required=True,
        metavar="FILE",
    )


def main(options: Options) -> None:
    """Read the log, estimate the grades, write both files, and print a report.

    Raises UsageError if one of the files to write is the log itself.
    """
    from tweetrerank.pipeline.collections.click_log import read_click_log
    from tweetrerank.pipeline.collections.click_model import fit, judgments, report
    from tweetrerank.pipeline.collections.trec import written_file

    output = options.output
    topics_file = output.with_name(f"{output.name.split('.')[0]}.topics.tsv")
    if len({path.resolve() for path in (options.log, output, topics_file)}) < 3:
        raise UsageError(
            f"--output: found {output}, expected another file than the log, and than "
            f"{topics_file}"
        )
    log = read_click_log(options.log)
    examination, _, relevance = fit(log)
    qrels = judgments(log, relevance)
    # If one of the files cannot be written, the other one is not replaced either.
    with written_file(topics_file) as topics, written_file(output) as judged:
        for query_id, text, *_ in log.topics:
            grades = qrels.get(query_id)
            if not grades:
                continue
            topics.write(f"{query_id}\t{text}\n")
            # The best grade first, then by doc_id
            by_grade = sorted(grades.items(), key=lambda item: (-item[1], item[0]))
            for doc_id, grade in by_grade:
                judged.write(f"{query_id} 0 {doc_id} {grade}\n")
    for note in log.notes:
        say(note)
    print(
        f"{report(log, examination, qrels)}\n\nwrote {output} and {topics_file}\n"
        "the file of a collection with them has the lines\n"
        f'  topics = "{topics_file.name}"\n'
        f'  qrels = "{output.name}"\n'
        "  judged_only = true"
    )


if __name__ == "__main__":
    run("clicks")
