"""Atomic writing of files and folders: a reader sees the old content or the new, never a part.

New content is written beside its target, into a hidden temporary file or folder whose name holds
the host and the process, and renamed at the end. A killed process leaves its temporary files
behind; the next writer of the same target removes them, but never those of a living process or of
another host that shares the disk.
"""

import ctypes
import hashlib
import os
import re
import secrets
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any


@contextmanager
def atomic_file(path: Path | str, is_text: bool = True) -> Iterator[IO[Any]]:
    """Open a file, of UTF-8 text or binary, that replaces ``path`` at the end of the block; on any
    error, Ctrl-C and a full disk included, ``path`` stays as it was."""
    target = _prepared(path)
    temporary = _temporary(target)
    form: dict[str, Any] = {"encoding": "utf-8", "newline": "\n"} if is_text else {}
    try:
        with temporary.open("x" if is_text else "xb", **form) as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        if target.exists():
            shutil.copymode(target, temporary)
        temporary.replace(target)
        _sync(target.parent)
    except OSError as error:
        error.filename = error.filename or str(
            path
        )  # The error of a full disk has no file name
        raise
    finally:
        temporary.unlink(missing_ok=True)


def write_bytes(path: Path | str, content: bytes) -> None:
    """Write a binary file as :func:`atomic_file` does."""
    with atomic_file(path, is_text=False) as stream:
        stream.write(content)


@contextmanager
def atomic_directory(path: Path | str) -> Iterator[Path]:
    """Yield an empty folder that replaces ``path`` as a whole when the block ends without an error.
    All files are on the disk (fsync) before the folder gets its name. If a process was killed
    before its end, the next one removes what that left, says so on stderr, and begins anew."""
    target = _prepared(path)
    temporary = _temporary(target)
    temporary.mkdir()
    try:
        yield temporary
        for entry in (*temporary.rglob("*"), temporary):
            _sync(entry)
        if not target.exists():
            temporary.replace(target)
        elif not _exchanged(temporary, target):
            retired = target.replace(_temporary(target))
            try:
                temporary.replace(target)
            except BaseException:
                retired.replace(target)
                raise
            shutil.rmtree(retired)
        _sync(target.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _exchanged(one: Path, other: Path) -> bool:
    """Give each of two folders the other's name in one step; False where the system cannot."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None)  # Linux
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    names = os.fsencode(one), os.fsencode(other)
    return rename is not None and rename(here, names[0], here, names[1], exchange) == 0


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's content, in hexadecimal digits."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _sync(path: Path) -> None:
    """Write a file's content, or a folder's list of entries, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _temporary(target: Path) -> Path:
    """A new path beside the target: ``.NAME.HOST.PROCESS-START.``, and random characters."""
    process = os.getpid()
    owner = f"{os.uname().nodename}.{process}-{_start_time(process)}"
    return target.with_name(f".{target.name}.{owner}.{secrets.token_hex(8)}")


def _start_time(process: int) -> int:
    """Start of a process in clock ticks since boot; 0 where ``/proc`` does not show the process."""
    try:
        status = Path(f"/proc/{process}/stat").read_text(errors="replace")
    except OSError:
        return 0
    # The second field, the program's name in brackets, may hold spaces and brackets.
    return int(status.rpartition(")")[2].split()[19])


def _is_gone(process: int, start: int) -> bool:
    """Whether the process of this host that started at ``start`` has ended."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except OSError:  # a process of another user
        return False
    return _start_time(process) != start


def _prepared(path: Path | str) -> Path:
    """The target, in a folder without temporary files of ended processes of this host."""
    target = Path(
        path
    ).resolve()  # A symbolic link stays: the file behind it is replaced.
    target.parent.mkdir(parents=True, exist_ok=True)
    beginning = re.escape(f".{target.name}.{os.uname().nodename}.")
    pattern = re.compile(beginning + r"([1-9][0-9]{0,8})-([0-9]+)\.\w+")
    for path in target.parent.iterdir():
        found = pattern.fullmatch(path.name)
        if not found or not _is_gone(int(found[1]), int(found[2])):
            continue
        if not path.is_dir():
            path.unlink(missing_ok=True)
            continue
        shutil.rmtree(path, ignore_errors=True)
        print(
            f"note: {target} was being written when its process was killed; what that left is "
            "removed, and it is written anew",
            file=sys.stderr,
        )
    return target
