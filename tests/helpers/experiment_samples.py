"""Cells of experiments whose commands run in this process, which saves the start of new ones."""

from importlib import import_module

import pytest
from experiments import cells

from pipeline.command.options import parse_arguments


def run_commands_here(patch: pytest.MonkeyPatch) -> None:
    """Let cells run their commands in this process."""

    def command(module: str, *arguments: str) -> None:
        called = import_module(module)
        called.main(parse_arguments(called.Options, module, None, arguments))

    patch.setattr(cells, "_command", command)
