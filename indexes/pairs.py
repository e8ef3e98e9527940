"""Folders of parallel files (``a.toks``, ``b.toks``, ``id.txt``), one line a (query, post) pair."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from indexes.errors import CollectionError
from indexes.lines import parallel_lines, short
from indexes.posts import Post
from indexes.records import is_doc_id

FILES = ("a.toks", "b.toks", "id.txt")  # Required files
LABELS = "sim.txt"  # Optional file of relevance labels


class Answer(NamedTuple):
    """One candidate answer of a question; relevance 1 or 0, or None without a file of labels."""

    query_id: str
    question: str
    post: Post
    relevance: int | None


def read_pair_folder(folder: Path | str) -> Iterator[tuple[str, Post]]:
    """Read (query_id, post), in the order of the files; a post is yielded once per query.

    ``a.toks`` holds queries, ``b.toks`` posts, the optional ``url.txt`` links or empty lines,
    ``id.txt`` lines of a run: ``query_id Q0 doc_id rank score tag``.

    Raises:
        CollectionError: a file is missing or has another number of lines, or a line of ``id.txt``
            has another form.
    """
    for number, line in parallel_lines(folder, FILES, ("url.txt",)):
        columns = line["id.txt"].split()
        if len(columns) != 6:
            raise CollectionError(
                f"{Path(folder) / 'id.txt'}:{number}: found {short(line['id.txt'])}, "
                "expected `query_id Q0 doc_id rank score tag`"
            )
        yield columns[0], Post(columns[2], line["b.toks"], line.get("url.txt", "").strip())


def read_answer_folder(folder: Path | str) -> Iterator[Answer]:
    """Read questions with their given answers, in the order of the files.

    ``a.toks`` holds questions, ``b.toks`` answers, the optional ``sim.txt`` 1 for relevant answers
    and 0 for others. ``id.txt`` holds either the id of the answer, ``Q11-D11-0``, which begins
    with the question's id and ``-``; or the id of the question, ``32.1``, whose answers then get
    the ids ``32.1-0``, ``32.1-1``, …

    Raises:
        CollectionError: a file is missing or has another number of lines; a line of ``id.txt`` or
            ``sim.txt`` has another form; or an id is repeated.
    """
    folder = Path(folder)
    lines_of: dict[str, int] = {}
    counts: dict[str, int] = {}
    for number, line in parallel_lines(folder, FILES, (LABELS,)):
        where = f"{folder / 'id.txt'}:{number}"
        name = line["id.txt"].strip()
        query_id, dash, _ = name.partition("-")
        if not is_doc_id(name) or not query_id:
            raise CollectionError(
                f"{where}: found {short(name)}, expected one word: the id of a question (32.1), or "
                "the id of an answer (Q11-D11-0), which begins with its question's"
            )
        count = counts.get(query_id, 0)
        counts[query_id] = count + 1
        doc_id = name if dash else f"{query_id}-{count}"
        if (first := lines_of.setdefault(doc_id, number)) != number:
            raise CollectionError(
                f"{where}: found the answer {doc_id!r} again, expected every id once; "
                f"the first is on line {first}"
            )
        label = line.get(LABELS)
        if label is not None and label.strip() not in ("0", "1"):
            raise CollectionError(
                f"{folder / LABELS}:{number}: found {short(label)}, expected 0 or 1"
            )
        relevance = None if label is None else int(label)
        yield Answer(query_id, line["a.toks"], Post(doc_id, line["b.toks"]), relevance)
