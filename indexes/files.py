"""Write files and folders atomically: a reader sees the old content or the new.

New content is written into a hidden temporary file or folder next to its target. At the
end the temporary one is renamed. A killed process leaves its temporary files behind,
and the next writer of the same target removes them. The temporary name tells the host
and the process, so that files of a living process, or of another host on a shared disk,
are never removed.
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
    """Open a new file that replaces ``path`` when the block ends.

    The file holds UTF-8 text, or bytes if ``is_text`` is False. It is on the disk
    (fsync) before it gets its name. After any error, including Ctrl-C and a full disk,
    ``path`` is as it was before. Raises OSError if the file cannot be written.
    """
    target = _prepared(path)
    temporary = _temporary(target)
    try:
        with _created(temporary, is_text) as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        if target.exists():
            shutil.copymode(target, temporary)
        temporary.replace(target)
        _sync(target.parent)
    except OSError as error:
        # The error of a full disk has no file name.
        error.filename = error.filename or str(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)


def _created(path: Path, is_text: bool) -> IO[Any]:
    """Open a new file for writing. Raises FileExistsError if it exists."""
    if is_text:
        return path.open("x", encoding="utf-8", newline="\n")
    return path.open("xb")


def write_bytes(path: Path | str, content: bytes) -> None:
    """Write bytes to a file atomically, as :func:`atomic_file` does."""
    with atomic_file(path, is_text=False) as stream:
        stream.write(content)


@contextmanager
def atomic_directory(path: Path | str) -> Iterator[Path]:
    """Yield an empty folder that replaces ``path`` when the block ends.

    After any error, ``path`` is as it was before. All files are on the disk (fsync)
    before the folder gets its name. If a killed writer left an unfinished folder, it is
    removed first, and a note is printed on stderr.
    """
    target = _prepared(path)
    temporary = _temporary(target)
    temporary.mkdir()
    try:
        yield temporary
        for entry in temporary.rglob("*"):
            _sync(entry)
        _sync(temporary)
        if not target.exists():
            temporary.replace(target)
        elif not _exchanged(temporary, target):
            _replace_in_steps(temporary, target)
        _sync(target.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _exchanged(source: Path, target: Path) -> bool:
    """Exchange the names of two folders in one step, and return whether it was done.

    The result is False if the system cannot do it.
    """
    rename = getattr(ctypes.CDLL(None), "renameat2", None)  # Linux
    if rename is None:
        return False
    at_fdcwd = -100
    rename_exchange = 2
    status: int = rename(
        at_fdcwd,
        os.fsencode(source),
        at_fdcwd,
        os.fsencode(target),
        rename_exchange,
    )
    return status == 0


def _replace_in_steps(temporary: Path, target: Path) -> None:
    """Move the old folder away, then the new one in its place.

    Between both steps there is no folder ``target``. If the second step fails, the old
    folder is moved back.
    """
    retired = target.replace(_temporary(target))
    try:
        temporary.replace(target)
    except BaseException:
        retired.replace(target)
        raise
    shutil.rmtree(retired)


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal digits."""
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
    """Return a new path ``.NAME.HOST.PROCESS-START.RANDOM`` in the target's folder.

    START is the start time of the process, because a later process may get its number.
    """
    process = os.getpid()
    owner = f"{os.uname().nodename}.{process}-{_start_time(process)}"
    return target.with_name(f".{target.name}.{owner}.{secrets.token_hex(8)}")


def _start_time(process: int) -> int:
    """Return the start time of a process in clock ticks since the system booted.

    It is 0 if the process has ended, or if the system does not show it.
    """
    try:
        status = Path(f"/proc/{process}/stat").read_text(errors="replace")
    except OSError:
        return 0
    # The second field, the program's name in brackets, may hold spaces and brackets.
    return int(status.rpartition(")")[2].split()[19])


def _is_gone(process: int, start: int) -> bool:
    """Return whether the process of this host that started at ``start`` has ended."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except OSError:  # A process of another user
        return False
    return _start_time(process) != start


def _prepared(path: Path | str) -> Path:
    """Create the folder of a target, remove old remains there, and return the target.

    The remains are temporary files that killed writers of the same target left behind.
    If ``path`` is a symbolic link, the target is the file it points to, so that the
    link stays.
    """
    target = Path(path).resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    beginning = re.escape(f".{target.name}.{os.uname().nodename}.")
    pattern = re.compile(beginning + r"([1-9][0-9]{0,8})-([0-9]+)\.\w+")
    for entry in target.parent.iterdir():
        owner = pattern.fullmatch(entry.name)
        if owner and _is_gone(int(owner[1]), int(owner[2])):
            _remove_remains(entry, target)
    return target


def _remove_remains(remains: Path, target: Path) -> None:
    if not remains.is_dir():
        remains.unlink(missing_ok=True)
        return
    shutil.rmtree(remains, ignore_errors=True)
    print(
        f"note: {target} was being written when its process was killed; the unfinished "
        "folder is removed, and writing starts again",
        file=sys.stderr,
    )
