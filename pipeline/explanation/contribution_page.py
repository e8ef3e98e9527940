"""What a learned fusion made of a topic, to look at: an HTML page, or lines of a terminal.

Texts of posts and topics reach both as :mod:`pipeline.explanation.frame` says. Bars are drawn as SVG, whose
lengths are attributes, since the page forbids styles in elements; a number stands beside each.
"""

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from math import isnan
from typing import TYPE_CHECKING

from pipeline.explanation.contributions import FusedPost, FusionExplanation, Part
from pipeline.explanation.frame import document, escaped, head, section, terminal, topic_header
from pipeline.explanation.rank_changes import headline, visible

if TYPE_CHECKING:
    from rich.console import Console

LEAST = 1 / 20
"""In a terminal, families that added less than this part of the post's largest are left out."""

TEXTLESS = "its text is not known here"
"""Of a post that only a run has."""

IMPORTANCES = "what the model counts on"
SHARES = "Each family's share of the importances of all features, whatever the topic."

_STYLE = """\
.bars { width: 100%; margin: .6rem 0; }
.bars th, .bars td { border: 0; padding: .05rem .6rem .05rem 0; vertical-align: middle; }
.bars th { font-weight: inherit; white-space: nowrap; }
.bars thead th { color: var(--quiet); }
.bars td:last-child { width: 100%; padding-right: 0; }
.number { text-align: right; white-space: nowrap; }
.bar { display: block; width: 100%; height: .8rem; }
.plus { fill: var(--plus); }
.minus { fill: var(--minus); }
.zero { stroke: var(--text); }
.features { display: flex; flex-wrap: wrap; gap: 0 1.5rem; }
.features tbody th { overflow-wrap: anywhere; }
caption { text-align: left; padding: .4rem 0 .2rem; }
@media (max-width: 40rem) {
  .bars th, .bars td { padding-right: .4rem; }
}
"""


def page(explanation: FusionExplanation) -> str:
    """The whole page."""
    facts = {
        "Collection": explanation.collection,
        "Candidates": f"{explanation.candidates}, the best of each ranker",
        "Rankers": explanation.rankers,
        "Model": explanation.model,
    }
    posts = "".join(
        section(heading, "".join(_post(post, explanation.extent) for post in shown))
        for heading, shown in explanation.sections.items()
    )
    return document(
        f"Topic {explanation.query_id}: {explanation.query} ({explanation.collection})",
        _STYLE,
        topic_header(explanation.query_id, explanation.query, facts),
        f"{_legend(explanation)}\n<main>\n{posts}{_importances(explanation)}</main>",
    )


def signed(value: float) -> str:
    """With three decimals, and with a sign unless these are all 0."""
    text = f"{value:+.3f}"
    return text if float(text) else "0.000"


def _legend(explanation: FusionExplanation) -> str:
    return f"""<aside class="legend" aria-label="Legend">
<p>A bar to the right of the line is what a family of features added to a post's score, one to the
left what it took away; all posts have one scale. A family's number is the sum of
{escaped(explanation.meaning)}. With the topic's mean score, {signed(explanation.base)}, the numbers
make up the score after fusion.</p>
<p class="quiet">A family is a file of <code>rerankers/features</code>, which says what each of its
features is; signal:… is what one ranker says. Families are in the order in which the model counts
on them.</p>
</aside>"""


def _post(shown: FusedPost, extent: tuple[float, float]) -> str:
    post = shown.post
    text = (
        f'<p class="post" dir="auto">{escaped(post.text)}</p>' if post.text
        else f'<p class="quiet">{TEXTLESS}</p>'
    )  # fmt: skip
    url = f'<p class="url" dir="ltr">{escaped(post.url)}</p>\n' if post.url else ""
    rows = "".join(
        _row(family, signed(value), value, extent) for family, value in shown.families.items()
    )
    return f"""<article>
{head(headline(post.doc_id, shown.standing, shown.grade))}
{text}
{url}<p class="quiet">{" → ".join(_stages(shown))}</p>
{_bars(f"What each family added to the score of post {post.doc_id}", "added", rows)}
{_features(shown)}</article>
"""


def _stages(shown: FusedPost) -> list[str]:
    return [f"mean of the rankers {shown.standing.before}", f"fused {shown.standing.after}"]


def _bars(label: str, column: str, rows: str) -> str:
    return f"""<table class="bars" aria-label="{escaped(label)}">
<thead>
<tr><th scope="col">family</th><th scope="col" class="number">{column}</th><td></td></tr>
</thead>
<tbody>
{rows}</tbody>
</table>"""


def _row(family: str, number: str, value: float, extent: tuple[float, float]) -> str:
    return (
        f'<tr><th scope="row">{escaped(family)}</th><td class="number">{number}</td>'
        f"<td>{_bar(value, extent)}</td></tr>\n"
    )


def _bar(value: float, extent: tuple[float, float]) -> str:
    """A bar from 0 to the value, on a scale from the least to the greatest value."""
    low, high = extent
    percent = 100 / ((high - low) or 1.0)
    kind = "minus" if value < 0 else "plus"
    start, zero = (min(value, 0.0) - low) * percent, -low * percent
    return (
        f'<svg class="bar" aria-hidden="true"><rect class="{kind}" x="{start:.2f}%" '
        f'width="{abs(value) * percent:.2f}%" height="100%"/>'
        f'<line class="zero" x1="{zero:.2f}%" x2="{zero:.2f}%" y2="100%"/></svg>'
    )


def _features(shown: FusedPost) -> str:
    """The features with the greatest effect, folded away."""
    tables = "\n".join(
        _feature_table(caption, parts)
        for caption, parts in (("added most", shown.most), ("took away most", shown.least))
        if parts
    )
    if not tables:
        return ""
    return f"""<details>
<summary>features</summary>
<div class="features">
{tables}
</div>
</details>
"""


def _feature_table(caption: str, parts: Sequence[Part]) -> str:
    rows = "".join(
        f'<tr><th scope="row">{escaped(part.feature)}</th><td class="number">'
        f'{_value(part.value)}</td><td class="number">{signed(part.added)}</td></tr>\n'
        for part in parts
    )
    return f"""<table>
<caption>{caption}</caption>
<thead>
<tr><th scope="col">feature</th><th scope="col">value</th><th scope="col">added</th></tr>
</thead>
<tbody>
{rows}</tbody>
</table>"""


def _value(value: float) -> str:
    return "not known" if isnan(value) else f"{value:.4g}"


def _importances(explanation: FusionExplanation) -> str:
    extent = (0.0, max(explanation.importances.values()))
    rows = "".join(
        _row(family, f"{share:.1%}", share, extent)
        for family, share in explanation.importances.items()
    )
    bars = _bars("Shares of the model's importances", "share", rows)
    return section(IMPORTANCES, f'<p class="quiet">{SHARES}</p>\n{bars}\n')


def print_explanation(explanation: FusionExplanation) -> None:
    """Print the view for a terminal; without colours if stdout is none."""
    console = terminal()
    for line in (
        f"topic {explanation.query_id} “{explanation.query}”, {explanation.collection}",
        f"{explanation.candidates} candidates, scores by {explanation.rankers}; "
        f"{explanation.model}",
        f"added by families: {explanation.meaning}; with the topic's mean "
        f"score, {signed(explanation.base)}, they make up the score",
    ):
        console.print(visible(line))
    for heading, posts in explanation.sections.items():
        console.print(f"\n{heading.upper()}", style="bold")
        for post in posts:
            _print_post(console, post)
    console.print(f"\n{IMPORTANCES.upper()}", style="bold")
    shares = [f"{family} {share:.1%}" for family, share in explanation.importances.items() if share]
    console.print(", ".join(shares) or "nothing")


def _print_post(console: "Console", shown: FusedPost) -> None:
    post = shown.post
    console.print("\n" + "  ".join(headline(post.doc_id, shown.standing, shown.grade)),
                  style="bold")  # fmt: skip
    console.print(", ".join(_stages(shown)))
    console.print(visible(post.text) if post.text else TEXTLESS)
    if post.url:
        console.print(visible(post.url))
    for line in _columns(shown.families):
        console.print(line)


def _columns(families: Mapping[str, float]) -> list[str]:
    """Two columns: the families that added most, and those that took away most, if any did."""
    largest = max(map(abs, families.values()))
    order = sorted(families.items(), key=lambda item: -abs(item[1]))
    told = [item for item in order if abs(item[1]) > LEAST * largest]
    columns = [
        [heading, *_numbers(items)]
        for heading, items in (
            ("added", [item for item in told if item[1] > 0]),
            ("took away", [item for item in told if item[1] < 0]),
        )
        if items
    ]
    widths = [max(map(len, column)) for column in columns]
    return [
        "".join(f"  {cell:{width}}  " for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in zip_longest(*columns, fillvalue="")
    ]


def _numbers(items: Sequence[tuple[str, float]]) -> list[str]:
    width = max((len(family) for family, _ in items), default=0)
    return [f"{family:{width}}  {signed(value)}" for family, value in items]
