"""An explanation to look at: one HTML page that needs nothing else, or lines of a terminal.

Whatever comes from posts, topics or file names goes through :func:`_text` on its way into the
page, which forbids the browser to load or run anything, and through
:func:`pipeline.explanation.visible` on its way to the terminal.
"""

import base64
import hashlib
from collections.abc import Sequence
from html import escape
from itertools import groupby
from typing import TYPE_CHECKING

from pipeline.explanation import (
    STEPS,
    Cell,
    Column,
    Explanation,
    Place,
    PostView,
    Segment,
    grade_text,
    visible,
)

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

STYLES = ("", "magenta", "bold magenta", "reverse magenta", "bold reverse magenta")
"""Of the shades in a terminal, whatever its background."""

MARKED = 3
"""Where there are no colours, what has this shade or a stronger one is put between ‹ and ›."""

WHERE_WIDTH = 24
"""Characters of matching words that a terminal's table shows."""

LIGHT = {
    "text": "#1b1b1f", "quiet": "#55555e", "ground": "#ffffff", "panel": "#f5f5f7",
    "line": "#d5d5dc", "s1": "#fce4ec", "s2": "#f8bbd0", "s3": "#f48fb1", "s4": "#ec6f9a",
}  # fmt: skip
DARK = {
    "text": "#f1f1f4", "quiet": "#b0b0ba", "ground": "#141417", "panel": "#1f1f24",
    "line": "#3a3a42", "s1": "#40202d", "s2": "#641f3f", "s3": "#8c2553", "s4": "#b32a68",
}  # fmt: skip
"""Colours by role; on each of the others the text has a contrast of at least 4.5 to 1."""


def _variables(colours: dict[str, str]) -> str:
    return " ".join(f"--{name}: {colour};" for name, colour in colours.items())


_STYLE = f"""
:root {{ color-scheme: light dark; {_variables(LIGHT)} }}
@media (prefers-color-scheme: dark) {{ :root {{ {_variables(DARK)} }} }}
* {{ box-sizing: border-box; }}
body {{ margin: 0 auto; max-width: 62rem; padding: 1rem; color: var(--text);
  background: var(--ground); font: 1rem/1.5 system-ui, sans-serif; }}
h1 {{ font-size: 1.5rem; line-height: 1.25; margin: .5rem 0; overflow-wrap: anywhere; }}
h2 {{ font-size: 1.2rem; margin: 2rem 0 .5rem; }}
h3 {{ font-size: 1rem; margin: 0; display: inline; overflow-wrap: anywhere; }}
dl {{ display: grid; grid-template-columns: max-content 1fr; gap: .1rem .8rem; margin: .5rem 0; }}
dt, .quiet {{ color: var(--quiet); }}
dd {{ margin: 0; overflow-wrap: anywhere; }}
article, .legend {{ background: var(--panel); border: 1px solid var(--line);
  border-radius: .5rem; padding: .8rem 1rem; margin: .8rem 0; }}
.head {{ display: flex; flex-wrap: wrap; gap: .2rem .9rem; align-items: baseline; }}
.post {{ font-size: 1.1rem; margin: .6rem 0; overflow-wrap: anywhere; }}
.url {{ font: .9rem/1.5 ui-monospace, monospace; margin: .4rem 0; overflow-wrap: anywhere; }}
mark {{ color: inherit; background: none; border-radius: .2rem; print-color-adjust: exact;
  -webkit-print-color-adjust: exact; }}
.s1 {{ background: var(--s1); }}
.s2 {{ background: var(--s2); }}
.s3 {{ background: var(--s3); }}
.s4 {{ background: var(--s4); font-weight: 600; }}
.wide {{ overflow-x: auto; margin: .6rem 0; }}
table {{ border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }}
th, td {{ border: 1px solid var(--line); padding: .2rem .45rem; text-align: left;
  vertical-align: top; }}
th {{ font-weight: 600; }}
td small {{ display: block; max-width: 12rem; overflow-wrap: break-word; }}
summary {{ cursor: pointer; }}
.legend p {{ margin: .4rem 0; }}
.legend mark {{ padding: .1rem .4rem; margin-right: .2rem; }}
@media (max-width: 40rem) {{ details dl {{ display: block; }} }}
"""

_POLICY = (
    "default-src 'none'; base-uri 'none'; form-action 'none'; style-src 'sha256-"
    + base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
    + "'"
)


def page(explanation: Explanation) -> str:
    """The whole page."""
    title = f"Topic {explanation.query_id}: {explanation.query} ({explanation.collection})"
    posts = "".join(
        f"<section>\n<h2>{_text(_capital(heading))}</h2>\n"
        + "".join(_post(explanation, post) for post in section)
        + "</section>\n"
        for heading, section in explanation.sections.items()
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_text(_POLICY)}">
<meta name="referrer" content="no-referrer">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{_text(title)}</title>
<style>{_STYLE}</style>
</head>
<body>
<header>
<h1>Topic {_text(explanation.query_id)}: <bdi>{_text(explanation.query)}</bdi></h1>
{_facts(explanation)}
</header>
{_legend(explanation)}
<main>
{posts}</main>
</body>
</html>
"""


def _text(text: str) -> str:
    """Text as it can stand anywhere in the page, quoted attributes included."""
    return escape(visible(text), quote=True)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _facts(explanation: Explanation) -> str:
    facts = {
        "Collection": explanation.collection,
        "Candidates": f"{explanation.candidates}, by {explanation.first_stage}",
        "Model": explanation.model,
        "Mixing": explanation.mixing,
    }
    rows = "".join(f"<dt>{name}</dt><dd>{_text(value)}</dd>\n" for name, value in facts.items())
    return f"<dl>\n{rows}</dl>"


def _legend(explanation: Explanation) -> str:
    marks = "\n".join(
        f'<mark class="s{step}">{name}: {bound:.2f} or more</mark>'
        for step, (name, bound) in enumerate(zip(STEPS, explanation.bounds, strict=True), start=1)
    )
    return f"""<aside class="legend" aria-label="Legend">
<p>The darker (in dark mode: the brighter) the shade, the better a word or letter is matched by
the query; the measure is the model's {_text(explanation.measure)}.</p>
<p>{marks}</p>
<p>A post's words are shaded by their matches as single words, its URL by pieces of a few letters.
In the tables a row is a word of the query, with its weight (IDF); a column of “2 words” is about
the phrase of two words that begins there, and below a number are the words of the post that match
best. Columns of letters have the mean over the word's letter trigrams. What has no shade is
matched by nothing, or is not read: mentions, links and punctuation.</p>
<p class="quiet">The model reads these best matches and the means over each post, and whether a
post has a URL; a network that was trained weighs them into the neural score.</p>
</aside>"""


def _post(explanation: Explanation, post: PostView) -> str:
    grade = "" if post.grade is None else f" [{post.grade}]"
    url = f'<p class="url" dir="ltr">{_segments(post.url)}</p>\n' if post.url else (
        '<p class="quiet">no URL</p>\n'
    )  # fmt: skip
    before, neural, after = (_place(place) for place in post.standing)
    return f"""<article>
<div class="head">
<h3>#{post.standing.after.rank}</h3>
<span>{_movement(post)}</span>
<span>{grade_text(post.grade)}{grade}</span>
<span class="quiet">post {_text(post.doc_id)}</span>
</div>
<p class="post" dir="auto">{_segments(post.text)}</p>
{url}<p class="quiet">before {before} → neural {neural} → after {after}</p>
{_table(explanation.columns, post)}
{_further(post)}</article>
"""


def _movement(post: PostView) -> str:
    rise, old = post.standing.rise, post.standing.before.rank
    if rise == 0:
        return "where it was before"
    return f"▲ {rise}, from #{old}" if rise > 0 else f"▼ {-rise}, from #{old}"


def _place(place: Place) -> str:
    return f"#{place.rank} ({place.score:.4f})"


def _segments(segments: Sequence[Segment]) -> str:
    return "".join(
        f'<mark class="s{step}">{_text(text)}</mark>' if step else _text(text)
        for text, step in segments
    )


def _table(columns: Sequence[Column], post: PostView) -> str:
    if not post.rows:
        return '<p class="quiet">The query has no words that the model reads.</p>'
    groups = "".join(
        f'<th scope="colgroup" colspan="{len(list(members))}">{_text(group)}</th>'
        for group, members in groupby(columns, key=lambda column: column.group)
    )
    headings = "".join(f'<th scope="col">{_text(column.heading)}</th>' for column in columns)
    rows = "".join(
        f'<tr><th scope="row"><bdi>{_text(row.word)}</bdi></th><td>{row.weight:.2f}</td>'
        + "".join(_cell(cell) for cell in row.cells)
        + "</tr>\n"
        for row in post.rows
    )
    label = _text(f"Matches of post {post.doc_id}")
    return f"""<div class="wide" role="region" aria-label="{label}" tabindex="0">
<table>
<thead>
<tr><th scope="col" rowspan="2">query</th><th scope="col" rowspan="2">IDF</th>{groups}</tr>
<tr>{headings}</tr>
</thead>
<tbody>
{rows}</tbody>
</table>
</div>"""


def _cell(cell: Cell) -> str:
    if cell.score is None:
        return "<td>–</td>"
    shade = f' class="s{cell.step}"' if cell.step else ""
    where = f"<small><bdi>{_text(cell.where)}</bdi></small>" if cell.where else ""
    return f"<td{shade}>{cell.score:.2f}{where}</td>"


def _further(post: PostView) -> str:
    """The other shadings, folded away."""
    if not post.further:
        return ""
    items = "".join(
        f'<dt>{_text(shading.title)}</dt><dd dir="auto">{_segments(shading.segments)}</dd>\n'
        for shading in post.further
    )
    return f"<details>\n<summary>phrases and letters</summary>\n<dl>\n{items}</dl>\n</details>\n"


def print_explanation(explanation: Explanation) -> None:
    """Print the view for a terminal; without colours if stdout is none."""
    from rich.console import Console

    # Posts may hold what looks like rich's own markup.
    console = Console(markup=False, highlight=False, emoji=False, soft_wrap=True)
    head = [
        f"topic {explanation.query_id} “{explanation.query}”, {explanation.collection}",
        f"{explanation.candidates} candidates by {explanation.first_stage}; {explanation.model}",
        explanation.mixing,
    ]
    for line in head:
        console.print(visible(line))
    steps = [
        Segment(f"{name} from {bound:.2f}", step)
        for step, (name, bound) in enumerate(zip(STEPS, explanation.bounds, strict=True), start=1)
    ]
    console.print(f"matches, by {explanation.measure}:", *(_shaded(console, [s]) for s in steps))
    for heading, posts in explanation.sections.items():
        console.print(f"\n{heading.upper()}", style="bold")
        for post in posts:
            _print_post(console, explanation.columns, post)


def _print_post(console: "Console", columns: Sequence[Column], post: PostView) -> None:
    grade = "" if post.grade is None else f" [{post.grade}]"
    head = [f"#{post.standing.after.rank}", _movement(post), f"{grade_text(post.grade)}{grade}",
            f"post {visible(post.doc_id)}"]  # fmt: skip
    console.print("\n" + "  ".join(head), style="bold")
    before, neural, after = (_place(place) for place in post.standing)
    console.print(f"before {before}, neural {neural}, after {after}")
    console.print(_shaded(console, post.text))
    console.print(_shaded(console, post.url) if post.url else "no URL")
    for line in _lines(console, columns, post):
        console.print(line)


def _lines(console: "Console", columns: Sequence[Column], post: PostView) -> "list[Text]":
    """The table of a post: a column for each depth of words, one for all depths of letters."""
    from rich.text import Text

    groups: list[tuple[str, list[int]]] = []
    for group, members in groupby(range(len(columns)), key=lambda place: columns[place].group):
        places = list(members)
        if columns[places[0]].perspective == "words":
            groups += [(columns[place].heading, [place]) for place in places]
        else:
            lengths = "/".join(columns[place].heading.split()[0] for place in places)
            groups.append((f"{lengths} {group}", places))
    table = [[Text("query"), Text("IDF"), *(Text(heading) for heading, _ in groups)]]
    for row in post.rows:
        cells = [
            Text(" ").join(_shaded(console, [_segment(row.cells[place])]) for place in places)
            for _, places in groups
        ]
        table.append([Text(visible(row.word)), Text(f"{row.weight:.2f}"), *cells])
    for column in range(len(table[0])):
        width = max(line[column].cell_len for line in table)
        for line in table:
            line[column].pad_right(width - line[column].cell_len)
    joined = [Text("  ").join(line) for line in table] if post.rows else []
    for text in joined:
        text.rstrip()
    return joined


def _segment(cell: Cell) -> Segment:
    """A cell of the terminal's table."""
    if cell.score is None:
        return Segment("–", 0)
    where = visible(cell.where)
    if len(where) > WHERE_WIDTH:
        where = where[: WHERE_WIDTH - 1] + "…"
    return Segment(f"{cell.score:.2f} {where}".rstrip(), cell.step)


def _shaded(console: "Console", segments: Sequence[Segment]) -> "Text":
    """Text in colours, or with ‹ › around the better matches where there are none."""
    from rich.text import Text

    text = Text()
    if console.color_system and not console.no_color:
        for part, step in segments:
            text.append(part, style=STYLES[step])
        return text
    for marked, parts in groupby(segments, key=lambda segment: segment.step >= MARKED):
        joined = "".join(part for part, _ in parts)
        text.append(f"‹{joined}›" if marked else joined)
    return text
