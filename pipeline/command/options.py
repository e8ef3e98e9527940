"""Make command lines from dataclasses, and show errors that people can act on.

A command consists of a function and a frozen dataclass of its options. The fields of
the dataclass are made by :func:`option` and :func:`argument`. They define the help
text, the parsing and the checks. All bad arguments are reported together.

The help text groups inherited options by the class that declares them. The title of a
group is the attribute ``topic`` of the class, or the name of the class without
``Options``.
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
from typing import Any, NamedTuple, NoReturn, TypeVar

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
_BYTES = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}


@dataclass(frozen=True)
class Declared:
    """Declaration of an option: help text, parser and spelling."""

    # Text for ``--help``. The default is appended to it.
    help: str
    # Converts the argument. It raises ValueError with a message that names the expected
    # values.
    parse: Callable[[str], Any] = str
    # The only values allowed.
    choices: Sequence[str] = ()
    # Whether the option may be repeated. Its value is then a tuple.
    many: bool = False
    # With ``many``: whether the option takes all values up to the next option, as in
    # ``--runs a b c``.
    following: bool = False
    # Whether a missing value is a usage error.
    required: bool = False
    # Whether the option takes no value. If it is given, the field is True.
    flag: bool = False
    # Spellings to use instead of ``--field-name``. None makes a positional argument.
    names: Sequence[str] | None = ()
    # Name of the value in the help text.
    metavar: str | None = None
    # Name that error messages of the Python API use for this option, if it is not the
    # name of the field.
    argument_name: str | None = None

    def flags(self, field_name: str) -> Sequence[str]:
        """Return the spellings of the option. A positional argument has none."""
        if self.names is None:
            return ()
        return self.names or (f"--{field_name.replace('_', '-')}",)

    def label(self, field_name: str) -> str:
        """Return the name that error messages use for the option."""
        flags = self.flags(field_name)
        return flags[-1] if flags else field_name


class _Field(NamedTuple):
    """A field of an options dataclass."""

    name: str
    declared: Declared
    default: Any


def _fields_of(options_type: Any) -> list[_Field]:
    return [
        _Field(field.name, field.metadata["declared"], field.default)
        for field in dataclasses.fields(options_type)
    ]


def option(help_text: str, *, default: Any = None, **declaration: Any) -> Any:
    """Declare the option ``--name value`` as a dataclass field.

    ``declaration`` sets fields of :class:`Declared`. The default of a repeated option
    is an empty tuple, and that of a flag is False.
    """
    declared = Declared(help_text, **declaration)
    if declared.many and default is None:
        default = ()
    elif declared.flag:
        default = False
    return dataclasses.field(default=default, metadata={"declared": declared})


argument = partial(option, required=True, names=None)
"""Declare a positional argument. With ``many``, it takes all remaining values."""


# Parsers of values


def _number(
    kind: type, is_allowed: Callable[[Any], bool], expected: str
) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            raise ValueError(f"found {text!r}, expected {expected}") from None
        if not is_allowed(value):
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
    """Parse a size, and return the number of bytes. KB, MB and GB are powers of 1,000.

    Raises ValueError for another form and for 0.
    """
    match = re.fullmatch(r"(\d{1,15}) ?([KMG]?)B?", text.strip(), re.IGNORECASE)
    if match is None or int(match[1]) == 0:
        raise ValueError(f"found {text!r}, expected a size such as 500KB, 8MB or 1GB")
    return int(match[1]) * _BYTES[match[2].upper()]


def existing_file(text: str) -> Path:
    """Parse the path of an existing file. Raises ValueError if there is none."""
    path = Path(text)
    if path.is_dir():
        raise ValueError(f"found the folder {text}, expected a file")
    if not path.exists():
        raise ValueError(f"there is no file {text}")
    return path


def output_file(text: str) -> Path:
    """Parse the path of a file to write. Its folder need not exist yet.

    Raises ValueError if the path is a folder.
    """
    path = Path(text)
    if path.is_dir():
        raise ValueError(
            f"found the folder {text}, expected the name of a file to write"
        )
    return path


# Running a command


def run_command(
    options_type: type[OptionsType],
    main: Callable[[OptionsType], None],
    program: str,
    description: str | None,
    arguments: Sequence[str] | None = None,
) -> NoReturn:
    """Parse the arguments, call ``main``, and exit with the code that scripts expect.

    The codes are 0 for success, 1 for a failure, 2 for bad usage, 130 for Ctrl-C and
    143 for SIGTERM. A mistake of the user is reported by one message on stderr. A
    traceback means that this program has a mistake.
    """
    warnings.showwarning = partial(_show_warning, options_type)
    _handle_signals()
    try:
        try:
            main(parse_arguments(options_type, program, description, arguments))
        except SystemExit:  # After --help
            sys.stdout.flush()
            raise
        sys.stdout.flush()
        sys.exit(0)
    except BrokenPipeError:
        # The reader (head, less) has gone, so Python must not flush stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(FAILURE)
    except (
        UsageError,
        DataError,
        RerankerError,
        OSError,
        KeyboardInterrupt,
    ) as error:
        code, message = _failure(error, options_type, program)
    sys.stdout.flush()
    print(f"{program}: {message}", file=sys.stderr)
    sys.exit(code)


class _Terminated(KeyboardInterrupt):
    """Raised on SIGTERM, so that the same code cleans up as after Ctrl-C."""


def _handle_signals() -> None:
    def terminate(*_: object) -> None:
        raise _Terminated

    with suppress(ValueError):  # Only the main thread may set handlers.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, terminate)


def _failure(error: BaseException, options_type: Any, program: str) -> tuple[int, str]:
    """Return the exit code and the message of an error."""
    if isinstance(error, UsageError):
        problems = [_with_options(text, options_type) for text in error.problems]
        lines = "".join(f"  {problem}\n" for problem in problems)
        return USAGE, f"bad usage:\n{lines}see {program} --help"
    if isinstance(error, DataError | RerankerError):
        return FAILURE, f"error: {_with_options(str(error), options_type)}"
    if isinstance(error, OSError):
        place = f"{error.filename}: " if error.filename else ""
        return FAILURE, f"error: {place}{error.strerror or error}"
    code = TERMINATED if isinstance(error, _Terminated) else INTERRUPTED
    return code, "interrupted; nothing half-written was left behind"


def _with_options(message: str, options_type: Any) -> str:
    """Return the message with Python arguments in backticks replaced by options.

    So one message serves both Python and the command line. ``address.NAME`` means a
    field of :class:`tweetrerank.indexes.engines.address.EngineAddress`. A call of
    ``indexes.build`` is replaced by the command that builds an index.
    """
    spellings = {}
    for name, declared, _ in _fields_of(options_type):
        if declared.names is not None:
            spellings[declared.argument_name or name] = declared.label(name)

    def option_of(match: re.Match[str]) -> str:
        name = match["name"]
        engine_name = f"engine_{name}"
        if match["address"] and engine_name in spellings:
            return spellings[engine_name]
        return spellings.get(name, match[0])

    command = r"\n  python -m pipeline.index --posts FILE --index \1"
    message = re.sub(r" `indexes\.build\(posts, (.+)\)`", command, message)
    return re.sub(r"`(?P<address>address\.)?(?P<name>\w+)`", option_of, message)


def _show_warning(
    options_type: Any,
    message: Warning | str,
    category: type[Warning],
    filename: str,
    line_number: int,
    file: Any = None,
    line: Any = None,
) -> None:
    """Show a RuntimeWarning as one line for users, and others with their source line.

    The parameters after ``options_type`` are those of ``warnings.showwarning``.
    """
    from tqdm import tqdm

    if category is RuntimeWarning:
        text = f"warning: {_with_options(str(message), options_type)}\n"
    else:
        text = warnings.formatwarning(message, category, filename, line_number)
    # tqdm keeps the line out of a progress bar.
    tqdm.write(text, file=sys.stderr, end="")


# Parsing


def parse_arguments(
    options_type: type[OptionsType],
    program: str,
    description: str | None,
    arguments: Sequence[str] | None = None,
) -> OptionsType:
    """Parse command-line arguments, and return an instance of ``options_type``.

    None takes the arguments of this process. Raises UsageError listing every problem
    found.
    """
    problems: list[str] = []
    parser = _parser(options_type, program, description, problems)
    namespace, unknown = parser.parse_known_intermixed_args(arguments)
    fields = _fields_of(options_type)
    flags = [flag for field in fields for flag in field.declared.flags(field.name)]
    for text in unknown:
        similar = did_you_mean(text.split("=")[0], flags)
        problems.append(f"unknown argument {text!r}{similar}")
    values = {}
    for name, declared, _ in fields:
        value = getattr(namespace, name)
        if value not in (None, []):
            values[name] = tuple(value) if declared.many else value
        elif declared.required:
            problems.append(f"{declared.label(name)} is missing: {declared.help}")
    if problems:
        raise UsageError(problems)
    return options_type(**values)


class _Parser(argparse.ArgumentParser):
    # Problems of arguments that were found before the one that stops argparse
    problems: Sequence[str] = ()

    def error(self, message: str) -> NoReturn:
        raise UsageError([*self.problems, message])


def _parser(
    options_type: type[Any], program: str, description: str | None, problems: list[str]
) -> argparse.ArgumentParser:
    """Return an argparse parser that appends wrong values to ``problems``.

    argparse itself would stop at the first wrong value.
    """
    parser = _Parser(
        prog=program,
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.problems = problems
    groups: dict[str, Any] = {"": parser}
    for field in _fields_of(options_type):
        name = field.name
        declared = field.declared
        parse = partial(_parsed, declared, declared.label(name), problems)
        if declared.names is None:
            parser.add_argument(
                name,
                nargs="*" if declared.many else "?",
                help=declared.help.replace("%", "%%"),
                type=parse,
            )
            continue
        topic = _topic(options_type, name)
        if topic not in groups:
            groups[topic] = parser.add_argument_group(topic)
        _add_option(groups[topic], field, parse)
    return parser


def _add_option(group: Any, field: _Field, parse: Callable[[str], Any]) -> None:
    declared = field.declared
    flags = declared.flags(field.name)
    help_text = declared.help.replace("%", "%%")
    if declared.flag:
        group.add_argument(*flags, dest=field.name, action="store_true", help=help_text)
        return
    if declared.choices:
        help_text += f"; one of {', '.join(declared.choices)}"
    if field.default not in (None, ()) and "(default" not in help_text:
        help_text += f" (default: {field.default})"
    action = "store"
    if declared.following:
        action = "extend"
    elif declared.many:
        action = "append"
    group.add_argument(
        *flags,
        dest=field.name,
        help=help_text,
        type=parse,
        action=action,
        nargs="+" if declared.following else None,
        metavar=declared.metavar or flags[-1].lstrip("-").upper().replace("-", "_"),
    )


def _topic(options_type: type[Any], name: str) -> str:
    """Return the title of the group that shows an option in the help text.

    It is the topic of the base class that first declares the option. It is empty for
    options that ``options_type`` declares itself.
    """
    classes = [
        cls for cls in options_type.__mro__ if name in inspect.get_annotations(cls)
    ]
    first = classes[-1]
    if first is options_type:
        return ""
    words = re.findall("[A-Z][a-z]*", first.__name__.removesuffix("Options"))
    return str(vars(first).get("topic", " ".join(words).lower()))


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


# Changes of settings


def apply_changes(
    config: Any, changes: Sequence[str], flag: str = "--set", prefix: str = ""
) -> Any:
    """Return a copy of a frozen dataclass with some fields changed.

    Args:
        config: the dataclass instance to change.
        changes: texts ``NAME=VALUE``. The value is converted to the type of the field.
        flag: the option that gave the changes, for error messages.
        prefix: text that stands before the names on the command line, for error
            messages.

    Raises:
        UsageError: if a name is unknown, or if a value is of another type.
    """
    kinds = {
        field.name: type(getattr(config, field.name))
        for field in dataclasses.fields(config)
    }
    values = {}
    problems = []
    for text in changes:
        name, _, value = text.partition("=")
        place = f"{flag} {prefix}{text}"
        if name not in kinds:
            similar = did_you_mean(name, list(kinds))
            expected = f"expected one of {', '.join(kinds)}{similar}"
            problems.append(f"{place}: found the name {name!r}, {expected}")
            continue
        kind = kinds[name]
        try:
            values[name] = _BOOLEANS[value.lower()] if kind is bool else kind(value)
        except (KeyError, ValueError):
            problems.append(f"{place}: found {value!r}, expected a {kind.__name__}")
    if problems:
        raise UsageError(problems)
    return dataclasses.replace(config, **values)
