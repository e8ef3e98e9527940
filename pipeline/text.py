"""Print messages, counts and tables for people to read in a terminal."""

import difflib
import re
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from tweetrerank.indexes.records import listed as listed

# Width of a table in characters. It is so large that no line is wrapped or cut. Only
# posts are cut, to the width of the terminal.
WIDTH = 10_000
# Number of characters that are shown of a post if stdout is not a terminal
POST_WIDTH = 100


def say(text: str) -> None:
    """Print a text on stderr."""
    print(text, file=sys.stderr)


note = cache(say)
"""Print a text on stderr. The same text is printed only once in a process."""


def did_you_mean(text: str, known: Sequence[str]) -> str:
    """Return ``; did you mean 'x'?`` for the known name most like ``text``.

    A name is also found by its initials. The result is "" if no name is similar.
    """
    similar = difflib.get_close_matches(text, known, n=1)
    if not similar:
        similar = [name for name in known if text == _initials(name)]
    return f"; did you mean {similar[0]!r}?" if similar else ""


def _initials(name: str) -> str:
    return "".join(re.findall(r"(?<![a-z])[a-z]", name))


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, as in ``1 row`` and ``2,000 rows``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def open_console(width: int = WIDTH) -> Any:
    """Return a rich console for stdout that does not interpret markup in texts."""
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
    """Return the lines of a table without ruled lines.

    Args:
        header: headings of the columns. If there are none, the table has no header.
        rows: the cells of each row, as strings or ``rich.text.Text``. There must be at
            least one row if there is no header.
        left: indices of the columns that are aligned left. The others are aligned
            right.
        width: number of characters in a line. The last column is cut to fit.
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
    """Print a table. The arguments are those of :func:`table_lines`."""
    print("\n".join(table_lines(header, rows, left, width)))


def print_posts(hits: Iterable[Any], notes: Iterable[str]) -> None:
    """Print the rank, score, note and text of each hit, one hit to a line.

    The link of a post follows its text. A line is cut to the width of the terminal, and
    elsewhere to :data:`POST_WIDTH` characters of the post. ``notes`` has one note for
    each hit.
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
