"""Sources of posts: files of them, an index of others, folders of pairs, questions with answers."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from indexes.manifest import FILE_NAME
from indexes.posts import (
    FILES,
    LABELS,
    Answer,
    Post,
    read_answer_folder,
    read_pair_folder,
    read_posts,
)
from pipeline.collections.topics import Topic
from pipeline.collections.trec import Qrels, Run
from pipeline.errors import DataError


class PostFiles(NamedTuple):
    """Files of posts."""

    files: Sequence[Path]
    columns: Mapping[str, str] = {}  # Field of a post -> its column or key, where it differs
    signals: Sequence[str] = ()  # Further fields of the posts, which are numbers

    def posts(self) -> Iterator[Post]:
        """The posts, in the order of the files, with their signals as numbers.

        How many posts lack a number is printed; that all do is a DataError.
        """
        from rerankers.pairs import number_of

        count, known = 0, Counter[str]()
        for post in chain.from_iterable(read_posts(path, *self[1:]) for path in self.files):
            numbers = {name: number_of(value) for name, value in post.signals.items()}
            numbers = {name: number for name, number in numbers.items() if number == number}
            known.update(numbers.keys())
            count += 1
            yield post._replace(signals=numbers) if self.signals else post
        if lacking := [name for name in self.signals if count and not known[name]]:
            raise DataError(
                f"{self.files[0]}: found no number under {', '.join(lacking)} in {count:,} posts, "
                "expected numbers, flags or ISO dates; correct `signals`"
            )
        for name in self.signals:
            if known[name] < count:
                _note(f"{name}: {count - known[name]:,} of {count:,} posts have no number there")


@cache
def _note(text: str) -> None:
    print(text, file=sys.stderr)


class ForeignIndex(NamedTuple):
    """An index by Pyserini or Anserini, whose posts are read as they are stored."""

    folder: Path

    @property
    def files(self) -> list[Path]:
        """The list of its parts, another with each change; none in another folder."""
        is_ours = (self.folder / FILE_NAME).exists()
        return [] if is_ours else sorted(self.folder.glob("segments_*"))

    def posts(self) -> Iterator[Post]:
        """The posts, in the order of the index."""
        from indexes.index import stored_posts

        return stored_posts(self.folder)


class PairFolders(NamedTuple):
    """Folders of parallel files with posts, see :func:`indexes.posts.read_pair_folder`."""

    folders: Sequence[Path]

    @property
    def files(self) -> list[Path]:
        """The files that are read."""
        return [
            folder / name for folder in self.folders for name in ("b.toks", "url.txt", "id.txt")
        ]

    def posts(self) -> Iterator[Post]:
        """The posts, each once with its first text that is not empty, by ascending id."""
        posts: dict[str, Post] = {}
        for folder in self.folders:
            for _, post in read_pair_folder(folder):
                if not posts.get(post.doc_id, Post("", "")).text.strip():
                    posts[post.doc_id] = post
        return iter(sorted(posts.values(), key=lambda post: int(post.doc_id)))


PostSource = PostFiles | ForeignIndex | PairFolders


@dataclass(frozen=True)
class Answers:
    """Questions with given candidate answers: topics, posts, labels and candidates in one."""

    folders: Mapping[str, Path]  # Part (``train``, ``dev``, ``test``) -> see :mod:`indexes.posts`
    part: str = "test"

    @property
    def files(self) -> list[Path]:
        """The files of the part; labels may be absent."""
        return [self.folders[self.part] / name for name in FILES]

    @property
    def labels(self) -> Path:
        """The file of labels."""
        return self.folders[self.part] / LABELS

    @cached_property
    def _rows(self) -> list[Answer]:
        if rows := list(read_answer_folder(self.folders[self.part])):
            return rows
        problem = "found no answer, expected at least one line a file"
        raise DataError(f"{self.folders[self.part]}: {problem}")

    def topics(self) -> list[Topic]:
        """The questions, in the order of the files; the text is that of the first line."""
        questions: dict[str, str] = {}
        for row in self._rows:
            questions.setdefault(row.query_id, row.question)
        return [Topic(*question) for question in questions.items()]

    def posts(self) -> Iterator[Post]:
        """The answers, in the order of the files."""
        return (row.post for row in self._rows)

    def candidates(self) -> Run:
        """The answers of each question, all with the score 0."""
        return {q: dict.fromkeys(labels, 0.0) for q, labels in self.qrels().items()}

    def qrels(self) -> Qrels:
        """The labels, of questions without a relevant answer, too.

        Every ranking is worth 0 there, as in trec_eval and in Rao et al. (2016), section 5.
        """
        qrels: Qrels = {}
        for row in self._rows:
            qrels.setdefault(row.query_id, {})[row.post.doc_id] = row.relevance or 0
        return qrels
