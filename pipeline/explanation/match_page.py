"""An explanation to look at: one HTML page that needs nothing else, or lines of a terminal.

Texts of posts and topics reach both as :mod:`pipeline.explanation.frame` says.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from pipeline.explanation.frame import document, escaped, head, section, terminal, topic_header
from pipeline.explanation.matches import STEPS, Cell, Column, Explanation, PostView, Segment
from pipeline.explanation.rank_changes import RankChange, headline, visible

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

STYLES = ("", "magenta", "bold magenta", "reverse magenta", "bold reverse magenta")
"""Of the shades in a terminal, whatever its background."""

MARKED = 3
"""Where there are no colours, what has this shade or a stronger one is put between ‹ and ›."""

WHERE_WIDTH = 24
"""Characters of matching words that a terminal's table shows."""

_STYLE = """\
mark { color: inherit; background: none; border-radius: .2rem; print-color-adjust: exact;
  -webkit-print-color-adjust: exact; }
.s1 { background: var(--s1); }
.s2 { background: var(--s2); }
.s3 { background: var(--s3); }
.s4 { background: var(--s4); font-weight: 600; }
td small { display: block; max-width: 12rem; overflow-wrap: break-word; }
.legend mark { padding: .1rem .4rem; margin-right: .2rem; }
@media (max-width: 40rem) { details dl { display: block; } }
"""


def page(explanation: Explanation) -> str:
    """The whole page."""
    posts = "".join(
        section(heading, "".join(_post(explanation, post) for post in shown))
        for heading, shown in explanation.sections.items()
    )
    facts = {
        "Collection": explanation.collection,
        "Candidates": f"{explanation.candidates}, by {explanation.first_stage}",
        "Model": explanation.model,
        "Mixing": explanation.mixing,
    }
    return document(
        f"Topic {explanation.query_id}: {explanation.query} ({explanation.collection})",
        _STYLE,
        topic_header(explanation.query_id, explanation.query, facts),
        f"{_legend(explanation)}\n<main>\n{posts}</main>",
    )


def _legend(explanation: Explanation) -> str:
    marks = "\n".join(
        f'<mark class="s{step}">{name}: {bound:.2f} or more</mark>'
        for step, (name, bound) in enumerate(zip(STEPS, explanation.bounds, strict=True), start=1)
    )
    return f"""<aside class="legend" aria-label="Legend">
<p>The darker (in dark mode: the brighter) the shade, the better a word or letter is matched by
the query; the measure is the model's {escaped(explanation.measure)}.</p>
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
    url = f'<p class="url" dir="ltr">{_segments(post.url)}</p>\n' if post.url else (
        '<p class="quiet">no URL</p>\n'
    )  # fmt: skip
    return f"""<article>
{head(headline(post.doc_id, post.standing, post.grade))}
<p class="post" dir="auto">{_segments(post.text)}</p>
{url}<p class="quiet">{" → ".join(_stages(post.standing))}</p>
{_table(explanation.columns, post)}
{_further(post)}</article>
"""


def _stages(standing: RankChange) -> list[str]:
    stages = {"before": standing.before, "neural": standing.neural, "after": standing.after}
    return [f"{name} {place}" for name, place in stages.items() if place]


def _segments(segments: Sequence[Segment]) -> str:
    return "".join(
        f'<mark class="s{step}">{escaped(text)}</mark>' if step else escaped(text)
        for text, step in segments
    )


def _table(columns: Sequence[Column], post: PostView) -> str:
    if not post.rows:
        return '<p class="quiet">The query has no words that the model reads.</p>'
    groups = "".join(
        f'<th scope="colgroup" colspan="{len(list(members))}">{escaped(group)}</th>'
        for group, members in groupby(columns, key=lambda column: column.group)
    )
    headings = "".join(f'<th scope="col">{escaped(column.heading)}</th>' for column in columns)
    rows = "".join(
        f'<tr><th scope="row"><bdi>{escaped(row.word)}</bdi></th><td>{row.weight:.2f}</td>'
        + "".join(_cell(cell) for cell in row.cells)
        + "</tr>\n"
        for row in post.rows
    )
    label = escaped(f"Matches of post {post.doc_id}")
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
    where = f"<small><bdi>{escaped(cell.where)}</bdi></small>" if cell.where else ""
    return f"<td{shade}>{cell.score:.2f}{where}</td>"


def _further(post: PostView) -> str:
    """The other shadings, folded away."""
    if not post.further:
        return ""
    items = "".join(
        f'<dt>{escaped(shading.title)}</dt><dd dir="auto">{_segments(shading.segments)}</dd>\n'
        for shading in post.further
    )
    return f"<details>\n<summary>phrases and letters</summary>\n<dl>\n{items}</dl>\n</details>\n"


def print_explanation(explanation: Explanation) -> None:
    """Print the view for a terminal; without colours if stdout is none."""
    console = terminal()
    lines = [
        f"topic {explanation.query_id} “{explanation.query}”, {explanation.collection}",
        f"{explanation.candidates} candidates by {explanation.first_stage}; {explanation.model}",
        explanation.mixing,
    ]
    for line in lines:
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
    console.print("\n" + "  ".join(headline(post.doc_id, post.standing, post.grade)), style="bold")
    console.print(", ".join(_stages(post.standing)))
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
