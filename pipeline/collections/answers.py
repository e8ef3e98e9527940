"""Answer-selection collections: questions, each with the candidate answers that are given for it.

Nothing is searched: a model ranks the given answers, which have no first-stage scores. Each
collection has a part to train on, one to stop training by, and one to report.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from indexes.pairs import FILES, LABELS, Answer, read_answer_folder
from indexes.posts import Post
from pipeline.collections.locations import data_directory, require_files
from pipeline.collections.trec import Qrels, Run, Topic
from pipeline.command.errors import DataError, UsageError

PARTS = ("train", "dev", "test")


@dataclass(frozen=True)
class AnswerCollection:
    """One part of an answer-selection collection; a :class:`pipeline.collections.named.Collection`.

    Attributes:
        name: as on the command line, the same for all parts.
        title: for reports.
        folders: part -> folder of its parallel files (see :mod:`indexes.pairs`).
        part_name: which of the parts this is.
        measures: what such runs are usually compared by.
        runs: none, as no first stage gave the answers their scores.
        index_group: None, as nothing is searched.
    """

    name: str
    title: str
    folders: Mapping[str, Path]
    part_name: str = "test"
    measures: Sequence[str] = ("AP", "RR")
    runs: Mapping[str, Path] = field(default_factory=dict)
    index_group: str | None = None

    @property
    def folder(self) -> Path:
        """Where this part's files are."""
        return self.folders[self.part_name]

    def part(self, name: str) -> "AnswerCollection":
        """Another part of the collection: ``train``, ``dev`` or ``test``.

        Raises:
            UsageError: there is none of that name.
        """
        if name not in self.folders:
            raise UsageError(
                f"{self.name}: found the part {name!r}, expected one of {', '.join(self.folders)}"
            )
        return dataclasses.replace(self, part_name=name)

    def topics(self) -> list[Topic]:
        """All questions, in the order of their files; the text is that of a question's first line.

        Raises:
            DataError: files are missing.
            CollectionError: they are malformed; so too in the other methods.
        """
        questions: dict[str, str] = {}
        for answer in self._answers():
            questions.setdefault(answer.query_id, answer.question)
        return [Topic(query_id, text) for query_id, text in questions.items()]

    def candidates(self) -> Run:
        """Every given answer, question by question, all with the score 0.

        Raises:
            DataError: files are missing.
        """
        run: Run = {}
        for answer in self._answers():
            run.setdefault(answer.query_id, {})[answer.post.doc_id] = 0.0
        return run

    def qrels(self) -> Qrels | None:
        """The labels of all answers, or None where their file is absent.

        Questions without a relevant answer are left out, as published figures do: no ranking of
        them is better than another, and as 0 each they would only lower every mean.
        """
        if not (self.folder / LABELS).exists():
            return None
        qrels: Qrels = {}
        for answer in self._answers():
            if answer.relevance is not None:
                qrels.setdefault(answer.query_id, {})[answer.post.doc_id] = answer.relevance
        return {query_id: grades for query_id, grades in qrels.items() if any(grades.values())}

    def missing_judgments(self) -> str:
        """Why there are no judgments, for reports."""
        return (
            f"{self.name} has no judgments of its {self.part_name} part here "
            f"({self.folder / LABELS} is absent), so runs on it cannot be evaluated"
        )

    def posts(self) -> Iterator[Post]:
        """The answers, in the order of their files.

        Raises:
            DataError: files are missing.
        """
        return (answer.post for answer in self._answers())

    def post_sources(self) -> list[Path]:
        """The files that the answers are read from."""
        return [self.folder / name for name in ("b.toks", "id.txt")]

    def missing(self) -> list[Path]:
        """The files of this part that should be there and are not; labels may be absent."""
        return [path for name in FILES if not (path := self.folder / name).exists()]

    def _answers(self) -> Iterator[Answer]:
        require_files(self.name, self.missing())
        found = False
        for answer in read_answer_folder(self.folder):
            found = True
            yield answer
        if not found:
            raise DataError(f"{self.folder}: found no answer, expected at least one line a file")


# name -> title and the folders of its training, development and test parts. TrecQA's clean parts
# are the raw ones without the questions that have no relevant answer or nothing but relevant ones.
_ROWS = {
    "trecqa-raw": ("TrecQA, raw", ("trecqa/train", "trecqa/raw-dev", "trecqa/raw-test")),
    "trecqa-clean": ("TrecQA, clean", ("trecqa/train", "trecqa/clean-dev", "trecqa/clean-test")),
    "wikiqa": ("WikiQA", ("wikiqa/train", "wikiqa/dev", "wikiqa/test")),
}

NAMES = tuple(_ROWS)
"""Names of the answer-selection collections."""


def find(name: str, data: Path | None = None) -> AnswerCollection:
    """The test part of the collection of one of :data:`NAMES`.

    Args:
        name: of the collection.
        data: folder of the data; None is the usual one.
    """
    title, folders = _ROWS[name]
    root = data_directory(data)
    return AnswerCollection(
        name, title, {part: root / path for part, path in zip(PARTS, folders, strict=True)}
    )
