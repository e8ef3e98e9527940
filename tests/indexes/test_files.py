"""Files and folders that appear whole or not at all."""

import errno
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from helpers.processes import ROOT

from indexes.files import atomic_directory, atomic_file


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "full")])
def test_a_failure_leaves_what_was_there(error: BaseException, tmp_path: Path) -> None:
    folder, file = tmp_path / "folder", tmp_path / "file.txt"
    folder.mkdir()
    (folder / "old").touch()
    file.write_text("old")
    with pytest.raises(type(error)), atomic_file(file) as stream:
        stream.write("new")
        raise error
    if isinstance(error, OSError):
        assert error.filename == str(file)
    with pytest.raises(type(error)), atomic_directory(folder) as new:
        (new / "new").touch()
        raise error
    assert file.read_text() == "old"
    assert names(folder) == ["old"]
    assert names(tmp_path) == ["file.txt", "folder"]


def test_a_file_appears_at_the_end(tmp_path: Path) -> None:
    """Permissions stay, and links."""
    target, link = tmp_path / "new" / "target", tmp_path / "link"
    with atomic_file(target) as stream:
        stream.write("λ\n")
        assert not target.exists()
    assert target.read_bytes() == "λ\n".encode() and names(target.parent) == ["target"]
    assert stat.S_IMODE(target.stat().st_mode) & 0o600 == 0o600
    target.chmod(0o640)
    link.symlink_to(target)
    with atomic_file(link) as stream:
        stream.write("new")
    assert link.is_symlink() and target.read_text() == "new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640


def test_a_folder_is_replaced_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    for _ in range(2):
        with atomic_directory(path) as new:
            (new / "new").touch()
            assert not path.exists() or names(path) == ["old"]
        assert names(path) == ["new"]
        (path / "new").rename(path / "old")
    assert names(tmp_path) == ["folder"]


@contextmanager
def writer_of(path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has begun to replace a folder and a file, and waits."""
    code = (
        "import sys, time\n"
        "from indexes.files import atomic_directory, atomic_file\n"
        "with atomic_directory(sys.argv[1]) as folder, atomic_file(sys.argv[1] + '.txt'):\n"
        "    (folder / 'half').write_text('half')\n"
        "    print('begun', flush=True)\n"
        "    time.sleep(120)\n"
    )
    words = [sys.executable, "-c", code, str(path)]
    process = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout and process.stdout.readline() == "begun\n"
        yield process
    finally:
        process.kill()
        process.wait()


def test_the_next_writer_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    path = tmp_path / "index"
    (tmp_path / ".index.backup.1").mkdir()
    elsewhere = tmp_path / ".index.another-host.999999-1.abcdefgh"
    elsewhere.mkdir()
    with writer_of(path) as killed, writer_of(path) as alive:
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        assert len(names(tmp_path)) == 6
        for _ in range(2):
            with atomic_directory(path) as new, atomic_file(f"{path}.txt"):
                (new / "new").write_text("new")
            remaining = set(names(tmp_path)) - {"index", "index.txt", ".index.backup.1"}
            assert elsewhere.name in remaining and len(remaining) == 3
            assert sum(f".{alive.pid}-" in name for name in remaining) == 2
    assert names(path) == ["new"]
