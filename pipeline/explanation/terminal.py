"""Explanations as lines and tables of a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

from rich.console import Console
from rich.text import Text

from pipeline.explanation.contributions import FusionExplanation
from pipeline.explanation.matches import STEPS, Cell, MatchExplanation, PostMatches, Segment
from pipeline.explanation.pages import signed
from pipeline.explanation.rank_changes import visible
from pipeline.text import open_console, print_table

STYLES = ("", "magenta", "bold magenta", "reverse magenta", "bold reverse magenta")
"""Styles of the shades, for light and dark terminals."""

MARKED = 3  # Least shade between ‹ and › where there are no colours
WHERE_WIDTH = 24  # Characters of matching words in a table cell

LEAST_SHARE = 1 / 20
"""Families with less than this share of the post's largest contribution are left out."""


def print_explanation(explanation: MatchExplanation | FusionExplanation) -> None:
    """Print an explanation; without colours if stdout is no terminal."""
    console, ranking = open_console(), explanation.ranking
    topic = ranking.topic
    console.print(visible(f"topic {topic.query_id} “{topic.text}”, {ranking.collection}"))
    for name, value in explanation.facts.items():
        console.print(visible(f"{name}: {value}"))
    if isinstance(explanation, MatchExplanation):
        bounds = zip(STEPS, explanation.bounds, strict=True)
        legend = [
            _shaded(console, [Segment(f"{name} from {bound:.2f}", step)])
            for step, (name, bound) in enumerate(bounds, start=1)
        ]
        console.print(f"Matches, by {explanation.measure}:", *legend)
    else:
        console.print(
            f"Contributions of families: {explanation.meaning}; with the topic's mean score, "
            f"{signed(explanation.base)}, they add up to the score"
        )
    for heading, doc_ids in ranking.chosen.items():
        console.print(f"\n{heading.upper()}", style="bold")
        for doc_id in doc_ids:
            _print_post(console, explanation, doc_id)
    if isinstance(explanation, FusionExplanation):
        console.print("\nIMPORTANCES OF THE MODEL'S FAMILIES", style="bold")
        importances = [f"{name} {share:.1%}" for name, share in explanation.importances.items()]
        console.print(", ".join(importances))


def _print_post(
    console: Console, explanation: MatchExplanation | FusionExplanation, doc_id: str
) -> None:
    ranking = explanation.ranking
    console.print("\n" + visible("  ".join(ranking.headline(doc_id))), style="bold")
    console.print(", ".join(ranking.changes[doc_id].stages))
    if isinstance(explanation, MatchExplanation):
        matches = explanation.posts[doc_id]
        console.print(_shaded(console, matches.text))
        console.print(_shaded(console, matches.url) if matches.url else "no URL")
        if matches.rows:
            _print_matches(console, explanation, matches)
    else:
        post = ranking.candidates.posts[doc_id]
        console.print(visible(post.text) or "no text")
        console.print(visible(post.url) or "no URL")
        _print_contributions(explanation.posts[doc_id].families)


def _print_matches(console: Console, explanation: MatchExplanation, matches: PostMatches) -> None:
    """A row per query word; a column per depth of words, one for all depths of letters."""
    header, columns = ["query", "IDF"], []
    for group, indices in explanation.groups:
        headings = [explanation.columns[index].heading for index in indices]
        if explanation.columns[indices[0]].perspective == "words":
            header += headings
            columns += [[index] for index in indices]
        else:
            header.append(f"{'/'.join(heading.split()[0] for heading in headings)} {group}")
            columns.append(indices)
    rows: list[list[str | Text]] = []
    for row in matches.rows:
        rows.append([visible(row.word), f"{row.weight:.2f}"])
        for indices in columns:
            cells = [_shaded(console, [_segment(row.cells[index])]) for index in indices]
            rows[-1].append(Text(" ").join(cells))
    print_table(header, rows, left=range(len(header)))


def _print_contributions(families: Mapping[str, float]) -> None:
    """A row per family, from the largest contribution to the least."""
    least = LEAST_SHARE * max(map(abs, families.values()))
    rows = [
        [family, signed(value)]
        for family, value in sorted(families.items(), key=lambda item: -item[1])
        if abs(value) > least
    ]
    if rows:
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
