"""The error for wrong arguments. A command shows it without a traceback."""

from collections.abc import Sequence


class UsageError(Exception):
    """Raised for wrong arguments. ``problems`` has one sentence for each of them.

    A command that fails by it exits with code 2.

    Commands also show :class:`tweetrerank.indexes.data_error.DataError` and
    :class:`tweetrerank.rerankers.reranker_error.RerankerError`. Their exit code is 1.
    """

    def __init__(self, problems: str | Sequence[str]) -> None:
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        super().__init__("; ".join(self.problems))
