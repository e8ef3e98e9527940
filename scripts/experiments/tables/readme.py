"""Tables inside a README, made from the CSVs of their results.

A table stands between ``<!-- NAME: PATH -->``, NAME as :data:`experiments.tables.TABLES` has it and
PATH as seen from the README's folder, and ``<!-- end -->``.
"""

import re
from pathlib import Path

from experiments.tables import TABLES
from experiments.tables.contract import ResultTable
from experiments.tables.results import read_csv
from pipeline.command.errors import DataError

START = re.compile(r"<!-- (\S+): (\S+) -->\n")
END = "<!-- end -->"


def filled(text: str, folder: Path) -> tuple[str, list[str]]:
    """A README's text with every table made anew.

    Args:
        text: of the README.
        folder: that it lies in.

    Returns:
        The text, and the paths that are not there yet: what stands there is left as it is.

    Raises:
        DataError: there is no table of a name, it is not made from a CSV, or its end is not marked.
    """
    done, absent = [], []
    rest = text
    while start := START.search(rest):
        name, path = start.groups()
        shown, end, after = rest[start.end() :].partition(END)
        if not end or START.search(shown):
            raise DataError(f"{start[0].strip()}: found no {END} after it, expected one")
        if (folder / path).exists():
            shown = f"{_table(name).markdown(read_csv(folder / path))}\n"
        else:
            absent.append(path)
        done += [rest[: start.end()], shown, end]
        rest = after
    return "".join([*done, rest]), absent


def _table(name: str) -> ResultTable:
    table = TABLES.get(name)
    if not isinstance(table, ResultTable):
        known = [name for name, table in TABLES.items() if isinstance(table, ResultTable)]
        raise DataError(
            f"<!-- {name}: … -->: found {name!r}, expected a table that a CSV gives again, one of "
            f"{', '.join(known)}"
        )
    return table
