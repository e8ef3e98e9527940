"""The error for posts and indexes that cannot be used."""


class CollectionError(Exception):
    """The message is for the user: what was found, where (``file:line``), and the remedy."""
