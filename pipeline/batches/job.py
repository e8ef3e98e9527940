"""A batch job: what it scores and by what, its parts, and its manifest.

The output folder has ``_manifest.json``, one file for each part that is done
(``part-000012.jsonl``), and in ``_rejected`` one for each part with rows that cannot be read.
Readers of folders skip names that begin with ``_``. A part's file appears when it is complete, so
what is there is what is done.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

from indexes.files import atomic_file
from indexes.manifest import Source
from pipeline.batches.formats import Reader, Span, format_of, reader_for
from pipeline.batches.rows import Form
from pipeline.batches.rows import check as check_row
from pipeline.command.errors import DataError

FORMAT = 2
MANIFEST, REJECTED = "_manifest.json", "_rejected"
FIRST_ROWS = 1_000_000  # Bytes in which a job looks for its first row at a time


class Part(NamedTuple):
    """A span of rows, with its place among all parts and that of its file among all files."""

    number: int
    file: int
    span: Span

    @property
    def name(self) -> str:
        """Of its files, without the ending."""
        return f"part-{self.number:06d}"


@dataclass(frozen=True)
class BatchSettings:
    """What the output depends on, besides the input: model, hash of its checkpoint, λ, form."""

    reranker: str
    version: str
    weight: float
    precision: str
    is_nested: bool
    has_first_stage: bool
    is_ordered: bool
    output: str

    @property
    def form(self) -> Form:
        """Of the rows."""
        return Form(self.is_nested, self.has_first_stage, self.is_ordered)


@dataclass(frozen=True)
class BatchJob:
    """What every process that takes part needs to know.

    Attributes:
        files: of the input, absolute.
        output: folder, absolute.
        settings: what the output depends on.
        checkpoint: folder of the model; None is the shipped one.
        batch_size: pairs in a forward pass.
        threads: of a process; None leaves them as they are.
        device: of the model.
    """

    files: tuple[Path, ...]
    output: Path
    settings: BatchSettings
    checkpoint: Path | None
    batch_size: int
    threads: int | None
    device: str

    def output_of(self, part: Part) -> Path:
        """The file of a part that is done."""
        return self.output / f"{part.name}.{self.settings.output}"

    def rejected_of(self, part: Part) -> Path:
        """The file of a part's rows that cannot be read."""
        return self.output / REJECTED / f"{part.name}.jsonl"

    def reader(self) -> Reader:
        """A reader of the input."""
        return reader_for(str(format_of(self.files[0])))


def input_files(path: Path) -> list[Path]:
    """The files of an input, in the order of their names; raises ValueError for none, or others."""
    if not path.exists():
        raise ValueError(f"there is no file or folder {path}")
    names = sorted(path.iterdir()) if path.is_dir() else [path]
    # Hidden files and those of readers' rules are no data.
    files = [one for one in names if format_of(one) and not one.name.startswith((".", "_"))]
    if not files:
        raise ValueError(
            f"found {path}, expected a .parquet or .jsonl file (.jsonl.gz, .jsonl.bz2), or a "
            "folder of such files"
        )
    formats = {"parquet" if format_of(one) == "parquet" else "jsonl" for one in files}
    if len(formats) > 1:
        raise ValueError(f"found Parquet and JSON lines in {path}, expected one of them")
    return [one.absolute() for one in files]


def form_of(files: list[Path]) -> Form:
    """The form of the first row that can be read and has a post; raises DataError without one."""
    reader, problem = reader_for(str(format_of(files[0]))), ""
    for path in files:
        for span in reader.spans(path, FIRST_ROWS, None):
            content = reader.read(path, span, None)
            for rejected in content.rejected[:1]:
                problem = problem or f"{path}:{rejected.number}: {rejected.reason}"
            for row in content.rows:
                try:
                    is_nested = isinstance(row, dict) and row.get("posts") is not None
                    form = Form(is_nested, False, False)
                    check_row(row, form)
                    if form.posts(row):
                        return Form.of(row)
                except ValueError as error:
                    problem = problem or f"{path}:{span.first}: {error}"
    raise DataError(problem or f"{files[0].parent}: found no row with a post, expected some")


def parts_of(files: list[Path], size: int, form: Form) -> Iterator[Part]:
    """All parts of an input."""
    reader, number = reader_for(str(format_of(files[0]))), 0
    for place, path in enumerate(files):
        for span in reader.spans(path, size, form):
            yield Part(number, place, span)
            number += 1


@dataclass(frozen=True)
class BatchManifest:
    """The content of ``_manifest.json``: what a job was begun with, and its parts."""

    sources: tuple[Source, ...]
    settings: BatchSettings
    parts: tuple[Part, ...]

    @classmethod
    def of(cls, job: BatchJob, size: int) -> Self:
        """Plan a job with parts of about ``size`` bytes."""
        parts = tuple(parts_of([*job.files], size, job.settings.form))
        return cls(tuple(map(Source.read, job.files)), job.settings, parts)

    def write(self, folder: Path) -> None:
        """Write the file."""
        content = {
            "format": FORMAT,
            "input": [source._asdict() for source in self.sources],
            "settings": dataclasses.asdict(self.settings),
            "parts": [[part.number, part.file, *part.span] for part in self.parts],
        }
        with atomic_file(folder / MANIFEST) as stream:
            json.dump(content, stream, ensure_ascii=False)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the file; raises DataError."""
        path = folder / MANIFEST
        try:
            content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            if content["format"] != FORMAT:
                raise DataError(f"{path}: found the format {content['format']}, expected {FORMAT}")
            parts = (Part(number, file, Span(*span)) for number, file, *span in content["parts"])
            sources = tuple(Source(**source) for source in content["input"])
            return cls(sources, BatchSettings(**content["settings"]), tuple(parts))
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror}") from None
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path}: found no manifest of a job ({error!r})") from None

    def check(self, job: BatchJob) -> None:
        """Raise DataError unless ``job`` is the one that was begun."""
        before, now = dataclasses.asdict(self.settings), dataclasses.asdict(job.settings)
        changed = [
            f"the {name} {before[name]}, found {now[name]}"
            for name in before
            if before[name] != now[name]
        ]
        names = [source.name for source in self.sources]
        if names != [path.name for path in job.files]:
            changed.insert(0, f"the input {names}, found {[path.name for path in job.files]}")
        elif not changed:
            for source, path in zip(self.sources, job.files, strict=True):
                if not source.matches(path):
                    changed.append(f"{path}, whose content is another now")
        if changed:
            raise DataError(
                f"{job.output}: this job was begun with {'; '.join(changed)}; go on with what it "
                "was begun with, or choose another --output"
            )
