"""The error for files, posts and indexes that cannot be used."""


class DataError(Exception):
    """A file, a download, an index or a result cannot be used.

    A command ends with exit code 1. The message is for a person: the problem, the place
    (``file:line``) and the remedy.
    """
