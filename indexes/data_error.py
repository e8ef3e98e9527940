"""The error for files, posts and indexes that cannot be used."""


class DataError(Exception):
    """A file, a download, an index or a result cannot be used; a command ends with exit code 1.

    The message is for a person: what was wrong, where (``file:line``), and the remedy.
    """
