"""Cells of experiments whose commands run in this process, made-up results, rows of tables."""

from importlib import import_module

import pytest
from experiments import cells
from experiments.cells import Cell, Result
from experiments.tables import System

from pipeline.command.options import parse_arguments


def run_commands_here(patch: pytest.MonkeyPatch) -> None:
    """Let cells run their commands in this process, which saves the start of new ones."""

    def command(module: str, *arguments: str) -> None:
        called = import_module(module)
        called.main(parse_arguments(called.Options, module, None, arguments))

    patch.setattr(cells, "_command", command)


def result(system: System, collection: str, *, seed: int = 1, **measures: float) -> Result:
    """A result with made-up measures, named AP, P30, mixed, recall, …"""
    mixed = {name: measures.pop("mixed") for name in ("AP",) if "mixed" in measures}
    values = {"P@30" if name == "P30" else name: value for name, value in measures.items()}
    made = {"date": "2026-01-01", "commit": "abc", "machine": "two cores"}
    cell = Cell(system.name, system.model, tuple(system.training.split()), collection, seed)
    return Result(cell, values, mixed, 0.5, 0.7, 3, 12.4, made)
