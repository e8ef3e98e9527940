"""The error that this package raises for what a person can put right."""


class CollectionError(Exception):
    """Posts, or an index of them, cannot be used as they are.

    The message is for a person: what was wrong, where (``file:line``), and what to do about it.
    """
