"""What the processes that score have in common: imported once, where they are forked from."""

from pipeline.service.http import processes  # noqa: F401
