"""The log of a service: searches, and the events that follow them, in parts by the hour.

A folder has these files; several services may write into one::

    searches-2026-11-24T17-ab12cd34.jsonl    the running hour of a service, a line a search
    searches-2026-11-24T16-ab12cd34.parquet  an hour that is over
    events-2026-11-24T16-ab12cd34.parquet    clicks and the like
    key                                      of the hashes of queries and clients
    serving.json                             the models that are compared
    promotions.jsonl                         challengers that became champions, and the way back

Lines are handed to a thread that writes them several times a second: nobody waits for the disk, and
a killed process loses what was not written yet. Lines that a full disk or a full queue does not
take are counted. Hours become Parquet in a process of their own.
"""

from __future__ import annotations

import fcntl
import hmac
import json
import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol

from indexes.files import atomic_file
from pipeline.command.errors import DataError

FLUSH = 0.25  # Seconds between two writes
MOST_WAITING = 20_000  # Lines that wait to be written; further ones are dropped

SEARCHES, EVENTS = "searches", "events"
PROMOTIONS = "promotions.jsonl"

SCHEMAS: Mapping[str, Mapping[str, str]] = {
    SEARCHES: {
        "search_id": "string",
        "time": "float64",
        "index": "string",
        "model": "string",
        "version": "string",
        "query": "string",
        "client_id": "string",
        "ids": "list<string>",
        "objects": "list<string>",
        "first_stage": "list<float64>",
        "scores": "list<float64>",
        "ranks": "list<int32>",
        "start": "int32",
        "shown": "list<string>",
        "challenger": "string",
        "teams": "list<int32>",
    },
    EVENTS: {
        "search_id": "string",
        "time": "float64",
        "action": "string",
        "object_id": "string",
        "position": "int32",
        "client_id": "string",
    },
}
"""Columns of both kinds of parts. Lists of a search, each in the first stage's order: ``ids`` of
the window, ``objects``, their values of UBI's ``object_id_field``, scores and ranks (from 1). In
the order of the page, which begins at ``start``: ``shown`` ids, and the ``teams`` of an interleaved
search against the version ``challenger``, see :mod:`pipeline.loop.interleaving`."""

_HASHED = "hmac:"  # At the start of a query or client that is hashed


class Store(Protocol):
    """Where records are kept."""

    def append(self, kind: str, records: Sequence[tuple[Mapping[str, Any], bytes]]) -> None:
        """Keep records, each with its line of JSON; raises any error if they are not kept."""

    def close(self) -> None:
        """End the work."""


class _Queue:
    """Records on their way to a store, by a thread of their own."""

    def __init__(self, store: Store) -> None:
        self.written = self.dropped = 0
        self._store = store
        self._waiting: SimpleQueue[tuple[str, Mapping[str, Any], bytes]] = SimpleQueue()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    def put(self, kind: str, record: Mapping[str, Any], line: bytes) -> None:
        if self._waiting.qsize() >= MOST_WAITING:
            self.dropped += 1
        else:
            self._waiting.put((kind, record, line))

    def close(self) -> None:
        self._end.set()
        self._thread.join(5)

    def _run(self) -> None:
        while not self._end.wait(FLUSH):
            self._flush()
        self._flush()
        self._store.close()

    def _flush(self) -> None:
        waiting = [self._waiting.get() for _ in range(self._waiting.qsize())]
        for kind in SCHEMAS:
            records = [(record, line) for name, record, line in waiting if name == kind]
            try:
                self._store.append(kind, records)
                self.written += len(records)
            except Exception:
                # Whatever it is, a full disk or an engine that is away: the service goes on.
                self.dropped += len(records)


class LogWriter:
    """Writes a log; its methods may be called by any thread, and neither wait nor raise errors.

    Args:
        is_plain: whether queries and clients are written as they are, not hashed.
        keep: days after which parts are deleted.
        others: further stores of the same records.
    """

    def __init__(
        self, folder: Path, is_plain: bool = False, keep: float = 30, others: Sequence[Store] = ()
    ) -> None:
        self.folder, self.is_plain = folder, is_plain
        folder.mkdir(parents=True, exist_ok=True)
        self._key = b"" if is_plain else _key(folder)
        self._queues = [_Queue(store) for store in (Folder(folder, keep), *others)]

    @property
    def written(self) -> int:
        """Number of lines, in all stores together."""
        return sum(queue.written for queue in self._queues)

    @property
    def dropped(self) -> int:
        """Number of lines that a store did not take."""
        return sum(queue.dropped for queue in self._queues)

    def write(self, kind: str, record: dict[str, Any]) -> dict[str, Any]:
        """Queue a record, which is given back with what may be written of it."""
        import orjson

        if not self.is_plain:
            names = ("query", "client_id")
            record |= {name: self._hash(text) for name in names if (text := record.get(name))}
        try:
            line = orjson.dumps(record)
        except TypeError:  # Half a surrogate pair.
            self._queues[0].dropped += 1
            return record
        for queue in self._queues:
            queue.put(kind, record, line)
        return record

    def close(self) -> None:
        """Write what waits."""
        for queue in self._queues:
            queue.close()

    def _hash(self, text: str) -> str:
        normal = " ".join(text.casefold().split()).encode("utf-8", "replace")
        return _HASHED + hmac.digest(self._key, normal, "sha256").hex()[:32]


class Folder:
    """The store of a log's own folder."""

    def __init__(self, folder: Path, keep: float) -> None:
        self._folder, self._keep = folder, keep
        self._name, self._hour = secrets.token_hex(4), ""
        self._files: dict[str, int] = {}

    def append(self, kind: str, records: Sequence[tuple[Mapping[str, Any], bytes]]) -> None:
        """Append whole lines, or none; an hour that is over is closed."""
        hour = datetime.now(UTC).strftime("%Y-%m-%dT%H")
        if hour != self._hour:
            self._hour = hour
            self.close()
            self._compact()
        if not records:
            return
        if kind not in self._files:
            self._files[kind] = _locked(self._folder / f"{kind}-{hour}-{self._name}.jsonl")
        file, content = self._files[kind], b"".join(line + b"\n" for _, line in records)
        size = os.fstat(file).st_size
        try:
            while content:
                content = content[os.write(file, content) :]
        except OSError:
            os.ftruncate(file, size)
            raise

    def close(self) -> None:
        """Let others make Parquet of the files."""
        while self._files:
            os.close(self._files.popitem()[1])

    def _compact(self) -> None:
        """Make Parquet of the hours that are over, and of what others have left behind."""
        command = [sys.executable, "-m", "pipeline.loop.log", str(self._folder), str(self._keep)]
        with suppress(OSError):
            self._child = subprocess.Popen(command, stdin=subprocess.DEVNULL)


def _locked(path: Path) -> int:
    """The descriptor of a new part; another process may take it for one that was left behind."""
    while True:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file).st_nlink:
            return file
        os.close(file)


def _key(folder: Path) -> bytes:
    """The key of a log's hashes, made at its first use."""
    path, new = folder / "key", folder / f".key-{secrets.token_hex(4)}"
    if not path.exists():
        new.touch(0o600)
        new.write_bytes(secrets.token_bytes(32))
        with suppress(FileExistsError):
            os.link(new, path)
        new.unlink()
    return path.read_bytes()


def is_hashed(query: str) -> bool:
    """Whether this is the hash of a query."""
    return query.startswith(_HASHED)


def compact(folder: Path, keep: float) -> None:
    """Make Parquet of parts that nobody writes any more; delete those older than ``keep`` days."""
    oldest = (datetime.now(UTC) - timedelta(days=keep)).strftime("%Y-%m-%dT%H")
    for kind in SCHEMAS:
        for path in sorted(folder.glob(f"{kind}-*")):
            if path.name.removeprefix(f"{kind}-") < oldest:
                path.unlink(missing_ok=True)
            elif path.suffix == ".jsonl":
                with path.open("rb") as stream, suppress(BlockingIOError):
                    fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    _to_parquet(path, kind)


def _to_parquet(path: Path, kind: str) -> None:
    """Replace a part of lines by one of columns."""
    import pyarrow as pa
    from pyarrow import parquet

    lists = {"string": pa.string(), "float64": pa.float64(), "int32": pa.int32()}
    kinds = lists | {f"list<{name}>": pa.list_(value) for name, value in lists.items()}
    schema = pa.schema([(name, kinds[value]) for name, value in SCHEMAS[kind].items()])
    new = path.with_name(f".{path.stem}")
    with parquet.ParquetWriter(new, schema, compression="zstd") as writer:
        rows: list[dict[str, Any]] = []
        for row in _lines(path):
            rows.append(row)
            if len(rows) == 5000:
                writer.write_table(pa.Table.from_pylist(rows, schema))
                rows = []
        writer.write_table(pa.Table.from_pylist(rows, schema))
    new.replace(path.with_suffix(".parquet"))
    path.unlink()


def read(folder: Path, kind: str, columns: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
    """The records of a log, by the hour, with some :data:`SCHEMAS` columns; raises DataError."""
    if not folder.is_dir():
        raise DataError(f"{folder}: found no folder, expected that of serve --log")
    for name in sorted({path.stem for path in folder.glob(f"{kind}-*.*")}):
        whole, lines = folder / f"{name}.parquet", folder / f"{name}.jsonl"
        if not whole.exists():
            try:
                yield from ({k: r.get(k) for k in columns or SCHEMAS[kind]} for r in _lines(lines))
                continue
            except FileNotFoundError:
                pass  # It has become Parquet.
        try:
            from pyarrow import parquet
        except ModuleNotFoundError:
            raise DataError(
                f"{whole}: found no package pyarrow to read it; install the extra: pip install "
                "'tweetrerank[loop]'"
            ) from None
        with parquet.ParquetFile(whole) as file:
            for batch in file.iter_batches(2000, columns=list(columns or SCHEMAS[kind])):
                yield from batch.to_pylist()


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a part; the last line may be cut."""
    with path.open("rb") as stream:
        for line in stream:
            with suppress(ValueError):
                yield json.loads(line)


def write_serving(
    folder: Path, challenger: Path, collection: str | None, checkpoint: Path | None
) -> None:
    """Write down whose model the challenger is to replace: a collection's, or a checkpoint."""
    # The name of a collection stays as it is.
    if collection and Path(collection).exists():
        collection = str(Path(collection).absolute())
    content = {
        "challenger": str(challenger.absolute()),
        "collection": collection,
        "checkpoint": checkpoint and str(checkpoint.absolute()),
    }
    with atomic_file(folder / "serving.json") as stream:
        json.dump(content, stream, indent=2)


def read_serving(folder: Path) -> dict[str, Any]:
    """What :func:`write_serving` wrote; raises DataError without it."""
    path = folder / "serving.json"
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise DataError(
            f"{path}: found no such file, expected that of serve --challenger"
        ) from None
    return content


def append_promotion(folder: Path, record: Mapping[str, Any]) -> None:
    """Write down that a challenger became the champion, or the way back."""
    with (folder / PROMOTIONS).open("a", encoding="utf-8") as stream:
        stream.write(json.dumps({"time": time.time(), **record}) + "\n")


def read_promotions(folder: Path) -> list[dict[str, Any]]:
    """What was written by :func:`append_promotion`, oldest first."""
    return [*_lines(path)] if (path := folder / PROMOTIONS).exists() else []


if __name__ == "__main__":
    os.nice(10)
    compact(Path(sys.argv[1]), float(sys.argv[2]))
