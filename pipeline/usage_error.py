"""Error for wrong arguments, which a command shows without a traceback."""

from collections.abc import Sequence


class UsageError(Exception):
    """Wrong arguments, with one sentence for each; the exit code of a command is 2.

    Commands also show :class:`tweetrerank.indexes.data_error.DataError` and
    :class:`tweetrerank.rerankers.reranker_error.RerankerError`. Their exit code is 1.
    """

    def __init__(self, problems: str | Sequence[str]) -> None:
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        super().__init__("; ".join(self.problems))
