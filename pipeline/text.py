"""Texts for people: lists, counts, and tables in the terminal."""

import difflib
import re
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from tweetrerank.indexes.records import listed as listed

WIDTH = 10_000  # Lines are neither wrapped nor cut, but for the texts of posts in a terminal
POST_WIDTH = 100  # Characters of a post in a line where stdout is no terminal


def say(text: str) -> None:
    """Print a text on stderr."""
    print(text, file=sys.stderr)


note = cache(say)  # Once for each text


def did_you_mean(text: str, known: Sequence[str]) -> str:
    """``; did you mean 'x'?`` for a name close to a known one, or its initials; else nothing."""
    close = difflib.get_close_matches(text, known, n=1)
    close = close or [
        n for n in known if text == "".join(re.findall(r"(?<![a-z])[a-z]", n))
    ]
    return f"; did you mean {close[0]!r}?" if close else ""


def counted(number: int, noun: str) -> str:
    """``1 row``, ``2,000 rows``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def open_console(width: int = WIDTH) -> Any:
    """A console for stdout that prints texts as they are: they may look like rich's markup."""
    from rich.console import Console

    return Console(
        markup=False, highlight=False, emoji=False, soft_wrap=True, width=width
    )


def table_lines(
    header: Sequence[str],
    rows: Iterable[Sequence[Any]],
    left: Sequence[int] = (0,),
    width: int = WIDTH,
) -> list[str]:
    """The lines of a table without rules, of texts or rich's texts; columns of ``left`` are aligned
    there, others on the right. The last one is cut to fit the ``width`` of all together."""
    from rich.table import Table

    rows = list(rows)
    table = Table(box=None, pad_edge=False, show_header=bool(header))
    for index, heading in enumerate(header or rows[0]):
        table.add_column(
            heading, justify="left" if index in left else "right", no_wrap=True
        )
    table.columns[-1].no_wrap = width == WIDTH
    for row in rows:
        table.add_row(*row)
    console = open_console(width)
    with console.capture() as captured:
        console.print(table)
    return [line.rstrip() for line in captured.get().splitlines()]


def print_table(*table: Any, **how: Any) -> None:
    """Print a table; see :func:`table_lines`."""
    print("\n".join(table_lines(*table, **how)))


def print_posts(hits: Iterable[Any], notes: Iterable[str]) -> None:
    """Print a table of ranks, scores, a note on each of a ranking's hits, and texts with links, on
    one line each, cut to the terminal's width."""
    from rich.console import Console
    from rich.text import Text

    terminal = Console() if sys.stdout.isatty() else None
    table: list[Sequence[str | Text]] = []
    for rank, (hit, remark) in enumerate(zip(hits, notes, strict=True), start=1):
        words = f"{hit.text} {hit.url}".split()
        line = "".join(c if c.isprintable() else "�" for c in " ".join(words))
        if not terminal and len(line) > POST_WIDTH:
            line = f"{line[: POST_WIDTH - 1]}…"
        text = Text(line, no_wrap=True, overflow="ellipsis")
        table.append([str(rank), f"{hit.score:.4f}", remark, text])
    print_table([], table, left=[2, 3], width=terminal.width if terminal else WIDTH)
