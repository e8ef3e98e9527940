"""Read posts from their sources.

Sources are files, indexes of other programs, folders of TREC's pairs, and answers.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, zip_longest
from pathlib import Path
from typing import NamedTuple

from tweetrerank.indexes.data_error import DataError
from tweetrerank.indexes.manifest import FILE_NAME
from tweetrerank.indexes.posts import Post, read_posts
from tweetrerank.indexes.records import is_doc_id, numbered_lines, short
from tweetrerank.pipeline.collections.topics import Topic
from tweetrerank.pipeline.collections.trec import Qrels, Run
from tweetrerank.pipeline.text import note

FILES = ("a.toks", "b.toks", "id.txt")
"""Parallel files of pairs of a query and a post."""

LABELS = "sim.txt"
"""Parallel file of relevance labels, which is optional."""


class PostFiles(NamedTuple):
    """Files of posts."""

    files: Sequence[Path]
    columns: Mapping[str, str] = {}
    """Field of a post -> its column or key, for fields whose names differ."""
    signals: Sequence[str] = ()  # Further numeric fields

    def posts(self) -> Iterator[Post]:
        """Yield the posts in the order of the files, with their signals as numbers.

        If some posts have no number for a signal, their count is printed on stderr.
        Raises DataError if no post has a number for a signal.
        """
        from tweetrerank.rerankers.pairs import number_of

        count = 0
        numbers_of_signal = Counter[str]()
        read_files = (
            read_posts(path, self.columns, self.signals) for path in self.files
        )
        for post in chain.from_iterable(read_files):
            count += 1
            if not self.signals:
                yield post
                continue
            numbers = _numbers_in(post, number_of)
            numbers_of_signal.update(numbers.keys())
            yield post._replace(signals=numbers)
        if count:
            self._check_signals(count, numbers_of_signal)

    def _check_signals(self, count: int, numbers_of_signal: Counter[str]) -> None:
        """Report how many of the ``count`` posts have no number for a signal.

        Raises DataError if none of the posts has one.
        """
        lacking = [name for name in self.signals if not numbers_of_signal[name]]
        if lacking:
            raise DataError(
                f"{self.files[0]}: found no number under {', '.join(lacking)} in "
                f"{count:,} posts, expected numbers, flags or ISO dates; correct "
                "`signals`"
            )
        for name in self.signals:
            without = count - numbers_of_signal[name]
            if without:
                note(f"{name}: {without:,} of {count:,} posts have no number there")


def _numbers_in(post: Post, number_of: Callable[[object], float]) -> dict[str, float]:
    """Return the signals of a post that are numbers. Other signals are left out."""
    numbers = {}
    for name, value in post.signals.items():
        number = number_of(value)
        if number == number:  # Not NaN
            numbers[name] = number
    return numbers


class ForeignIndex(NamedTuple):
    """An index that Pyserini or Anserini has built. Its stored posts are read."""

    folder: Path

    @property
    def files(self) -> list[Path]:
        """Lucene's file of segments, which every change of the index replaces.

        The list is empty if the folder is not such an index.
        """
        if (self.folder / FILE_NAME).exists():  # An index by this project
            return []
        return sorted(self.folder.glob("segments_*"))

    def posts(self) -> Iterator[Post]:
        """Return the posts in the order of the index."""
        from tweetrerank.indexes.lucene_index import stored_posts

        return stored_posts(self.folder)


def _pairs(folder: Path, optional: str) -> Iterator[tuple[int, list[str]]]:
    """Yield (number from 1, lines) of each pair in a folder.

    The lines are one from each of :data:`FILES`, and one from the ``optional`` file if
    it exists. Raises DataError if a file is missing or is shorter than another.
    """
    missing = [name for name in FILES if not (folder / name).exists()]
    if missing:
        raise DataError(
            f"{folder}: found no {', no '.join(missing)}; expected {list(FILES)}"
        )
    names = list(FILES)
    if (folder / optional).exists():
        names.append(optional)
    streams = [numbered_lines(folder / name) for name in names]
    for number, lines in enumerate(zip_longest(*streams), start=1):
        if None in lines:
            shorter = folder / names[lines.index(None)]
            raise DataError(
                f"{shorter}: found {number - 1} lines, expected as many as in the "
                "parallel files beside it"
            )
        yield number, [line for _, line in lines]


class PairFolders(NamedTuple):
    """Folders of posts that were retrieved for queries.

    Each line of the files belongs to one pair. ``a.toks`` has the query, ``b.toks`` the
    post, ``url.txt`` its link or nothing, and ``id.txt`` has
    ``query_id Q0 doc_id rank score tag``.
    """

    folders: Sequence[Path]

    @property
    def files(self) -> list[Path]:
        """The files to read."""
        paths = []
        for folder in self.folders:
            paths += [folder / name for name in ("b.toks", "url.txt", "id.txt")]
        return paths

    def posts(self) -> Iterator[Post]:
        """Return the posts by ascending id, each with its first non-empty text."""
        posts: dict[str, Post] = {}
        for folder in self.folders:
            for number, (_, text, hit, *url) in _pairs(folder, "url.txt"):
                columns = hit.split()
                if len(columns) != 6:
                    raise DataError(
                        f"{folder / 'id.txt'}:{number}: found {short(hit)}, expected "
                        "`query_id Q0 doc_id rank score tag`"
                    )
                doc_id = columns[2]
                if doc_id not in posts or not posts[doc_id].text.strip():
                    posts[doc_id] = Post(doc_id, text, "".join(url).strip())
        return iter(sorted(posts.values(), key=lambda post: int(post.doc_id)))


PostSource = PostFiles | ForeignIndex | PairFolders


class _Answer(NamedTuple):
    """An answer to a question, with its label."""

    query_id: str
    question: str
    post: Post
    label: int  # 1 for a relevant answer; 0 for others, and without labels


@dataclass(frozen=True)
class Answers:
    """Questions with given answers, which give topics, posts, labels and candidates.

    Each line of the files belongs to one answer. ``a.toks`` has the question and
    ``b.toks`` the answer. The optional ``sim.txt`` has 1 for a relevant answer and 0
    for another. ``id.txt`` has either the id of the answer, such as ``Q11-D11-0``, or
    the id of the question, such as ``32.1``. The id of an answer begins with that of
    its question and ``-``. If only the question's id is given, the answers get the ids
    ``32.1-0``, ``32.1-1``, …
    """

    folders: Mapping[str, Path]  # Part (``train``, ``dev``, ``test``) -> its files
    part: str = "test"

    @property
    def files(self) -> list[Path]:
        """The files of the part that must exist. Labels are not among them."""
        return [self.folders[self.part] / name for name in FILES]

    @property
    def labels(self) -> Path:
        """The file of labels, which may be absent."""
        return self.folders[self.part] / LABELS

    @cached_property
    def _answers(self) -> list[_Answer]:
        """The answers, in the order of the files."""
        folder = self.folders[self.part]
        answers: list[_Answer] = []
        counts = Counter[str]()  # query_id -> number of answers so far
        lines_of: dict[str, int] = {}  # doc_id -> line number
        for number, (question, text, name, *labels) in _pairs(folder, LABELS):
            where = f"{folder / 'id.txt'}:{number}"
            query_id, doc_id = _ids_of(name.strip(), counts, where)
            counts[query_id] += 1
            first = lines_of.setdefault(doc_id, number)
            if first != number:
                raise DataError(
                    f"{where}: found the answer {doc_id!r} again, expected every id "
                    f"once; the first is on line {first}"
                )
            label = labels[0].strip() if labels else "0"
            if label not in ("0", "1"):
                raise DataError(
                    f"{self.labels}:{number}: found {short(label)}, expected 0 or 1"
                )
            post = Post(doc_id, text)
            answers.append(_Answer(query_id, question, post, int(label)))
        if not answers:
            raise DataError(
                f"{folder}: found no answer, expected at least one line a file"
            )
        return answers

    def topics(self) -> list[Topic]:
        """Return the questions in the order of the files, with their first texts."""
        questions: dict[str, str] = {}
        for answer in self._answers:
            questions.setdefault(answer.query_id, answer.question)
        return [Topic(query_id, text) for query_id, text in questions.items()]

    def posts(self) -> Iterator[Post]:
        """Return the answers in the order of the files."""
        return (answer.post for answer in self._answers)

    def candidates(self) -> Run:
        """Return the answers of each question, all with the score 0."""
        return {
            query_id: dict.fromkeys(grades, 0.0)
            for query_id, grades in self.qrels().items()
        }

    def qrels(self) -> Qrels:
        """Return the labels as judgments.

        Questions without a relevant answer are included, as in trec_eval and in section
        5 of Rao et al. (2016). Every ranking of their answers has the value 0.
        """
        qrels: Qrels = {}
        for answer in self._answers:
            grades = qrels.setdefault(answer.query_id, {})
            grades[answer.post.doc_id] = answer.label
        return qrels


def _ids_of(name: str, counts: Counter[str], where: str) -> tuple[str, str]:
    """Return the query_id and the doc_id of an answer, given its line of ``id.txt``.

    ``counts`` has the number of earlier answers of each question. Raises DataError if
    the line is not one word.
    """
    query_id, dash, _ = name.partition("-")
    if not is_doc_id(name) or not query_id:
        raise DataError(
            f"{where}: found {short(name)}, expected one word: the id of a question "
            "(32.1), or the id of an answer (Q11-D11-0), which begins with its "
            "question's"
        )
    if dash:
        return query_id, name
    return query_id, f"{query_id}-{counts[query_id]}"
