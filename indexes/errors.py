"""The error for posts and indexes that cannot be used."""


class CollectionError(Exception):
    """Posts, or an index of them, cannot be used.

    The message is for the user: what was found, where (``file:line``), and the remedy.
    """
