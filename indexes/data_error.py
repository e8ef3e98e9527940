"""The error for files, posts and indexes that cannot be used."""


class DataError(Exception):
    """Raised if a file, a download, an index or a result cannot be used.

    The message is written for a person. It tells the problem, the place (``file:line``)
    and the remedy. A command that fails by it exits with code 1.
    """
