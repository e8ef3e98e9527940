"""The two errors that a command shows to a person instead of a traceback."""

from collections.abc import Sequence


class DataError(Exception):
    """A file, a download or a result cannot be used; the command ends with exit code 1.

    The message says what was wrong, where (``file:line``), and what to do about it.
    """


class UsageError(Exception):
    """The command's arguments are wrong; the command ends with exit code 2.

    Args:
        problems: one sentence for each bad argument; all of them are shown at once.
    """

    def __init__(self, problems: str | Sequence[str]) -> None:
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        super().__init__("; ".join(self.problems))
