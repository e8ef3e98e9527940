"""The two errors that a command shows to a person instead of a traceback.

Every function of this package may raise them; a docstring says so where it is no matter of course.
Those of :mod:`rerankers` are shown in the same way.
"""

from collections.abc import Sequence

from indexes.errors import CollectionError

DataError = CollectionError
"""A file, a download, an index or a result cannot be used; the command ends with exit code 1."""


class UsageError(Exception):
    """The arguments are wrong, one sentence for each; the command ends with exit code 2."""

    def __init__(self, problems: str | Sequence[str]) -> None:
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        super().__init__("; ".join(self.problems))
