"""Given answers to questions: parallel files whose ``id.txt`` has one column."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from indexes.errors import CollectionError
from indexes.posts import Post, is_doc_id, parallel_lines, short

FILES = ("a.toks", "b.toks", "id.txt")
"""Files that a folder of answers must have."""

LABELS = "sim.txt"
"""The file of labels, which may be absent."""


class Answer(NamedTuple):
    """One candidate answer of a question.

    Attributes:
        query_id: of the question.
        question: its text.
        post: the answer; its doc_id begins with the query_id.
        relevance: 1 or 0, or None where the labels are absent.
    """

    query_id: str
    question: str
    post: Post
    relevance: int | None


def read_answer_folder(folder: Path | str) -> Iterator[Answer]:
    """Read a folder of parallel files, one line a (question, answer) pair, in the files' order.

    ``a.toks`` holds the question, ``b.toks`` the answer, ``sim.txt`` 1 if it is relevant, else 0
    (the file may be absent). ``id.txt`` has an answer's id, ``Q11-D11-0``, which begins with the
    question's up to the first ``-``; or the question's alone, ``32.1``, whose answers then get
    the ids ``32.1-0``, ``32.1-1``, …

    Raises:
        CollectionError: a file is missing or has another number of lines than the others, or a
            line of ``id.txt`` or ``sim.txt`` has another form or gives an id again.
    """
    folder = Path(folder)
    lines_of: dict[str, int] = {}
    counts: dict[str, int] = {}
    for number, line in parallel_lines(folder, FILES, (LABELS,)):
        query_id, doc_id = _ids(line["id.txt"], f"{folder / 'id.txt'}:{number}", counts)
        if (first := lines_of.setdefault(doc_id, number)) != number:
            raise CollectionError(
                f"{folder / 'id.txt'}:{number}: found the answer {doc_id!r}, which line {first} "
                "has already; expected every id once"
            )
        label = line.get(LABELS)
        if label is not None and label.strip() not in ("0", "1"):
            raise CollectionError(
                f"{folder / LABELS}:{number}: found {short(label)}, expected 0 or 1"
            )
        relevance = None if label is None else int(label)
        yield Answer(query_id, line["a.toks"], Post(doc_id, line["b.toks"]), relevance)


def _ids(text: str, where: str, counts: dict[str, int]) -> tuple[str, str]:
    """query_id and doc_id of a line; ``counts`` has the answers so far of each question."""
    name = text.strip()
    query_id, dash, _ = name.partition("-")
    if not is_doc_id(name) or not query_id:
        raise CollectionError(
            f"{where}: found {short(text)}, expected one word: the id of a question (32.1), or "
            "that of an answer (Q11-D11-0), which begins with its question's"
        )
    count = counts.get(query_id, 0)
    counts[query_id] = count + 1
    return query_id, name if dash else f"{query_id}-{count}"
