"""Show explanations as HTML pages, or as lines and tables in a terminal.

A page is one file without external resources. Its content security policy forbids
scripts and requests. Every value in a template is escaped, and its control characters
are made visible.
"""

import base64
import hashlib
from collections.abc import Sequence
from itertools import groupby
from math import isnan

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from rich.console import Console
from rich.text import Text

from tweetrerank.pipeline.explanation.topic import (
    TEMPLATES,
    ExplainedTopic,
    grade_text,
    plain,
    signed,
)
from tweetrerank.pipeline.text import open_console, print_table
from tweetrerank.rerankers.explanation import (
    Cell,
    Explanation,
    Reasons,
    Row,
    Segment,
    visible,
)

STYLES = ("", "magenta", "bold magenta", "reverse magenta", "bold reverse magenta")
"""Style of each shade. The styles suit light and dark terminals."""

MARKED = 3  # The least shade that ‹ and › mark on terminals without colours
WHERE_WIDTH = 24  # Number of characters of matching words in a table cell

LEAST_SHARE = 1 / 20
"""Families are left out if their share of the post's largest contribution is lower."""


def page(topic: ExplainedTopic) -> str:
    """Return the HTML page of one topic."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: visible(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        signed=signed,
        plain=plain,
        grade_text=grade_text,
        known=lambda value: "not known" if isnan(value) else f"{value:.4g}",
    )
    files = (TEMPLATES / name for name in ("shared.css", "page.css"))
    style = "".join(file.read_text(encoding="utf-8") for file in files)
    digest = hashlib.sha256(style.encode()).digest()
    return environment.get_template("topic.html").render(
        topic=topic,
        explanation=topic.explanation,
        style=Markup(style),
        digest=base64.b64encode(digest).decode(),
    )


def print_explanation(topic: ExplainedTopic) -> None:
    """Print an explanation. It has no colours if stdout is not a terminal."""
    console = open_console()
    _print_summary(console, topic)
    reasons = topic.reasons
    for heading, doc_ids in topic.chosen.items():
        console.print(f"\n{heading.upper()}", style="bold")
        for doc_id in doc_ids:
            _print_post(console, topic, doc_id, reasons[doc_id])
    importances = topic.explanation.importances
    if importances:
        console.print("\nIMPORTANCES OF THE MODEL'S FAMILIES", style="bold")
        shares = [f"{name} {share:.1%}" for name, share in importances.items()]
        console.print(", ".join(shares))


def _print_summary(console: Console, topic: ExplainedTopic) -> None:
    """Print the topic, the facts, and the legends of shades and numbers."""
    query = f"topic {topic.topic.query_id} “{topic.topic.text}”"
    console.print(visible(f"{query}, {topic.collection}"))
    for name, value in topic.facts.items():
        console.print(visible(f"{name}: {value}"))
    explanation = topic.explanation
    legend = [
        _shaded(console, [Segment(name, step)])
        for step, name in enumerate(explanation.steps, start=1)
    ]
    console.print("Words of the query:", *legend)
    if explanation.kind == "matches":
        console.print(f"Matches, by {explanation.measure}")
    else:
        console.print(
            f"Contributions of families: {explanation.measure}; with the topic's mean "
            f"score, {signed(explanation.base)}, they add up to the score"
        )


def _print_post(
    console: Console, topic: ExplainedTopic, doc_id: str, reasons: Reasons
) -> None:
    post = topic.posts[doc_id]
    grade = topic.grades.get(doc_id)
    judged = grade_text(grade)
    if grade is not None:
        judged = f"{judged} [{grade}]"
    headline = f"#{post['rank']}  {post['movement']}  {judged}  post {doc_id}"
    console.print("\n" + visible(headline), style="bold")
    places = [
        f"{name} #{place['rank']} ({place['score']:.4f})"
        for name, place in post["stages"].items()
    ]
    console.print(", ".join(places))
    _print_segments(console, reasons.text, "no text")
    _print_segments(console, reasons.url, "no URL")
    if reasons.numbers:
        console.print(visible(reasons.numbers))
    if not reasons.rows:
        return
    if topic.explanation.kind == "matches":
        _print_matches(console, topic.explanation, reasons.rows)
    else:
        _print_contributions(reasons.rows)


def _print_segments(
    console: Console, segments: Sequence[Segment], missing: str
) -> None:
    if segments:
        console.print(_shaded(console, segments))
    else:
        console.print(missing)


def _print_matches(
    console: Console, explanation: Explanation, rows: Sequence[Row]
) -> None:
    """Print a table of matches.

    Each row is a word of the query. Each column is one depth of words, or all depths of
    letters together.
    """
    header = ["query", "IDF"]
    columns: list[Sequence[int]] = []
    for group, indices in explanation.groups:
        headings = [explanation.columns[index].heading for index in indices]
        if group.startswith("words"):
            header += headings
            columns += [[index] for index in indices]
        else:
            depths = "/".join(heading.split()[0] for heading in headings)
            header.append(f"{depths} {group}")
            columns.append(indices)
    table: list[list[str | Text]] = []
    for row in rows:
        shaded = [_shaded(console, [_segment(cell)]) for cell in row.cells]
        line: list[str | Text] = [visible(row.label), f"{row.weight:.2f}"]
        for column in columns:
            line.append(Text(" ").join(shaded[index] for index in column))
        table.append(line)
    print_table(header, table, left=range(len(header)))


def _print_contributions(rows: Sequence[Row]) -> None:
    """Print a row for each family, from the largest contribution to the smallest.

    Families with a small share are left out (:data:`LEAST_SHARE`).
    """
    values = {row.label: row.cells[0].score or 0.0 for row in rows}
    least = LEAST_SHARE * max(map(abs, values.values()))
    descending = sorted(values.items(), key=lambda item: -item[1])
    table = [
        [family, signed(value)] for family, value in descending if abs(value) > least
    ]
    if table:
        print_table((), table)


def _segment(cell: Cell) -> Segment:
    """Return the text and the shade of a cell in a table of matches."""
    if cell.score is None:
        return Segment("–", 0)
    where = visible(cell.where)
    if len(where) > WHERE_WIDTH:
        where = where[: WHERE_WIDTH - 1] + "…"
    return Segment(f"{cell.score:.2f} {where}".rstrip(), cell.step)


def _shaded(console: Console, segments: Sequence[Segment]) -> Text:
    """Return a text in colours, or else with ‹ › around the better matches."""
    text = Text()
    if console.color_system and not console.no_color:
        for segment in segments:
            text.append(segment.text, STYLES[segment.step])
        return text
    for is_marked, run in groupby(segments, key=lambda segment: segment.step >= MARKED):
        joined = "".join(segment.text for segment in run)
        text.append(f"‹{joined}›" if is_marked else joined)
    return text
