"""What explanations of every kind have around them, on an HTML page and in a terminal.

A page is one file that needs nothing else. Whatever comes from posts, topics or file names goes
through :func:`escaped` on its way into it, and it forbids the browser to load or run anything. On
the way to the terminal such texts go through :func:`pipeline.explanation.rank_changes.visible`.
"""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING

from pipeline.explanation.rank_changes import visible

if TYPE_CHECKING:
    from rich.console import Console

LIGHT = {
    "text": "#1b1b1f", "quiet": "#55555e", "ground": "#ffffff", "panel": "#f5f5f7",
    "line": "#d5d5dc", "s1": "#fce4ec", "s2": "#f8bbd0", "s3": "#f48fb1", "s4": "#ec6f9a",
    "plus": "#2a6fbb", "minus": "#b5541c",
}  # fmt: skip
DARK = {
    "text": "#f1f1f4", "quiet": "#b0b0ba", "ground": "#141417", "panel": "#1f1f24",
    "line": "#3a3a42", "s1": "#40202d", "s2": "#641f3f", "s3": "#8c2553", "s4": "#b32a68",
    "plus": "#6ea8e8", "minus": "#e39a63",
}  # fmt: skip
"""Colours by role. On ground, panel and shades the text has a contrast of at least 4.5 to 1; on
ground and panel the bars, plus and minus, have one of at least 3 to 1."""


def _variables(colours: Mapping[str, str]) -> str:
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
.legend p {{ margin: .4rem 0; }}
.head {{ display: flex; flex-wrap: wrap; gap: .2rem .9rem; align-items: baseline; }}
.post {{ font-size: 1.1rem; margin: .6rem 0; overflow-wrap: anywhere; }}
.url {{ font: .9rem/1.5 ui-monospace, monospace; margin: .4rem 0; overflow-wrap: anywhere; }}
.wide {{ overflow-x: auto; margin: .6rem 0; }}
table {{ border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }}
th, td {{ border: 1px solid var(--line); padding: .2rem .45rem; text-align: left;
  vertical-align: top; }}
th {{ font-weight: 600; }}
summary {{ cursor: pointer; }}
"""


def document(title: str, style: str, header: str, content: str) -> str:
    """The whole page.

    Args:
        title: of the window, not yet escaped.
        style: what the content needs besides the common style.
        header: HTML of what stands above all.
        content: HTML of the rest.
    """
    styles = _STYLE + style
    digest = base64.b64encode(hashlib.sha256(styles.encode()).digest()).decode()
    policy = (
        "default-src 'none'; base-uri 'none'; form-action 'none'; "
        f"style-src 'sha256-{digest}'"
    )  # fmt: skip
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{escaped(policy)}">
<meta name="referrer" content="no-referrer">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escaped(title)}</title>
<style>{styles}</style>
</head>
<body>
<header>
{header}
</header>
{content}
</body>
</html>
"""


def escaped(value: str) -> str:
    """Text as it can stand anywhere in the page, quoted attributes included."""
    return escape(visible(value), quote=True)


def topic_header(query_id: str, query: str, facts: Mapping[str, str]) -> str:
    """The topic, and below it a list of facts; the names of these are HTML."""
    rows = "".join(f"<dt>{name}</dt><dd>{escaped(value)}</dd>\n" for name, value in facts.items())
    return f"<h1>Topic {escaped(query_id)}: <bdi>{escaped(query)}</bdi></h1>\n<dl>\n{rows}</dl>"


def section(heading: str, content: str) -> str:
    """HTML under a heading, which begins with a capital letter."""
    return (
        f"<section>\n<h2>{escaped(heading[:1].upper() + heading[1:])}</h2>\n{content}</section>\n"
    )


def head(parts: Sequence[str]) -> str:
    """The line above a post: its rank as the heading, the post's id in quiet colours."""
    rank, *middle, doc_id = map(escaped, parts)
    spans = "\n".join(f"<span>{part}</span>" for part in middle)
    return (
        f'<div class="head">\n<h3>{rank}</h3>\n{spans}\n<span class="quiet">{doc_id}</span>\n</div>'
    )


def terminal() -> "Console":
    """A console that prints texts as they are, without colours if stdout is no terminal."""
    from rich.console import Console

    # Posts may hold what looks like rich's own markup.
    return Console(markup=False, highlight=False, emoji=False, soft_wrap=True)
