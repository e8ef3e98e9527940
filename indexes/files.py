"""Writing files and folders so that nobody ever sees half of one."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


def _sync(path: Path) -> None:
    """Ask the operating system to put a file's or folder's entry on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def atomic_file(path: Path | str) -> Iterator[IO[str]]:
    """Open a UTF-8 text file that appears under ``path`` only when the block ends without error.

    On any error, Ctrl-C and a full disk included, what was under ``path`` before is untouched and
    the temporary file beside it is removed.
    """
    with (
        _replacing(path) as descriptor,
        os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as stream,
    ):
        yield stream
        stream.flush()
        os.fsync(stream.fileno())


def write_bytes(path: Path | str, content: bytes) -> None:
    """Write a file as :func:`atomic_file` does."""
    with _replacing(path) as descriptor, os.fdopen(descriptor, "wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())


@contextmanager
def _replacing(path: Path | str) -> Iterator[int]:
    """The descriptor of a temporary file that takes the place of ``path`` at the end."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # A symbolic link stays a link: the file that it points to is the one replaced.
    target = path.resolve()
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    temporary = Path(name)
    try:
        yield descriptor
        temporary.chmod(_mode_of(target))
        temporary.replace(target)
        _sync(target.parent)
    except OSError as error:
        # A full disk does not say which file it is about.
        error.filename = error.filename or str(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_directory(path: Path | str) -> Iterator[Path]:
    """Give a new folder that appears under ``path`` only when the block ends without error.

    A folder already there is replaced at that moment; on any error it is untouched.
    """
    path = Path(path).resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        yield temporary
        for file in temporary.rglob("*"):
            _sync(file)
        temporary.chmod(0o777 & ~_umask())
        if path.exists():
            retired = Path(tempfile.mkdtemp(prefix=f".{path.name}.old.", dir=path.parent))
            path.replace(retired)
            temporary.replace(path)
            shutil.rmtree(retired)
        else:
            temporary.replace(path)
        _sync(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _umask() -> int:
    """The process's umask, which can only be read by setting it."""
    value = os.umask(0)
    os.umask(value)
    return value


def _mode_of(path: Path) -> int:
    """The permissions that a file written in place would have."""
    return path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~_umask()
