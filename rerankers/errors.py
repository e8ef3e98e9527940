"""The error that this package raises for what a person can put right."""


class RerankerError(Exception):
    """A checkpoint, a vocabulary or a score cannot be used as it is.

    The message is for a person: what was wrong, where, and what to do about it.
    """
