"""Command lines from annotated dataclasses, and errors that people can act on.

A command is a frozen dataclass whose fields are made by :func:`option` or :func:`argument`, and a
function that takes one. The help text, the parsing and the checks all come from the fields, and
every bad argument is reported. Inherited options stand in the help under the topic of their class:
its attribute ``topic``, or else its name, as ``CollectionOptions`` are of the collection.
"""

import argparse
import dataclasses
import inspect
import math
import os
import re
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from tweetrerank.indexes.data_error import DataError
from tweetrerank.pipeline.text import did_you_mean
from tweetrerank.pipeline.usage_error import UsageError
from tweetrerank.rerankers.reranker_error import RerankerError

OptionsType = TypeVar("OptionsType")

FAILURE = 1
USAGE = 2
INTERRUPTED = 130
TERMINATED = 143

_BOOLEANS = {
    "true": True,
    "yes": True,
    "1": True,
    "false": False,
    "no": False,
    "0": False,
}


@dataclass(frozen=True)
class Declared:
    """How an option is read."""

    help: str  # Shown by ``--help``; the default is added to it
    parse: Callable[[str], Any] = (
        str  # Raises ValueError whose message says what was expected
    )
    choices: Sequence[str] = ()  # The only values allowed
    many: bool = False  # May be given several times and gives a tuple
    following: bool = (
        False  # With ``many``, takes all values up to the next (``--runs a b c``)
    )
    required: bool = False  # Absent means a usage error
    flag: bool = False  # Takes no value and gives True
    names: (
        Sequence[str] | None
    ) = ()  # In place of ``--field-name``; None: a positional argument
    metavar: str | None = None  # The value's name in the help text
    argument_name: str | None = (
        None  # Of the Python argument in messages, if it is not the field's
    )

    def flags(self, field_name: str) -> Sequence[str]:
        """Spellings of an option; none of a positional argument."""
        return (
            ()
            if self.names is None
            else self.names or (f"--{field_name.replace('_', '-')}",)
        )


def option(help_text: str, *, default: Any = None, **how: Any) -> Any:
    """Declare a ``--name value`` option as a dataclass field; ``how`` are fields of Declared."""
    declared = Declared(help_text, **how)
    default = (
        () if declared.many and default is None else False if declared.flag else default
    )
    return dataclasses.field(default=default, metadata={"declared": declared})


argument = partial(option, required=True, names=None)
"""Declare a positional argument as a dataclass field; ``many`` takes all that remain."""


def _number(
    kind: type, allowed: Callable[[Any], bool], expected: str
) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            raise ValueError(f"found {text!r}, expected {expected}") from None
        if not allowed(value):
            raise ValueError(f"found {text}, expected {expected}")
        return value

    return parse


positive_int = _number(int, lambda value: value >= 1, "a whole number of at least 1")
non_negative_int = _number(
    int, lambda value: value >= 0, "a whole number of at least 0"
)
positive_float = _number(float, lambda value: 0 < value < math.inf, "a number above 0")
fraction = _number(float, lambda value: 0 <= value <= 1, "a number from 0 to 1")


def size(text: str) -> int:
    """Bytes: a whole number, also with KB, MB or GB behind it."""
    found = re.fullmatch(r"(\d{1,15}) ?([KMG]?)B?", text.strip(), re.IGNORECASE)
    if not found or not int(found[1]):
        raise ValueError(f"found {text!r}, expected a size such as 500KB, 8MB or 1GB")
    return int(found[1]) * {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}[found[2].upper()]


def existing_file(text: str) -> Path:
    """The path of a file that is there."""
    if (path := Path(text)).is_dir():
        raise ValueError(f"found the folder {text}, expected a file")
    if not path.exists():
        raise ValueError(f"there is no file {text}")
    return path


def output_file(text: str) -> Path:
    """The path of a file to write; its folder is made when it is written."""
    if (path := Path(text)).is_dir():
        raise ValueError(
            f"found the folder {text}, expected the name of a file to write"
        )
    return path


def run_command(
    options_type: type[OptionsType],
    main: Callable[[OptionsType], None],
    program: str,
    description: str | None,
    arguments: Sequence[str] | None = None,
) -> NoReturn:
    """Parse the arguments, run ``main`` and leave with the exit code that scripts expect: 0 for
    success, 1 for a failure, 2 for bad usage, 130 for Ctrl-C, 143 for SIGTERM. A mistake of the
    user's is one message on stderr; a traceback is left for mistakes of ours."""
    warnings.showwarning = partial(_show_warning, options_type)
    with suppress(ValueError):  # Only the main thread has signals.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, _terminate)
    try:
        try:
            main(parse_arguments(options_type, program, description, arguments))
        except SystemExit:  # After --help
            sys.stdout.flush()
            raise
        sys.stdout.flush()
        sys.exit(0)
    except UsageError as error:
        lines = "".join(f"  {_with_options(p, options_type)}\n" for p in error.problems)
        code, message = USAGE, f"bad usage:\n{lines}see {program} --help"
    except (DataError, RerankerError) as error:
        code, message = FAILURE, f"error: {_with_options(str(error), options_type)}"
    except BrokenPipeError:
        # The reader (head, less) has gone; stdout must not be flushed again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(FAILURE)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        code, message = FAILURE, f"error: {where}{error.strerror or error}"
    except KeyboardInterrupt as error:
        code = TERMINATED if isinstance(error, _Terminated) else INTERRUPTED
        message = "interrupted; nothing half-written was left behind"
    sys.stdout.flush()
    print(f"{program}: {message}", file=sys.stderr)
    sys.exit(code)


class _Terminated(KeyboardInterrupt):
    """SIGTERM, after which is tidied up as after Ctrl-C."""


def _terminate(*_: object) -> None:
    raise _Terminated


def _with_options(message: str, options_type: Any) -> str:
    """A message with options in place of the arguments of Python that it names in backticks;
    ``address.NAME`` is a field of an :class:`tweetrerank.indexes.engines.address.EngineAddress`."""
    flags = {
        declared.argument_name or name: flags[-1]
        for name, declared, _ in _declared(options_type)
        if (flags := declared.flags(name))
    }

    def option_of(match: re.Match[str]) -> str:
        return flags.get(f"engine_{match[2]}" if match[1] else "") or flags.get(
            match[2], match[0]
        )

    command = r"\n  python -m pipeline.index --posts FILE --index \1"
    message = re.sub(r" `indexes\.build\(posts, (.+)\)`", command, message)
    return re.sub(r"`(address\.)?(\w+)`", option_of, message)


def parse_arguments(
    options_type: type[OptionsType],
    program: str,
    description: str | None,
    arguments: Sequence[str] | None = None,
) -> OptionsType:
    """Turn command-line arguments into an options dataclass."""
    problems, declarations, values = (
        list[str](),
        _declared(options_type),
        dict[str, Any](),
    )
    parser = _parser(options_type, program, description, problems)
    found, unknown = parser.parse_known_intermixed_args(arguments)
    flags = [
        flag for name, declared, _ in declarations for flag in declared.flags(name)
    ]
    for text in unknown:
        problems.append(
            f"unknown argument {text!r}{did_you_mean(text.split('=')[0], flags)}"
        )
    for name, declared, _ in declarations:
        if (value := getattr(found, name)) not in (None, []):
            values[name] = tuple(value) if declared.many else value
        elif declared.required:
            label = (declared.flags(name) or [name])[-1]
            problems.append(f"{label} is missing: {declared.help}")
    if problems:
        raise UsageError(problems)
    return options_type(**values)


def _declared(options_type: Any) -> list[tuple[str, Declared, Any]]:
    """Name, declaration and default of each option."""
    fields = dataclasses.fields(options_type)
    return [(field.name, field.metadata["declared"], field.default) for field in fields]


class _Parser(argparse.ArgumentParser):
    problems: Sequence[
        str
    ] = ()  # Of the arguments before the one that cannot be parsed

    def error(self, message: str) -> NoReturn:
        raise UsageError([*self.problems, message])


def _parser(
    options_type: type[Any], program: str, description: str | None, problems: list[str]
) -> argparse.ArgumentParser:
    """An argparse parser that adds wrong values to ``problems``, so that all can be reported."""
    parser = _Parser(
        prog=program,
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.problems = problems
    groups: dict[str, Any] = {"": parser}
    for name, declared, default in _declared(options_type):
        help_text, flags = declared.help.replace("%", "%%"), declared.flags(name)
        parse = partial(_parsed, declared, (flags or [name])[-1], problems)
        if not flags:
            count = "*" if declared.many else "?"
            parser.add_argument(name, nargs=count, help=help_text, type=parse)
            continue
        topic = _topic(options_type, name)
        group = groups.get(topic) or groups.setdefault(
            topic, parser.add_argument_group(topic)
        )
        if declared.flag:
            group.add_argument(*flags, dest=name, action="store_true", help=help_text)
            continue
        if declared.choices:
            help_text += f"; one of {', '.join(declared.choices)}"
        if default not in (None, ()) and "(default" not in help_text:
            help_text += f" (default: {default})"
        group.add_argument(
            *flags,
            dest=name,
            help=help_text,
            type=parse,
            action="extend"
            if declared.following
            else "append"
            if declared.many
            else "store",
            nargs="+" if declared.following else None,
            metavar=declared.metavar or flags[-1].lstrip("-").upper().replace("-", "_"),
        )
    return parser


def _topic(options_type: type[Any], name: str) -> str:
    """The topic of an option, that of the class that declares it first; none for its own."""
    classes = [
        kind for kind in options_type.__mro__ if name in inspect.get_annotations(kind)
    ]
    if classes[-1] is options_type:
        return ""
    words = re.findall("[A-Z][a-z]*", classes[-1].__name__.removesuffix("Options"))
    return str(vars(classes[-1]).get("topic", " ".join(words).lower()))


def _parsed(declared: Declared, label: str, problems: list[str], text: str) -> Any:
    try:
        if declared.choices and text not in declared.choices:
            similar = did_you_mean(text, declared.choices)
            expected = f"expected one of {', '.join(declared.choices)}{similar}"
            raise ValueError(f"found {text!r}, {expected}")
        return declared.parse(text)
    except (ValueError, DataError) as error:
        problems.append(f"{label}: {error}")
        return text


def apply_changes(
    config: Any, changes: Sequence[str], flag: str = "--set", prefix: str = ""
) -> Any:
    """A copy of the frozen dataclass ``config`` with ``changes``, ``NAME=VALUE`` in the type of the
    field; ``flag`` and ``prefix`` stand before it on the command line, for messages."""
    kinds = {
        field.name: type(getattr(config, field.name))
        for field in dataclasses.fields(config)
    }
    values, problems = {}, []
    for text in changes:
        (name, _, value), where = text.partition("="), f"{flag} {prefix}{text}: found"
        if name not in kinds:
            known = (
                f"expected one of {', '.join(kinds)}{did_you_mean(name, list(kinds))}"
            )
            problems.append(f"{where} the name {name!r}, {known}")
            continue
        try:
            values[name] = (
                _BOOLEANS[value.lower()] if kinds[name] is bool else kinds[name](value)
            )
        except (KeyError, ValueError):
            problems.append(f"{where} {value!r}, expected a {kinds[name].__name__}")
    if problems:
        raise UsageError(problems)
    return dataclasses.replace(config, **values)


def _show_warning(
    options_type: Any,
    message: Warning | str,
    category: type[Warning],
    *place: Any,
    **others: Any,
) -> None:
    """Show a RuntimeWarning as a line for the user, and any other with its place in the source."""
    from tqdm import tqdm

    text = f"warning: {_with_options(str(message), options_type)}\n"
    if category is not RuntimeWarning:
        text = warnings.formatwarning(message, category, *place[:2])
    tqdm.write(text, file=sys.stderr, end="")  # Not in the middle of a progress bar.
