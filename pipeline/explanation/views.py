"""Explanations as HTML pages, and as lines and tables of a terminal.

A page is one file without external resources, and its content security policy forbids scripts and
requests. Every value in a template is escaped, and has no control characters.
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
from tweetrerank.rerankers.explanation import Cell, Explanation, Row, Segment, visible

STYLES = ("", "magenta", "bold magenta", "reverse magenta", "bold reverse magenta")
"""Styles of the shades, for light and dark terminals."""

MARKED = 3  # Least shade between ‹ and › where there are no colours
WHERE_WIDTH = 24  # Characters of matching words in a table cell

LEAST_SHARE = 1 / 20
"""Families with less than this share of the post's largest contribution are left out."""


def page(topic: ExplainedTopic) -> str:
    """The page of one topic."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: visible(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"signed": signed, "plain": plain, "grade_text": grade_text}
    environment.filters["known"] = lambda value: (
        "not known" if isnan(value) else f"{value:.4g}"
    )
    files = (TEMPLATES / name for name in ("shared.css", "page.css"))
    style = "".join(file.read_text(encoding="utf-8") for file in files)
    return environment.get_template("topic.html").render(
        topic=topic,
        explanation=topic.explanation,
        style=Markup(style),
        digest=base64.b64encode(hashlib.sha256(style.encode()).digest()).decode(),
    )


def print_explanation(topic: ExplainedTopic) -> None:
    """Print an explanation; without colours if stdout is no terminal."""
    console, explanation = open_console(), topic.explanation
    console.print(
        visible(
            f"topic {topic.topic.query_id} “{topic.topic.text}”, {topic.collection}"
        )
    )
    for name, value in topic.facts.items():
        console.print(visible(f"{name}: {value}"))
    steps = enumerate(explanation.steps, start=1)
    legend = [_shaded(console, [Segment(name, step)]) for step, name in steps]
    console.print("Words of the query:", *legend)
    if explanation.kind == "matches":
        console.print(f"Matches, by {explanation.measure}")
    else:
        console.print(
            f"Contributions of families: {explanation.measure}; with the topic's mean score, "
            f"{signed(explanation.base)}, they add up to the score"
        )
    found = topic.reasons
    show = _print_matches if explanation.kind == "matches" else _print_contributions
    for heading, doc_ids in topic.chosen.items():
        console.print(f"\n{heading.upper()}", style="bold")
        for doc_id in doc_ids:
            post, reasons, grade = (
                topic.posts[doc_id],
                found[doc_id],
                topic.grades.get(doc_id),
            )
            judged = grade_text(grade) + ("" if grade is None else f" [{grade}]")
            headline = f"#{post['rank']}  {post['movement']}  {judged}  post {doc_id}"
            console.print("\n" + visible(headline), style="bold")
            places = [
                f"{n} #{at['rank']} ({at['score']:.4f})"
                for n, at in post["stages"].items()
            ]
            console.print(", ".join(places))
            console.print(_shaded(console, reasons.text) if reasons.text else "no text")
            console.print(_shaded(console, reasons.url) if reasons.url else "no URL")
            if reasons.numbers:
                console.print(visible(reasons.numbers))
            if reasons.rows:
                show(console, explanation, reasons.rows)
    if explanation.importances:
        console.print("\nIMPORTANCES OF THE MODEL'S FAMILIES", style="bold")
        importances = [
            f"{name} {share:.1%}" for name, share in explanation.importances.items()
        ]
        console.print(", ".join(importances))


def _print_matches(
    console: Console, explanation: Explanation, found: Sequence[Row]
) -> None:
    """A row per query word; a column per depth of words, one for all depths of letters."""
    header, columns = ["query", "IDF"], []
    for group, indices in explanation.groups:
        headings = [explanation.columns[index].heading for index in indices]
        if group.startswith("words"):
            header += headings
            columns += [[index] for index in indices]
        else:
            header.append(
                f"{'/'.join(heading.split()[0] for heading in headings)} {group}"
            )
            columns.append(indices)
    rows: list[list[str | Text]] = []
    for row in found:
        shaded = [_shaded(console, [_segment(cell)]) for cell in row.cells]
        cells = [
            Text(" ").join(shaded[index] for index in indices) for indices in columns
        ]
        rows.append([visible(row.label), f"{row.weight:.2f}", *cells])
    print_table(header, rows, left=range(len(header)))


def _print_contributions(
    console: Console, explanation: Explanation, found: Sequence[Row]
) -> None:
    """A row per family, from the largest contribution to the least."""
    values = {row.label: row.cells[0].score or 0.0 for row in found}
    least = LEAST_SHARE * max(map(abs, values.values()))
    shown = sorted(values.items(), key=lambda item: -item[1])
    if rows := [
        [family, signed(value)] for family, value in shown if abs(value) > least
    ]:
        print_table((), rows)


def _segment(cell: Cell) -> Segment:
    """A cell of a table of matches."""
    if cell.score is None:
        return Segment("–", 0)
    where = visible(cell.where)
    if len(where) > WHERE_WIDTH:
        where = where[: WHERE_WIDTH - 1] + "…"
    return Segment(f"{cell.score:.2f} {where}".rstrip(), cell.step)


def _shaded(console: Console, segments: Sequence[Segment]) -> Text:
    """Text in colours, or with ‹ › around the better matches where there are none."""
    if console.color_system and not console.no_color:
        return Text.assemble(*((text, STYLES[step]) for text, step in segments))
    text = Text()
    for marked, parts in groupby(segments, key=lambda segment: segment.step >= MARKED):
        joined = "".join(part for part, _ in parts)
        text.append(f"‹{joined}›" if marked else joined)
    return text
