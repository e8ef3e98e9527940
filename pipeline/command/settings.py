"""Changing fields of a configuration from ``NAME=VALUE`` texts."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from pipeline.command.errors import UsageError
from pipeline.command.options import did_you_mean

_BOOLEANS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def change(config: Any, changes: Sequence[str]) -> Any:
    """A copy of the dataclass ``config`` with each ``NAME=VALUE`` of ``changes`` applied.

    Raises:
        UsageError: naming every change whose name or value does not fit.
    """
    kinds = {field.name: type(getattr(config, field.name)) for field in dataclasses.fields(config)}
    values, problems = {}, []
    for text in changes:
        name, _, value = text.partition("=")
        if name not in kinds:
            problems.append(
                f"--set {text}: found the name {name!r}, expected one of {', '.join(kinds)}"
                + did_you_mean(name, list(kinds))
            )
            continue
        try:
            values[name] = _BOOLEANS[value.lower()] if kinds[name] is bool else kinds[name](value)
        except (KeyError, ValueError):
            problems.append(f"--set {text}: found {value!r}, expected a {kinds[name].__name__}")
    if problems:
        raise UsageError(problems)
    return dataclasses.replace(config, **values)
