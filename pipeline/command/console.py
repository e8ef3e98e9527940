"""Lines and tables on stdout: in colours on a terminal, plain text elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

WIDTH = 10_000
"""Nothing is wrapped or cut here; that is up to the terminal."""


def open_console() -> Console:
    """A console for stdout that prints texts as they are."""
    from rich.console import Console

    # Posts may contain text that looks like rich's markup.
    return Console(markup=False, highlight=False, emoji=False, soft_wrap=True, width=WIDTH)


def print_table(
    header: Sequence[str], rows: Iterable[Sequence[str | Text]], left: Sequence[int] = (0,)
) -> None:
    """Print a table without lines between columns.

    Args:
        header: headings, or nothing for a table without them.
        rows: cells.
        left: left-aligned columns; the others are right-aligned.
    """
    from rich.table import Table

    rows = list(rows)
    table = Table(box=None, pad_edge=False, show_header=bool(header))
    for index, heading in enumerate(header or rows[0]):
        table.add_column(heading, justify="left" if index in left else "right")
    for row in rows:
        table.add_row(*row)
    console = open_console()
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        print(line.rstrip())
