"""What the processes that score have in common: imported once, where they are forked from."""

from pipeline.command.runtime import import_nltk_alone

import_nltk_alone()

from pipeline.service.http import processes  # noqa: E402, F401
