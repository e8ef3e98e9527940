"""Texts for people: lists, counts, and tables in the terminal."""

import difflib
import re
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from tweetrerank.indexes.records import listed as listed

# Width of tables: lines are neither wrapped nor cut. In a terminal, posts are.
WIDTH = 10_000
# Characters of a post on a line if stdout is not a terminal
POST_WIDTH = 100


def say(text: str) -> None:
    """Print a text on stderr."""
    print(text, file=sys.stderr)


note = cache(say)
"""Print a text on stderr, once in a process."""


def did_you_mean(text: str, known: Sequence[str]) -> str:
    """Return ``; did you mean 'x'?`` for a similar known name, else an empty text.

    A name is also found by its initials.
    """
    similar = difflib.get_close_matches(text, known, n=1)
    if not similar:
        similar = [name for name in known if text == _initials(name)]
    return f"; did you mean {similar[0]!r}?" if similar else ""


def _initials(name: str) -> str:
    return "".join(re.findall(r"(?<![a-z])[a-z]", name))


def counted(number: int, noun: str) -> str:
    """``1 row``, ``2,000 rows``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def open_console(width: int = WIDTH) -> Any:
    """Return a rich console for stdout that prints texts without rich's markup."""
    from rich.console import Console

    return Console(
        markup=False,
        highlight=False,
        emoji=False,
        soft_wrap=True,
        width=width,
    )


def table_lines(
    header: Sequence[str],
    rows: Iterable[Sequence[Any]],
    left: Sequence[int] = (0,),
    width: int = WIDTH,
) -> list[str]:
    """Return the lines of a table without rules.

    Args:
        header: headings of the columns; an empty one is not shown.
        rows: cells, as texts or texts of rich.
        left: indices of columns that are aligned on the left; others on the right.
        width: characters of a line; the last column is cut to fit.
    """
    from rich.table import Table

    rows = list(rows)
    table = Table(box=None, pad_edge=False, show_header=bool(header))
    for index, heading in enumerate(header or rows[0]):
        justify: Any = "left" if index in left else "right"
        table.add_column(heading, justify=justify, no_wrap=True)
    table.columns[-1].no_wrap = width == WIDTH
    for row in rows:
        table.add_row(*row)
    console = open_console(width)
    with console.capture() as captured:
        console.print(table)
    return [line.rstrip() for line in captured.get().splitlines()]


def print_table(
    header: Sequence[str],
    rows: Iterable[Sequence[Any]],
    left: Sequence[int] = (0,),
    width: int = WIDTH,
) -> None:
    """Print a table; see :func:`table_lines`."""
    print("\n".join(table_lines(header, rows, left, width)))


def print_posts(hits: Iterable[Any], notes: Iterable[str]) -> None:
    """Print a table of hits: rank, score, a note on each, and the text with its link.

    Each hit is one line, cut to the width of the terminal.
    """
    from rich.console import Console
    from rich.text import Text

    terminal = Console() if sys.stdout.isatty() else None
    table: list[Sequence[str | Text]] = []
    for rank, (hit, remark) in enumerate(zip(hits, notes, strict=True), start=1):
        words = f"{hit.text} {hit.url}".split()
        line = "".join(c if c.isprintable() else "�" for c in " ".join(words))
        if terminal is None and len(line) > POST_WIDTH:
            line = f"{line[: POST_WIDTH - 1]}…"
        text = Text(line, no_wrap=True, overflow="ellipsis")
        table.append([str(rank), f"{hit.score:.4f}", remark, text])
    print_table([], table, left=[2, 3], width=terminal.width if terminal else WIDTH)
