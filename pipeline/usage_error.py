"""The error for wrong arguments, which a command shows in place of a traceback."""

from collections.abc import Sequence


class UsageError(Exception):
    """The arguments are wrong, one sentence for each; a command ends with exit code 2.

    The other errors that commands show are :class:`tweetrerank.indexes.data_error.DataError` and
    :class:`tweetrerank.rerankers.reranker_error.RerankerError`, both with exit code 1.
    """

    def __init__(self, problems: str | Sequence[str]) -> None:
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        super().__init__("; ".join(self.problems))
