"""Make topics and judgments of a click log.

  python -m pipeline.clicks log --output qrels.txt

The log is a file or a folder of JSON lines, .gz or not: the log of pipeline.serve --log
DIR --log-queries plain, exports of OpenSearch's User Behavior Insights, or JSON lines
from another source. A line from another source has the posts in the order of the page,
and the clicked ones. It may have the "query_id" of the topic; other keys are ignored.

  {"query": "storm damage", "shown": ["17", "4", "9"], "clicked": ["4"]}

Without a query_id, the id is made of the text, and is the same in all logs. The file of
topics, qrels.topics.tsv, is next to the judgments. Grades follow from a model of
clicks, which is fitted to the whole log: the probability that a post attracts those who
look at its position more than posts that are clicked by mistake
(pipeline/collections/clicks.py).

  grade 2      clicked twice or more, probability of .9 or more
  grade 1      clicked, probability of .5 or more
  grade 0      clicked or skipped above a click, lower probability
  not judged   never clicked, and not skipped above a click, or not enough for a lower
               probability
"""

from dataclasses import dataclass
from pathlib import Path

from tweetrerank.pipeline.command.main import run
from tweetrerank.pipeline.command.options import argument, option, output_file
from tweetrerank.pipeline.text import say
from tweetrerank.pipeline.usage_error import UsageError


@dataclass(frozen=True)
class Options:
    """Files."""

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
    """Read the log, estimate grades, write both files and report."""
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
    # If one file fails, the other is not replaced.
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
